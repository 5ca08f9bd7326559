from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TypeAlias, final

from _typeshed import ReadableBuffer
from numpy.typing import ArrayLike

from pyreplog._native.log.append_arguments import Parts, _Column

_Values: TypeAlias = Parts | Iterable[ReadableBuffer] | _Column
_Keys: TypeAlias = Iterable[ReadableBuffer | None] | _Column
_Times: TypeAlias = Iterable[int | None] | ArrayLike
_PropertyDicts: TypeAlias = Sequence[Mapping[str, str | bytes] | None]

@final
class Messages:
    @property
    def count(self) -> int: ...
    @property
    def size(self) -> int: ...
    def __new__(
        cls,
        values: _Values,
        keys: _Keys | None = None,
        *,
        properties: _PropertyDicts | None = None,
        event_times: _Times | None = None,
        deliver_at: _Times | None = None,
        producer: bytes = b"",
    ) -> Messages: ...
    def entries(
        self,
        runs: Iterable[tuple[int, int]] | None = None,
        *,
        sequences: ArrayLike | None = None,
        first_sequence: int = -1,
        messages_max: int,
        bytes_max: int,
    ) -> tuple[list[bytes], list[int]]: ...

def encode_messages(
    values: _Values,
    keys: _Keys | None = None,
    *,
    properties: _PropertyDicts | None = None,
    event_times: _Times | None = None,
    deliver_at: _Times | None = None,
    sequences: ArrayLike | None = None,
    producer: bytes = b"",
    first_sequence: int = -1,
) -> bytes: ...
def encode_slices(
    values: _Values,
    keys: _Keys | None = None,
    *,
    properties: _PropertyDicts | None = None,
    event_times: _Times | None = None,
    deliver_at: _Times | None = None,
    sequences: ArrayLike | None = None,
    producer: bytes = b"",
    first_sequence: int = -1,
    messages_max: int,
    bytes_max: int,
) -> tuple[list[bytes], list[int]]: ...
def compress_entry(entry: bytes, codec: int, compress: Callable[[memoryview], ReadableBuffer]) -> bytes: ...
