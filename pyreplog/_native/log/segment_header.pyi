from pathlib import Path
from typing import Final, NamedTuple

COUNTED: Final[int]

class SegmentHeader(NamedTuple):
    """The header of a segment file.

    Attributes:
        uuid: of the log, 16 bytes.
        base: position of the segment's first byte.
        size: of the file, bytes.
        first_entry: number of the first entry that began here or later; negative: see FORMAT.md.
        epoch: of this use of the file.
        version: of the format.
    """

    uuid: bytes
    base: int
    size: int
    first_entry: int
    epoch: int
    version: int

def compute_stamp(uuid: bytes, base: int, size: int, epoch: int) -> int: ...
def encode_header(uuid: bytes, base: int, size: int, first_entry: int, epoch: int, version: int = ...) -> bytes: ...
def decode_header(path: str | Path, block: bytes) -> SegmentHeader: ...
