"""Batches into fresh segments: everything from an empty directory on, beside bare files, mapped and filled."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pyreplog
from benchmarks.entries import BATCH, SIZES, make_values, stride, verify
from benchmarks.limits.bare import Area, Values
from benchmarks.logs import fill
from benchmarks.plan import Plan
from benchmarks.result import Comparison, Figure, Goal, Section
from benchmarks.sampling import interleave

_SEGMENTS = 8
_LIMIT = 0.8


class Filling:
    """Both ways to fill `_SEGMENTS` new files with values of one size; each returns entries per second."""

    def __init__(self, plan: Plan, size: int) -> None:
        self._plan = plan
        self._values = make_values(size)
        self._bare_values = Values(self._values)
        self._per_segment = (plan.segment_bytes // stride(size) - 64) // BATCH * BATCH
        self._count = _SEGMENTS * self._per_segment
        self.checked = self.bare_checked = ""

    def ours(self) -> float:
        with self._plan.folder() as folder:
            begin = time.perf_counter()
            with pyreplog.open(folder / "log", segment_bytes=self._plan.segment_bytes) as log:
                fill(log, self._values, self._count)
                took = time.perf_counter() - begin
                self.checked = verify(log, self._values, self._count)
                log.trim(log.end)  # what is dropped need not be synced by close
        return self._count / took

    def bare(self) -> float:
        took, read_back = 0.0, 0
        with self._plan.folder() as folder:
            for number in range(_SEGMENTS):
                begin = time.perf_counter()
                area = self._filled(folder / str(number))
                took += time.perf_counter() - begin
                read_back += area.check_copied(self._bare_values)
                area.close()
        if read_back != self._count:
            raise ValueError(f"read back {read_back} of {self._count} copies")
        self.bare_checked = f"{read_back:,}"
        return self._count / took

    def _filled(self, path: Path) -> Area:
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL)
        os.posix_fallocate(fd, 0, self._plan.segment_bytes)
        area = Area(fd, self._plan.segment_bytes)
        os.close(fd)
        area.copy(self._bare_values, self._per_segment)
        return area


def fresh(plan: Plan) -> Section:
    """`append_batch` of 256 values into a log without retention."""
    section = Section("fresh", f"append_batch({BATCH}), appended, fresh segments")
    for size in (100, 1024):
        filling = Filling(plan, size)
        found = interleave(plan.shared(2), {"ours": filling.ours, "bare": filling.bare})
        section.comparisons.append(
            Comparison(
                f"append_batch {SIZES[size]}, fresh",
                Figure("append_batch(list)", found["ours"], "/s", "appended", size),
                Figure("fallocate + mmap + memcpy", found["bare"], "/s", "appended", size),
                Goal("at least", _LIMIT),
                f"{filling.checked}; bare: {filling.bare_checked}",
            )
        )
    section.notes.append(
        f"From an empty directory to {_SEGMENTS} segments: creating, allocating and mapping files counts on both sides."
    )
    return section
