from collections.abc import Callable, Iterable
from typing import Final, final

import numpy as np
from _typeshed import ReadableBuffer, WriteableBuffer
from numpy.typing import NDArray

from pyreplog._native.system.blocks import Block

HEADER_BYTES: Final[int]
CORRUPT_MESSAGE: Final[int]
MESSAGE_TOO_LARGE: Final[int]
INVALID_TIMESTAMP: Final[int]
INVALID_RECORD: Final[int]
UNSUPPORTED_COMPRESSION_TYPE: Final[int]
NO_TIMESTAMP: Final[int]

@final
class RecordBatchHeader:
    @property
    def size(self) -> int: ...
    @property
    def base_offset(self) -> int: ...
    @property
    def base_timestamp(self) -> int: ...
    @property
    def max_timestamp(self) -> int: ...
    @property
    def producer_id(self) -> int: ...
    @property
    def leader_epoch(self) -> int: ...
    @property
    def attributes(self) -> int: ...
    @property
    def last_offset_delta(self) -> int: ...
    @property
    def producer_epoch(self) -> int: ...
    @property
    def base_sequence(self) -> int: ...
    @property
    def count(self) -> int: ...
    @property
    def codec(self) -> int: ...
    @property
    def log_append_time(self) -> bool: ...
    @property
    def transactional(self) -> bool: ...
    @property
    def control(self) -> bool: ...

def check_batch(data: ReadableBuffer, /, *, start: int = 0) -> RecordBatchHeader: ...
def peek_header(data: ReadableBuffer, /) -> RecordBatchHeader | None: ...

@final
class ProducedBatch:
    @property
    def header(self) -> RecordBatchHeader: ...
    @property
    def data(self) -> Block: ...
    def stamp(self, base_offset: int, leader_epoch: int, log_append_time: int = -1) -> Block: ...

def take_produced(
    data: ReadableBuffer,
    /,
    *,
    max_bytes: int = 9223372036854775807,
    sent_by_client: bool = True,
    oldest: int = -9223372036854775808,
    newest: int = 9223372036854775807,
    keys_required: bool = False,
    decompress: Callable[[int, memoryview, int], ReadableBuffer] | None = None,
    max_uncompressed: int = 2147483647,
) -> ProducedBatch | tuple[int, str]: ...
def stamp_batch(
    data: WriteableBuffer, base_offset: int, leader_epoch: int, /, *, log_append_time: int = -1
) -> None: ...

@final
class RecordColumns:
    @property
    def body(self) -> bytes: ...
    @property
    def timestamp(self) -> NDArray[np.int64]: ...
    @property
    def key_start(self) -> NDArray[np.int64]: ...
    @property
    def key_size(self) -> NDArray[np.int64]: ...
    @property
    def value_start(self) -> NDArray[np.int64]: ...
    @property
    def value_size(self) -> NDArray[np.int64]: ...
    @property
    def header_count(self) -> NDArray[np.int64]: ...
    @property
    def number(self) -> NDArray[np.int64]: ...
    def __len__(self) -> int: ...
    def keys(self) -> list[bytes | None]: ...
    def values(self) -> list[bytes | None]: ...
    def headers(self, i: int, /) -> list[tuple[bytes, bytes | None]]: ...

def read_records(header: RecordBatchHeader, body: ReadableBuffer, /) -> RecordColumns: ...
def encode_records(
    values: Iterable[bytes | None],
    keys: Iterable[bytes | None] | None,
    timestamps: Iterable[int],
    headers: Iterable[Iterable[tuple[bytes, bytes | None]]] | None,
    /,
) -> bytes: ...
def encode_batch(
    body: ReadableBuffer,
    count: int,
    /,
    *,
    base_timestamp: int,
    max_timestamp: int,
    codec: int = 0,
    base_offset: int = 0,
    leader_epoch: int = -1,
    producer_id: int = -1,
    producer_epoch: int = -1,
    base_sequence: int = -1,
    transactional: bool = False,
    control: bool = False,
) -> bytes: ...
