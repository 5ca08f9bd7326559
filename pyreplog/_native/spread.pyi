from collections.abc import Iterable

import numpy as np
from _typeshed import ReadableBuffer
from numpy.typing import NDArray

from pyreplog._native.parts import _Column

def hash_keys(keys: Iterable[ReadableBuffer | None]) -> tuple[NDArray[np.uint32], NDArray[np.bool_]]: ...
def hash_column(column: _Column) -> NDArray[np.uint32]: ...
def gather(column: _Column, rows: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.uint8]]: ...
