"""An idle log of a runtime has no file open, and none mapped but its lock, which that of its directory may hold; its next
use goes on as if nothing had been."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import gc
import os
import resource
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import pyreplog
from pyreplog._native.log.apply_replicated import marks_of
from pyreplog.errors import (
    CorruptionError,
    DiskError,
    DiskFullError,
    InvalidArgumentError,
    LockedError,
    WindowFullError,
)
from pyreplog.log import commit_log, names
from pyreplog.log.commit_log import CommitLog
from pyreplog.log.files import RealFiles
from pyreplog.log.lock import WriterLock, writer_of
from pyreplog.log.runtime import LogRuntime, OpenLogs
from tests.waiting import until

SEGMENT_BYTES = 64 << 10
KILOBYTE = bytes(1000)
WAIT_S = 60.0


def open_log(path: Path, runtime: LogRuntime, *, files: RealFiles | None = None, **settings: Any) -> CommitLog:
    config = pyreplog.LogConfig(**{"segment_bytes": SEGMENT_BYTES, **settings})
    return CommitLog(path, config, create=True, clock=None, files=files, runtime=runtime)


@pytest.fixture
def runtime() -> Iterator[LogRuntime]:
    with LogRuntime(idle_ms=20) as runtime:
        yield runtime


def open_files(path: Path) -> list[str]:
    """Names of the files of a log that this process has open."""
    opened = []
    for link in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):
            opened.append(str(link.readlink()))
    return sorted(Path(target).name for target in opened if target.startswith(f"{path}/"))


def mapped_files(path: Path) -> list[str]:
    """Names of the files of a log that are mapped here, each as often as it is."""
    lines = Path("/proc/self/maps").read_text().splitlines()
    return sorted(Path(line.split(maxsplit=5)[5]).name for line in lines if f"{path}/" in line)


def is_at_rest(log: CommitLog) -> bool:
    if not log.is_dormant:
        return False
    if not open_files(log.path) and mapped_files(log.path) == ["lock"]:
        return True
    gc.collect()  # an earlier handle of the log that was closed
    return False


def is_unmapped(log: CommitLog) -> bool:
    """Of the log as this process writes it; readers of this process may have its files mapped."""
    return log.is_dormant and not log.tail.is_mapped


def blocks(path: Path) -> int:
    return sum(file.stat().st_blocks * 512 for file in path.iterdir())


@pytest.mark.parametrize("durability", ["appended", "interval", "synced"])
def test_an_idle_log_has_no_file_open_and_appends_go_on(tmp_path: Path, runtime: LogRuntime, durability: str):
    path, values = tmp_path / "log", list[bytes]()
    settings = {"durability": durability, "segment_bytes": 1 << 20}
    with open_log(path, runtime, **settings) as log:
        for count in (1, 5, 3000):  # in the end there are several segments
            values += [b"%d" % entry * 100 for entry in range(len(values), len(values) + count)]
            log.append_batch(values[-count:])
            until(lambda: is_at_rest(log))
            assert (log.end, log.synced_end, len(log)) == (len(values), len(values), len(values))
            size = sum(map(len, values))
            until(lambda size=size: blocks(path) < size * 1.5 + (64 << 10))  # type: ignore[misc]
            assert log.append(b"next") == len(values)
            values.append(b"next")
        assert log.stats().segments > 1
        assert log[:] == values
    with open_log(path, runtime, **settings) as log:
        assert log[:] == values and log.append(b"after") == len(values)
    with pyreplog.open(path) as log:
        assert log[:] == [*values, b"after"]


def test_logs_are_opened_without_keeping_a_file_open(tmp_path: Path):
    logs = list[CommitLog]()
    for number in range(2):
        logs.clear()
        gc.collect()  # handles that were closed
        with LogRuntime() as runtime, contextlib.ExitStack() as opened:  # it would take 10 s to close them
            logs += [opened.enter_context(open_log(tmp_path / str(i), runtime)) for i in range(20)]
            assert all(log.is_dormant and not open_files(log.path) for log in logs)
            assert {name for log in logs for name in mapped_files(log.path)} == {"lock"}
            assert {log.append(KILOBYTE) for log in logs} == {number}
            assert open_files(logs[0].path) == ["00000000000000000000.log", "checkpoint"]


def test_reading_an_idle_log_maps_a_segment_as_long_as_it_is_used(tmp_path: Path, runtime: LogRuntime):
    with open_log(tmp_path / "log", runtime) as log:
        values = [b"%d" % entry * 200 for entry in range(300)]
        log.append(values[0])
        until(lambda: is_at_rest(log))
        assert log[0] == values[0] and log.is_dormant
        until(lambda: is_at_rest(log))
        log.append_batch(values[1:])
        until(lambda: is_at_rest(log))
        assert log[299] == values[299] and log[0] == values[0] and log.is_dormant
        until(lambda: is_at_rest(log))
        record, first = log.get(299), next(iter(log.read(0)))
        assert (record.value, first[0].value) == (values[299], values[0])
        until(lambda: "checkpoint" not in open_files(log.path))
        last = f"{names.segment_bases(log.path)[-1]:020d}"
        assert mapped_files(log.path) == [f"{0:020d}.idx", f"{0:020d}.log", f"{last}.log", "lock"]
        assert log.is_dormant and not open_files(log.path)
        assert log.append(b"next") == 300
        assert (record.value, first[0].value, log[300]) == (values[299], values[0], b"next")
        del record, first
        until(lambda: is_at_rest(log))
        assert log[:] == [*values, b"next"]


def test_a_segment_that_is_read_is_not_recycled_though_its_log_was_dormant(tmp_path: Path):
    with LogRuntime(idle_ms=300) as runtime, open_log(tmp_path / "log", runtime, spare_segments=2) as log:
        log.append_batch([b"%d" % entry * 200 for entry in range(300)])
        record = log.get(0)
        until(lambda: log.is_dormant)
        log.append(b"next")
        assert log[1] == b"1" * 200
        log.trim(300)
        log.append_batch([KILOBYTE] * 500)
        assert log.start > 0 and record.value == b"0" * 200


def test_a_follower_and_a_reader_of_an_idle_log_see_the_next_entry(tmp_path: Path, runtime: LogRuntime):
    with open_log(tmp_path / "log", runtime) as log:
        log.append(b"zero")
        until(lambda: is_at_rest(log))
        with pyreplog.open(log.path, "r") as reader:
            assert reader.live and reader[:] == [b"zero"]
            followers = [log.follow(1, timeout=WAIT_S), reader.follow(1, timeout=WAIT_S)]
            values = list[bytes]()
            threads = [threading.Thread(target=lambda f=f: values.append(next(f).value)) for f in followers]  # type: ignore[misc]
            for thread in threads:
                thread.start()
            log.append(b"one")
            for thread in threads:
                thread.join(WAIT_S)
            assert values == [b"one"] * 2 and reader[:] == [b"zero", b"one"]


def test_an_idle_log_has_no_map_if_the_lock_of_its_directory_holds_its_own(tmp_path: Path):
    lock = WriterLock(tmp_path)
    with LogRuntime(idle_ms=20, locks={tmp_path: lock}) as runtime, contextlib.ExitStack() as opened:
        logs = [opened.enter_context(open_log(tmp_path / str(i), runtime)) for i in range(20)]
        assert [name for log in logs for name in (*mapped_files(log.path), *open_files(log.path))] == []
        for log in logs:
            log.append(KILOBYTE)
        for log in logs:
            until(lambda log=log: not mapped_files(log.path) and not open_files(log.path))  # type: ignore[misc]
            assert log.is_dormant and writer_of(log.path) == os.getpid()
        for log in logs:
            assert log.append(b"next") == 1 and log[:] == [KILOBYTE, b"next"]
    lock.release()


def test_about_as_many_logs_as_may_have_files_open(tmp_path: Path):
    """None of them is idle for long enough. A log that cannot close its files keeps no other from going on."""
    most = 4
    with LogRuntime(open_logs=OpenLogs(most)) as runtime, contextlib.ExitStack() as opened:
        logs = [opened.enter_context(open_log(tmp_path / str(i), runtime)) for i in range(120)]
        for number in range(2):
            for log in logs:
                assert log.append(b"%d" % number) == number
                assert sum(not other.is_dormant for other in logs) < 60
        until(lambda: sum(not log.is_dormant for log in logs) == most)
        assert not logs[-1].is_dormant
        assert all(log[:] == [b"0", b"1"] for log in logs)


def test_an_event_loop_goes_on_with_more_logs_than_may_have_files_open(tmp_path: Path):
    async def append(log: CommitLog) -> int:
        while True:
            await log.room()
            with contextlib.suppress(WindowFullError):
                return await log.submit(b"value")

    async def append_all(logs: list[CommitLog]) -> list[int]:
        return await asyncio.wait_for(asyncio.gather(*map(append, logs * 2)), WAIT_S)

    with LogRuntime(open_logs=OpenLogs(2)) as runtime, contextlib.ExitStack() as opened:
        logs = [opened.enter_context(open_log(tmp_path / str(i), runtime)) for i in range(50)]
        assert sorted(asyncio.run(append_all(logs))) == [0] * 50 + [1] * 50


def test_processes_go_on_reading_a_log_that_is_idle_in_between(tmp_path: Path, runtime: LogRuntime):
    command = [sys.executable, "-c", FOLLOWER, tmp_path / "log"]
    with (
        open_log(tmp_path / "log", runtime) as log,
        subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as follower,
    ):
        assert follower.stdout is not None and follower.stdout.readline() == "ready\n"
        for entry in range(5):
            until(lambda: is_at_rest(log))  # the follower sleeps, or is about to
            log.append(b"%d" % entry)
            assert follower.stdout.readline() == f"{entry}\n"
        until(lambda: is_at_rest(log))
        log.append(b"last")
        assert follower.stdout.read() == "last\n" and follower.wait(WAIT_S) == 0


FOLLOWER = """
import sys, pyreplog
with pyreplog.open(sys.argv[1], "r") as reader:
    print("ready", flush=True)
    for record in reader.follow(0):
        print(record.value.decode(), flush=True)
        if record.value == b"last":
            break
