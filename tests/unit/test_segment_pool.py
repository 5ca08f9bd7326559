"""SegmentPool: files for the segments to come, made ahead or used again, and what a disk that fails leaves."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from pyreplog._native.log.disk import Steps
from pyreplog._native.log.segment import Segment
from pyreplog.errors import DiskError, DiskFullError
from pyreplog.log import names
from pyreplog.log.files import RealFiles, lock_range
from pyreplog.log.headers import read_header
from pyreplog.log.segments import PREPARED, SegmentPool
from tests.crash.disk import run_each

UUID = b"u" * 16
SIZE = 64 << 10


class Failing(RealFiles):
    """`fails`: the call that raises OSError, or a DiskFullError with `full`."""

    fails, full = "", False

    def __init__(self) -> None:
        self.calls: list[str] = []

    def _call(self, name: str) -> None:
        self.calls.append(name)
        if name == self.fails:
            raise DiskFullError(errno.ENOSPC, "full") if self.full else OSError(errno.EIO, os.strerror(errno.EIO))

    def run(self, steps: Steps) -> None:
        run_each(self, steps)

    def create(self, path: Path, size: int, *, zeroed: bool) -> int:
        self._call("create")
        return super().create(path, size, zeroed=zeroed)

    def write(self, fd: int, data: bytes | memoryview, offset: int) -> None:  # type: ignore[override]
        self._call("write")
        RealFiles.write(fd, data, offset)

    def sync(self, fd: int) -> None:
        self._call("sync")
        super().sync(fd)

    def rename(self, old: Path, new: Path) -> None:
        self._call("rename")
        super().rename(old, new)

    def sync_directory(self, path: Path) -> None:
        self._call("sync_directory")
        super().sync_directory(path)

    def populate(self, segment: Segment) -> None:
        self._call("populate")
        super().populate(segment)


def pool_of(path: Path, files: RealFiles | None = None, *, spares: int = 2, zeroed: bool = False) -> SegmentPool:
    return SegmentPool(
        path, files or RealFiles(), uuid=UUID, size=SIZE, zeroed=zeroed, populate=not zeroed, spares=spares
    )


def files_in(path: Path) -> list[str]:
    return sorted(file.name for file in path.iterdir())


def segment_names(*bases: int) -> list[str]:
    return [f"{base:020d}.log" for base in bases]


def descriptors(path: Path) -> int:
    return sum(Path(os.path.realpath(link)).is_relative_to(path) for link in Path("/proc/self/fd").iterdir())


def header_at(path: Path, base: int) -> tuple[int, int, int]:
    """Base, first entry number and epoch in a segment's file."""
    header = read_header(names.segment_path(path, base))
    assert (header[0], header[2]) == (UUID, SIZE)
    return header[1], header[3], header[4]


# ---- made ahead ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("zeroed", [False, True])
def test_segments_follow_each_other(zeroed: bool, tmp_path: Path) -> None:
    pool = pool_of(tmp_path, zeroed=zeroed)
    pool.place(3 * SIZE, 5)
    assert (pool.ready, pool.wanting(), files_in(tmp_path)) == (0, True, [])
    pool.prepare(2)
    pool.prepare(1)
    assert (pool.ready, pool.wanting()) == (2, False)
    assert files_in(tmp_path) == segment_names(3 * SIZE, 4 * SIZE)
    assert [header_at(tmp_path, base * SIZE) for base in (3, 4)] == [(base * SIZE, PREPARED, 5) for base in (3, 4)]
    for number, first_entry in ((3, 70), (4, 90), (5, 95)):  # the third one is made when it is asked for
        segment = pool.take(first_entry)
        assert (segment.base, segment.first_entry, segment.epoch, segment.sealed) == (
            number * SIZE,
            first_entry,
            5,
            False,
        )
        assert header_at(tmp_path, number * SIZE) == (number * SIZE, first_entry, 5)
        assert pool.next_base == (number + 1) * SIZE
    assert (pool.ready, pool.wanting()) == (0, True)
    pool.prepare_ahead()
    assert (pool.ready, pool.wanting(), files_in(tmp_path)[-1]) == (1, True, f"{6 * SIZE:020d}.log")


