from collections.abc import Sequence
from typing import Any, final

from pyreplog._native.ack import Ack

@final
class Send:
    def __init__(self, bookie: str, request: Any, about: Any = None) -> None: ...
    @property
    def bookie(self) -> str: ...
    @property
    def request(self) -> Any: ...
    @property
    def about(self) -> Any: ...

@final
class Settle:
    def __init__(self, outcomes: Sequence[tuple[Ack[Any], BaseException | None]]) -> None: ...
    @property
    def outcomes(self) -> Sequence[tuple[Ack[Any], BaseException | None]]: ...
