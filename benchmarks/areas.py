"""The bare side's files: allocated, mapped, populated; and our segments, mapped for a bare scan."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from benchmarks.limits import bare
from benchmarks.plan import Plan
from pyreplog._native.log.segment import HEADER_BYTES
from pyreplog.log import names

_AREA_SEGMENTS = 8
"""As many segments as our side goes through before it comes back to the same memory: neither stays in a cache."""


@contextmanager
def recycled_area(plan: Plan) -> Iterator[bare.Area]:
    """A mapped file that is written over and over."""
    size = _AREA_SEGMENTS * plan.segment_bytes
    with plan.folder() as folder, (folder / "area").open("w+b") as file:
        os.posix_fallocate(file.fileno(), 0, size)
        area = bare.Area(file.fileno(), size)
        area.populate()
        try:
            yield area
        finally:
            area.close()


class MappedLog:
    """The segments of a log from one position to another, mapped for reading by the bare limits."""

    def __init__(self, directory: Path, start: int, end: int, stack: ExitStack) -> None:
        self._parts: list[tuple[bare.Area, int, int]] = []
        for base in names.segment_bases(directory):
            path = names.segment_path(directory, base)
            size = path.stat().st_size
            low, high = max(start - base, HEADER_BYTES), min(end - base, size)
            if low < high:
                with path.open("rb") as file:
                    area = bare.Area(file.fileno(), size, writable=False)
                stack.callback(area.close)
                self._parts.append((area, low, high))

    def scan(self) -> int:
        """Verify every record; how many there are."""
        return sum(area.scan(start, stop) for area, start, stop in self._parts)

    def build(self) -> int:
        """Make the bytes object of every value, and nothing else; how many there are."""
        return sum(area.build(start, stop) for area, start, stop in self._parts)


@contextmanager
def mapped(directory: Path, start: int, end: int) -> Iterator[MappedLog]:
    """The records of a log between two positions."""
    with ExitStack() as stack:
        yield MappedLog(directory, start, end, stack)
