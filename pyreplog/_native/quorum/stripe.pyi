from typing import SupportsIndex

import numpy as np
from _typeshed import ReadableBuffer
from numpy.typing import NDArray

def member_count(
    index: int, start: SupportsIndex, stop: SupportsIndex, ensemble_size: int, write_quorum: int, /
) -> int: ...
def members(
    index: int, start: SupportsIndex, stop: SupportsIndex, ensemble_size: int, write_quorum: int, /
) -> NDArray[np.int64]: ...
def gather(
    buffer: ReadableBuffer | NDArray[np.uint8],
    offsets: ReadableBuffer | NDArray[np.int64] | NDArray[np.uint32],
    first_entry: SupportsIndex,
    index: int,
    ensemble_size: int,
    write_quorum: int,
    /,
) -> bytes | memoryview: ...
