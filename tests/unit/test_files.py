"""The disk as the log sees it: no call keeps a descriptor that it does not return, whether it succeeds or not."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from pyreplog._native.log.pwrite import write_back
from pyreplog.errors import DiskError, DiskFullError, InvalidArgumentError, UnsupportedFilesystemError
from pyreplog.log.files import RealFiles, boot_id, disk_error, lock_range, share, translate_open_errors


class Refusing(RealFiles):
    """A full disk: it writes and allocates nothing."""

    def allocate(self, fd: int, path: Path, size: int) -> None:
        raise DiskFullError(errno.ENOSPC, "full")

    def write(self, fd: int, data: bytes | memoryview, offset: int) -> None:  # type: ignore[override]
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def descriptors(folder: Path) -> set[str]:
    """The descriptors of this process that are open for files of a directory, or for the directory."""
    links = [(link.name, os.path.realpath(link)) for link in Path("/proc/self/fd").iterdir()]
    return {name for name, target in links if Path(target).is_relative_to(folder)}


def write(path: Path) -> Path:
    path.write_bytes(b"x")
    return path


def unlocked(path: Path) -> None:
    held = os.open(write(path), os.O_RDWR)
    assert lock_range(held, exclusive=True)
    try:
        assert not share(os.open(path, os.O_RDWR))
    finally:
        os.close(held)


CALLS: dict[str, Callable[[RealFiles, Path], object]] = {
    "sync_file": lambda files, folder: files.sync_file(write(folder / "a")),
    "sync_directory": lambda files, folder: files.sync_directory(folder),
    "make_directory": lambda files, folder: files.make_directory(folder / "b" / "c"),
    "write_new": lambda files, folder: files.write_new(folder / "a", b"abc"),
    "write_new_synced": lambda files, folder: files.write_new_synced(folder / "a", b"abc"),
    "replace_small": lambda files, folder: files.replace_small(folder / "a", b"abc"),
    "share": lambda files, folder: unlocked(folder / "a"),
}


@pytest.mark.parametrize("name", CALLS)
def test_a_call_leaves_no_descriptor_open(name: str, tmp_path: Path) -> None:
    before = descriptors(tmp_path)
    CALLS[name](RealFiles(), tmp_path)
    assert descriptors(tmp_path) == before


@pytest.mark.parametrize("name", ["create", "write_new", "write_new_synced", "replace_small"])
def test_a_call_that_fails_leaves_no_descriptor_open(name: str, tmp_path: Path) -> None:
    before = descriptors(tmp_path)
    with pytest.raises(OSError) as caught:
        if name == "create":
            Refusing().create(tmp_path / "a", 4096, zeroed=True)
        else:
            CALLS[name](Refusing(), tmp_path)
    assert caught.value.errno == errno.ENOSPC
    assert isinstance(caught.value, DiskFullError) is (name in ("create", "replace_small"))
    assert name != "create" or not [*tmp_path.iterdir()], "nothing is left behind"
    assert descriptors(tmp_path) == before


def test_a_sync_that_fails_leaves_no_descriptor_open(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(fd: int) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    before = descriptors(tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", fail)
        for call in (RealFiles().sync_directory, lambda path: RealFiles().write_new_synced(path / "a", b"abc")):
            with pytest.raises(OSError, match=os.strerror(errno.EIO)):
                call(tmp_path)
    assert descriptors(tmp_path) == before


def test_file_operations_take_effect_on_disk(tmp_path: Path) -> None:
    files, old, new = RealFiles(), tmp_path / "old", tmp_path / "new"
    files.write_new(old, b"first, and longer")
    files.write_new(old, b"second")
    assert old.read_bytes() == b"second"
    files.write_new_synced(old, memoryview(b"third"))
    assert old.read_bytes() == b"third"
    files.link(old, new)
    assert new.read_bytes() == b"third" and new.stat().st_ino == old.stat().st_ino
    with pytest.raises(FileExistsError):
        files.link(old, new)
    with pytest.raises(FileExistsError):
        files.create_empty(old)
    files.remove(old)  # to rename one name of a file to another one of it changes nothing
    files.write_new(old, b"again")
    files.rename(old, new)
    assert new.read_bytes() == b"again" and not old.exists()
    for _ in range(2):
        files.remove(new)
        assert not new.exists()
    files.make_directory(tmp_path / "a" / "b")
    for _ in range(2):
        files.remove_tree(tmp_path / "a")
        assert not (tmp_path / "a").exists()
    files.replace_small(new, b"small")
    assert [path.name for path in tmp_path.iterdir()] == ["new"] and new.read_bytes() == b"small"


@pytest.mark.parametrize("zeroed", [False, True])
def test_a_file_is_made_with_all_its_blocks(zeroed: bool, tmp_path: Path) -> None:
    size = (2 << 20) + 4096
    fd = RealFiles().create(tmp_path / "a", size, zeroed=zeroed)
    try:
        status = os.fstat(fd)
        assert status.st_size == size and status.st_blocks * 512 >= size and status.st_mode & 0o777 == 0o600
        assert os.pread(fd, size, 0) == bytes(size)
        RealFiles().write(fd, b"x" * 12288, 0)
        RealFiles().punch(fd, 4096, 8192)
        assert os.pread(fd, size, 0) == b"x" * 4096 + bytes(4096) + b"x" * 4096 + bytes(size - 12288)
        assert os.fstat(fd).st_blocks < status.st_blocks
    finally:
        os.close(fd)
    with pytest.raises(FileExistsError):
        RealFiles().create(tmp_path / "a", size, zeroed=zeroed)


def test_a_range_is_written_back(tmp_path: Path) -> None:
    """That it reaches the disk is for the system to say: what is tested is that its answer arrives."""
    path = tmp_path / "a"
    path.write_bytes(b"x" * 8192)
    with path.open("rb") as file:
        write_back(file.fileno(), 0, 4096)
        write_back(file.fileno(), 4096, 1 << 20)  # a range may reach beyond the end
        with pytest.raises(OSError, match=os.strerror(errno.EINVAL)):
            write_back(file.fileno(), -1, 4096)
    reader, writer = os.pipe()
    try:
        with pytest.raises(OSError, match=os.strerror(errno.ESPIPE)):
            write_back(writer, 0, 4096)
    finally:
        os.close(reader)
        os.close(writer)


def test_only_the_owner_of_a_directory_may_look_into_it(tmp_path: Path) -> None:
    """Those above it, which are no part of the log, are as the process makes directories."""
    mask = os.umask(0o022)
    try:
        RealFiles().make_directory(tmp_path / "above" / "log")
        RealFiles().make_directory(tmp_path / "open", mode=0o755)
    finally:
        os.umask(mask)
    modes = {path.name: path.stat().st_mode & 0o777 for path in tmp_path.rglob("*")}
    assert modes == {"above": 0o755, "log": 0o700, "open": 0o755}
    RealFiles().make_directory(tmp_path / "above" / "log")
    (tmp_path / "file").touch()
    with pytest.raises(FileExistsError):
        RealFiles().make_directory(tmp_path / "file")


def test_directories_are_durable_from_the_top(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An empty directory is synced as well: the process that made it may have been killed before it synced. A directory
    with files was synced before they were made."""
    synced: list[str] = []
    write(tmp_path / "used")
    monkeypatch.setattr(RealFiles, "sync_directory", lambda _, path: synced.append(path.name))
    RealFiles().make_directory(tmp_path / "a" / "b" / "c")
    assert synced == [tmp_path.name, "a", "b"]
    synced.clear()
    RealFiles().make_directory(tmp_path / "a" / "b" / "c")
    assert synced == ["b"]
    synced.clear()
    (tmp_path / "a" / "b" / "c" / "file").touch()
    RealFiles().make_directory(tmp_path / "a" / "b" / "c")
    assert synced == []


