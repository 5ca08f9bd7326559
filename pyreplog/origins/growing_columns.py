"""GrowingColumns: int64 columns that grow at their end and are cut at their beginning. No I/O."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

_ROWS_MIN = 64


class GrowingColumns:
    """Columns of int64 in one array. Appending takes amortized linear time in the new rows. One thread at a time.

    Args:
        columns: their number.
    """

    def __init__(self, columns: int) -> None:
        self._array = np.empty((columns, _ROWS_MIN), np.int64)
        self._begin = self._end = 0

    def __len__(self) -> int:
        """Return the number of rows."""
        return self._end - self._begin

    @property
    def nbytes(self) -> int:
        """Bytes of memory, with the reserve."""
        return self._array.nbytes

    @property
    def view(self) -> NDArray[np.int64]:
        """The columns, int64[columns, rows]; valid until the next change, which may write to it."""
        return self._array[:, self._begin : self._end]

    def extend(self, rows: NDArray[np.int64]) -> None:
        """Append rows, int64[columns, n]."""
        count = rows.shape[1]
        if self._end + count > self._array.shape[1]:
            self._move(len(self) + count)
        self._array[:, self._end : self._end + count] = rows
        self._end += count

    def drop_first(self, count: int) -> None:
        """Remove the first rows; memory is released once less than a quarter of it is used."""
        self._begin += count
        if self._array.shape[1] > _ROWS_MIN and len(self) < self._array.shape[1] // 4:
            self._move(len(self))

    def _move(self, rows: int) -> None:
        """Make room for `rows` rows, and half as many in reserve."""
        array = np.empty((len(self._array), max(rows + rows // 2, _ROWS_MIN)), np.int64)
        array[:, : len(self)] = self.view
        self._array, self._begin, self._end = array, 0, len(self)
