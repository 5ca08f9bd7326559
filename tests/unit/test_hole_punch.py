"""Hollow segments: their space comes back, positions stay, readers keep what they hold."""

from __future__ import annotations

import errno
import os
import threading
from pathlib import Path

import pytest

import pyreplog
from pyreplog._native.ledger_log.entries import parse_entries
from pyreplog._native.log.segment import HEADER_BYTES, Segment
from pyreplog.bookie.ledger_log import LedgerLog
from pyreplog.errors import DiskError, DiskFullError, InvalidArgumentError
from pyreplog.log import commit_log, hole_punch, housekeeper, names
from pyreplog.log.backup.copying import backup
from pyreplog.log.backup.restoring import restore
from pyreplog.log.files import RealFiles
from pyreplog.log.fsck.check import check
from tests import running, twin
from tests.ledgers import SEGMENT_BYTES, open_log, read_all, record_of, records_of

SPARED_BYTES = 16 << 10
"""A hollow segment takes header, blank and last block; a file system may add some."""


def on_disk(path: Path, base: int) -> int:
    return names.segment_path(path, base).stat().st_blocks * 512


def fill(log: LedgerLog) -> list[int]:
    """Three ledgers, each in sealed segments of its own; the bases of the second one's."""
    for ledger in (1, 2, 3):
        log.append(records_of(ledger, *range(150), size=1000))
    return [share.base for share in log.shares(2)][1:-1]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "log"


@pytest.mark.parametrize("durability", ["appended", "interval", "synced"])
def test_space_comes_back_and_the_rest_stays(durability: str, path: Path) -> None:
    with open_log(path, durability) as log:
        bases = fill(log)
        start, end = log.start_position, log.end_position
        kept = {base for base, _ in log.segments()}
        for base in bases:
            assert on_disk(path, base) >= SEGMENT_BYTES
            log.punch_hole(base)
            assert on_disk(path, base) <= SPARED_BYTES
            log.punch_hole(base)
        assert (log.start_position, log.end_position) == (start, end)
        assert {base for base, _ in log.segments()} == kept
        assert [shares for base, shares in log.segments() if base in bases] == [[]] * len(bases)
        left = sorted(read_all(log, 2))
        assert 0 < len(left) < 150
        assert [len(read_all(log, ledger)) for ledger in (1, 3)] == [150, 150]
        log.append(record_of(1, 150))
    for _ in range(2):
        with open_log(path, durability) as log:
            assert sorted(read_all(log, 2)) == left
            assert list(read_all(log, 1)) == list(range(151))
            log.sync()
            assert all(on_disk(path, base) <= SPARED_BYTES for base in bases)
    assert check(path).damages == ()
    assert sum(r.ledger == 2 for r in twin.read_log(path)) == len(left)


def test_a_lost_checkpoint_fills_no_hole(path: Path) -> None:
    """All is verified, written again and synced; a hollow segment stays hollow."""
    with open_log(path) as log:
        bases = fill(log)
        for base in bases:
            log.punch_hole(base)
    (path / names.CHECKPOINT).unlink()
    with open_log(path) as log:
        assert len(read_all(log, 3)) == 150
        assert all(on_disk(path, base) <= SPARED_BYTES for base in bases)


def test_readers_keep_what_they_hold(path: Path) -> None:
    with open_log(path) as log, pyreplog.open(path, "r") as reader:
        base = fill(log)[0]
        before = [r.value for batch in reader.read_positions(0) for r in batch]
        held = next(reader.read_positions(base))
        mine = next(log.commit_log.read_positions(base))
        log.punch_hole(base)
        assert mine.values() == held.values()
        assert [r.value for batch in reader.read_positions(0) for r in batch] == before
        with pyreplog.open(path, "r") as later:
            seen = [r.value for batch in later.read_positions(0) for r in batch]
        assert len(seen) < len(before) and set(seen) < set(before)


def test_a_scan_inside_a_punched_segment_goes_on_behind_it(path: Path) -> None:
    with open_log(path) as log:
        base = fill(log)[0]
        scan = log.commit_log.read_positions(base, batch_bytes=5000)
        first = next(scan)
        assert first.next_position < base + SEGMENT_BYTES
        log.punch_hole(base)
        positions = [int(batch.position[0]) for batch in scan]
        assert positions[0] == base + SEGMENT_BYTES + 4096


