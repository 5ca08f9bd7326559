"""The disk: all that creates, renames, syncs or removes goes through here. Tests put a disk that loses unsynced data in
its place."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import shutil
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from pyreplog._native.log.disk import Steps, lock_file, punch_hole, unlock_file
from pyreplog._native.log.pwrite import write, write_sync
from pyreplog.errors import DiskError, DiskFullError, InvalidArgumentError, ReplogError, UnsupportedFilesystemError
from pyreplog.regular_files import open_regular

if TYPE_CHECKING:
    from pyreplog._native.log.segment import Segment

_ZEROS = bytes(1 << 20)
_FULL = (errno.ENOSPC, errno.EDQUOT)
_GET_FLAGS, _SET_FLAGS, _NO_COPY = 0x80086601, 0x40086602, 0x00800000  # <linux/fs.h>: FS_IOC_*FLAGS, FS_NOCOW_FL


class Files(Protocol):
    """Every change that is made on disk, except stores through a mapping. What is not said to be durable is not."""

    def create(self, path: Path, size: int, *, zeroed: bool) -> int:
        """Make a file of really allocated `size` bytes; `zeroed`: written and synced, so that a later write of the
        same blocks needs no journal. Returns a descriptor. DiskFullError leaves nothing behind."""

    def create_empty(self, path: Path, *, mode: int = 0o600) -> int:
        """Make an empty file under a name that nobody has. Returns a descriptor, for reading and writing.
        FileExistsError."""

    def allocate(self, fd: int, path: Path, size: int) -> None:
        """See that a file has all its `size` bytes on disk: a copy that left out zeros does not, and a store through a
        mapping, for which there is no room, kills the process. DiskFullError, UnsupportedFilesystemError."""

    def punch(self, fd: int, start: int, stop: int) -> None:
        """Give the blocks of bytes [start, stop) back, which then read as zeros; the size of the file stays.

        OSError, if the file system cannot."""

    def open(self, path: Path, *, writable: bool) -> int: ...
    def read(self, fd: int, buffer: memoryview, offset: int, /) -> int:
        """Read into a buffer; return how many bytes, 0 at the end of the file."""

    def write(self, fd: int, data: bytes | memoryview, offset: int, /) -> None: ...
    def sync(self, fd: int) -> None:
        """Make the content of a file durable."""

    def sync_file(self, path: Path) -> None:
        """`sync`, of a file that is not open here."""

    def write_sync(self, fd: int, data: bytes | memoryview, offset: int, /) -> None:
        """`write`, then `sync`."""

    def sync_directory(self, path: Path) -> None:
        """Make durable which names are in it: what was made, renamed and removed there."""

    def make_directory(self, path: Path, *, mode: int = 0o700) -> None:
        """Make a directory, and those above it that are missing, all of them durably. No error when it is there."""

    def rename(self, old: Path, new: Path) -> None:
        """Give a file or a directory another name; a file that had it is gone."""

    def link(self, path: Path, new: Path) -> None:
        """Give a file a second name. FileExistsError."""

    def remove(self, path: Path) -> None:
        """No error when it is not there."""

    def remove_tree(self, path: Path) -> None:
        """A directory with all that is in it. No error when it is not there."""

    def write_new(self, path: Path, data: bytes) -> None:
        """Make a file that holds `data`, or give it that content; not synced."""

    def write_new_synced(self, path: Path, data: bytes | memoryview) -> None:
        """`write_new`, and its content, but not its name, is durable."""

    def unlock(self, fd: int) -> None:
        """Give up the lock of `lock_range`."""

    def populate(self, segment: Segment) -> None:
        """Fault all pages of a mapping in for writing."""

    def run(self, steps: Steps) -> None:
        """Do what is noted in `steps`, in order, each as the method here of the same name. OSError when a step fails:
        `steps.done` went before it."""

    def replace_small(self, path: Path, data: bytes) -> None:
        """Put `data` under a name, durably and atomically."""


class RealFiles:
    """The operating system's."""

    def create(self, path: Path, size: int, *, zeroed: bool) -> int:
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            _write_in_place(fd)
            self.allocate(fd, path, size)
            if zeroed:
                for offset in range(0, size, len(_ZEROS)):
                    self.write(fd, memoryview(_ZEROS)[: size - offset], offset)
                    os.fdatasync(fd)  # each MiB: one sync of all would delay the syncs of other files
                os.fsync(fd)
        except BaseException:
            os.close(fd)
            path.unlink()
            raise
        return fd

    def create_empty(self, path: Path, *, mode: int = 0o600) -> int:
        return os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)

    def allocate(self, fd: int, path: Path, size: int) -> None:
        if os.fstat(fd).st_blocks * 512 >= size:  # full disks may refuse even what is there
            return
        try:
            os.posix_fallocate(fd, 0, size)
        except OSError as error:
            if error.errno in _FULL:
                raise DiskFullError(
                    error.errno, f"{path}: no room for a segment of {size} bytes; free space, and retry"
                ) from error
            if error.errno in (errno.EOPNOTSUPP, errno.EINVAL, errno.ENODEV):
                raise UnsupportedFilesystemError(
                    error.errno,
                    f"{path}: the file system cannot allocate space ahead (fallocate): put the log on "
                    "ext4, xfs, btrfs or tmpfs",
                ) from error
            raise

    def punch(self, fd: int, start: int, stop: int) -> None:
        punch_hole(fd, start, stop - start)

    def open(self, path: Path, *, writable: bool) -> int:
        return open_regular(path, os.O_RDWR if writable else os.O_RDONLY)

    def read(self, fd: int, buffer: memoryview, offset: int, /) -> int:
        return os.preadv(fd, [buffer], offset)

    write = staticmethod(write)

    def sync(self, fd: int) -> None:
        os.fdatasync(fd)

    def sync_file(self, path: Path) -> None:
        self._sync_path(path, os.O_RDONLY | os.O_CLOEXEC)

    write_sync = staticmethod(write_sync)

    def sync_directory(self, path: Path) -> None:
        self._sync_path(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)

    def _sync_path(self, path: Path, flags: int) -> None:
        fd = os.open(path, flags)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)

    def make_directory(self, path: Path, *, mode: int = 0o700) -> None:
        if path.is_dir() and any(path.iterdir()):  # else its maker may have been killed before it was durable
            return
        if not path.is_dir():
            self.make_directory(path.parent, mode=0o777)
            try:
                path.mkdir(mode=mode)
            except FileExistsError:  # somebody else was quicker, or it is none
                if not path.is_dir():
                    raise
        self.sync_directory(path.parent)

    def rename(self, old: Path, new: Path) -> None:
        old.rename(new)

    def link(self, path: Path, new: Path) -> None:
        new.hardlink_to(path)

    def remove(self, path: Path) -> None:
        path.unlink(missing_ok=True)

    def remove_tree(self, path: Path) -> None:
        with contextlib.suppress(FileNotFoundError):
            shutil.rmtree(path)

    def write_new(self, path: Path, data: bytes) -> None:
        os.close(self._make_new(path, data))

    def write_new_synced(self, path: Path, data: bytes | memoryview) -> None:
        fd = self._make_new(path, data)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)

    def unlock(self, fd: int) -> None:
        unlock_file(fd)

    def populate(self, segment: Segment) -> None:
        segment.populate(0, segment.size)

    def run(self, steps: Steps) -> None:
        steps.run()

    def replace_small(self, path: Path, data: bytes) -> None:
        temporary = path.with_name(path.name + ".new")
        try:
            self.write_new_synced(temporary, data)
        except OSError as error:
            if error.errno in _FULL:
                raise DiskFullError(error.errno, f"{path}: no room for {len(data)} bytes") from error
            raise
        self.rename(temporary, path)
        self.sync_directory(path.parent)

    def _make_new(self, path: Path, data: bytes | memoryview) -> int:
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        try:
            _write_in_place(fd)
            self.write(fd, data, 0)
        except BaseException:
            os.close(fd)
            raise
        return fd


