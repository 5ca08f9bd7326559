from typing import Any

from numpy.typing import NDArray
from typing_extensions import Buffer

_Bytes = Buffer | NDArray[Any]

def are_numbers_alike(column: _Bytes) -> bool: ...
def are_strings_alike(offsets: _Bytes, data: _Bytes, start: int, count: int) -> bool: ...
def sums_by_unit(times: _Bytes, values: _Bytes, unit: int) -> list[tuple[int, int, int, int]]: ...
