import numpy as np
import numpy.typing as npt

from pyreplog._native.log.segment import Segment

def lend_entries(
    segment: Segment,
    ledger: int,
    entries: npt.NDArray[np.int64],
    offsets: npt.NDArray[np.int64],
    bytes_max: int,
    *,
    at_least_one: bool,
) -> tuple[memoryview, int]: ...
