from collections.abc import Iterable

from _typeshed import ReadableBuffer

def gather_batches(frames: Iterable[tuple[int, ReadableBuffer]], first_offset: int, /) -> list[bytes | memoryview]: ...
