"""Syncs that fail and disks that are full."""

from __future__ import annotations

import ctypes
import errno
import os
import struct
import threading
from pathlib import Path

import pytest

import pyreplog
from pyreplog.errors import DiskFullError, PoisonedError, ReplogError
from pyreplog.log import checkpoint, commit_log, housekeeper
from pyreplog.log import files as log_files
from pyreplog.log.commit_log import CommitLog
from pyreplog.log.files import RealFiles

from .faults import FaultyFiles
from .process import in_process

SEGMENT_BYTES = 64 << 10
KILOBYTE = bytes(1000)


@pytest.fixture
def files() -> FaultyFiles:
    return FaultyFiles()


def open_log(path: Path, files: FaultyFiles, durability: str) -> CommitLog:
    """One that syncs only when it is told to: what it has synced by itself need not be synced again."""
    return pyreplog.open(
        path, files=files, durability=durability, segment_bytes=SEGMENT_BYTES, spare_segments=1,
        sync_interval_ms=3_600_000,
    )  # fmt: skip


# ---- a sync fails ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("call", ["sync", "write_sync"])
def test_a_sync_reaches_the_kernel(call: str) -> None:
    """The null device takes any write and cannot be synced."""
    arguments = (b"x", 0) if call == "write_sync" else ()
    with Path(os.devnull).open("wb") as null, pytest.raises(OSError) as caught:
        getattr(RealFiles(), call)(null.fileno(), *arguments)
    assert caught.value.errno == errno.EINVAL


