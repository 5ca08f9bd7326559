"""The disk as the log sees it: no call keeps a descriptor that it does not return, whether it succeeds or not."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from pyreplog.errors import DiskFullError
from pyreplog.log.files import RealFiles, lock_range, share


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
