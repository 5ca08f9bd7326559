from typing import Any

from typing_extensions import disjoint_base

from pyreplog._native.machines.purgatory_base import PurgatoryBase

@disjoint_base
class ReplicaRoleBase:
    marks: Any
    keys: Any
    log_end: int
    changes: int
    changes_key: Any
    _high_watermark: Any
    _stable: Any
    def advance(self, purgatory: PurgatoryBase, isolation: Any, mark: tuple[int, int]) -> None: ...
    def advance_all(
        self,
        purgatory: PurgatoryBase,
        log_end: tuple[int, int],
        high_watermark: tuple[int, int],
        stable: tuple[int, int],
    ) -> None: ...
    def advance_log_end(self, purgatory: PurgatoryBase, log_end: tuple[int, int]) -> None: ...
    def wake_followers(self, purgatory: PurgatoryBase) -> None: ...
