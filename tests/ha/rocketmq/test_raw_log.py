"""The raw log: positions, files, damage, and recovery after a crash."""

from __future__ import annotations

import os
import shutil
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from pyreplog.errors import (
    CorruptionError,
    DiskFullError,
    FormatVersionError,
    InvalidArgumentError,
    InvalidRecordsError,
    LockedError,
    NotALogError,
    OutOfRangeError,
    PoisonedError,
    RecordTooLargeError,
    TrimmedError,
)
from pyreplog.log.files import RealFiles
from pyreplog.rocketmq import synced_position
from pyreplog.rocketmq.raw_log import RawLog
from pyreplog.rocketmq.records import decode
from pyreplog.rocketmq.synced_position import SyncedPosition

from .records import FILE_BYTES, contents, data_of, fill, message


def opened(path: Path, **settings: object) -> RawLog:
    return RawLog(path, file_bytes=FILE_BYTES, **settings)  # type: ignore[arg-type]


@pytest.fixture
def master(ram_path: Path) -> Path:
    """A closed log of slightly more than two files."""
    with opened(ram_path / "master") as log:
        fill(log, 80)
        assert 2 * FILE_BYTES < log.end < 3 * FILE_BYTES
    return ram_path / "master"


def test_an_empty_raw_log_is_opened_again(tmp_path: Path) -> None:
    with opened(tmp_path) as log:
        assert (log.start, log.end, log.whole, log.synced, log.empty) == (0, 0, 0, 0, True)
        assert (bytes(log.view(0, 10)), list(log.records()), log.sync(), log.trim(100)) == (b"", [], 0, 0)
    with RawLog(tmp_path) as log:
        assert log.file_bytes == FILE_BYTES


def test_messages_of_a_reopened_raw_log_are_read(master: Path) -> None:
    with RawLog(master) as log:
        decoded_records = [decode(record) for _, record in log.records()]
    assert decoded_records == [message(number) for number in range(80)]


def test_every_file_ends_in_a_blank_record(master: Path) -> None:
    files = contents(master)
    assert list(files) == [f"{base:020d}" for base in (0, FILE_BYTES, 2 * FILE_BYTES)]
    for name in list(files)[:-1]:
        at = files[name].rindex(bytes.fromhex("cbd43194")) - 4
        assert int.from_bytes(files[name][at : at + 4], "big") == FILE_BYTES - at


def test_a_record_leaves_room_for_a_blank(tmp_path: Path) -> None:
    """A record that would leave 7 bytes goes to the next file; one that leaves 8 bytes does not."""
    fixed = len(data_of_one(tmp_path / "one"))
    for room, base in ((7, FILE_BYTES), (8, 0)):
        with opened(tmp_path / str(room)) as log:
            log.put(message(0, FILE_BYTES - 500))
            assert log.put(message(1, FILE_BYTES - log.end - fixed - room)) // FILE_BYTES * FILE_BYTES == base


def data_of_one(path: Path) -> bytes:
    with opened(path) as log:
        log.put(message(1, 0))
        return data_of(log)


def test_a_record_larger_than_a_file(tmp_path: Path) -> None:
    with opened(tmp_path) as log:
        with pytest.raises(RecordTooLargeError):
            log.put(message(0, FILE_BYTES))
        assert log.end == 0


