from typing import Final

from _typeshed import ReadableBuffer

INTACT: Final[int]
CUT: Final[int]
BLANK: Final[int]

def verify_records(data: ReadableBuffer, *, stamp: int, space: int) -> tuple[int, int]: ...
def ledger_index_fault(data: ReadableBuffer) -> tuple[int, int, int] | None: ...
