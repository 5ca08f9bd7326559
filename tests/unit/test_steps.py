"""File operations in one go: what they do to a disk, where they stop, and that nobody waits for them."""

from __future__ import annotations

import errno
import os
import stat
import threading
from pathlib import Path

import pytest

import pyreplog
from pyreplog._native.log.disk import Steps
from pyreplog._native.log.segment import Segment
from pyreplog._native.log.segment_header import encode_header
from pyreplog.log.files import RealFiles, lock_range

SIZE = 1 << 20


def note_all(folder: Path, fd: int) -> Steps:
    """Every operation on files, each building on the one before."""
    steps = Steps()
    steps.write(fd, b"middle", 3)
    steps.write(fd, b"end", 9)
    steps.sync(fd)
    steps.write_new(folder / "new", b"first")
    steps.write_new(folder / "new", b"2nd")
    steps.rename(folder / "new", folder / "renamed")
    steps.write_new(folder / "gone", b"x")
    steps.remove(folder / "gone")
    steps.remove(folder / "never there")
    steps.sync_directory(folder)
    return steps


@pytest.mark.parametrize("way", ["at once", "one by one"])
def test_both_ways_leave_the_same(way: str, tmp_path: Path):
    (tmp_path / "old").write_bytes(b"012")
    files = RealFiles()
    fd = files.open(tmp_path / "old", writable=True)
    steps = note_all(tmp_path, fd)
    if way == "at once":
        files.run(steps)
        assert steps.done == len(steps) == 10
    else:
        for name, arguments in steps:
            getattr(files, name)(*arguments)
    os.close(fd)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == {"old": b"012middleend", "renamed": b"2nd"}
    assert stat.S_IMODE((tmp_path / "renamed").stat().st_mode) == 0o600


def test_failed_step_stops_the_run_and_reports_its_index(tmp_path: Path):
    steps = Steps()
    steps.write_new(tmp_path / "a", b"")
    steps.rename(tmp_path / "none", tmp_path / "b")
    steps.remove(tmp_path / "a")
    with pytest.raises(FileNotFoundError) as caught:
        steps.run()
    assert (caught.value.filename, steps.done) == (tmp_path / "none", 1)
    assert (tmp_path / "a").exists()
    (tmp_path / "none").touch()
    steps.run()  # goes on where it stopped
    assert [path.name for path in tmp_path.iterdir()] == ["b"]


@pytest.mark.parametrize(
    ("name", "code"),
    [("sync", errno.EINVAL), ("write", errno.ENOSPC), ("sync_directory", errno.ENOTDIR), ("remove", errno.EISDIR)],
)
def test_failed_step_raises_os_error_with_its_code(name: str, code: int, tmp_path: Path):
    """The null device takes any write and cannot be synced, the full one takes none."""
    with Path("/dev/full" if name == "write" else os.devnull).open("wb") as device:
        wrong = {
            "sync": (device.fileno(),),
            "write": (device.fileno(), b"x", 0),
            "sync_directory": (Path(os.devnull),),
            "remove": (tmp_path,),
        }
        steps = Steps()
        getattr(steps, name)(*wrong[name])
        with pytest.raises(OSError) as caught:
            steps.run()
    assert (caught.value.errno, steps.done) == (code, 0)


def test_a_lock_is_given_up(tmp_path: Path):
    path = tmp_path / "file"
    path.touch()
    files = RealFiles()
    ours, theirs = files.open(path, writable=True), files.open(path, writable=True)
    assert lock_range(ours, exclusive=True) and not lock_range(theirs, exclusive=False)
    steps = Steps()
    steps.unlock(ours)
    steps.run()
    assert lock_range(theirs, exclusive=True)
    os.close(ours)
    os.close(theirs)


def test_a_populated_segment_has_all_its_pages(tmp_path: Path):
    """Of a sparse file: each page that is faulted in for writing gets its block."""
    path = tmp_path / "sparse"
    path.write_bytes(encode_header(bytes(16), 0, SIZE, 0, 0))
    os.truncate(path, SIZE)
    segment = Segment(os.open(path, os.O_RDWR), str(path), writable=True)
    assert path.stat().st_blocks * 512 < SIZE
    steps = Steps()
    steps.populate(segment)
    del segment  # the steps hold it
    steps.run()
    assert path.stat().st_blocks * 512 >= SIZE


@pytest.mark.skipif(not Path("/sys/kernel/mm/transparent_hugepage").exists(), reason="a kernel without huge pages")
@pytest.mark.parametrize("noted", [True, False])
def test_pages_are_faulted_in_as_huge_ones_where_they_can_be(tmp_path: Path, noted: bool):
    path = tmp_path / "segment"
    path.write_bytes(encode_header(bytes(16), 0, SIZE, 0, 0))
    os.truncate(path, SIZE)
    segment = Segment(os.open(path, os.O_RDWR), str(path), writable=True)
    if noted:
        steps = Steps()
        steps.populate(segment)
        steps.run()
    else:
        segment.populate(0, 4096)  # a part of it: the advice is for all
    mappings = Path("/proc/self/smaps").read_text().split(str(path))[1:]
    flags = [line for mapping in mappings for line in mapping.splitlines() if line.startswith("VmFlags:")][:1]
    assert len(mappings) == 1 and " hg" in flags[0]


def test_other_threads_run_while_steps_wait(tmp_path: Path):
    """Opening a pipe waits for its other end, which this thread opens only afterwards."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    steps, errors = Steps(), []

    def run() -> None:
        try:
            steps.write_new(pipe, b"x")
            steps.run()
        except OSError as error:  # a pipe takes no write at an offset
            errors.append(error.errno)

    thread = threading.Thread(target=run)
    thread.start()
    os.close(os.open(pipe, os.O_RDONLY))
    thread.join()
    assert errors == [errno.ESPIPE]


def test_nothing_is_synced_through_a_mapping():
    """msync of small parts costs three times as much, and writes up to 256 times as many bytes: fdatasync does it."""
    native = sorted(Path(pyreplog.__file__).parent.glob("_native/*/*.so"))
    assert len(native) > 40 and not [path.name for path in native if b"msync" in path.read_bytes()]
    assert any(b"fdatasync" in path.read_bytes() for path in native)
