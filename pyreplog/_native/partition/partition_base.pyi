from typing import Any

from typing_extensions import disjoint_base

@disjoint_base
class PartitionBase:
    config: Any
    failure: Any
    _lock: Any
    _leading: Any
    _role: Any
    _log: Any
    _clock: Any
    _purgatory: Any
    _producers: Any
    def append(self, records: Any, checks: Any, acks: int, verification: int | None) -> Any: ...
    def _perform(self, effects: list[Any], deferred: list[Any]) -> Any: ...
    def _advance_marks(self) -> None: ...