@pytest.mark.parametrize("fails", ["create", "write", "sync", "rename", "sync_directory"])
@pytest.mark.parametrize(
    "prepare", [lambda pool: pool.prepare(1), SegmentPool.prepare_ahead, lambda pool: pool.take(0)]
)
def test_a_disk_that_fails_leaves_no_file_and_no_descriptor(
    fails: str, prepare: Callable[[SegmentPool], object], tmp_path: Path
) -> None:
    files = Failing()
    pool = pool_of(tmp_path, files)
    files.fails = fails
    with pytest.raises(DiskError, match=f"{0:020d}.log cannot be prepared"):
        prepare(pool)
    assert (files_in(tmp_path), pool.ready, descriptors(tmp_path)) == ([], 0, 0)
    files.full = True
    with pytest.raises(DiskFullError, match="full"):
        prepare(pool)
    files.fails = ""
    assert pool.take(0).base == 0 and files_in(tmp_path) == segment_names(0)


def test_a_segment_that_cannot_be_begun_stays_prepared(tmp_path: Path) -> None:
    files = Failing()
    pool = pool_of(tmp_path, files)
    pool.prepare(1)
    files.fails = "write"
    for _ in range(2):
        with pytest.raises(DiskError, match="cannot be begun"):
            pool.take(7)
        assert (pool.ready, pool.next_base, header_at(tmp_path, 0)) == (1, 0, (0, PREPARED, 0))
    files.fails = ""
    assert pool.take(7).first_entry == 7


def test_after_a_truncation_that_failed_nothing_is_prepared(tmp_path: Path) -> None:
    pool = pool_of(tmp_path)
    with pool.quiet(), pool.paused():
        pool.prepare(1)
    with pytest.raises(RuntimeError, match="of a test"), pool.paused():
        raise RuntimeError("of a test")
    pool.prepare(2)
    with pytest.raises(RuntimeError, match="of a test"), pool.quiet():
        raise RuntimeError("of a test")
    pool.prepare(2)
    for prepare in (lambda: pool.prepare(3), pool.prepare_ahead):
        with pytest.raises(DiskError, match="a truncation failed half way"):
            prepare()
    assert [pool.take(entry).base for entry in (0, 1)] == [0, SIZE], "what was ready may be used"


def test_a_segment_has_its_header_on_the_disk_before_it_has_its_name(tmp_path: Path) -> None:
    files = Failing()
    stray = tmp_path / f"fresh-{0:020d}.seg"
    stray.write_bytes(b"of a process that was killed")
    pool_of(tmp_path, files).prepare(1)
    assert files.calls == ["create", "write", "sync", "rename", "sync_directory"]
    assert files_in(tmp_path) == segment_names(0)


def resident(path: Path) -> int:
    """How many bytes of a mapped file this process has in memory."""
    _, _, found = Path("/proc/self/smaps").read_text().partition(f" {path}\n")
    return int(found.partition("Rss:")[2].split()[0]) << 10


def test_pages_are_faulted_in_ahead_where_a_log_is_written_through_the_map(tmp_path: Path) -> None:
    """All but the header's."""
    pool = pool_of(tmp_path)
    pool.prepare_ahead()
    assert resident(names.segment_path(tmp_path, 0)) >= SIZE - 4096
    assert pool.ready == 1


@pytest.mark.parametrize("zeroed", [False, True])
def test_pages_of_files_that_are_used_again_are_faulted_in_unless_an_append_waits(zeroed: bool, tmp_path: Path) -> None:
    files = Failing()
    pool = pool_of(tmp_path, files, zeroed=zeroed)
    pool.retire(taken(pool, 4))
    files.calls.clear()
    pool.prepare(1)
    assert "populate" not in files.calls
    pool.prepare_ahead()
    assert pool.ready == 2 and files.calls.count("populate") == (0 if zeroed else 1)
    assert ("sync" in files.calls) is zeroed


# ---- used again ------------------------------------------------------------------------------------------------


def taken(pool: SegmentPool, count: int) -> list[tuple[int, Segment | None]]:
    """So many segments of a log, each of which has an index file, as retention removes them."""
    removed: list[tuple[int, Segment | None]] = []
    for number in range(count):
        segment = pool.take(10 * number)
        names.index_path(Path(segment.path).parent, segment.base).write_bytes(b"index")
        removed.append((segment.base, segment))
    return removed


