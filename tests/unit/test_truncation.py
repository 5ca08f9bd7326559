"""Truncation: its marker, its steps and their order, and the threads that work on the same directory."""

from __future__ import annotations

import errno
import os
import threading
from pathlib import Path

import pytest

import pyreplog
from pyreplog.errors import CorruptionError
from pyreplog.log import checkpoint, names, truncation
from pyreplog.log.checkpoint import CheckpointFile
from pyreplog.log.files import RealFiles
from pyreplog.log.truncation import Truncation

SEGMENT_BYTES = 64 << 10


def test_no_segment_is_prepared_while_files_are_removed(tmp_path: Path, monkeypatch):
    """A file prepared meanwhile would be removed as one behind the cut, and entries would go into it later."""
    path, announce, preparing = tmp_path / "log", truncation.announce, list[threading.Thread]()
    with pyreplog.open(path, segment_bytes=1 << 16) as log:
        log.append_batch([b"x" * 1000] * 100)

        def announce_beside_the_housekeeper(*args) -> None:
            announce(*args)
            preparing.append(threading.Thread(target=log.run_background_tasks))
            preparing[-1].start()
            preparing[-1].join(0.2)  # comes to an end only if it may go on beside the truncation

        monkeypatch.setattr(truncation, "announce", announce_beside_the_housekeeper)
        log.truncate(50)
        preparing[0].join()
        log.append_batch([b"y" * 1000] * 200)
    with pyreplog.open(path) as log:
        assert log.end == 250 and log[249] == b"y" * 1000


# ---- the marker ------------------------------------------------------------------------------------------------


def test_the_truncation_marker_is_decoded_and_each_byte_of_it_counts(tmp_path: Path) -> None:
    assert truncation.pending(tmp_path) is None
    wanted = Truncation(123456, 78, 9)
    truncation.announce(tmp_path, RealFiles(), wanted)
    assert truncation.pending(tmp_path) == wanted
    path = tmp_path / names.TRUNCATION
    whole = path.read_bytes()
    for at in range(len(whole) - 1):  # the last one ends the line
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 0x10]) + whole[at + 1 :])
        with pytest.raises(CorruptionError, match="an intact truncation marker"):
            truncation.pending(tmp_path)
    for length in range(len(whole) - 1):
        path.write_bytes(whole[:length])
        with pytest.raises(CorruptionError, match="an intact truncation marker"):
            truncation.pending(tmp_path)
    truncation.finish(tmp_path, RealFiles())
    assert truncation.pending(tmp_path) is None


# ---- the steps -------------------------------------------------------------------------------------------------


class Noting(RealFiles):
    """Notes which files are changed, in order."""

    def __init__(self) -> None:
        self.steps: list[str] = []

    def create(self, path: Path, size: int, *, zeroed: bool) -> int:
        self.steps.append(f"create {path.name}, {size}, {'zeroed' if zeroed else 'not zeroed'}")
        return super().create(path, size, zeroed=zeroed)

    def sync(self, fd: int) -> None:
        self.steps.append(f"sync {Path(f'/proc/self/fd/{fd}').readlink().name}")
        super().sync(fd)

    def sync_directory(self, path: Path) -> None:
        self.steps.append("sync the directory")
        super().sync_directory(path)

    def rename(self, old: Path, new: Path) -> None:
        self.steps.append(f"rename {old.name} {new.name}")
        super().rename(old, new)

    def remove(self, path: Path) -> None:
        if path.exists():
            self.steps.append(f"remove {path.name}")
        super().remove(path)


def closed_log(path: Path) -> tuple[list[bytes], list[int]]:
    """A log of several segments, closed: its values, and the positions of their records."""
    values = [b"%d," % number + bytes(1000) for number in range(200)]
    with pyreplog.open(path, segment_bytes=SEGMENT_BYTES, spare_segments=1) as log:
        log.append_batch(values)
        log.run_background_tasks()
        return values, [log.position_of(entry) for entry in range(len(values))]


