from collections.abc import Iterable, Sequence
from typing import Protocol, SupportsIndex, TypeAlias, final

import numpy as np
from _typeshed import ReadableBuffer
from numpy.typing import ArrayLike, NDArray
from typing_extensions import disjoint_base

class _ArrowArray(Protocol):
    @property
    def type(self) -> object: ...
    @property
    def offset(self) -> int: ...
    @property
    def null_count(self) -> int: ...
    def buffers(self) -> Sequence[ReadableBuffer | None]: ...
    def __len__(self) -> int: ...

_Column: TypeAlias = tuple[ArrayLike, ReadableBuffer] | NDArray[np.uint8] | NDArray[np.bytes_] | _ArrowArray

def longest_of(items: Iterable[ReadableBuffer]) -> int: ...

@disjoint_base
class Parts:
    @property
    def count(self) -> int: ...
    @property
    def key_bytes(self) -> int: ...
    @property
    def value_bytes(self) -> int: ...

@disjoint_base
class SequenceParts(Parts):
    def __init__(
        self,
        values: Iterable[ReadableBuffer],
        keys: Iterable[ReadableBuffer | None] | None,
        event_times: Iterable[int | None] | None,
    ) -> None: ...

@final
class BatchParts(SequenceParts):
    def __init__(
        self,
        values: Iterable[ReadableBuffer],
        counts: Iterable[SupportsIndex],
        event_times: Iterable[int | None] | None,
        control: bytes | None,
    ) -> None: ...

@final
class ColumnParts(Parts):
    def __init__(self, values: _Column, keys: _Column | None, event_times: ArrayLike | None) -> None: ...
