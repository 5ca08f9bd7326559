"""The scrub of a bookie beside reading the same bytes and computing their CRC: CPU at the highest rate, and speed."""

from __future__ import annotations

import os
import time
from contextlib import closing
from functools import partial
from pathlib import Path

from benchmarks.entries import BATCH, SIZES, make_values
from benchmarks.plan import Plan
from benchmarks.result import Comparison, Figure, Goal, Section
from benchmarks.sampling import interleave
from pyreplog._native.ledger_log.entries import encode_entries
from pyreplog._native.system.checksum import crc32c
from pyreplog.bookie.config import BookieConfig
from pyreplog.bookie.local_bookie import LocalBookie
from pyreplog.bookie.segment_check import PIECE_BYTES
from pyreplog.log import names
from pyreplog.log.disk_reader import DiskReader
from pyreplog.log.files import RealFiles

_SEGMENTS = 8
_SHARE = 0.05


class Scrubbed:
    """A bookie with full segments of entries of one size."""

    def __init__(self, plan: Plan, folder: Path, size: int) -> None:
        self._config = BookieConfig(segment_bytes=plan.segment_bytes, durability="appended")
        self.noted: list[int] = []
        self._bookie = LocalBookie(folder / "b", self._config, note=lambda ledger, entries: self.noted.extend(entries))
        log, first = self._bookie.log.log, 0
        while log.end_position < _SEGMENTS * plan.segment_bytes:
            records = encode_entries(make_values(size)[:BATCH], ledger=1, first=first, lac=first - 1, time=first)
            log.append(records.view)
            first += len(records)
        log.commit_log.sync()
        log.commit_log.run_background_tasks()
        self.bytes = sum(size for _, size in log.commit_log.durable_segments())
        self._paths = [names.segment_path(log.path, base) for base, _ in log.commit_log.durable_segments()]
        self.cpu: dict[str, list[float]] = {"scrub": [], "read": []}

    @property
    def cap(self) -> int:
        """Bytes that are verified in a second at most, by default."""
        return self._config.scrub_bytes_per_s

    def close(self) -> None:
        self._bookie.close()

    def turn(self, side: str) -> float:
        """Bytes per second of one side; keeps its CPU seconds per byte."""
        begin, began = time.perf_counter(), time.thread_time()
        self._bookie.scrubber.run() if side == "scrub" else self._read()
        self.cpu[side].append((time.thread_time() - began) / self.bytes)
        return self.bytes / (time.perf_counter() - begin)

    def _read(self) -> None:
        for path in self._paths:
            with closing(DiskReader(path, RealFiles(), PIECE_BYTES)) as reader:
                for at in range(0, reader.size, PIECE_BYTES):
                    crc32c(reader.read(at, min(PIECE_BYTES, reader.size - at)))

    def share(self, side: str) -> float:
        """Share of a core at the highest rate: the least CPU that a turn took."""
        return min(self.cpu[side]) * self.cap

    def verified(self) -> str:
        """What the scrub found: nothing, and then a byte that is flipped."""
        if self.noted:
            raise ValueError(f"entries {self.noted[:10]} are damaged")
        if self._bookie.scrubber.mended:
            raise ValueError(f"{self._bookie.scrubber.mended} files were written again, and all are intact")
        fd = os.open(self._paths[0], os.O_RDWR)
        try:
            byte = os.pread(fd, 1, 5000)[0]
            os.pwrite(fd, bytes([byte ^ 1]), 5000)
        finally:
            os.close(fd)
        self._bookie.scrubber.run()
        if len(self.noted) != 1:
            raise ValueError(f"a flipped byte was noted as {self.noted[:10]}")
        return f"{self.bytes >> 20} MiB; a flipped byte was found"


def scrub(plan: Plan) -> Section:
    """Share of a core at `scrub_bytes_per_s`, and bytes per second without pauses."""
    section = Section("ledgers-scrub", "Scrub of a bookie's segments beside reading them with a CRC")
    for size in (100, 1024):
        with plan.folder() as folder, closing(Scrubbed(plan.shared(2), folder, size)) as scrubbed:
            found = interleave(plan.shared(2), {side: partial(scrubbed.turn, side) for side in ("scrub", "read")})
            verified = scrubbed.verified()
            section.comparisons += [
                Comparison(
                    f"CPU at {scrubbed.cap >> 20} MiB/s, {SIZES[size]}",
                    Figure("scrub", scrubbed.share("scrub"), "share", "reading"),
                    Figure("read and CRC", scrubbed.share("read"), "share", "reading"),
                    Goal("at most", _SHARE, absolute=True),
                    verified,
                ),
                Comparison(
                    f"without pauses, {SIZES[size]}",
                    Figure("scrub", found["scrub"], "B/s", "reading"),
                    Figure("read and CRC", found["read"], "B/s", "reading"),
                    None,
                    verified,
                ),
            ]
    return section
