"""A cold replica with the replica taken out of it: what arrives is checked, and written to files that are new."""

from __future__ import annotations

import os
import socket
import time
from pathlib import Path

from benchmarks.plan import Plan
from benchmarks.proc import job
from benchmarks.result import Comparison, Figure, Section
from benchmarks.rows.ha.stream import FRAME_BYTES, FULL_BYTES, bare_stream, stream_entries
from benchmarks.sampling import interleave
from pyreplog._native.system.checksum import crc32c

_SIZE = 1024
_BYTES = 512 << 20


def landing(plan: Plan) -> Section:
    """Bytes per second, with files and without, beside the C limit of ha-stream."""
    section = Section("bound-landing", "What bounds the stream to a cold replica: the pages of new files")
    size = _BYTES if plan.full or plan.budget >= 5 else 4 * plan.segment_bytes
    section.comparisons += _beside_the_limit(plan, size)
    if plan.full:
        section.comparisons += _beside_the_limit(plan, FULL_BYTES)
    section.notes.append(
        "No log and no replica take part: one loop of recv, CRC and, in the second line, pwrite, in calls that each "
        "move 256 KiB. A replica that keeps what it receives cannot be quicker; the C limit of ha-stream keeps nothing."
    )
    return section


def _beside_the_limit(plan: Plan, size: int) -> list[Comparison]:
    entries = stream_entries(plan, _BYTES)
    with plan.folder() as folder, bare_stream(plan) as bare, job("pour", size) as source:
        ours = Landing(source.answer(), size, folder, plan.segment_bytes)
        found = interleave(
            plan,
            {
                "checked": lambda: ours.turn(keeps=False),
                "kept": lambda: ours.turn(keeps=True),
                "bare": lambda: bare.rate(entries) * _SIZE,
            },
        )
        verified = f"{ours.verified >> 20:,} MiB; {bare.verified()}"
    return [
        Comparison(
            f"{size >> 20:,} MiB, {what}",
            Figure("recv and CRC of 256 KiB", found[name], "B/s", "appended"),
            Figure("C client and bookie", found["bare"], "B/s", "appended"),
            None,
            verified,
        )
        for name, what in (("checked", "into the same memory again"), ("kept", "written to new files"))
    ]


class Landing:
    """Takes what job `pour` sends on a port: `size` bytes, in files of `segment_bytes`."""

    def __init__(self, port: int, size: int, folder: Path, segment_bytes: int) -> None:
        self._port, self._size, self._segment_bytes = port, size, segment_bytes
        self._paths = [folder / f"{number}" for number in range(size // segment_bytes)]
        self._frame = bytearray(FRAME_BYTES)
        self.verified = 0
        """Bytes that were read back, and were what had arrived."""

    def turn(self, *, keeps: bool) -> float:
        """Bytes per second."""
        with socket.create_connection(("127.0.0.1", self._port)) as stream:
            begin = time.perf_counter()
            received = [self._take_file(stream, path) if keeps else self._take(stream, None) for path in self._paths]
            took = time.perf_counter() - begin
        if keeps:
            self._verify(received)
        return self._size / took

    def _take_file(self, stream: socket.socket, path: Path) -> int:
        file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL)
        try:
            os.posix_fallocate(file, 0, self._segment_bytes)
            return self._take(stream, file)
        finally:
            os.close(file)

    def _take(self, stream: socket.socket, file: int | None) -> int:
        """One segment; its CRC."""
        frame, crc = self._frame, 0
        for offset in range(0, self._segment_bytes, FRAME_BYTES):
            if stream.recv_into(frame, FRAME_BYTES, socket.MSG_WAITALL) != FRAME_BYTES:
                raise ValueError("the stream ended early")
            crc = crc32c(frame, crc)
            if file is not None:
                os.pwrite(file, frame, offset)
        return crc

    def _verify(self, received: list[int]) -> None:
        """Read all back; the files go."""
        for path, crc in zip(self._paths, received, strict=True):
            data = path.read_bytes()
            if len(data) != self._segment_bytes or crc32c(data) != crc:
                raise ValueError(f"{path} does not hold what arrived")
            self.verified += len(data)
            path.unlink()
