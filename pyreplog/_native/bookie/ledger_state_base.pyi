from typing import Any, Final

from typing_extensions import disjoint_base

NOTHING: Final[int]

@disjoint_base
class LedgerStateBase:
    ledger: int
    last: int
    lac: int
    explicit_lac: int
    fresh: int
    committing: int
    key: bytes | None
    fenced: bool
    limbo: bool
    copied: bool

@disjoint_base
class Uncommitted:
    waiting: list[Any]
    def touch(self, state: LedgerStateBase, first: int) -> None: ...
    def begin(self) -> list[Any]: ...
    def end(self) -> None: ...