def test_no_synced_append_returns_before_its_sync(tmp_path: Path) -> None:
    synced = [0]  # positions after what was synced

    class Watched(RealFiles):
        def write_sync(self, fd: int, data: bytes | memoryview, offset: int) -> None:
            super().write_sync(fd, data, offset)
            synced.append(max(offset + len(data), synced[-1]))

    with pyreplog.open(tmp_path / "log", files=Watched(), durability="synced", segment_bytes=1 << 20) as log:
        early: list[int] = []

        def append() -> None:
            for _ in range(50):
                entry = log.append(b"x" * 64)
                if log.position_of(entry) + 96 > synced[-1]:
                    early.append(entry)

        threads = [threading.Thread(target=append) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert log.end == 400 and not early


def test_failed_group_commit_poisons_the_log(tmp_path: Path, files: FaultyFiles) -> None:
    log = open_log(tmp_path / "log", files, "synced")
    assert [log.append(b"fine %d" % i) for i in range(3)] == [0, 1, 2]
    files.failing.add("sync")
    with pytest.raises(PoisonedError):
        log.append(b"lost")
    files.failing.clear()  # a later sync would succeed, and prove nothing
    for refused in (lambda: log.append(b"x"), lambda: log.append_batch([b"x"]), log.sync, lambda: log.truncate(1)):
        with pytest.raises(PoisonedError):
            refused()
    assert log.synced_end == log.end == 3 and log[:] == [b"fine 0", b"fine 1", b"fine 2"]
    log.close()
    with pyreplog.open(tmp_path / "log") as log:
        assert log[:3] == [b"fine 0", b"fine 1", b"fine 2"] and log.end in (3, 4)
        assert log.append(b"on") == log.end - 1


def test_failed_group_commit_fails_every_waiter(tmp_path: Path, files: FaultyFiles) -> None:
    with open_log(tmp_path / "log", files, "synced") as log:
        files.failing.add("sync")
        outcomes: list[BaseException | None] = []

        def append() -> None:
            try:
                log.append(b"x")
            except ReplogError as error:
                outcomes.append(error)

        futures = []
        threads = [threading.Thread(target=append) for _ in range(8)]
        for thread in threads:
            thread.start()
        for _ in range(8):
            try:
                futures.append(log.submit(b"y"))
            except PoisonedError as error:
                outcomes.append(error)
        for thread in threads:
            thread.join()
        outcomes += [future.exception(30.0) for future in futures]
        assert len(outcomes) == 16 and all(isinstance(outcome, PoisonedError) for outcome in outcomes)
        assert log.synced_end == 0


@pytest.mark.parametrize("durability", ["appended", "interval"])
def test_failed_sync_call_poisons_the_log(durability: str, tmp_path: Path, files: FaultyFiles) -> None:
    log = open_log(tmp_path / "log", files, durability)
    log.append_batch([KILOBYTE] * 10)
    synced = log.sync()
    log.append_batch([KILOBYTE] * 10)
    files.failing.add("sync")
    with pytest.raises(PoisonedError):
        log.sync()
    files.failing.clear()
    for refused in (log.sync, lambda: log.append(b"x")):
        with pytest.raises(PoisonedError):
            refused()
    assert synced == log.synced_end == 10
    log.close()
    with pyreplog.open(tmp_path / "log") as log:
        assert log.end == log.synced_end == 20


def test_housekeeping_after_a_failed_sync_proves_nothing(
    tmp_path: Path, files: FaultyFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The pages that a failed sync lost count as clean: syncing the same segment again succeeds at once."""
    monkeypatch.setattr(commit_log, "LAZY_SYNC_S", 1e9)
    log = open_log(tmp_path / "log", files, "appended")
    log.append_batch([KILOBYTE] * 100)
    was = checkpoint.load(log.path)
    files.failing.add("sync")
    with pytest.raises(PoisonedError):
        log.sync()
    files.failing.clear()
    monkeypatch.setattr(commit_log, "LAZY_SYNC_S", -1.0)
    log.run_background_tasks()
    with log.freeze_files():
        log._sync_sealed()  # as its thread would that waited for the lock meanwhile
    assert log.synced_end == 0 and checkpoint.load(log.path) == was
    log.close()
    assert checkpoint.load(log.path) == was


@pytest.mark.parametrize("call", ["sync", "sync_directory", "create"])
@pytest.mark.parametrize("durability", ["appended", "synced"])
def test_truncation_that_fails_half_way_poisons_the_log(
    call: str, durability: str, tmp_path: Path, files: FaultyFiles
) -> None:
    log = open_log(tmp_path / "log", files, durability)
    values = [b"%d," % i + KILOBYTE for i in range(100)]
    log.append_batch(values)
    log.sync()
    files.failing.add(call)
    with pytest.raises(PoisonedError):
        log.truncate(20)
    files.failing.clear()
    with pytest.raises(PoisonedError):
        log.append(b"x")
    log.close()
    with pyreplog.open(tmp_path / "log") as log:
        assert log.end in (20, 100) and log[:] == values[: log.end]


@pytest.mark.parametrize("durability", ["appended", "synced"])
def test_close_raises_poisoned_error_when_its_sync_fails_and_releases_the_log(
    durability: str, tmp_path: Path, files: FaultyFiles
) -> None:
    log = open_log(tmp_path / "log", files, durability)
    future = log.submit(b"x")
    if durability == "synced":
        future.result(30.0)
    files.failing.add("sync")
    with pytest.raises(PoisonedError):
        log.close()
    with pyreplog.open(tmp_path / "log") as log:
        assert log[:] == [b"x"]


# ---- a disk is full --------------------------------------------------------------------------------------------------


def fill_up(log: CommitLog) -> int:
    """Append until there is no room; the number of entries. Nothing of what is refused may be there."""
    for _ in range(10_000):
        end, position = log.end, log.stats().end_position
        try:
            log.append(KILOBYTE)
        except DiskFullError:
            assert (log.end, log.stats().end_position) == (end, position)
            return end
    raise AssertionError("never full")


@pytest.mark.parametrize("durability", ["appended", "interval", "synced"])
def test_full_disk_refuses_whole_calls_and_is_written_again_later(
    durability: str, tmp_path: Path, files: FaultyFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(housekeeper, "THREADS", False)  # or it would be in the middle of preparing one
    with open_log(tmp_path / "log", files, durability) as log:
        log.run_background_tasks()
        empty = log.stats().end_position
        files.full = True
        with pytest.raises(DiskFullError):
            log.append_batch([KILOBYTE] * 200)  # there is room for some of it
        assert (log.end, log.stats().end_position) == (0, empty)
        end, filled = fill_up(log), log.stats().end_position
        with pytest.raises(DiskFullError):
            log.append_batch([KILOBYTE] * 200, control=b"none of this")
        with pytest.raises(DiskFullError):
            log.submit(KILOBYTE)
        assert log.stats().end_position == filled and not list(log.control_records())
        log.sync()
        assert log.synced_end == log.end == end and log[:] == [KILOBYTE] * end
        files.full = False
        assert log.append_batch([KILOBYTE] * 200) == range(end, end + 200)
    with pyreplog.open(tmp_path / "log") as log:
        assert log.end == end + 200


@pytest.mark.parametrize("call", ["create", "run"])
def test_no_room_for_a_name_is_a_full_disk(call: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file system may have none for another file, or for a longer directory."""
    monkeypatch.setattr(housekeeper, "THREADS", False)
    log = pyreplog.open(tmp_path / "log", files=(files := RealFiles()), segment_bytes=SEGMENT_BYTES, spare_segments=1)

    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with log:
        with monkeypatch.context() as patch, pytest.raises(DiskFullError):
            patch.setattr(files, call, full)
            log.append_batch([KILOBYTE] * 200)
        log.append_batch([KILOBYTE] * 200)
    monkeypatch.setattr(files, "replace_small", full)
    with pytest.raises(DiskFullError, match="another cannot be opened: "):
        pyreplog.open(tmp_path / "another", files=files)


def mount_small(folder: Path, size: int) -> None:
    """In this process alone: a file system of `size` bytes in `folder`. PermissionError where the kernel forbids it."""
    libc = ctypes.CDLL(None, use_errno=True)
    new_user, new_mounts = 0x10000000, 0x00020000
    if libc.unshare(new_mounts) and libc.unshare(new_user | new_mounts):
        raise PermissionError(ctypes.get_errno(), "unshare")
    recursive_private = 0x4000 | (1 << 18)
    libc.mount(b"none", b"/", None, recursive_private, None)
    if libc.mount(b"tmpfs", os.fsencode(folder), b"tmpfs", 0, b"size=%d" % size):
        raise PermissionError(ctypes.get_errno(), "mount")


@pytest.mark.parametrize("durability", ["appended", "synced"])
def test_a_log_on_a_full_file_system_refuses_appends_until_there_is_room(durability: str, tmp_path: Path) -> None:
    folder = tmp_path / "small"
    folder.mkdir()

    def work() -> None:
        try:
            mount_small(folder, 16 * SEGMENT_BYTES)
        except PermissionError:
            os._exit(0)  # the same is tried on a disk that only says it is full, above
        ballast = folder / "ballast"
        ballast.write_bytes(bytes(8 * SEGMENT_BYTES))
        log = pyreplog.open(folder / "log", segment_bytes=SEGMENT_BYTES, durability=durability)
        end = fill_up(log)
        with pytest.raises(DiskFullError):
            log.append_batch([KILOBYTE] * 500)
        assert log[:] == [KILOBYTE] * end
        ballast.unlink()
        assert log.append_batch([b"more" * 250] * 100) == range(end, end + 100)
        log.close()
        with pyreplog.open(folder / "log") as log:
            assert log[end:] == [b"more" * 250] * 100
            fill_up(log)
            log.trim(log.end)
            fill_up(log)
        ballast.touch()
        with pytest.raises(OSError) as caught, ballast.open("wb", buffering=0) as file:
            while True:
                file.write(bytes(4096))
        assert caught.value.errno == errno.ENOSPC
        with pytest.raises(DiskFullError):
            pyreplog.open(folder / "another", segment_bytes=SEGMENT_BYTES)
        with pyreplog.open(folder / "log") as log:
            log.trim(log.end)  # makes room itself
            log.append_batch([KILOBYTE] * 100)

    in_process(work, tmp_path / "report")


def copy_with_holes(log: Path, copy: Path) -> None:
    """As `cp --sparse=always` and rsync -S do: what is zero takes no room."""
    copy.mkdir()
    for path in log.iterdir():
        with (copy / path.name).open("wb") as file:
            data = path.read_bytes()
            file.truncate(len(data))
            for at in range(0, len(data), 4096):
                if any(data[at : at + 4096]):
                    os.pwrite(file.fileno(), data[at : at + 4096], at)


@pytest.mark.parametrize("durability", ["appended", "synced"])
def test_a_log_with_holes_is_whole_before_it_is_appended_to(durability: str, tmp_path: Path) -> None:
    """Else a store through the mapping, for which there is no room, would kill the process."""
    with pyreplog.open(tmp_path / "log", segment_bytes=1 << 20, durability=durability) as log:
        log.append(KILOBYTE)
    copy_with_holes(tmp_path / "log", tmp_path / "copy")
    os.truncate(tmp_path / "copy" / "tail", 0)
    os.truncate(tmp_path / "copy" / "tail", 4096)
    segment, tail = tmp_path / "copy" / f"{0:020d}.log", tmp_path / "copy" / "tail"
    assert segment.stat().st_blocks * 512 < 1 << 20 and tail.stat().st_blocks == 0
    filled: list[Path] = []

    class Watched(RealFiles):
        def allocate(self, fd: int, path: Path, size: int) -> None:
            super().allocate(fd, path, size)
            filled.append(path)

    with pyreplog.open(tmp_path / "copy", durability=durability, files=Watched()) as log:
        assert filled[:2] == [tail, segment] and segment.stat().st_blocks * 512 >= 1 << 20
        assert log[:] == [KILOBYTE] and log.append(b"x") == 1


def test_log_with_holes_on_a_full_disk_raises_disk_full_error(tmp_path: Path) -> None:
    with pyreplog.open(tmp_path / "log", segment_bytes=4 * SEGMENT_BYTES) as log:
        log.append(KILOBYTE)
    (folder := tmp_path / "small").mkdir()

    def work() -> None:
        try:
            mount_small(folder, 6 * SEGMENT_BYTES)
        except PermissionError:
            os._exit(0)
        copy_with_holes(tmp_path / "log", folder / "log")
        (ballast := folder / "ballast").write_bytes(bytes(4 * SEGMENT_BYTES))
        with pytest.raises(DiskFullError):
            pyreplog.open(folder / "log")
        with pyreplog.open(folder / "log", "r") as reader:
            assert reader[:] == [KILOBYTE]
        ballast.unlink()
        with pyreplog.open(folder / "log") as log:
            ballast.touch()
            with pytest.raises(OSError, match="space"), ballast.open("wb", buffering=0) as file:
                while True:
                    file.write(bytes(4096))
            assert fill_up(log) > 200

    in_process(work, tmp_path / "report")


def test_files_are_written_where_they_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a file system that copies what is written, room is needed for each store: a full disk would kill the process."""
    asked: dict[str, tuple[int, int]] = {}

    def ioctl(fd: int, request: int, data: bytes) -> bytes:
        (flags,) = struct.unpack("l", data)
        if request == 0x80086601:  # FS_IOC_GETFLAGS
            return struct.pack("l", 0x10)
        assert request == 0x40086602  # FS_IOC_SETFLAGS
        asked[Path(f"/proc/self/fd/{fd}").readlink().name] = flags, os.fstat(fd).st_size
        return data

    monkeypatch.setattr(log_files.fcntl, "ioctl", ioctl)
    with pyreplog.open(tmp_path / "log", segment_bytes=SEGMENT_BYTES, spare_segments=1) as log:
        log.append(KILOBYTE)
    empty_and_not_copied = 0x10 | 0x00800000, 0  # FS_NOCOW_FL: takes effect on an empty file alone
    assert {asked[name] for name in ("checkpoint.new", "tail.new", f"fresh-{0:020d}.seg")} == {empty_and_not_copied}