@settings(deadline=None, max_examples=20, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(cuts=st.lists(st.integers(0, 3 * FILE_BYTES), max_size=12))
def test_a_copy_cut_anywhere_is_identical(master: Path, cuts: list[int]) -> None:
    copy = master.parent / "copy"
    shutil.rmtree(copy, ignore_errors=True)
    with RawLog(master) as log, opened(copy) as other:
        stops = sorted({*(min(cut, log.end) for cut in cuts), *range(0, log.end, FILE_BYTES), log.end})
        for start, stop in pairwise(stops):
            other.append_replicated(start, log.view(start, stop - start))
            assert other.whole <= other.end == stop
        assert (other.end, other.whole) == (log.end, log.end)
    assert contents(copy) == contents(master)


def test_bytes_land_at_the_end_and_nowhere_else(tmp_path: Path) -> None:
    with opened(tmp_path) as log:
        for position in (-FILE_BYTES, 1, FILE_BYTES - 1):
            with pytest.raises(InvalidArgumentError, match="where the log ends"):
                log.append_replicated(position, b"x")
        with pytest.raises(InvalidArgumentError, match="expected bytes that lie in one file"):
            log.append_replicated(0, bytes(FILE_BYTES + 1))
        end = fill(log, 1)
        for position in (0, end - 1, end + 1, FILE_BYTES):
            with pytest.raises(InvalidArgumentError, match="where the log ends"):
                log.append_replicated(position, b"x")


def test_an_empty_log_begins_at_any_file(tmp_path: Path, master: Path) -> None:
    with RawLog(master) as log, opened(tmp_path / "copy") as other:
        other.append_replicated(2 * FILE_BYTES, log.view(2 * FILE_BYTES, FILE_BYTES))
        assert (other.start, other.end) == (2 * FILE_BYTES, log.end)
        with pytest.raises(TrimmedError):
            other.view(0, 1)
        with pytest.raises(OutOfRangeError):
            other.view(other.end + 1, 1)
    with RawLog(tmp_path / "copy") as other:
        assert other.start == 2 * FILE_BYTES


def test_bytes_that_are_no_records_do_not_count(tmp_path: Path, master: Path) -> None:
    """RocketMQ appends the bytes of another master here, and diverges without an error."""
    with RawLog(master) as log, opened(tmp_path / "copy") as other:
        end = fill(other, 3, size=110)
        with pytest.raises(InvalidRecordsError) as refused:
            other.append_replicated(end, log.view(end, 1000))
        assert refused.value.offset == end
        assert (other.end, other.whole) == (end, end)
        fill(other, 1)
        assert len(list(other.records())) == 4


def test_another_masters_records_at_a_record_boundary(tmp_path: Path, master: Path) -> None:
    """If record boundaries coincide, the change cannot be noticed, as the protocol has no terms (docs/rocketmq.md)."""
    with RawLog(master) as log, opened(tmp_path / "copy") as other:
        end = fill(other, 1)
        other.append_replicated(end, log.view(end, 1000))
        assert other.end == end + 1000


def test_truncated_bytes_of_a_raw_log_are_zeroed(tmp_path: Path, master: Path) -> None:
    with RawLog(master) as log, opened(tmp_path / "copy") as other:
        data = bytearray(log.view(0, 2000))
        data[350] ^= 1
        with pytest.raises(InvalidRecordsError):
            other.append_replicated(0, data)
        cut = other.end
    (file,) = contents(tmp_path / "copy").values()
    assert not any(file[cut:])


def test_a_log_is_trimmed_by_files(master: Path) -> None:
    with RawLog(master) as log:
        view = log.view(0, 100)
        before = bytes(view)
        assert [log.trim(position) for position in (FILE_BYTES - 1, FILE_BYTES, log.end * 2)] == [
            0, FILE_BYTES, 2 * FILE_BYTES,
        ]  # fmt: skip
        assert bytes(view) == before
        end = fill(log, 1, first=80)
    with RawLog(master) as log:
        assert (log.start, log.end) == (2 * FILE_BYTES, end)
        with pytest.raises(TrimmedError):
            list(log.records(0))


def test_records_from_a_position_without_a_record(master: Path) -> None:
    with RawLog(master) as log, pytest.raises(InvalidRecordsError):
        list(log.records(1))


def test_a_raw_log_may_have_more_files_than_are_mapped(tmp_path: Path) -> None:
    """The log has more files than are kept mapped."""
    with opened(tmp_path) as log:
        fill(log, 160, size=1000)
        assert log.end > 20 * FILE_BYTES
        assert len(list(log.records())) == 160
        data_of(log)
        assert log.synced >= log.end - log.end % FILE_BYTES


# ---- crashes -----------------------------------------------------------------------------------------------------


def crashed(log: RawLog, path: Path) -> Path:
    """Return a copy of the files, as kill -9 leaves them."""
    shutil.copytree(log.directory, path)
    return path


@settings(deadline=None, max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(stop=st.integers(0, 18_000))
@example(stop=FILE_BYTES)
def test_after_a_crash_the_torn_record_is_cut(master: Path, stop: int) -> None:
    for name in ("copy", "crashed"):
        shutil.rmtree(master.parent / name, ignore_errors=True)
    with RawLog(master) as log, opened(master.parent / "copy") as other:
        ends = [0, *(position + len(record) for position, record in log.records()), FILE_BYTES, 2 * FILE_BYTES]
        stop = min(stop, log.end)
        while other.end < stop:
            other.append_replicated(other.end, log.view(other.end, min(777, stop - other.end)))
        path = crashed(other, master.parent / "crashed")
        with opened(path) as again:
            # A blank at the end of the last file is fetched again, as nothing shows whether it is complete.
            blanks = {FILE_BYTES, 2 * FILE_BYTES} & {stop}
            assert again.end == max(end for end in ends if end <= stop and end not in blanks)
            assert all(
                not any(file[again.end - int(name) :])
                for name, file in contents(path).items()
                if int(name) <= again.end < int(name) + FILE_BYTES
            )
            while again.end < log.end:
                again.append_replicated(again.end, log.view(again.end, 1000))
    assert contents(path) == contents(master)


def test_a_power_cut_takes_what_was_not_synced(master: Path, tmp_path: Path) -> None:
    with RawLog(master) as log:
        end = fill(log, 10, first=80)
        synced = log.sync()
        fill(log, 5, first=90)
        path = crashed(log, tmp_path / "crashed")
    with (path / "commitlog" / f"{2 * FILE_BYTES:020d}").open("r+b") as file:
        file.seek(synced - 2 * FILE_BYTES + 50)
        file.write(bytes(100))
    with RawLog(path) as log:
        assert log.end == end == synced
        assert len(list(log.records())) == 90


@settings(deadline=None, max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(lost=st.sets(st.integers(0, FILE_BYTES // 512 - 1), min_size=1), size=st.sampled_from([0, 10, 100, 700]))
def test_a_raw_log_with_torn_pages_recovers_a_prefix(ram_path: Path, lost: set[int], size: int) -> None:
    """A power cut loses any of the sectors that were not synced: the log is then a prefix of the former one."""
    for name in ("log", "crashed"):
        shutil.rmtree(ram_path / name, ignore_errors=True)
    with opened(ram_path / "log") as log:
        log.put(message(0, size))
        while log.end + 100 + 2 * size < FILE_BYTES - 200:
            log.put(message(log.end, size))
        before = data_of(log)
        path = crashed(log, ram_path / "crashed")
    with (path / "commitlog" / f"{0:020d}").open("r+b") as file:
        for sector in lost:
            file.seek(sector * 512)
            file.write(bytes(512))
    with opened(path) as again:
        assert data_of(again) == before[: again.end]
        assert again.end == sum(len(record) for _, record in again.records())


def test_opening_walks_from_what_is_proven(master: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with (master / "commitlog" / f"{0:020d}").open("r+b") as file:
        file.write(b"damaged")
    with RawLog(master) as log:
        assert log.end > 2 * FILE_BYTES
        with pytest.raises(InvalidRecordsError):
            list(log.records())


def test_files_that_were_proven_are_missing(master: Path) -> None:
    (master / "commitlog" / f"{2 * FILE_BYTES:020d}").unlink()
    with pytest.raises(CorruptionError, match="reaches this far"):
        RawLog(master)


def test_a_torn_new_file_has_no_name(master: Path) -> None:
    (master / "pyreplog.fresh").write_bytes(b"")
    with RawLog(master) as log:
        fill(log, 60)
        assert log.end > 3 * FILE_BYTES


# ---- foreign files -----------------------------------------------------------------------------------------------


def unproven(path: Path) -> Path:
    """Make a store as a broker leaves it: without the checkpoint of this package, and with a file that is prepared for
    later."""
    (path / "pyreplog.checkpoint").unlink()
    (path / "commitlog" / f"{3 * FILE_BYTES:020d}").write_bytes(bytes(FILE_BYTES))
    return path


def test_a_brokers_files_are_taken_over(master: Path) -> None:
    before = contents(master)
    with RawLog(unproven(master)) as log:
        assert log.file_bytes == FILE_BYTES
        assert len(list(log.records())) == 80
    assert contents(master) == before


def test_damage_in_a_brokers_files_is_not_cut(master: Path) -> None:
    with RawLog(master) as log:
        positions = [position - FILE_BYTES for position, _ in log.records() if position // FILE_BYTES == 1]
    path = unproven(master) / "commitlog" / f"{FILE_BYTES:020d}"
    for record in (positions[3], positions[-1]):  # intact records follow, in this file and in the next one
        at = record + 100
        data = bytearray(path.read_bytes())
        data[at] ^= 1
        path.write_bytes(data)
        with pytest.raises(CorruptionError, match="intact records follow"):
            RawLog(master)
        data[at] ^= 1
        path.write_bytes(data)


@pytest.mark.parametrize("name", ["00000000000000000000.log", "notes.txt", "123", "-0000000000000000001"])
def test_a_folder_with_foreign_file_names_is_no_raw_log(master: Path, name: str) -> None:
    (master / "commitlog" / name).write_bytes(b"")
    with pytest.raises(NotALogError, match=name):
        RawLog(master)


@pytest.mark.parametrize("size", [0, 1, FILE_BYTES - 1, FILE_BYTES + 1])
def test_a_file_of_another_size_is_no_raw_log(master: Path, size: int) -> None:
    os.truncate(master / "commitlog" / f"{FILE_BYTES:020d}", size)
    with pytest.raises(NotALogError, match=f"found {size}"):
        RawLog(master)


def test_a_raw_log_with_a_missing_file_is_refused(master: Path) -> None:
    (master / "commitlog" / f"{FILE_BYTES:020d}").unlink()
    with pytest.raises(NotALogError, match="a file is missing"):
        RawLog(master)


def test_a_file_without_rocketmq_records_is_refused_unchanged(tmp_path: Path) -> None:
    folder = tmp_path / "commitlog"
    folder.mkdir()
    data = b"something else".ljust(FILE_BYTES, b".")
    (folder / f"{0:020d}").write_bytes(data)
    with pytest.raises(NotALogError, match="expected one of RocketMQ's records"):
        RawLog(tmp_path)
    assert (folder / f"{0:020d}").read_bytes() == data


def test_a_raw_log_with_another_size_of_files_is_refused(master: Path) -> None:
    with pytest.raises(
        InvalidArgumentError, match=f"file_bytes: expected {FILE_BYTES}, the size of the existing files"
    ):
        RawLog(master, file_bytes=2 * FILE_BYTES)
    for size in (0, 4095, 1 << 31):
        with pytest.raises(InvalidArgumentError):
            RawLog(master.parent / "fresh", file_bytes=size)


def test_second_writer_raises_locked_error(master: Path) -> None:
    with RawLog(master), pytest.raises(LockedError):
        RawLog(master)


@pytest.mark.parametrize("at", [0, 9, 13, 31])
def test_a_damaged_checkpoint_of_a_raw_log_is_a_corruption_error(master: Path, at: int) -> None:
    path = master / synced_position.NAME
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(data)
    with pytest.raises(CorruptionError, match="checksum"):
        RawLog(master)
    path.write_bytes(data[:-1])
    with pytest.raises(CorruptionError, match="bytes"):
        RawLog(master)


def test_a_later_version_of_the_checkpoint(master: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(synced_position, "VERSION", 2)
    synced_position.store(master, SyncedPosition(FILE_BYTES, 0), RealFiles())
    monkeypatch.undo()
    with pytest.raises(FormatVersionError):
        RawLog(master)


# ---- a failing disk ----------------------------------------------------------------------------------------------


class FailingFiles(RealFiles):
    def __init__(self) -> None:
        self.full = self.broken = False

    def create(self, path: Path, size: int, *, zeroed: bool) -> int:
        if self.full:
            raise DiskFullError(28, "full")
        return super().create(path, size, zeroed=zeroed)

    def sync(self, fd: int) -> None:
        if self.broken:
            raise OSError(5, "broken")
        super().sync(fd)


def test_a_raw_log_goes_on_after_a_full_disk(tmp_path: Path) -> None:
    files = FailingFiles()
    with opened(tmp_path, files=files) as log:
        end = fill(log, 1)
        files.full = True
        with pytest.raises(DiskFullError):
            fill(log, 80, first=1)
        assert log.end == FILE_BYTES > end
        files.full = False
        fill(log, 1)
        assert log.end > FILE_BYTES


def test_a_failed_sync_poisons(tmp_path: Path) -> None:
    files = FailingFiles()
    log = opened(tmp_path, files=files)
    fill(log, 1)
    files.broken = True
    with pytest.raises(PoisonedError):
        log.sync()
    files.broken = False
    assert synced_position.load(tmp_path) == SyncedPosition(FILE_BYTES, 0)
    for call in (log.sync, lambda: log.put(message(2)), lambda: log.append_replicated(log.end, b"x")):
        with pytest.raises(PoisonedError):
            call()
    log.close()
    with RawLog(tmp_path) as log:
        assert len(list(log.records())) == 1
