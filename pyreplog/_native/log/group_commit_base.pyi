from collections.abc import Callable
from typing import Any, final

from typing_extensions import disjoint_base

from pyreplog._native.log.appender import Appender
from pyreplog._native.log.gate import CommitGate
from pyreplog._native.log.position_waiters import PositionWaiters
from pyreplog._native.log.segment import Segment
from pyreplog.errors import PoisonedError, ReplogError

@disjoint_base
class GroupCommitBase:
    error: ReplogError | None
    _submitted: Any
    @property
    def _log(self) -> Appender: ...
    @property
    def _gate(self) -> CommitGate: ...
    def __init__(
        self,
        log: Appender,
        submitted: PositionWaiters,
        synced: int,
        write_sync: Callable[[int, bytes | memoryview, int], object],
        poison: Callable[[str, OSError], PoisonedError],
        /,
    ) -> None: ...
    def wait(self, position: int, /) -> None: ...
    def flush(self) -> None: ...
    def write_blank(self, segment: Segment, blank: bytes, /) -> None: ...
    def request(self) -> None: ...

@final
class StagedSync:
    def __init__(self, commits: GroupCommitBase, sync: Callable[[], object], /) -> None: ...
    def __call__(self, *args: object, **kwargs: object) -> None: ...  # it takes none