@pytest.mark.parametrize("name", ["sync", "sync_file", "sync_directory", "replace_small"])
def test_a_sync_reaches_the_system(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[str] = []

    def note(fd: int) -> None:
        synced.append(Path(f"/proc/self/fd/{fd}").readlink().name)

    path = write(tmp_path / "a")
    monkeypatch.setattr(os, "fsync", note)
    monkeypatch.setattr(os, "fdatasync", note)
    if name == "sync":
        with path.open() as file:
            RealFiles().sync(file.fileno())
        assert synced == ["a"]
    elif name == "replace_small":
        RealFiles().replace_small(path, b"abc")
        assert synced == ["a.new", tmp_path.name], "its content, and then its name"
    else:
        getattr(RealFiles(), name)(tmp_path if name == "sync_directory" else path)
        assert synced == [tmp_path.name if name == "sync_directory" else "a"]


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        (errno.ENOSPC, DiskFullError),
        (errno.EDQUOT, DiskFullError),
        (errno.EOPNOTSUPP, UnsupportedFilesystemError),
        (errno.EINVAL, UnsupportedFilesystemError),
        (errno.ENODEV, UnsupportedFilesystemError),
        (errno.EIO, OSError),
    ],
)
def test_allocate_raises_errors_of_the_file_system_as_named_classes(
    code: int, kind: type[OSError], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(fd: int, offset: int, length: int) -> None:
        raise OSError(code, os.strerror(code))

    fd = os.open(write(tmp_path / "a"), os.O_RDWR)
    monkeypatch.setattr(os, "posix_fallocate", refuse)
    try:
        with pytest.raises(OSError) as caught:
            RealFiles().allocate(fd, tmp_path / "a", 1 << 20)
        assert (type(caught.value), caught.value.errno) == (kind, code)
        RealFiles().allocate(fd, tmp_path / "a", 512 * os.fstat(fd).st_blocks)  # it has them: nobody is asked
    finally:
        os.close(fd)


def test_disk_errors_are_translated_with_the_failed_operation() -> None:
    for code in (errno.ENOSPC, errno.EDQUOT):
        error = disk_error(OSError(code, "none"), "it cannot be done")
        assert isinstance(error, DiskFullError) and error.errno == code and "it cannot be done" in str(error)
    assert type(disk_error(OSError(errno.EIO, "none"), "it")) is DiskError
    with pytest.raises(DiskError, match="place cannot be opened"), translate_open_errors("place"):
        raise OSError(errno.EIO, "none")
    with pytest.raises(InvalidArgumentError, match="place cannot be opened: too long"), translate_open_errors("place"):
        raise OSError(errno.ENAMETOOLONG, "too long")
    with pytest.raises(UnsupportedFilesystemError, match="of a test"), translate_open_errors("place"):
        raise UnsupportedFilesystemError(errno.EINVAL, "of a test")


def test_a_lock_is_shared_or_of_one_descriptor(tmp_path: Path) -> None:
    path = write(tmp_path / "a")
    one, other, third = (os.open(path, os.O_RDWR) for _ in range(3))
    try:
        assert lock_range(one, exclusive=False) and lock_range(other, exclusive=False)
        assert not lock_range(third, exclusive=True)
        RealFiles().unlock(one)
        assert not lock_range(third, exclusive=True)
        RealFiles().unlock(other)
        assert lock_range(third, exclusive=True) and not lock_range(one, exclusive=False)
        RealFiles().unlock(third)
        assert share(one) and not lock_range(third, exclusive=True)
    finally:
        for fd in (one, other, third):
            os.close(fd)


def test_the_boot_has_an_identity() -> None:
    assert len(boot_id()) == 16 and boot_id() == boot_id() != bytes(16)


def test_operations_on_a_closed_descriptor_raise_os_error(tmp_path: Path) -> None:
    fd = os.open(write(tmp_path / "a"), os.O_RDONLY)
    os.close(fd)
    files = RealFiles()
    calls: list[Callable[[], object]] = [
        lambda: files.punch(fd, 0, 4096),
        lambda: files.unlock(fd),
        lambda: lock_range(fd, exclusive=True),
        lambda: share(fd),
        lambda: files.write(fd, b"x", 0),
        lambda: files.write_sync(fd, b"x", 0),
        lambda: files.sync(fd),
        lambda: files.read(fd, memoryview(bytearray(1)), 0),
        lambda: files.allocate(fd, tmp_path / "a", 1),
    ]
    for call in calls:
        with pytest.raises(OSError) as caught:
            call()
        assert caught.value.errno == errno.EBADF
