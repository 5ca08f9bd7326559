from typing import NamedTuple

from _typeshed import ReadableBuffer
from typing_extensions import disjoint_base

from pyreplog._native.log.log_position import LogPosition

class ProgressReport(NamedTuple):
    received: LogPosition
    synced: LogPosition

def encode_report(received: tuple[int, int], synced: tuple[int, int], /) -> bytes: ...

@disjoint_base
class ReplicaReportsBase:
    is_streaming: bool
    _end: LogPosition
    def progressed(self, received: LogPosition, synced: LogPosition, /) -> ProgressReport | None: ...
    def _forget_report(self) -> None: ...

def decode_report(body: ReadableBuffer, /) -> ProgressReport | None: ...
