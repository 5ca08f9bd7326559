from typing import Any, final
from weakref import ref

@final
class Arrivals:
    def __new__(cls, connection: ref[Any], /) -> Arrivals: ...
    def __call__(self, events: int, /) -> None: ...
