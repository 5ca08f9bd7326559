from typing import Any

from typing_extensions import disjoint_base

from pyreplog._native.kafka.record_batch import RecordBatchHeader

@disjoint_base
class ProducerStateManagerBase:
    producers: Any
    transactions: Any
    _replayed: Any
    _segment_bytes: int
    def appended(self, head: RecordBatchHeader | None, marker: Any, before: Any, end: Any, time_us: int) -> None: ...
    def apply(self, head: RecordBatchHeader, marker: Any, first: Any, end: Any, time_us: int) -> None: ...
    def replay(self, *, write: bool = True) -> None: ...
