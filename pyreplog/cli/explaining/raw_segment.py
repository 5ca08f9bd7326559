"""A segment file as bytes, whose content is not trusted."""

from __future__ import annotations

import mmap
import os
import struct
from pathlib import Path

from pyreplog.cli.explaining import layout
from pyreplog.errors import CorruptionError, NotALogError, OutOfRangeError
from pyreplog.log import names
from pyreplog.regular_files import open_reading

_HEAD = struct.Struct("<IIIBB")
_DELTA = struct.Struct("<I")


class RawSegment:
    """A segment file, mapped for reading. `base` is taken from its name, `header` from its header."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.base = int(path.stem)
        with open_reading(path) as file:
            self.size = os.fstat(file.fileno()).st_size
            if self.size < layout.SEGMENT_HEADER:
                raise CorruptionError(path, self.base, f"at least {layout.SEGMENT_HEADER} bytes", f"{self.size}")
            self.data = mmap.mmap(file.fileno(), self.size, access=mmap.ACCESS_READ)
        block = self.data[: layout.SEGMENT_HEADER]
        self.header = {field.name: field.value(block) for field in layout.SEGMENT}

    def number(self, name: str) -> int:
        """A field of the header that is a number."""
        return int(self.header[name])

    @property
    def stamp(self) -> int:
        """The stamp its records must have, if its header is right."""
        return layout.stamp(self.data[16:32], self.base, self.size, self.number("epoch"))

    def find(self, entry: int) -> int:
        """Offset of the record of an entry, walking from length to length. OutOfRangeError where the walk ends."""
        offset = layout.SEGMENT_HEADER
        wanted = entry - self.number("first_entry")
        while offset + layout.SHORT_HEADER <= self.size:
            length, _, _, kind, form = _HEAD.unpack_from(self.data, offset)
            numbered = 0 < kind <= layout.KIND_BATCH and not form & layout.FORM_LONG
            if numbered and self._has(offset, form, wanted):
                return offset
            if length < layout.SHORT_HEADER or kind == layout.KIND_BLANK:
                break
            offset += layout.stride(length)
        raise OutOfRangeError(
            f"{self.path} has no entry {entry}: its records can be followed up to position {self.base + offset}"
        )

    def _has(self, offset: int, form: int, delta: int) -> bool:
        """Whether the record at an offset has the entry `delta` of the segment."""
        last, count = _DELTA.unpack_from(self.data, offset + 24)[0], 1
        if form & layout.FORM_COUNT and offset + layout.COUNTED_HEADER <= self.size:
            count = _DELTA.unpack_from(self.data, offset + layout.SHORT_HEADER)[0]
        return bool(last - count < delta <= last)


def at_position(directory: Path, position: int) -> tuple[RawSegment, int]:
    """Return the segment with a position, and the offset in it. Raises OutOfRangeError if there is none."""
    bases = [base for base in _bases(directory) if base <= position]
    if bases:
        segment = RawSegment(names.segment_path(directory, bases[-1]))
        if position - segment.base < segment.size:
            return segment, position - segment.base
    raise OutOfRangeError(f"{directory} has no segment with position {position}")


def of_entry(directory: Path, entry: int) -> tuple[RawSegment, int]:
    """Return the segment with an entry, and the offset of its record. Raises OutOfRangeError if there is none."""
    segments = [RawSegment(names.segment_path(directory, base)) for base in _bases(directory)]
    before = [segment for segment in segments if 0 <= segment.number("first_entry") <= entry]
    if not before:
        raise OutOfRangeError(f"{directory} has no segment with entry {entry}")
    return before[-1], before[-1].find(entry)


def at_base(directory: Path, base: int) -> RawSegment:
    """Return the segment that begins at a position. Raises OutOfRangeError."""
    if base not in _bases(directory):
        raise OutOfRangeError(f"{directory} has no segment {base}; there are {', '.join(map(str, _bases(directory)))}")
    return RawSegment(names.segment_path(directory, base))


def _bases(directory: Path) -> list[int]:
    if not directory.is_dir():
        raise NotALogError(f"{directory}: expected a directory")
    bases = names.segment_bases(directory)
    if not bases:
        raise NotALogError(f"{directory} holds no segment of a pyreplog log")
    return bases
