"""Wrong settings, places that hold no log or may not hold one, and file systems that lack something."""

from __future__ import annotations

import errno
import os
import shutil
import struct
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

import pyreplog
from pyreplog import (
    ConfigError,
    CorruptionError,
    FormatVersionError,
    InvalidArgumentError,
    NotALogError,
    UnsupportedFilesystemError,
    WrongTypeError,
)
from pyreplog._native.system.checksum import crc32c
from pyreplog.cli.app import main
from pyreplog.log import checkpoint as checkpoints
from pyreplog.log import files as log_files
from pyreplog.log import names
from pyreplog.log.backup.copying import backup
from pyreplog.log.backup.restoring import restore
from pyreplog.log.fsck.check import check
from pyreplog.log.fsck.repair import repair
from tests import samples

SIZE = 1 << 16


@pytest.fixture
def log(tmp_path: Path) -> Iterator[pyreplog.CommitLog]:
    with pyreplog.open(tmp_path / "log", segment_bytes=SIZE) as log:
        log.append_batch([b"zero", b"one", b"two"])
        yield log


# ---- configuration -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "settings",
    [
        {"durability": "maybe"},
        {"durability": None},
        {"durability": 5},
        {"segment_bytes": 0},
        {"segment_bytes": SIZE + 1},
        {"segment_bytes": 4096},
        {"segment_bytes": 1 << 31},
        {"segment_bytes": float(SIZE)},
        {"segment_bytes": True},
        {"segment_bytes": "65536"},
        {"segment_bytes": None},
        {"spare_segments": 0},
        {"spare_segments": 65},
        {"sync_interval_ms": 0},
        {"sync_interval_ms": None},
        {"retention_bytes": -1},
        {"retention_bytes": 1 << 70},
        {"retention_ms": -5},
        {"retention_ms": 1.5},
        {"retention_ms": "1"},
    ],
)
def test_settings_outside_of_their_bounds(tmp_path, settings):
    (name,) = settings
    for make in (pyreplog.LogConfig, lambda **given: pyreplog.open(tmp_path / "log", **given)):
        with pytest.raises(ConfigError, match=f"{name}: expected"):
            make(**settings)
    assert not (tmp_path / "log").exists()


def test_unknown_settings_of_a_log_are_refused(tmp_path):
    with pytest.raises(ConfigError, match=r"unknown setting 'segment_byte'; there are .*segment_bytes"):
        pyreplog.open(tmp_path / "log", segment_byte=SIZE)
    with pytest.raises(InvalidArgumentError, match="expected either config or settings, found both"):
        pyreplog.open(tmp_path / "log", config=pyreplog.LogConfig(), segment_bytes=SIZE)
    with pytest.raises(WrongTypeError, match="config: expected a LogConfig, found dict"):
        pyreplog.open(tmp_path / "log", config={"segment_bytes": SIZE})
    with pytest.raises(InvalidArgumentError, match="takes no settings"):
        pyreplog.open(tmp_path / "log", "r", segment_bytes=SIZE)
    for mode in ("w", "", None, 1):
        with pytest.raises(InvalidArgumentError, match="mode: expected 'a' or 'r'"):
            pyreplog.open(tmp_path / "log", mode)
    assert list(tmp_path.iterdir()) == []


def test_settings_of_a_log_are_frozen():
    with pytest.raises(AttributeError):
        pyreplog.LogConfig().segment_bytes = SIZE


def test_another_segment_size_than_the_log_has(log, tmp_path):
    log.close()
    with pytest.raises(
        ConfigError, match=f"segment_bytes: expected {SIZE}, with which the log was made, found {2 * SIZE}"
    ):
        pyreplog.open(tmp_path / "log", segment_bytes=2 * SIZE)
    pyreplog.open(tmp_path / "log").close()


# ---- places --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["a", "r"])
def test_paths_that_are_no_directory(tmp_path, mode):
    (tmp_path / "file").write_bytes(b"hello")
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")
    for path in (tmp_path / "file", tmp_path / "file" / "below", tmp_path / "link"):
        with pytest.raises(NotALogError, match=r"is a (file|link to nowhere); a log is a directory"):
            pyreplog.open(path, mode)
    assert (tmp_path / "file").read_bytes() == b"hello" and not (tmp_path / "nowhere").exists()
    for path in (5, None, b"bytes", Path, ["x"]):
        with pytest.raises(WrongTypeError, match="path: expected"):
            pyreplog.open(path, mode)
    for path in ("", "a\0b"):
        with pytest.raises(InvalidArgumentError, match="path: expected"):
            pyreplog.open(path, mode)