"""


def test_readers_see_what_changes_while_a_log_is_idle(tmp_path: Path, runtime: LogRuntime):
    """The commit point moves, and segments go: neither needs the segment that is appended to."""
    config = pyreplog.LogConfig(segment_bytes=SEGMENT_BYTES)
    path = tmp_path / "log"
    with CommitLog(path, config, create=True, clock=None, files=None, gated=True, runtime=runtime) as log:
        (path / names.TERMS).touch()  # what a log with a commit point has
        places = []
        for _ in range(2):
            log.append_batch([KILOBYTE] * 100)
            places.append(marks_of(log)[0])
        with pyreplog.open(path, "r") as reader:
            for position, entry in places:
                until(lambda: is_unmapped(log))
                assert reader.live and reader.end == log.end == entry - 100
                follower, values = reader.follow(entry - 1, timeout=WAIT_S), list[bytes]()
                thread = threading.Thread(target=lambda f=follower, v=values: v.append(next(f).value))  # type: ignore[misc]
                thread.start()
                log.show_up_to(position, entry)
                thread.join(WAIT_S)
                assert values == [KILOBYTE] and reader.end == log.end == entry
            until(lambda: is_unmapped(log))
            log.trim(100)
            assert reader.start == log.start > 0
            until(lambda: is_unmapped(log))


def test_a_thread_that_sleeps_on_the_page_of_an_idle_log_is_woken(tmp_path: Path, runtime: LogRuntime):
    """Whether it fell asleep before the log was idle, or since."""
    with open_log(tmp_path / "log", runtime) as log:
        for is_idle in (False, True, True, False):
            if is_idle:
                until(lambda: is_unmapped(log))
            else:
                log.append(b"before")
            follower, values = log.follow(log.end, timeout=WAIT_S), list[bytes]()
            thread = threading.Thread(target=lambda f=follower, v=values: v.append(next(f).value))  # type: ignore[misc]
            thread.start()
            until(lambda: log.is_dormant)
            began = time.monotonic()
            log.append(b"value")
            thread.join(WAIT_S)
            assert values == [b"value"] and time.monotonic() - began < WAIT_S / 2


@pytest.mark.parametrize("kind", ["removed", "empty", "cut"])
def test_a_tail_page_that_was_lost_while_its_log_was_idle_is_made_again(tmp_path: Path, runtime: LogRuntime, kind: str):
    with open_log(tmp_path / "log", runtime) as log:
        log.append(b"zero")
        until(lambda: is_at_rest(log))
        page = log.path / names.TAIL
        if kind == "removed":
            page.unlink()
        else:
            os.truncate(page, 0)
            os.truncate(page, 0 if kind == "cut" else 4096)
        assert log.append(b"one") == 1
        with pyreplog.open(log.path, "r") as reader:
            assert reader.live and reader[:] == [b"zero", b"one"]


def test_the_tail_page_of_another_log_is_refused(tmp_path: Path, runtime: LogRuntime):
    with open_log(tmp_path / "log", runtime) as log, open_log(tmp_path / "other", runtime) as other:
        log.append(b"zero")
        other.append(b"zero")
        until(lambda: is_at_rest(log) and is_at_rest(other))
        (other.path / names.TAIL).replace(log.path / names.TAIL)
        for _ in range(2):
            with pytest.raises(CorruptionError, match="while the log was idle"):
                log.append(b"one")
        assert log[:] == [b"zero"] and other.append(b"one") == 1


def test_readers_see_appends_once_the_tail_page_can_be_mapped_again(tmp_path: Path, runtime: LogRuntime):
    class Failing(RealFiles):
        fails = False

        def allocate(self, fd: int, path: Path, size: int) -> None:
            if self.fails and path.name == names.TAIL:
                raise OSError(errno.EMFILE, "too many open files")
            super().allocate(fd, path, size)

    files, config = Failing(), pyreplog.LogConfig(segment_bytes=SEGMENT_BYTES)
    path = tmp_path / "log"
    with CommitLog(path, config, create=True, clock=None, files=files, gated=True, runtime=runtime) as log:
        (path / names.TERMS).touch()
        log.append(b"zero")
        until(lambda: is_at_rest(log))
        with pyreplog.open(path, "r") as reader:
            files.fails = True
            log.show_up_to(log.end_position + 1000, 1)
            assert (log.end, reader.end) == (1, 0)
            with pytest.raises(DiskError):
                log.append(b"one")
            until(lambda: "idle log" in log.stats().trouble)
            files.fails = False
            until(lambda: reader.end == 1)
            assert log.append(b"one") == 1
            until(lambda: not log.stats().trouble)


def test_an_idle_log_is_synced_trimmed_truncated_and_closed(tmp_path: Path, runtime: LogRuntime):
    path = tmp_path / "log"
    with open_log(path, runtime) as log:
        log.append_batch([b"%d" % entry * 200 for entry in range(900)])
        for act in (log.sync, lambda: log.flush(), lambda: log.trim(400), lambda: log.truncate(700), lambda: None):
            until(lambda: is_at_rest(log))
            act()
        assert 0 < log.start <= 400 and log.end == 700
        until(lambda: is_at_rest(log))
    with pyreplog.open(path) as log:
        assert log[-1] == b"699" * 200 and log.append(b"next") == 700


def test_an_idle_log_keeps_its_lock_until_it_is_closed(tmp_path: Path, runtime: LogRuntime):
    path = tmp_path / "log"
    with open_log(path, runtime) as log:
        log.append(b"zero")
        until(lambda: is_at_rest(log))
        with pytest.raises(LockedError) as caught:
            pyreplog.open(path)
        assert caught.value.pid == os.getpid()
        child = os.fork()
        if child == 0:  # it has no part of the lock
            time.sleep(WAIT_S)
            os._exit(0)
        log.close()
        try:
            pyreplog.open(path).close()
        finally:
            os.kill(child, 9)
            os.waitpid(child, 0)


KILLED = """
import os, sys, time
from pathlib import Path
import pyreplog
from pyreplog.log.commit_log import CommitLog
from pyreplog.log.runtime import LogRuntime
runtime = LogRuntime(idle_ms=1)
logs = [
    CommitLog(Path(sys.argv[1], str(i)), pyreplog.LogConfig(), create=True, clock=None, files=None, runtime=runtime)
    for i in range(5)
]
for log in logs:
    log.append(b"zero")