@pytest.mark.parametrize("ready", [0, 1, 2])
def test_files_kept_for_later_segments_are_bounded(ready: int, tmp_path: Path) -> None:
    """Twice the spare ones, with those that are ready."""
    pool = pool_of(tmp_path)
    removed = taken(pool, 6)
    pool.prepare(ready)
    pool.retire(removed)
    assert removed == []
    expected = segment_names(*(number * SIZE for number in range(6, 6 + ready)))
    assert files_in(tmp_path) == [*expected, *(f"spare-{number}.seg" for number in range(1, 5 - ready))]
    assert pool.ready == ready
    pool.close()
    assert files_in(tmp_path) == [] and pool.ready == 0


@pytest.mark.parametrize("refill", [False, True])
def test_files_that_are_used_again_are_empty_segments_of_the_log_that_is_to_come(refill: bool, tmp_path: Path) -> None:
    pool = pool_of(tmp_path)
    removed = taken(pool, 3)
    inodes = {Path(segment.path).stat().st_ino for _, segment in removed if segment is not None}
    pool.place(pool.next_base, 9)
    pool.retire(removed, refill=refill)
    if not refill:
        assert pool.ready == 0
        pool.prepare_ahead()
    assert pool.ready == 2
    assert files_in(tmp_path) == [*segment_names(3 * SIZE, 4 * SIZE), "spare-1.seg"]
    assert {path.stat().st_ino for path in tmp_path.iterdir()} == inodes
    assert [header_at(tmp_path, number * SIZE) for number in (3, 4)] == [
        (number * SIZE, PREPARED, 9) for number in (3, 4)
    ]
    segment = pool.take(33)
    assert (segment.base, segment.first_entry, segment.end, segment.index) == (3 * SIZE, 33, 4096, None)
    pool.prepare(3)
    assert pool.ready == 3 and files_in(tmp_path) == segment_names(*(number * SIZE for number in range(3, 7)))


def test_retire_removes_files_that_readers_hold(tmp_path: Path) -> None:
    pool = pool_of(tmp_path)
    removed = taken(pool, 3)
    (_, pinned), (_, locked), _ = removed
    assert pinned is not None and locked is not None
    view = pinned.view(0, 10)
    fd = os.open(locked.path, os.O_RDONLY)
    assert lock_range(fd, exclusive=False)
    del pinned, locked
    pool.retire([*removed, (99 * SIZE, None)])
    os.close(fd)
    assert files_in(tmp_path) == ["spare-1.seg"], "the third one is kept"
    assert bytes(view)


def test_segment_prepared_for_another_position_is_reused(tmp_path: Path) -> None:
    (tmp_path / "spare-7.seg").touch()
    pool = pool_of(tmp_path)
    pool.prepare(2)
    pool.place(10 * SIZE, 1)
    assert files_in(tmp_path) == ["spare-7.seg", "spare-8.seg", "spare-9.seg"] and pool.ready == 0
    pool.prepare(1)
    assert files_in(tmp_path) == [f"{10 * SIZE:020d}.log", "spare-7.seg", "spare-8.seg"]
    assert header_at(tmp_path, 10 * SIZE) == (10 * SIZE, PREPARED, 1)


@pytest.mark.parametrize("refill", [False, True])
def test_retire_raises_os_error_when_a_rename_fails(refill: bool, tmp_path: Path) -> None:
    files = Failing()
    pool = pool_of(tmp_path, files)
    removed = taken(pool, 2)
    files.fails = "rename"
    with pytest.raises(OSError, match=os.strerror(errno.EIO)) as caught:
        pool.retire(removed, refill=refill)
    assert not isinstance(caught.value, DiskError), "the segments may be there or not"


def test_a_disk_that_fails_to_prepare_costs_the_files_alone(tmp_path: Path) -> None:
    files = Failing()
    pool = pool_of(tmp_path, files)
    removed = taken(pool, 3)
    files.fails = "write"
    with pytest.raises(DiskError, match="cannot be prepared"):
        pool.retire(removed, refill=True)
    assert (pool.ready, files_in(tmp_path)) == (0, ["spare-1.seg"])
    files.fails = ""
    pool.prepare(2)
    assert files_in(tmp_path) == segment_names(3 * SIZE, 4 * SIZE)
