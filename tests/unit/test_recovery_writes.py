"""What recovery writes: all behind the checkpoint, of every segment, since no sync covers what the page cache shows."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

import pyreplog
from pyreplog._native.log.segment import HEADER_BYTES
from pyreplog.log import names
from pyreplog.log.commit_log import CommitLog
from pyreplog.log.files import RealFiles

SEGMENT = 64 << 10


class RecordingFiles(RealFiles):
    """The real ones; notes what is written into segments, and which of them are synced behind that."""

    def __init__(self) -> None:
        self.written: dict[str, set[int]] = {}
        self.unsynced: set[str] = set()

    def write(self, fd: int, data: bytes | memoryview, offset: int, /) -> None:  # type: ignore[override]
        super().write(fd, data, offset)
        name = _name(fd)
        if name.endswith(".log"):
            self.written.setdefault(name, set()).update(range(offset, offset + len(data)))
            self.unsynced.add(name)

    def sync(self, fd: int) -> None:
        super().sync(fd)
        self.unsynced.discard(_name(fd))


def _name(fd: int) -> str:
    return Path(f"/proc/self/fd/{fd}").readlink().name


def test_all_behind_the_checkpoint_is_written_and_synced_again(tmp_path: Path) -> None:
    with pyreplog.open(tmp_path / "log", segment_bytes=SEGMENT) as log:
        log.append_batch([b"proven" * 100] * 30)
        log.sync()
    with pyreplog.open(tmp_path / "log") as log:
        proven = log.end_position
        log.append_batch([b"seen" * 250] * 150)
        end = log.end_position
        assert proven < SEGMENT and end > 2 * SEGMENT
        shutil.copytree(log.path, tmp_path / "killed", ignore=shutil.ignore_patterns("checkpoint", "fresh-*"))
        shutil.copy(tmp_path / "log" / "checkpoint", tmp_path / "killed")
    files = RecordingFiles()
    with CommitLog(tmp_path / "killed", pyreplog.LogConfig(), create=False, clock=None, files=files) as log:
        assert log.end_position == end
        for base in range(0, end, SEGMENT):
            wanted = range(max(proven - base, 64), min(end - base, SEGMENT - 2048))
            assert files.written[f"{base:020d}.log"] >= set(wanted), f"the segment at {base}"
        assert not files.unsynced


@pytest.mark.parametrize("left", [32, 40])
def test_a_torn_blank_is_kept_aside_and_cut(tmp_path: Path, left: int) -> None:
    """Also one that is as small as there can be, behind records that leave no more room."""
    with pyreplog.open(tmp_path / "log", segment_bytes=SEGMENT) as log:
        log.append(bytes(800))
        record = log.end_position - HEADER_BYTES
        while SEGMENT - log.end_position - left > 2 * record:
            log.append(bytes(800))
        log.append(bytes(800 + SEGMENT - log.end_position - left - record))
        assert log.end_position == SEGMENT - left
        end = log.end
        shutil.copytree(log.path, tmp_path / "killed", ignore=shutil.ignore_patterns("fresh-*"))
        log.append(b"in the next segment")
        blank = bytearray(names.segment_path(log.path, 0).read_bytes()[SEGMENT - left :])
    blank[24:32] = bytes(8)  # of its sector, this was not written
    with names.segment_path(tmp_path / "killed", 0).open("r+b") as file:
        file.seek(SEGMENT - left)
        file.write(blank)
    with pyreplog.open(tmp_path / "killed") as log:
        assert (log.end_position, log.end) == (SEGMENT - left, end)
        (kept,) = (log.path / names.ASIDE).glob("*/*.cut")
        assert kept.read_bytes() == blank
        log.append(b"in the next segment")
        assert log[end] == b"in the next segment"