def apply(path: Path, files: RealFiles, wanted: Truncation) -> None:
    last = checkpoint.load(path)
    assert last is not None
    file = CheckpointFile(path, RealFiles(), last)
    try:
        truncation.apply(path, files, wanted, file)
    finally:
        file.close()


@pytest.mark.parametrize("is_between", [False, True])
def test_the_files_behind_the_cut_go_from_the_end_and_the_marker_goes_last(tmp_path: Path, is_between: bool) -> None:
    path = tmp_path / "log"
    values, positions = closed_log(path)
    bases = names.segment_bases(path)
    assert len(bases) >= 3
    entry = next(entry for entry, position in enumerate(positions) if position > bases[1]) + (0 if is_between else 7)
    position = bases[1] if is_between else positions[entry]
    wanted = Truncation(position, entry, 77)
    truncation.announce(path, RealFiles(), wanted)
    files, indexed = Noting(), {base for base in bases if names.index_path(path, base).exists()}
    apply(path, files, wanted)
    cut = f"{bases[1]:020d}"
    expected = []
    for base in reversed(bases[1 if is_between else 2 :]):
        expected += [f"remove {base:020d}.idx"] if base in indexed else []
        expected += [f"remove {base:020d}.log"]
    expected += ["sync the directory"]
    if not is_between:
        fresh = f"fresh-{cut}.seg"
        expected += [f"create {fresh}, {SEGMENT_BYTES}, zeroed", f"sync {fresh}"]
        expected += [f"remove {cut}.idx"] if bases[1] in indexed else []
        expected += [f"rename {fresh} {cut}.log", "sync the directory"]
    expected += ["remove truncation", "sync the directory"]
    assert files.steps == expected
    last = checkpoint.load(path)
    assert last is not None
    assert (last.position, last.entry, last.epoch, last.clean) == (position, entry, 77, False)
    apply(path, RealFiles(), wanted)  # as after a crash
    assert names.segment_bases(path) == bases[: 1 if is_between else 2]
    with pyreplog.open(path) as log:
        assert log[:] == values[:entry]
        assert log.append(b"next") == entry


def test_replaced_segment_is_zero_after_the_truncation_point(tmp_path: Path) -> None:
    """Also where the part that stays is longer than what is copied at a time."""
    path = tmp_path / "log"
    values = [bytes([number]) * 100_000 for number in range(60)]
    with pyreplog.open(path, segment_bytes=8 << 20) as log:
        log.append_batch(values)
        log.sync()
        keep = log.position_of(50)
    before = names.segment_path(path, 0).read_bytes()
    assert keep > 3 << 20
    truncation.replace_segment(path, RealFiles(), 0, 8 << 20, keep)
    assert names.segment_path(path, 0).read_bytes() == before[:keep] + bytes((8 << 20) - keep)


def test_a_copy_that_fails_leaves_the_segment_and_no_descriptor(tmp_path: Path) -> None:
    class Failing(RealFiles):
        def sync(self, fd: int) -> None:
            raise OSError(errno.EIO, os.strerror(errno.EIO))

    def descriptors() -> int:
        return sum(Path(os.path.realpath(link)).is_relative_to(tmp_path) for link in Path("/proc/self/fd").iterdir())

    path = tmp_path / "log"
    closed_log(path)
    base = names.segment_bases(path)[1]
    before = names.segment_path(path, base).read_bytes()
    for files in (Failing(), RealFiles()):
        if isinstance(files, Failing):
            with pytest.raises(OSError, match=os.strerror(errno.EIO)):
                truncation.replace_segment(path, files, base, SEGMENT_BYTES, 5000)
            assert names.segment_path(path, base).read_bytes() == before
        else:
            truncation.replace_segment(path, files, base, SEGMENT_BYTES, 5000)
            assert names.segment_path(path, base).read_bytes() == before[:5000] + bytes(SEGMENT_BYTES - 5000)
        assert descriptors() == 0
