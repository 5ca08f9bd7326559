from typing import NamedTuple

from _typeshed import ReadableBuffer

from pyreplog._native.log.log_position import LogPosition
from pyreplog._native.net.frame import FrameBatch

class ProgressReport(NamedTuple):
    received: LogPosition
    synced: LogPosition

def progress_from(received: LogPosition, synced: LogPosition, /) -> ProgressReport: ...
def encode_report(received: tuple[int, int], synced: tuple[int, int], /) -> bytes: ...
def report_alone(batch: FrameBatch, /) -> ProgressReport | None: ...
def decode_report(body: ReadableBuffer, /) -> ProgressReport | None: ...
