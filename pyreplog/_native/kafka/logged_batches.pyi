from collections.abc import Callable
from typing import Final, final

import numpy as np
from numpy.typing import NDArray

from pyreplog._native.log.batch import RecordBatch
from pyreplog._native.system.blocks import Block
from pyreplog.errors import InvalidRecordBatchError

NUMBERS: Final[dict[str, int]]

def find_batch(batch: RecordBatch, start: int, /) -> int: ...
def batch_heads(batch: RecordBatch, /) -> NDArray[np.int64]: ...

@final
class LoggedRows:
    @property
    def stop(self) -> int: ...
    @property
    def error(self) -> InvalidRecordBatchError | None: ...
    def __len__(self) -> int: ...
    def range_of(self, low: int, high: int, /) -> tuple[int, int]: ...
    def number_column(self, which: int, start: int, stop: int, /) -> tuple[int, Block | None, Block]: ...
    def bytes_column(self, start: int, stop: int, /, *, keys: bool) -> tuple[int, Block | None, Block, Block]: ...
    def header_columns(
        self, start: int, stop: int, /
    ) -> tuple[int, Block, Block, Block, Block, Block, int, Block | None]: ...

def read_rows(
    batch: RecordBatch,
    start: int,
    decompress: Callable[[int, bytes | memoryview, int], bytes | memoryview],
    /,
    *,
    verified: bool,
    max_bytes: int,
    max_batch_bytes: int,
    skipped: NDArray[np.bool_] | None = None,
) -> LoggedRows: ...
