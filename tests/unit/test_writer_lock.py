"""The lock of a directory that holds those of the directories in it: who may open what, while it is held and afterwards."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import pyreplog
from pyreplog.errors import LockedError
from pyreplog.log import names
from pyreplog.log.lock import WriterLock, writer_of

OPEN = "import sys, pyreplog\npyreplog.open(sys.argv[1]).close()"
HOLD = """
import os, sys
from pathlib import Path
from pyreplog.log.lock import WriterLock
above = WriterLock(Path(sys.argv[1]))
lock = WriterLock(Path(sys.argv[1], "log"), above)
lock.close_descriptor()
print("held", flush=True)
sys.stdin.read()
os.kill(os.getpid(), 9)
"""


@pytest.fixture
def above(tmp_path: Path) -> Iterator[WriterLock]:
    lock = WriterLock(tmp_path)
    yield lock
    lock.release()


@pytest.fixture
def log(tmp_path: Path) -> Path:
    pyreplog.open(tmp_path / "log").close()
    return tmp_path / "log"


def held(log: Path, above: WriterLock) -> WriterLock:
    """The lock of a log, without a descriptor."""
    lock = WriterLock(log, above)
    lock.close_descriptor()
    return lock


def is_mapped(log: Path) -> bool:
    return f"{log / names.LOCK}\n" in Path("/proc/self/maps").read_text()


def may_open(log: Path) -> bool:
    """Whether another process may open a log for appending; this one is asked as well."""
    ended = subprocess.run([sys.executable, "-c", OPEN, log], check=False, stderr=subprocess.PIPE, text=True)
    writer = writer_of(log)
    try:
        WriterLock(log).release()
    except LockedError as error:
        assert error.pid == writer is not None
        assert ended.returncode and "LockedError" in ended.stderr
        return False
    assert ended.returncode == 0 and writer is None
    return True


def test_the_lock_is_held_without_a_map_until_it_is_released(log: Path, above: WriterLock):
    for _ in range(2):
        lock = held(log, above)
        assert writer_of(log) == os.getpid() and not may_open(log) and not is_mapped(log)
        with pytest.raises(LockedError) as caught:
            WriterLock(log, above)
        assert caught.value.pid == os.getpid()
        lock.release()
        assert may_open(log)
        lock.release()


def test_each_lock_is_released_by_itself(tmp_path: Path, above: WriterLock):
    logs = [tmp_path / str(number) for number in range(3)]
    for log in logs:
        pyreplog.open(log).close()
    locks = [held(log, above) for log in logs]
    locks[1].release()
    assert [may_open(log) for log in logs] == [False, True, False]


@pytest.mark.parametrize("is_held_again", [False, True])
def test_the_locks_of_a_process_that_was_killed_are_free(log: Path, is_held_again: bool):
    """Also when another one has the directory now: the token that was left behind is not its own."""
    command = [sys.executable, "-c", HOLD, log.parent]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None and process.stdout is not None
        assert process.stdout.readline() == "held\n"
        assert writer_of(log) == process.pid and not may_open(log)
        process.stdin.close()
        assert process.wait() == -9
    with contextlib.ExitStack() as stack:
        if is_held_again:
            above = WriterLock(log.parent)
            stack.callback(above.release)
            (log.parent / "other").mkdir()
            stack.callback(held(log.parent / "other", above).release)
        assert may_open(log)


def test_leftover_lock_token_does_not_block_a_writer_of_the_same_process(log: Path, above: WriterLock):
    lock = held(log, above)
    token = (log / names.LOCK).read_bytes()
    lock.release()
    (log / names.LOCK).write_bytes(token)
    assert not may_open(log)  # nobody else can tell
    held(log, above).release()
    assert may_open(log)


def test_a_copy_of_a_log_is_not_locked(tmp_path: Path, log: Path, above: WriterLock):
    lock = held(log, above)
    (tmp_path / "elsewhere").mkdir()
    shutil.copytree(log, tmp_path / "elsewhere" / "log")
    assert may_open(tmp_path / "elsewhere" / "log")
    lock.release()


def test_a_log_behind_a_link_is_locked_by_itself(tmp_path: Path, above: WriterLock):
    """Who opens it by its own name finds another directory above it."""
    (tmp_path / "elsewhere").mkdir()
    pyreplog.open(tmp_path / "elsewhere" / "log").close()
    (tmp_path / "log").symlink_to(tmp_path / "elsewhere" / "log")
    lock = held(tmp_path / "log", above)
    assert not may_open(tmp_path / "log") and not may_open(tmp_path / "elsewhere" / "log")
    lock.release()
    assert may_open(tmp_path / "elsewhere" / "log")


def test_a_forked_child_gives_up_no_lock(log: Path, above: WriterLock):
    lock = held(log, above)
    child = os.fork()
    if child == 0:
        lock.release()
        os._exit(0)
    os.waitpid(child, 0)
    assert not may_open(log)
    lock.release()
    assert may_open(log)


def test_a_log_that_is_read_while_its_writer_is_idle_is_live(log: Path, above: WriterLock):
    lock = held(log, above)
    assert writer_of(log) == os.getpid()
    (log.parent / names.LOCK).chmod(0)
    assert writer_of(log) == (os.getpid() if os.getuid() == 0 else 0)  # who cannot look takes it for locked
    lock.release()


def descriptors(folder: Path) -> int:
    """How many descriptors of this process are open for files below a directory."""
    return sum(Path(os.path.realpath(link)).is_relative_to(folder) for link in Path("/proc/self/fd").iterdir())


def test_no_descriptor_stays_open(tmp_path: Path, log: Path):
    assert descriptors(tmp_path) == 0
    above = WriterLock(tmp_path)
    lock = WriterLock(log, above)
    assert descriptors(tmp_path) == 2
    for again in (None, above):
        with pytest.raises(LockedError):
            WriterLock(log, again)
    assert writer_of(log) == writer_of(tmp_path) == os.getpid()
    assert descriptors(tmp_path) == 2
    lock.close_descriptor()
    assert writer_of(log) == os.getpid()
    for again in (None, above):
        with pytest.raises(LockedError):
            WriterLock(log, again)
    assert descriptors(tmp_path) == 1, "that of the directory above holds both"
    lock.release()
    assert writer_of(log) is None
    assert descriptors(tmp_path) == 1
    above.release()
    assert writer_of(tmp_path) is None
    assert descriptors(tmp_path) == 0


def test_a_lock_without_a_directory_above_is_held_by_a_map(log: Path):
    lock = WriterLock(log)
    lock.close_descriptor()
    assert descriptors(log) == 0 and is_mapped(log) and not may_open(log)
    lock.release()
    assert not is_mapped(log) and may_open(log)


def test_writer_is_unknown_when_no_process_id_can_be_read(tmp_path: Path, log: Path, above: WriterLock):
    """Which is not the same as nobody."""

    def blank(directory: Path) -> None:
        with (directory / names.LOCK).open("r+b") as file:
            file.write(b" " * 20)

    lock = WriterLock(log, above)
    blank(log)
    assert writer_of(log) == 0
    lock.close_descriptor()
    assert writer_of(log) == os.getpid()
    blank(tmp_path)
    assert writer_of(log) == writer_of(tmp_path) == 0
    with pytest.raises(LockedError) as caught:
        WriterLock(log)
    assert caught.value.pid is None
    lock.release()
    assert writer_of(log) is None
    assert writer_of(tmp_path / "none") is None