while not all(log.is_dormant for log in logs):
    time.sleep(0.001)
logs[1].append(b"one")
os.kill(os.getpid(), 9)
"""


def test_idle_logs_of_a_killed_process_open(tmp_path: Path, runtime: LogRuntime):
    assert subprocess.run([sys.executable, "-c", KILLED, tmp_path], check=False).returncode == -9
    for i in range(5):
        with open_log(tmp_path / str(i), runtime, segment_bytes=pyreplog.LogConfig.default_segment_bytes) as log:
            assert log[:] == [b"zero", b"one"][: 2 if i == 1 else 1]
            assert log.append(b"next") == len(log) - 1


def test_a_full_disk_refuses_appends_to_an_idle_log_and_reads_go_on(tmp_path: Path, runtime: LogRuntime):
    class Full(RealFiles):
        full = False

        def allocate(self, fd: int, path: Path, size: int) -> None:
            if self.full and path.suffix == ".log":
                raise DiskFullError(errno.ENOSPC, f"{path}: no room")
            super().allocate(fd, path, size)

    files = Full()
    with open_log(tmp_path / "log", runtime, files=files) as log:
        log.append_batch([b"zero", b"one"])
        until(lambda: is_at_rest(log))
        files.full = True
        for _ in range(2):
            with pytest.raises(DiskFullError):
                log.append(b"two")
            assert log[:] == [b"zero", b"one"]
        until(lambda: is_at_rest(log))
        files.full = False
        assert log.append(b"two") == 2 and log[:] == [b"zero", b"one", b"two"]


@pytest.mark.parametrize("durability", ["appended", "synced"])
def test_an_event_loop_does_not_wait_for_the_files_of_an_idle_log(tmp_path: Path, runtime: LogRuntime, durability: str):
    async def append(log: CommitLog) -> int:
        with pytest.raises(WindowFullError):
            log.submit(b"value")
        while True:
            await log.room()
            with contextlib.suppress(WindowFullError):  # idle again
                return await log.submit(b"value")

    with open_log(tmp_path / "log", runtime, durability=durability) as log:
        log.append(b"zero")
        until(lambda: is_at_rest(log))
        assert asyncio.run(append(log)) == 1 and log[:] == [b"zero", b"value"]


def test_retention_removes_what_is_too_old_of_an_idle_log(
    tmp_path: Path, runtime: LogRuntime, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(commit_log, "_RETENTION_S", 0.01)
    with open_log(tmp_path / "log", runtime, retention_ms=300, spare_segments=1) as log:
        log.append_batch([KILOBYTE] * 200)
        until(lambda: log.stats().segments == 1)
        until(lambda: is_at_rest(log))
        assert len(names.segment_bases(log.path)) == 1 and log[-1] == KILOBYTE
        assert log.append(b"next") == 200


def test_a_segment_that_was_exchanged_while_its_log_was_idle_is_refused(tmp_path: Path, runtime: LogRuntime):
    for name in ("log", "other"):
        with open_log(tmp_path / name, runtime) as log:
            log.append(name.encode())
    with open_log(tmp_path / "log", runtime) as log:
        until(lambda: is_at_rest(log))
        (tmp_path / "other" / f"{0:020d}.log").replace(log.path / f"{0:020d}.log")
        for _ in range(2):
            with pytest.raises(CorruptionError, match="while the log was idle"):
                log.append(b"next")
            with pytest.raises(CorruptionError, match="while the log was idle"):
                log.get(0)


def test_record_batches_of_an_idle_log(tmp_path: Path, runtime: LogRuntime):
    config = pyreplog.LogConfig(segment_bytes=SEGMENT_BYTES)
    path = tmp_path / "log"
    for first in (0, 7):
        with CommitLog(path, config, create=True, clock=None, files=None, runtime=runtime, record_batches=True) as log:
            assert log.append_record_batches([b"batch"], [3]) == range(first, first + 3)
            until(lambda: is_at_rest(log))
            assert log.append_record_batches([b"batch"], [4]) == range(first + 3, first + 7)
            assert log.get(first + 5).entry_count == 4


def test_an_impossible_idle_ms_is_refused():
    with pytest.raises(InvalidArgumentError, match="idle_ms"):
        LogRuntime(idle_ms=0)


@pytest.mark.parametrize("durability", ["appended", "synced"])
def test_appends_and_reads_while_a_log_is_closed_and_opened_all_the_time(
    tmp_path: Path, eager_switching: None, durability: str
):
    with LogRuntime(idle_ms=1) as runtime, open_log(tmp_path / "log", runtime, durability=durability) as log:
        errors, stop = list[BaseException](), threading.Event()

        def append(thread: int) -> None:
            try:
                for number in range(60):
                    log.append(b"%d %d" % (thread, number))
                    time.sleep(0.002 * (number % 3))
                    if number % 15 == 0:  # it comes to that at the latest when all threads wait for it
                        until(lambda: log.is_dormant)
            except BaseException as error:
                errors.append(error)

        def read() -> None:
            try:
                while not stop.is_set():
                    end = log.end
                    assert len(log[:end]) == end
                    if end:
                        log.get(end - 1)
            except BaseException as error:
                errors.append(error)

        threads = [threading.Thread(target=append, args=(i,)) for i in range(3)]
        reader = threading.Thread(target=read)
        for thread in (*threads, reader):
            thread.start()
        for thread in threads:
            thread.join()
        stop.set()
        reader.join(WAIT_S)
        assert not errors
        for i in range(3):
            own = [value for value in log[:] if value.startswith(b"%d " % i)]
            assert own == [b"%d %d" % (i, number) for number in range(60)]


# ---- how many logs have files open -----------------------------------------------------------------------------


class StubUser:
    """A log that notes when it is asked to close its files."""

    def __init__(self, name: str, asked: list[str]) -> None:
        self.name, self._asked = name, asked

    def ask_close(self) -> None:
        self._asked.append(self.name)


def test_the_log_that_opened_its_files_first_is_asked_to_close_them():
    asked = list[str]()
    open_logs, users = OpenLogs(2), [StubUser(name, asked) for name in "abcdef"]
    a, b, c, d, e, f = users
    for user in (a, b):
        open_logs.add(user)
    assert asked == []
    open_logs.add(c)
    assert asked == ["a"]
    open_logs.add(d)
    assert asked == ["a", "b"]
    open_logs.remove(b)  # it has done so
    open_logs.note_attempt(a)  # it could not, and counts as the last one
    open_logs.add(e)
    assert asked == ["a", "b", "c"], "a, c, d and e are open"
    open_logs.remove(c)
    open_logs.remove(c)
    open_logs.remove(a)
    open_logs.add(f)
    assert asked == ["a", "b", "c", "d"], "d, e and f are open"


def test_a_log_waits_while_many_others_have_not_tried_to_close_their_files(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("pyreplog.log.runtime._WAIT_S", 600.0)
    asked, waited = list[str](), threading.Event()
    open_logs, users = OpenLogs(1), [StubUser(str(number), asked) for number in range(34)]

    def wait() -> None:
        open_logs.wait()
        waited.set()

    for user in users[:33]:
        open_logs.add(user)
    assert len(asked) == 32
    open_logs.wait()  # so many do not matter
    open_logs.add(users[33])
    assert len(asked) == 33
    waiting = threading.Thread(target=wait)
    waiting.start()
    assert not waited.wait(0.05)
    open_logs.note_attempt(users[33])  # which nobody has asked
    assert not waited.wait(0.05)
    open_logs.note_attempt(users[0])
    assert waited.wait(WAIT_S)
    waiting.join()


@pytest.mark.parametrize(
    ("descriptors", "maps", "most"),
    [(40, 1 << 20, 10), (3, 1 << 20, 1), (1 << 20, 48, 6), (resource.RLIM_INFINITY, 56, 7)],
)
def test_half_of_the_descriptors_and_of_the_maps_are_for_logs(
    descriptors: int, maps: int, most: int, monkeypatch: pytest.MonkeyPatch
):
    """Each takes two descriptors, and a few maps."""
    monkeypatch.setattr(resource, "getrlimit", lambda _: (descriptors, descriptors))
    monkeypatch.setattr("pyreplog.log.runtime._maps_max", lambda: maps)
    asked = list[str]()
    open_logs = OpenLogs()
    for number in range(most):
        open_logs.add(StubUser(str(number), asked))
    assert asked == []
    open_logs.add(StubUser("last", asked))
    assert asked == ["0"]
