from typing import final

import numpy as np
import numpy.typing as npt
from _typeshed import ReadableBuffer

from pyreplog._native.ledger_log.index import LedgerIndex
from pyreplog._native.log.appender import Appender
from pyreplog._native.log.segment import Segment

def append_entries(log: Appender, data: ReadableBuffer) -> int: ...

@final
class EntryIntake:
    def __init__(self, log: Appender, /) -> None: ...
    def __call__(self, data: ReadableBuffer, /) -> int: ...

def index_entries(segment: Segment, index: LedgerIndex, start: int, stop: int) -> None: ...
def copy_entries(
    segment: Segment,
    ledger: int,
    entries: npt.NDArray[np.int64],
    offsets: npt.NDArray[np.int64],
    bytes_max: int,
    *,
    at_least_one: bool,
) -> tuple[bytes, int]: ...
