"""DiskReader: pieces of a file at any offset, blocks that cannot be read, file systems without direct reads."""

from __future__ import annotations

import errno
import fcntl
import os
import random
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from pyreplog.errors import DiskError
from pyreplog.log.disk_reader import BLOCK, DiskReader
from pyreplog.log.files import RealFiles

PIECE = 64 << 10


class Failing(RealFiles):
    """Reads of some blocks fail; `times`: so often only."""

    def __init__(self, blocks: set[int], error: int = errno.EIO, times: int = 1 << 30) -> None:
        self.blocks, self.error, self.times = blocks, error, times

    def read(self, fd: int, buffer: memoryview, offset: int) -> int:
        stop = offset + buffer.nbytes
        if self.times and any(offset <= block < stop for block in self.blocks):
            self.times -= 1
            raise OSError(self.error, os.strerror(self.error))
        return super().read(fd, buffer, offset)


def write_file(path: Path, size: int) -> bytes:
    data = random.Random(size).randbytes(size)
    path.write_bytes(data)
    return data


@pytest.mark.parametrize("size", [1, BLOCK - 1, BLOCK, 5 * BLOCK, 40 * BLOCK + 17])
def test_a_disk_reader_reads_any_piece_of_a_file(size: int, tmp_path: Path, seed: int) -> None:
    path = tmp_path / "file"
    data, rng = write_file(path, size), random.Random(seed)
    with closing(DiskReader(path, RealFiles(), PIECE)) as reader:
        assert reader.size == size
        for _ in range(200):
            offset = rng.randrange(size)
            length = rng.randint(1, PIECE)
            assert bytes(reader.read(offset, length)) == data[offset : offset + length].ljust(length, b"\0")
        assert reader.unreadable == []


