from collections.abc import Iterable

from _typeshed import ReadableBuffer
from typing_extensions import disjoint_base

from pyreplog._native.log.apply_replicated import MirrorLogBase
from pyreplog._native.log.log_position import AppendedOffsets, LogPosition
from pyreplog.times import Time

@disjoint_base
class PartitionLogBase(MirrorLogBase):
    takes_appends: bool
    def append_messages(
        self,
        values: Iterable[ReadableBuffer],
        keys: Iterable[ReadableBuffer | None] | None = None,
        event_times: Iterable[Time | None] | None = None,
    ) -> AppendedOffsets: ...
    def append_record_batch(self, batch: ReadableBuffer, count: int, event_time_us: int | None) -> AppendedOffsets: ...
    def show_high_watermark(self, high_watermark: LogPosition) -> None: ...