def test_a_link_to_a_log_is_fine(log, tmp_path):
    (tmp_path / "link").symlink_to(tmp_path / "log")
    with pyreplog.open(tmp_path / "link", "r") as reader:
        assert reader[0] == b"zero"


def test_directories_without_a_log_are_refused_or_created(tmp_path):
    (tmp_path / "empty").mkdir()
    for path in (tmp_path / "empty", tmp_path / "missing"):
        with pytest.raises(NotALogError):
            pyreplog.open(path, "r")
        with pytest.raises(NotALogError):
            pyreplog.open(path, create=False)
    assert not (tmp_path / "missing").exists()
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "cat.jpg").write_bytes(b"meow")
    for mode in ("a", "r"):
        with pytest.raises(NotALogError):
            pyreplog.open(tmp_path / "photos", mode)
    assert [path.name for path in (tmp_path / "photos").iterdir()] == ["cat.jpg"]


def test_a_directory_of_segments_that_are_none(tmp_path):
    (tmp_path / f"{0:020d}.log").write_bytes(b"a text log\n" * 10_000)
    for mode in ("a", "r"):
        with pytest.raises(pyreplog.CorruptionError, match="the magic of a segment"):
            pyreplog.open(tmp_path, mode)


NAMES = ("checkpoint", "tail", "lock", "truncation", f"{0:020d}.log")


def misplace(path: Path, kind: str) -> None:
    """Put something that is no file in the place of a file."""
    path.unlink(missing_ok=True)
    match kind:
        case "a directory":
            path.mkdir()
        case "a link to nowhere":
            path.symlink_to(path.parent / "not mounted" / path.name)
        case _:
            os.mkfifo(path)  # whoever opens it waits


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("kind", ["a directory", "a link to nowhere", "something else"])
def test_entry_of_another_file_type_raises_corruption_error(tmp_path, name, kind):
    samples.make_log(tmp_path / "log")
    misplace(tmp_path / "log" / name, kind)
    calls = (
        lambda: pyreplog.open(tmp_path / "log"),
        lambda: pyreplog.open(tmp_path / "log", "r"),
        lambda: check(tmp_path / "log"),
        lambda: repair(tmp_path / "log"),
        lambda: backup(tmp_path / "log", tmp_path / "copy"),
    )
    for call in calls:
        with pytest.raises(CorruptionError) as caught:
            call()
        actual_caught = caught.value
        assert (actual_caught.path, actual_caught.expected, actual_caught.found) == (
            tmp_path / "log" / name,
            "a file",
            kind,
        )
    assert not (tmp_path / "copy").exists()


def test_a_segment_may_be_a_link_to_a_file(tmp_path):
    """A link to a file is as good as the file."""
    samples.make_log(tmp_path / "log")
    segment = tmp_path / "log" / f"{0:020d}.log"
    segment.rename(tmp_path / "elsewhere")
    segment.symlink_to(tmp_path / "elsewhere")
    assert check(tmp_path / "log").clean
    with pyreplog.open(tmp_path / "log") as log:
        assert log[7] == samples.value_of(7)


@pytest.mark.parametrize("path", ["", "a\0b"])
def test_names_that_nothing_can_have(tmp_path, monkeypatch, path):
    """An empty one is not the directory that one is in: it is a variable that was not set."""
    samples.make_log(tmp_path)
    monkeypatch.chdir(tmp_path)
    for call in (check, repair, lambda p: backup(p, "copy"), lambda p: backup(".", p), lambda p: restore(p, "new")):
        with pytest.raises(InvalidArgumentError, match="expected the name of a directory"):
            call(path)
    for arguments in (("stat",), ("fsck",), ("fsck", "--repair"), ("dump", "--entry", "0"), ("cat",)):
        assert main([*arguments, path]) == 2
    assert main(["backup", path, "copy"]) == 2


def set_version(path: Path, at: int, crc_at: int, covered: slice, version: int) -> None:
    """Make a file say that only a later version can read it."""
    data = bytearray(path.read_bytes())
    struct.pack_into("<HH", data, at, version, version)
    struct.pack_into("<I", data, crc_at, crc32c(bytes(data[covered])))
    path.write_bytes(data)


@pytest.mark.parametrize("mode", ["a", "r"])
def test_segments_of_a_later_version(log, tmp_path, mode):
    log.close()
    path = names.segment_path(tmp_path / "log", 0)
    set_version(path, 12, 8, slice(12, 64), 3)
    with pytest.raises(FormatVersionError, match="format version 3, this build reads up to 2") as caught:
        pyreplog.open(tmp_path / "log", mode)
    assert (caught.value.path, caught.value.found, caught.value.supported) == (path, 3, 2)


