from collections.abc import Iterable, Mapping
from typing import Self, final

from numpy.typing import ArrayLike

@final
class Int64Column:
    def __new__(cls, column: Iterable[int | None] | ArrayLike, count: int, what: str, none: int | None) -> Self: ...

@final
class Properties:
    def __new__(cls, column: Iterable[Mapping[str, str | bytes] | None], count: int) -> Self: ...
