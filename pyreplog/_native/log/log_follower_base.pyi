from typing import Self

from typing_extensions import disjoint_base

from pyreplog._native.log.batch import RecordBatch
from pyreplog._native.log.log_view_base import LogViewBase
from pyreplog._native.log.record import Record
from pyreplog._native.log.segment import Pin

SLICE_US: int

@disjoint_base
class LogFollowerBase:
    entry: int
    position: int
    held: Pin | None
    truncations: int
    def __new__(cls, log: LogViewBase, entry: int, timeout_us: int, batch_bytes: int) -> Self: ...
    @property
    def last_header(self) -> bytes | None: ...
    def __iter__(self) -> Self: ...
    def __next__(self) -> Record: ...
    def next_batch(self) -> RecordBatch | None: ...
    def give(self, batch: RecordBatch) -> RecordBatch | None: ...
    def _load_batch(self, batch_bytes: int) -> RecordBatch | None: ...