@pytest.mark.parametrize("refuse", ["at once", "when it reads"])
def test_file_systems_without_direct_reads(refuse: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "file"
    data = write_file(path, 3 * BLOCK)
    real: Callable[..., int] = fcntl.fcntl

    def no_direct(fd: int, command: int, flags: int = 0) -> int:
        if command == fcntl.F_SETFL and flags & os.O_DIRECT:
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
        return real(fd, command, flags)

    if refuse == "at once":
        monkeypatch.setattr(fcntl, "fcntl", no_direct)
        files = RealFiles()
    else:
        files = Failing({BLOCK}, errno.EINVAL, times=1)
    dropped: list[tuple[int, ...]] = []
    monkeypatch.setattr(os, "posix_fadvise", lambda fd, *arguments: dropped.append(arguments))
    with closing(DiskReader(path, files, PIECE)) as reader:
        assert bytes(reader.read(100, 3 * BLOCK - 100)) == data[100:]
        assert dropped == [(0, 0, os.POSIX_FADV_DONTNEED)], "what the cache has would tell nothing of the disk"


def test_blocks_that_cannot_be_read_are_zeros_and_no_others(tmp_path: Path) -> None:
    path = tmp_path / "file"
    data = bytearray(write_file(path, 20 * BLOCK))
    bad = {3 * BLOCK, 4 * BLOCK, 19 * BLOCK}
    for block in bad:
        data[block : block + BLOCK] = bytes(BLOCK)
    with closing(DiskReader(path, Failing(bad), PIECE)) as reader:
        content = b"".join(bytes(reader.read(at, PIECE)) for at in range(0, 20 * BLOCK, PIECE))
        assert content[: 20 * BLOCK] == data
        assert {*reader.unreadable} == bad


def test_a_block_is_tried_again(tmp_path: Path) -> None:
    path = tmp_path / "file"
    data = write_file(path, 4 * BLOCK)
    with closing(DiskReader(path, Failing({BLOCK}, times=2), PIECE)) as reader:
        assert bytes(reader.read(0, 4 * BLOCK)) == data
        assert reader.unreadable == []


def test_a_piece_ends_one_byte_behind_a_block(tmp_path: Path) -> None:
    path = tmp_path / "file"
    data = write_file(path, 3 * BLOCK)
    with closing(DiskReader(path, RealFiles(), PIECE)) as reader:
        for offset, length in ((0, BLOCK + 1), (BLOCK - 1, 2), (BLOCK, BLOCK), (BLOCK, 1), (0, 2 * BLOCK - 1)):
            assert bytes(reader.read(offset, length)) == data[offset : offset + length]


def test_an_error_that_comes_with_the_second_try(tmp_path: Path) -> None:
    class Worse(RealFiles):
        errors = iter((errno.EIO, errno.EBADF))

        def read(self, fd: int, buffer: memoryview, offset: int) -> int:
            error = next(self.errors)
            raise OSError(error, os.strerror(error))

    path = tmp_path / "file"
    write_file(path, BLOCK)
    with closing(DiskReader(path, Worse(), PIECE)) as reader:
        with pytest.raises(DiskError, match="cannot be read") as caught:
            reader.read(0, BLOCK)
        assert caught.value.errno == errno.EBADF


def test_other_errors_are_not_the_disks(tmp_path: Path) -> None:
    path = tmp_path / "file"
    write_file(path, 4 * BLOCK)
    with closing(DiskReader(path, Failing({0}, errno.EBADF), PIECE)) as reader:
        with pytest.raises(DiskError, match="cannot be read"):
            reader.read(0, BLOCK)
        reader.close()
    with pytest.raises(FileNotFoundError):
        DiskReader(tmp_path / "none", RealFiles(), PIECE)


@pytest.mark.parametrize("error", [errno.EIO, errno.ENODATA, errno.EILSEQ, errno.EREMOTEIO])
def test_a_block_that_fails_twice_by_itself_cannot_be_read(error: int, tmp_path: Path) -> None:
    """It is named once, however often it is read."""
    path = tmp_path / "file"
    data = write_file(path, 3 * BLOCK)
    files = Failing({BLOCK}, error, times=3)
    with closing(DiskReader(path, files, PIECE)) as reader:
        assert bytes(reader.read(0, 3 * BLOCK)) == data[:BLOCK] + bytes(BLOCK) + data[2 * BLOCK :]
        assert (reader.unreadable, files.times) == ([BLOCK], 0)
        files.times = 3
        reader.read(BLOCK, 1)
        assert (reader.unreadable, files.times) == ([BLOCK], 0)


def test_the_last_part_of_a_block_is_read_beside_bad_ones(tmp_path: Path) -> None:
    path = tmp_path / "file"
    data = write_file(path, 2 * BLOCK + 17)
    with closing(DiskReader(path, Failing({BLOCK}), PIECE)) as reader:
        content = bytes(reader.read(0, 4 * BLOCK))
        assert content == data[:BLOCK] + bytes(BLOCK) + data[2 * BLOCK :] + bytes(2 * BLOCK - 17)
        assert reader.unreadable == [BLOCK]


class Slow(RealFiles):
    """Reads give one block at a time."""

    def read(self, fd: int, buffer: memoryview, offset: int) -> int:
        return super().read(fd, buffer[:BLOCK], offset)


def test_a_read_may_give_less_than_was_asked_for(tmp_path: Path) -> None:
    path = tmp_path / "file"
    data = write_file(path, 5 * BLOCK + 3)
    with closing(DiskReader(path, Slow(), PIECE)) as reader:
        assert bytes(reader.read(7, 5 * BLOCK - 7)) == data[7 : 5 * BLOCK]
        reader.read(0, PIECE)
        path.write_bytes(data[: 2 * BLOCK])
        assert bytes(reader.read(0, PIECE)) == data[: 2 * BLOCK].ljust(PIECE, b"\0"), "nor do bytes of before come back"


class Refusing(RealFiles):
    """The system refuses to open any file."""

    def open(self, path: Path, *, writable: bool) -> int:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))


def test_a_file_that_may_not_be_opened(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"x")
    with pytest.raises(DiskError, match="cannot be read") as caught:
        DiskReader(path, Refusing(), PIECE)
    assert caught.value.errno == errno.EACCES


def test_a_closed_reader_has_no_descriptor(tmp_path: Path) -> None:
    path = tmp_path / "file"
    data = write_file(path, BLOCK)

    def descriptors() -> list[str]:
        return [
            link.name for link in Path("/proc/self/fd").iterdir() if os.path.realpath(link) == os.path.realpath(path)
        ]

    reader = DiskReader(path, RealFiles(), PIECE)
    view = reader.read(0, 100)
    assert len(descriptors()) == 1
    for _ in range(2):
        reader.close()
        assert not descriptors()
    assert bytes(view) == data[:100], "what was returned stays"
