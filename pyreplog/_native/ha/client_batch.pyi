from collections.abc import Iterable, Mapping

from _typeshed import ReadableBuffer

from pyreplog._native.log.appender import Appender
from pyreplog._native.log.batch import RecordBatch
from pyreplog.times import Time

def encode_records(
    values: Iterable[ReadableBuffer],
    keys: Iterable[ReadableBuffer | None] | None = None,
    event_times: Iterable[Time | None] | None = None,
) -> tuple[bytes, int]: ...
def encode_record(
    value: ReadableBuffer,
    key: ReadableBuffer | None = None,
    event_time: Time | None = None,
    properties: Mapping[str, str | bytes] | None = None,
) -> bytes: ...
def append_received(
    log: Appender, data: ReadableBuffer, count: int, skip: int, control: bytes | None
) -> tuple[int, int]: ...
def parse_records(data: ReadableBuffer, position: int, first: int) -> RecordBatch: ...