@pytest.mark.parametrize("mode", ["a", "r"])
def test_a_checkpoint_of_a_later_version(log, tmp_path, mode):
    """Not taken for a lost one: it says how much is proven."""
    log.close()
    path = tmp_path / "log" / names.CHECKPOINT
    last = checkpoints.load(tmp_path / "log")
    assert last is not None
    path.write_bytes(last.encode().ljust(8192, b"\0"))
    set_version(path, 12, 8, slice(12, checkpoints._SLOT.size), 2)
    before = path.read_bytes()
    with pytest.raises(FormatVersionError, match="format version 2"):
        pyreplog.open(tmp_path / "log", mode)
    assert path.read_bytes() == before


def in_child(work) -> str:
    """Run `work` in a forked child, which tells what came of it; for what a process does to itself."""
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            told = str(work())
        except BaseException as error:
            told = f"{type(error).__name__}: {error}"
        os.write(write, told.encode())
        os._exit(0)
    os.close(write)
    with open(read, "rb") as pipe:
        told = pipe.read().decode()
    os.waitpid(pid, 0)
    return told


def read_and_close(path: Path) -> str:
    """What a reader does to a log, its tail page mapped read-only: also to let go of it."""
    with pyreplog.open(path, "r") as log:
        last = list(log.follow(1198, timeout=0.01))[1].entry
        return f"{log[7]!r} {last}"


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
def test_a_directory_that_may_not_be_written():
    """As a user who may read only: root is refused nothing, so the child becomes nobody."""
    nobody = 65_534

    def as_reader(work):
        if os.getuid() == 0:
            os.setgroups([])
            os.setgid(nobody)
            os.setuid(nobody)
        return work()

    top = Path(tempfile.mkdtemp())
    try:
        top.chmod(0o755)
        samples.make_log(top / "log")
        for path in (top / "log").iterdir():
            path.chmod(0o444)
        (top / "log").chmod(0o555)
        (top / "bare").mkdir()
        (top / "bare").chmod(0o555)
        for path, error in ((top / "log", "ReadOnlyError"), (top / "bare", "ReadOnlyError")):
            told = in_child(lambda path=path: as_reader(lambda: pyreplog.open(path)))
            assert told.startswith(f"{error}: {path} cannot be written; open it with mode='r'"), told
        (top / "log").chmod(0o777)  # the directory may be written, and what is in it may not
        told = in_child(lambda: as_reader(lambda: pyreplog.open(top / "log")))
        assert told == f"ReadOnlyError: {top / 'log' / 'lock'} belongs to another user; open the log with mode='r'"
        (top / "log").chmod(0o555)
        assert in_child(lambda: as_reader(lambda: read_and_close(top / "log"))) == f"{samples.value_of(7)!r} 1199"
    finally:
        for path in (top / "log", top / "bare"):
            path.chmod(0o755)
        shutil.rmtree(top)


# ---- file systems --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("code", [errno.EOPNOTSUPP, errno.EINVAL, errno.ENODEV])
def test_a_file_system_that_cannot_allocate(tmp_path, monkeypatch, code):
    def refuse(*_):
        raise OSError(code, os.strerror(code))

    with monkeypatch.context() as patched:
        patched.setattr(os, "posix_fallocate", refuse)
        with pytest.raises(UnsupportedFilesystemError, match="cannot allocate space ahead"):
            pyreplog.open(tmp_path / "log", segment_bytes=SIZE)
    with pyreplog.open(tmp_path / "log", segment_bytes=SIZE) as log:  # nothing was left half made
        assert log.append(b"x") == 0


@pytest.mark.parametrize("code", [errno.EINVAL, errno.ENOLCK, errno.EOPNOTSUPP])
def test_a_file_system_without_ofd_locks(tmp_path, monkeypatch, code):
    def refuse(*_):
        raise OSError(code, os.strerror(code))

    with monkeypatch.context() as patched:
        patched.setattr(log_files, "lock_file", refuse)
        with pytest.raises(UnsupportedFilesystemError, match="no open-file-description locks"):
            pyreplog.open(tmp_path / "log", segment_bytes=SIZE)
    with pyreplog.open(tmp_path / "log", segment_bytes=SIZE) as log:
        log.append(b"x")
        patched.setattr(log_files, "lock_file", refuse)
        with pyreplog.open(tmp_path / "log", "r") as reader, pytest.raises(UnsupportedFilesystemError):
            reader.get(0)
        patched.undo()