def test_a_reader_that_maps_a_punched_segment_late_goes_on_behind_it(path: Path) -> None:
    with open_log(path) as log:
        base = fill(log)[0]
        inside = int(next(log.commit_log.read_positions(base)).position[3])
        log.punch_hole(base)
        with pyreplog.open(path, "r") as reader:
            assert int(next(reader.read_positions(inside)).position[0]) == base + SEGMENT_BYTES + 4096


def test_reads_go_on_while_holes_are_punched(path: Path) -> None:
    """What is removed while it is read is here, or not here; never damage."""
    with open_log(path) as log:
        bases = fill(log)
        stop, faults = threading.Event(), []

        def read() -> None:
            while not stop.is_set():
                try:
                    for ledger in (1, 2):
                        records, after = log.read(ledger, 0, 150, 1 << 20)
                        entries = len(parse_entries(records, ledger=ledger, first=0, last=after))
                        if ledger == 1 and entries != 150:
                            faults.append(f"{entries} entries")
                except Exception as error:
                    faults.append(repr(error))

        threads = [threading.Thread(target=read) for _ in range(2)]
        for thread in threads:
            thread.start()
        for base in bases:
            log.punch_hole(base)
        log.trim(log.shares(1)[1].base)
        stop.set()
        for thread in threads:
            thread.join()
        assert [fault for fault in faults if not fault.endswith("entries")] == []


@pytest.mark.parametrize("durability", ["appended", "synced"])
def test_punched_segment_is_trimmed_and_not_recycled(durability: str, path: Path) -> None:
    with open_log(path, durability) as log:
        bases = fill(log)
        for base in bases:
            log.punch_hole(base)
        log.trim(bases[-1] + SEGMENT_BYTES)
        assert log.start_position == bases[-1] + SEGMENT_BYTES
        log.append(records_of(4, *range(300), size=1000))
        for base in [*(base for base, _ in log.segments()), running.active_segment(log.commit_log).base]:
            assert on_disk(path, base) >= SEGMENT_BYTES
        assert list(read_all(log, 4)) == list(range(300))


@pytest.mark.parametrize("base", [-SEGMENT_BYTES, 1, 77 * SEGMENT_BYTES])
def test_punch_hole_of_a_segment_that_is_not_sealed_is_refused(base: int, path: Path) -> None:
    with open_log(path) as log:
        fill(log)
        for other in (base, running.active_segment(log.commit_log).base):
            with pytest.raises(InvalidArgumentError, match="no sealed segment"):
                log.punch_hole(other)


