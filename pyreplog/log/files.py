"""Files: access to the disk for all code that creates, writes, renames, syncs or removes files.

Tests replace it by a model of a disk that loses unsynced data.
"""

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
from pyreplog._native.log.pwrite import write, write_back, write_sync
from pyreplog.errors import DiskError, DiskFullError, InvalidArgumentError, ReplogError, UnsupportedFilesystemError
from pyreplog.regular_files import open_regular

if TYPE_CHECKING:
    from pyreplog._native.log.segment import Segment

_ZEROS = bytes(256 << 10)
_FULL = (errno.ENOSPC, errno.EDQUOT)
_GET_FLAGS, _SET_FLAGS, _NO_COPY = 0x80086601, 0x40086602, 0x00800000  # <linux/fs.h>: FS_IOC_*FLAGS, FS_NOCOW_FL


class Files(Protocol):
    """Operations on files. All changes on disk go through it, except stores through a mapping.

    An operation is durable only if its docstring says so. All methods raise OSError if the system refuses.
    """

    def create(self, path: Path, size: int, *, zeroed: bool) -> int:
        """Create a file of `size` bytes whose blocks are allocated; return a descriptor.

        zeroed: write and sync zeros, so that a later write of the same blocks needs no journal.

        Raises DiskFullError, and leaves no file, if the disk has no room.
        """

    def create_empty(self, path: Path, *, mode: int = 0o600) -> int:
        """Create an empty file; return a descriptor for reading and writing. Raises FileExistsError if it exists."""

    def allocate(self, fd: int, path: Path, size: int) -> None:
        """Allocate all blocks of a file of `size` bytes.

        A sparse copy lacks the blocks of zeros, and a store through a mapping for which the disk has no room kills the
        process.

        Raises DiskFullError if the disk has no room, UnsupportedFilesystemError if the file system has no fallocate.
        """

    def punch(self, fd: int, start: int, stop: int) -> None:
        """Free the blocks of bytes [start, stop), which then read as zeros; the size of the file stays.

        Raises OSError if the file system cannot punch holes.
        """

    def open(self, path: Path, *, writable: bool) -> int: ...
    def read(self, fd: int, buffer: memoryview, offset: int, /) -> int:
        """Read into a buffer; return how many bytes, 0 at the end of the file."""

    def write(self, fd: int, data: bytes | memoryview, offset: int, /) -> None: ...
    def sync(self, fd: int) -> None:
        """Make the content of a file durable."""

    def sync_file(self, path: Path) -> None:
        """Make the content of a file durable that the caller has not open."""

    def write_sync(self, fd: int, data: bytes | memoryview, offset: int, /) -> None:
        """Write bytes and make them durable."""

    def sync_directory(self, path: Path) -> None:
        """Make the names in a directory durable: files that were created, renamed and removed there."""

    def make_directory(self, path: Path, *, mode: int = 0o700) -> None:
        """Create a directory and its missing parents, durably. No effect if it exists."""

    def rename(self, old: Path, new: Path) -> None:
        """Rename a file or a directory. It replaces a file of the new name."""

    def link(self, path: Path, new: Path) -> None:
        """Make a hard link `new` to a file. Raises FileExistsError if that name exists."""

    def remove(self, path: Path) -> None:
        """Remove a file. No effect if it does not exist."""

    def remove_tree(self, path: Path) -> None:
        """Remove a directory and its content. No effect if it does not exist."""

    def write_new(self, path: Path, data: bytes) -> None:
        """Create a file with `data`, or replace its content; not synced."""

    def write_new_synced(self, path: Path, data: bytes | memoryview) -> None:
        """Do what `write_new` does, and make the content durable, but not the name."""

    def unlock(self, fd: int) -> None:
        """Release the lock that `lock_range` has taken."""

    def populate(self, segment: Segment) -> None:
        """Fault in all pages of a mapping for writing."""

    def run(self, steps: Steps) -> None:
        """Carry out the operations in `steps` in order, each as the method of the same name.

        Raises OSError if one fails: `steps.done` is the number of those before it.
        """

    def replace_small(self, path: Path, data: bytes) -> None:
        """Create or replace a file that holds `data`, durably and atomically."""


class RealFiles:
    """Files of the operating system."""

    def create(self, path: Path, size: int, *, zeroed: bool) -> int:
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            _write_in_place(fd)
            self.allocate(fd, path, size)
            if zeroed:
                for offset in range(0, size, len(_ZEROS)):
                    self.write(fd, memoryview(_ZEROS)[: size - offset], offset)
                    # in small parts, and without a sync after each: syncs of other files would wait for them
                    write_back(fd, offset, len(_ZEROS))
                os.fsync(fd)
        except BaseException:
            os.close(fd)
            path.unlink()
            raise
        return fd

    def create_empty(self, path: Path, *, mode: int = 0o600) -> int:
        return os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)

    def allocate(self, fd: int, path: Path, size: int) -> None:
        if os.fstat(fd).st_blocks * 512 >= size:  # a full disk may refuse to allocate blocks that the file has already
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
        if path.is_dir() and any(path.iterdir()):  # an empty one may not be durable: its creator may have been killed
            return
        if not path.is_dir():
            self.make_directory(path.parent, mode=0o777)
            try:
                path.mkdir(mode=mode)
            except FileExistsError:  # another thread or process has created it, or it is a file
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
    """Switch copy-on-write off for a new, empty file, on a file system that has it (btrfs).

    With copy-on-write each write, and each store through a mapping, needs new blocks in spite of those allocated.
    """
    with contextlib.suppress(OSError):  # the file system has no copy-on-write
        flags = struct.unpack("l", fcntl.ioctl(fd, _GET_FLAGS, bytes(struct.calcsize("l"))))[0]
        fcntl.ioctl(fd, _SET_FLAGS, struct.pack("l", flags | _NO_COPY))


def disk_error(error: OSError, what: str) -> DiskError:
    """Return the error of an operation that the disk refused, and that has changed nothing.

    error: what the system raised. what: the operation, for the text.
    """
    return (DiskFullError if error.errno in _FULL else DiskError)(error.errno, f"{what}: {error}")


@contextlib.contextmanager
def translate_open_errors(path: object) -> Iterator[None]:
    """Translate OSError of a `with` block that opens a path or a URL.

    Raises InvalidArgumentError if the name is too long, otherwise the error of `disk_error`.
    """
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
    """Take an open-file-description lock on the whole file without waiting; return False if it is locked.

    Unlike process-wide POSIX locks it belongs to this descriptor: closing another descriptor does not drop it, and
    two handles of one process exclude each other.

    Raises UnsupportedFilesystemError if the file system has no such locks.
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

    Returns False, and closes `fd`, if a writer holds the lock. Raises the errors of `lock_range`; `fd` is then closed
    as well.
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
    """Return the id of this boot, 16 bytes. Bytes that were written during another boot are no longer in the page
    cache."""
    return bytes.fromhex(Path("/proc/sys/kernel/random/boot_id").read_text().strip().replace("-", ""))
