from typing import Any

from typing_extensions import disjoint_base

@disjoint_base
class PartitionBase:
    config: Any
    failure: Any
    _lock: Any
    _purgatory: Any
    _response: Any
    _leading: Any
    _role: Any
    _producers: Any
    _log: Any
    def append(self, records: Any, checks: Any, acks: int, verification: int | None, /) -> Any: ...
    def _append_any(self, records: Any, checks: Any, acks: int, verification: int | None) -> Any: ...