def _write_in_place(fd: int) -> None:
    """Of a new, empty file, on a file system that copies on write (btrfs): its blocks are written where they are.

    Else each write, and each store through a mapping, needs room of its own, however much was allocated."""
    with contextlib.suppress(OSError):  # there is nothing to switch off
        flags = struct.unpack("l", fcntl.ioctl(fd, _GET_FLAGS, bytes(struct.calcsize("l"))))[0]
        fcntl.ioctl(fd, _SET_FLAGS, struct.pack("l", flags | _NO_COPY))


def disk_error(error: OSError, what: str) -> DiskError:
    """What to raise when the disk has refused something, and nothing is the worse for it."""
    return (DiskFullError if error.errno in _FULL else DiskError)(error.errno, f"{what}: {error}")


@contextlib.contextmanager
def opening_told(path: object) -> Iterator[None]:
    """In the block, which opens a path or a URL, what the system refuses is told with that: DiskError, as `disk_error`
    has it; or InvalidArgumentError, for a name that is too long."""
    try:
        yield
    except ReplogError:
        raise
    except OSError as error:
        failure = f"{path} cannot be opened"
        if error.errno == errno.ENAMETOOLONG:
            raise InvalidArgumentError(f"{failure}: {error.strerror}") from error
        raise disk_error(error, failure) from error


def lock_range(fd: int, *, exclusive: bool) -> bool:
    """Take an open-file-description lock on the whole file without waiting; False when somebody else holds one.

    Unlike process-wide POSIX locks it belongs to this descriptor: closing another descriptor does not drop it, and
    two handles of one process exclude each other.
    """
    try:
        lock_file(fd, exclusive)
    except OSError as error:
        if error.errno in (errno.EAGAIN, errno.EACCES):
            return False
        if error.errno in (errno.EINVAL, errno.ENOLCK, errno.EOPNOTSUPP):
            raise UnsupportedFilesystemError(
                error.errno,
                "the file system has no open-file-description locks: put the log on ext4, xfs, btrfs or tmpfs",
            ) from error
        raise
    return True


def share(fd: int) -> bool:
    """Take a shared lock on a segment's file, so that no writer recycles it.

    False: one is at it; then `fd` is closed, as it is when this raises. Errors: as `lock_range`.
    """
    try:
        locked = lock_range(fd, exclusive=False)
    except BaseException:
        os.close(fd)
        raise
    if not locked:
        os.close(fd)
    return locked


def boot_id() -> bytes:
    """16 bytes that change with every boot: page cache of another boot is gone."""
    return bytes.fromhex(Path("/proc/sys/kernel/random/boot_id").read_text().strip().replace("-", ""))
