from collections import OrderedDict
from collections.abc import Callable
from typing import Any, Final, final

from typing_extensions import disjoint_base

from pyreplog._native.frame import FrameBatch
from pyreplog._native.ledgerstate import State, Uncommitted

LATER: Final[int]

@final
class PlainAdd:
    def __init__(self, *args: object, **kwargs: object) -> None: ...  # raises: made by plain_add
    def ok(self, lac: int, /) -> bytes: ...
    @property
    def records(self) -> memoryview: ...
    @property
    def nbytes(self) -> int: ...
    @property
    def number(self) -> int: ...
    @property
    def ledger(self) -> int: ...
    @property
    def first(self) -> int: ...
    @property
    def last(self) -> int: ...
    @property
    def count(self) -> int: ...
    @property
    def highest(self) -> int: ...
    @property
    def lac(self) -> int: ...
    @property
    def confirmed(self) -> int: ...
    @property
    def respond(self) -> Any: ...
    @property
    def key(self) -> bytes: ...
    @property
    def flags(self) -> int: ...

@disjoint_base
class AddCounts:
    added_entries: int
    added_bytes: int
    requests: dict[int, int]
    replies: dict[int, int]
    def add(self, entries: int, size: int) -> None: ...

@disjoint_base
class Room:
    read_only: bool
    added: int
    look_after: int
    def add(self, size: int) -> None: ...
    def look(self) -> None: ...

@disjoint_base
class PlainAdds:
    counts: Any
    _log: Any
    _space: Any
    _polls: Any
    _group: Any
    _failure: str | None
    def __init__(
        self,
        log: Any,
        space: Room,
        polls: Any,
        counts: AddCounts,
        group: Uncommitted,
        states: OrderedDict[int, Any],
        deleted: dict[int, None],
    ) -> None: ...
    def add_plainly(self, add: PlainAdd, respond: Callable[[Any], object] | None = None, /) -> int | None: ...
    def _took(self, state: State, count: int, nbytes: int, highest: int, lac: int) -> None: ...
    def _raise_lac(self, state: State, lac: int) -> None: ...
    def _tell(self, polls: Any) -> None: ...

def plain_request(request: tuple[Any, ...], /) -> PlainAdd | None: ...
def plain_add(batch: FrameBatch, taken: dict[int, int], /) -> PlainAdd | None: ...