def test_a_segment_not_mapped_and_not_indexed(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with open_log(path) as log:
        base = fill(log)[0]
    for side in (names.index_path(path, base), names.ledgers_path(path, base)):
        side.unlink()
    monkeypatch.setattr(commit_log, "MAPPED_MAX", 0)
    with open_log(path) as log:
        log.commit_log.run_background_tasks()  # unmaps what is sealed
        log.punch_hole(base)
        assert on_disk(path, base) <= SPARED_BYTES
        assert len(read_all(log, 3)) == 150


class Full(RealFiles):
    """A disk without room, from a moment on."""

    error: OSError | None = None

    def create(self, path: Path, size: int, *, zeroed: bool) -> int:
        if self.error is not None and path.name.startswith("fresh-") and size < SEGMENT_BYTES:
            raise self.error
        return super().create(path, size, zeroed=zeroed)


@pytest.mark.parametrize("error", [DiskFullError(28, "full"), OSError(5, "I/O error")])
def test_a_disk_that_refuses_changes_nothing(error: OSError, path: Path) -> None:
    files = Full()
    with open_log(path, files=files) as log:
        base = fill(log)[0]
        expected = read_all(log, 2)
        files.error = error
        with pytest.raises(DiskError, match="cannot be made hollow"):
            log.punch_hole(base)
        files.error = None
        assert read_all(log, 2) == expected and on_disk(path, base) >= SEGMENT_BYTES
        log.punch_hole(base)
        assert len(read_all(log, 2)) < len(expected)


def test_a_hole_punched_log_is_backed_up_and_restored(path: Path) -> None:
    with open_log(path) as log:
        for base in fill(log):
            log.punch_hole(base)
        expected = {ledger: read_all(log, ledger) for ledger in (1, 2, 3)}
        backup(path, path.with_name("backup"))
    restore(path.with_name("backup"), path.with_name("restored"))
    with open_log(path.with_name("restored")) as log:
        assert {ledger: read_all(log, ledger) for ledger in (1, 2, 3)} == expected
    assert check(path.with_name("restored")).damages == ()


class Noting(RealFiles):
    """Notes which files are changed, in order; `fails`: the step that fails."""

    def __init__(self, fails: str = "") -> None:
        self.steps, self.fails = list[str](), fails

    def note(self, step: str) -> None:
        self.steps.append(step)
        if step == self.fails:
            raise OSError(errno.EIO, os.strerror(errno.EIO))

    def create(self, path: Path, size: int, *, zeroed: bool) -> int:
        self.note(f"create {path.suffix}")
        return super().create(path, size, zeroed=zeroed)

    def write(self, fd: int, data: bytes | memoryview, offset: int) -> None:  # type: ignore[override]
        self.note(f"write {min(offset, SEGMENT_BYTES - 1)}")
        RealFiles.write(fd, data, offset)

    def sync(self, fd: int) -> None:
        self.note("sync")
        super().sync(fd)

    def sync_directory(self, path: Path) -> None:
        self.note("sync the directory")
        super().sync_directory(path)

    def rename(self, old: Path, new: Path) -> None:
        self.note(f"rename {old.suffix} {new.suffix}")
        super().rename(old, new)

    def remove(self, path: Path) -> None:
        if path.exists():
            self.steps.append(f"remove {path.suffix}")
        super().remove(path)


STEPS = ["create .seg", "write 0", "write 4096", f"write {SEGMENT_BYTES - 1}", "sync", "remove .idx", "remove .led",
         "sync the directory", "rename .seg .log", "sync the directory"]  # fmt: skip


@pytest.mark.parametrize("fails", ["", *STEPS[:5], "rename .seg .log"])
def test_the_indexes_go_before_the_hollow_file_comes(fails: str, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever fails before that leaves the segment whole, no other file, and no descriptor."""
    monkeypatch.setattr(housekeeper, "THREADS", False)  # nothing is prepared meanwhile
    with open_log(path, "appended") as log:
        (base, *_) = fill(log)
        log.commit_log.sync()
        log.commit_log.run_background_tasks()
        _pin, segment = log.commit_log.hold_segment(base)
        file = names.segment_path(path, base)
        before, names_before = file.read_bytes(), {each.name for each in path.iterdir()}
        descriptors = len([*Path("/proc/self/fd").iterdir()])
        files = Noting(fails)
        if fails:
            with pytest.raises(OSError, match=os.strerror(errno.EIO)) as caught:
                hole_punch.replace(path, files, segment)
            assert file.read_bytes() == before
            assert isinstance(caught.value, DiskError) is (fails in STEPS[:5])
            if isinstance(caught.value, DiskError):
                assert {each.name for each in path.iterdir()} == names_before
        else:
            hole_punch.replace(path, files, segment)
            after = file.read_bytes()
            assert files.steps == STEPS and len(after) == len(before)
            assert (
                after[:HEADER_BYTES] == before[:HEADER_BYTES]
                and after[HEADER_BYTES + 32 :].count(0) == len(after) - HEADER_BYTES - 32
            )
            hollow = Segment(files.open(file, writable=False), str(file), writable=False)
            assert hole_punch.is_hole_punched(hollow) and not hole_punch.is_hole_punched(segment)
            assert hollow.find_blank(HEADER_BYTES) == HEADER_BYTES
            assert hollow.head_at(HEADER_BYTES)[3] == segment.head_at(segment.end)[3], "the time of its last record"
            del hollow
        assert len([*Path("/proc/self/fd").iterdir()]) == descriptors
