"""Logs of masters, mirror logs, and the stream between them, as tests need them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import pyreplog
from pyreplog._native.net.frame import FrameParser
from pyreplog.config import LogConfig
from pyreplog.errors import ClosedError
from pyreplog.log import names
from pyreplog.log.commit_log import CommitLog
from pyreplog.log.reader import LogReader
from pyreplog.stream.frame_feed import FrameFeed
from pyreplog.stream.mirror_log import STREAM_HEADER_BYTES, MirrorLog

SEGMENT_BYTES = 64 << 10
PER_SEGMENT = 42  # how many values of `values` one segment holds


def values(count: int, first: int = 0) -> list[bytes]:
    return [b"%d," % (first + i) + b"." * 1400 for i in range(count)]


def config(**settings: Any) -> LogConfig:
    return LogConfig(**{"segment_bytes": SEGMENT_BYTES, **settings})


def open_master(path: Path, **settings: Any) -> CommitLog:
    settings.setdefault("segment_bytes", SEGMENT_BYTES)
    return pyreplog.open(path, **settings)


def make_mirror(path: Path, master: CommitLog, **settings: Any) -> MirrorLog:
    """Create an empty copy, which begins at the first segment of the master."""
    start = master.start_position, master.start
    return MirrorLog.create(path, config(**settings), uuid=master.uuid, segment_bytes=SEGMENT_BYTES, start=start)


def kill(log: CommitLog) -> None:
    """Release what a killed process releases, without closing the log."""
    log._error = ClosedError("killed")
    log._housekeeper.stop()
    log._checkpoint.close()
    log._writer_lock.release()


def stream(source: CommitLog, position: int, limit: int = 1 << 30, transfer_bytes: int = 5000) -> bytes:
    """Return the bytes that a master sends from `position` on."""
    frames, _ = FrameFeed(source, position, transfer_bytes).take(limit)
    return b"".join(frames)


def frames_of(data: bytes) -> Iterator[tuple[int, memoryview]]:
    batch = FrameParser(max_body=1 << 26).feed(data)
    assert batch.error is None
    yield from batch


def take_in(mirror: MirrorLog, data: bytes) -> None:
    """Append frames to a mirror, as a receiver does."""
    for offset, body in frames_of(data):
        if offset % mirror.segment_bytes == 0:
            assert len(body) == STREAM_HEADER_BYTES
            mirror.begin(body)
        else:
            mirror.append_replicated(offset, [body])


def copy(source: CommitLog, mirror: MirrorLog) -> None:
    """Append all records that the source has and the mirror lacks."""
    take_in(mirror, stream(source, mirror.resume()[0]))


def assert_same_files(source: CommitLog, mirror: CommitLog, *, sealed_only: bool = False) -> int:
    """Compare segment files byte by byte: sealed ones as a whole, the last one up to its end. Return how many were
    compared."""
    bases = [base for base in names.segment_bases(source.path) if source.start_position <= base < source.tail.end]
    if sealed_only:
        bases.pop()
    for base in bases:
        ours, theirs = (names.segment_path(log.path, base).read_bytes() for log in (source, mirror))
        stop = SEGMENT_BYTES if base + SEGMENT_BYTES <= source.tail.end else source.tail.end - base
        assert ours[:stop] == theirs[:stop], f"segment {base}: {_difference(ours[:stop], theirs[:stop])}"
    return len(bases)


def _difference(ours: bytes, theirs: bytes) -> str:
    at = next(i for i in range(len(ours)) if ours[i] != theirs[i])
    return f"byte {at}: {ours[at : at + 16].hex()}, {theirs[at : at + 16].hex()}"


def held(log: CommitLog | LogReader) -> list[bytes]:
    return [record.value for batch in log.read() for record in batch]


def uncommitted(log: CommitLog) -> list[bytes]:
    batches = log.read_positions(log.start_position, committed=False)
    return [record.value for batch in batches for record in batch]


def cuts(data: bytes, rng: Random, sizes: tuple[int, ...]) -> Iterator[bytes]:
    """Yield `data` in pieces of random sizes."""
    at = 0
    while at < len(data):
        size = rng.choice(sizes)
        yield data[at : at + size]
        at += size
