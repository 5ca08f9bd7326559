from collections.abc import Iterable
from typing import Any, TypeAlias, final

import numpy as np
from _typeshed import ReadableBuffer
from numpy.typing import ArrayLike, NDArray

# (offsets, data), numpy rows of one width, or a pyarrow array, which has no types of its own.
_Column: TypeAlias = tuple[ArrayLike, ReadableBuffer] | NDArray[np.uint8] | NDArray[np.bytes_] | Any

class Parts:
    @property
    def count(self) -> int: ...

@final
class Batch(Parts):
    def __init__(
        self,
        values: Iterable[ReadableBuffer],
        keys: Iterable[ReadableBuffer | None] | None,
        event_times: Iterable[int | None] | None,
    ) -> None: ...

@final
class Columns(Parts):
    def __init__(self, values: _Column, keys: _Column | None, event_times: ArrayLike | None) -> None: ...
