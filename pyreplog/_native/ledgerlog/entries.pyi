from collections.abc import Iterable
from typing import Final, final

from _typeshed import ReadableBuffer

from pyreplog._native.log.batch import RecordBatch

CONTROL: Final[int]

@final
class Entries:
    def __init__(self, *args: object, **kwargs: object) -> None: ...  # raises: made by encode_entries
    @property
    def ledger(self) -> int: ...
    @property
    def first(self) -> int: ...
    @property
    def last(self) -> int: ...
    @property
    def count(self) -> int: ...
    @property
    def ledger_bytes(self) -> int: ...
    @property
    def ledger_messages(self) -> int: ...
    @property
    def nbytes(self) -> int: ...
    @property
    def view(self) -> memoryview: ...
    @property
    def offsets(self) -> memoryview: ...
    def totals(self, entry: int) -> tuple[int, int]: ...
    def __len__(self) -> int: ...

def encode_entries(
    values: Iterable[ReadableBuffer],
    keys: Iterable[ReadableBuffer | None] | None = None,
    event_times: Iterable[int | None] | None = None,
    *,
    ledger: int,
    first: int,
    lac: int,
    time: int,
    ledger_bytes: int = 0,
    ledger_messages: int = 0,
    size_max: int = ...,
    messages: Iterable[int] | None = None,
) -> Entries: ...
def encode_control(ledger: int, code: int, value: ReadableBuffer, *, lac: int, time: int) -> bytes: ...
def parse_entries(data: ReadableBuffer, *, ledger: int, first: int, last: int) -> RecordBatch: ...
def merge_entries(parts: list[ReadableBuffer], *, last: int) -> RecordBatch: ...
