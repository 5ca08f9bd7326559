"""Our side's logs, in the state that a row asks for."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pyreplog
from benchmarks.entries import BATCH, VALUES, in_turn, make_values, stride, verify
from benchmarks.plan import Plan
from benchmarks.sampling import timed
from pyreplog import CommitLog
from pyreplog.log.files import RealFiles

_SPARES = 4
_RETAINED = 2
_SETTLE_S = 60.0


class CountingFiles(RealFiles):
    """The real disk; counts segment files that are made anew."""

    def __init__(self) -> None:
        self.created = 0

    def create(self, path: Path, size: int, *, zeroed: bool) -> int:
        self.created += 1
        return super().create(path, size, zeroed=zeroed)


class RecycledLog:
    """A log under retention, written until all its segments are recycled ones.

    distinct: so many values are written in turn. Callers that append side by side have one: their order is not known.
    """

    def __init__(self, log: CommitLog, files: CountingFiles, size: int, distinct: int = VALUES) -> None:
        self.log, self.values = log, make_values(size)[:distinct]
        self._files, self._size = files, size
        self.written = 0
        self._warm(size)
        self._created = files.created

    def _warm(self, size: int) -> None:
        """Write until no new file was needed for as many segments as the log keeps."""
        lap = in_turn(self.values, self.lap(size))
        made, unchanged = self._files.created, 0
        for _ in range(8 * (_SPARES + _RETAINED)):
            for start in range(0, len(lap), BATCH):
                self.log.append_batch(lap[start : start + BATCH])
            self.written += len(lap)
            settle(self.log)
            unchanged = unchanged + 1 if self._files.created == made else 0
            made = self._files.created
            if unchanged > _SPARES + _RETAINED:
                return

    def lap(self, size: int) -> int:
        """About a segment full of entries, in whole turns of the values."""
        return max(self.log.stats().segment_bytes // stride(size) // VALUES, 1) * VALUES

    def batches(self) -> float:
        """Entries per second of `append_batch`, over about a segment; then the next segments are waited for."""
        batch, count = in_turn(self.values, BATCH), max(self.lap(self._size) // BATCH, 1)
        self.written += count * BATCH
        took = timed(lambda: [self.log.append_batch(batch) for _ in range(count)], count * BATCH)
        settle(self.log)
        return 1 / took

    def verified(self) -> str:
        """Read back what is left, and say whether the segments really were recycled."""
        stop_retention(self.log)
        fresh = self._files.created - self._created
        told = verify(self.log, self.values, self.written)
        return told if not fresh else f"{told}; {fresh} segments were made anew"


@contextmanager
def recycled(plan: Plan, size: int, durability: str = "appended", distinct: int = VALUES) -> Iterator[RecycledLog]:
    """A log that has reached the state it lives in: every roll takes a recycled segment."""
    files = CountingFiles()
    with (
        plan.folder() as folder,
        pyreplog.open(
            folder / "log", files=files, durability=durability, segment_bytes=plan.segment_bytes,
            spare_segments=_SPARES, retention_bytes=_RETAINED * plan.segment_bytes,
        ) as log,
    ):  # fmt: skip
        yield RecycledLog(log, files, size, distinct)


def settle(log: CommitLog) -> None:
    """Wait until the background thread has the next segments ready: that is its time, not an append's."""
    deadline = time.monotonic() + _SETTLE_S
    while log.stats().ready_segments < log.config.spare_segments:
        if time.monotonic() > deadline:
            raise TimeoutError(f"{log}: no segments were prepared for {_SETTLE_S} s")
        time.sleep(0.0005)


def stop_retention(log: CommitLog) -> None:
    """Keep all that is left from now on, so that it can be read back."""
    log.lower_retention_floor(0)  # waits for a removal that is under way


def fill(log: CommitLog, values: list[bytes], count: int) -> None:
    """Append `count` entries in batches."""
    entries = in_turn(values, BATCH * len(values))
    for start in range(0, count, BATCH):
        at = start % len(entries)
        log.append_batch(entries[at : at + min(BATCH, count - start)])
