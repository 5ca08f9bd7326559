"""Handles: one writer per log; refused after close, after fork, and to pickle."""

from __future__ import annotations

import copy
import gc
import os
import pickle
import signal
import subprocess
import sys
import warnings
import weakref
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

import pyreplog
from pyreplog import ClosedError, FormatVersionError, LockedError, ReadOnlyError
from tests.waiting import until

SIZE = 1 << 16


@pytest.fixture
def log(tmp_path: Path) -> Iterator[pyreplog.CommitLog]:
    with pyreplog.open(tmp_path / "log", segment_bytes=SIZE) as log:
        log.append_batch([b"zero", b"one", b"two"])
        yield log


@pytest.fixture(params=["a", "r"])
def handle(request, tmp_path: Path) -> Iterator[pyreplog.CommitLog | pyreplog.LogReader]:
    """A log with 3 entries, open for appending or for reading."""
    with pyreplog.open(tmp_path / "log", segment_bytes=SIZE) as log:
        log.append_batch([b"zero", b"one", b"two"])
    with pyreplog.open(tmp_path / "log", request.param) as handle:
        yield handle


HOLDER = """
import sys, pyreplog
log = pyreplog.open(sys.argv[1])
print("open", flush=True)
sys.stdin.read()
"""


def test_a_log_that_another_process_has_open(log, tmp_path):
    log.close()
    with subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(tmp_path / "log")], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as other:
        assert other.stdout is not None and other.stdout.readline() == b"open\n"
        with pytest.raises(LockedError, match=f"process {other.pid}.*mode='r'") as caught:
            pyreplog.open(tmp_path / "log")
        assert caught.value.pid == other.pid and caught.value.path == tmp_path / "log"
        assert pickle.loads(pickle.dumps(caught.value)).pid == other.pid
        with pyreplog.open(tmp_path / "log", "r") as reader:
            assert reader[2] == b"two"
        other.send_signal(signal.SIGKILL)
    with pyreplog.open(tmp_path / "log") as log:
        assert log.append(b"three") == 3


def test_a_log_that_this_process_has_open(log, tmp_path):
    with pytest.raises(LockedError, match=f"process {os.getpid()}"):
        pyreplog.open(tmp_path / "log")
    assert log.append(b"three") == 3


CALLS = {
    "append": lambda log: log.append(b"x"),
    "append_batch": lambda log: log.append_batch([b"x"]),
    "append_batch of nothing": lambda log: log.append_batch([]),
    "append_columns": lambda log: log.append_columns(([0, 1], b"x")),
    "submit": lambda log: log.submit(b"x"),
    "submit_batch": lambda log: log.submit_batch([b"x"]),
    "truncate": lambda log: log.truncate(0),
    "trim": lambda log: log.trim(0),
    "sync": lambda log: log.sync(),
    "stats": lambda log: log.stats(),
    "get": lambda log: log.get(0),
    "subscript": lambda log: log[0],
    "slice": lambda log: log[:],
    "read": lambda log: next(log.read()),
    "read_positions": lambda log: next(log.read_positions(0)),
    "control_records": lambda log: next(log.control_records()),
    "follow": lambda log: next(iter(log.follow(0))),
    "follow_batches": lambda log: next(log.follow_batches(0)),
    "position_of": lambda log: log.position_of(0),
    "entry_at_time": lambda log: log.entry_at_time(0),
    "cursor": lambda log: log.cursor("a"),
    "cursors": lambda log: log.cursors(),
    "read_event_times": lambda log: list(log.read_event_times(0, 1)),
}
WRITING = {
    "append",
    "append_batch",
    "append_batch of nothing",
    "append_columns",
    "submit",
    "submit_batch",
    "truncate",
    "trim",
    "sync",
}


@pytest.mark.parametrize("name", CALLS)
def test_a_closed_log_refuses_calls(handle, name):
    handle.close()
    if isinstance(handle, pyreplog.LogReader):
        if name == "stats":
            return
        with pytest.raises(ReadOnlyError if name in WRITING else ClosedError):
            CALLS[name](handle)
    else:
        with pytest.raises(ClosedError, match="was closed"):
            CALLS[name](handle)
    handle.close()
    assert "log" in repr(handle)


def test_iterators_end_with_the_handle_and_records_outlive_it(handle):
    record, batch = handle.get(1), next(handle.read())
    view = record.value_view
    left = [
        handle.read(batch_bytes=1),
        handle.follow_batches(0, batch_bytes=1),
        handle.read_positions(0, batch_bytes=1),
    ]
    for iterator in left:
        next(iterator)
    handle.close()
    for iterator in left:
        with pytest.raises(ClosedError):
            next(iterator)
    assert (record.value, bytes(view), batch.values()) == (b"one", b"one", [b"zero", b"one", b"two"])


FORK = """
import os, sys, pyreplog
from tests.unit.test_handles import CALLS, WRITING

path, mode = sys.argv[1:]
writer = pyreplog.open(path)
handle = writer if mode == "a" else pyreplog.open(path, "r")
record, scan = handle.get(1), handle.read(batch_bytes=1)
next(scan)
pid = os.fork()
if pid == 0:
    wrong = []
    for name, call in CALLS.items():
        if mode == "r" and (name in WRITING or name == "stats"):
            continue
        try:
            wrong.append(f"{name} -> {call(handle)!r}")
        except pyreplog.ForkedError as error:
            if f"process {os.getppid()}" not in str(error):
                wrong.append(f"{name}: {error}")
        except BaseException as error:
            wrong.append(f"{name}: {error!r}")
    try:
        next(scan)
        wrong.append("next(scan)")
    except pyreplog.ForkedError:
        if record.value != b"one":
            wrong.append("record")
    handle.close()
    try:
        pyreplog.open(path)
    except pyreplog.LockedError as error:
        if error.pid != os.getppid():
            wrong.append(f"{error}")
    else:
        wrong.append("a second writer")
    with pyreplog.open(path, "r") as own:
        if own[0] != b"zero":
            wrong.append("a handle of its own")
    print("; ".join(wrong), flush=True)
    os._exit(len(wrong))
_, status = os.waitpid(pid, 0)
entry = writer.append(b"three")
assert entry == 3 and handle[3] == b"three", entry
handle.close(); writer.close()
sys.exit(os.waitstatus_to_exitcode(status))
"""


@pytest.mark.parametrize("durability", ["appended", "synced"])
@pytest.mark.parametrize("mode", ["a", "r"])
def test_a_forked_log_refuses_calls_in_the_child(tmp_path, mode, durability):
    """In the child every call is refused and names the parent; the parent and its lock notice nothing."""
    with pyreplog.open(tmp_path / "log", segment_bytes=SIZE, durability=durability) as log:
        log.append_batch([b"zero", b"one", b"two"])
    done = subprocess.run(
        [sys.executable, "-W", "ignore::DeprecationWarning", "-c", FORK, str(tmp_path / "log"), mode],
        cwd=Path(__file__).parents[2], capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stdout.strip()) == (0, ""), done.stdout + done.stderr


@pytest.mark.parametrize(("mode", "subject"), [("a", "log"), ("r", "reader of log")])
def test_garbage_collected_handle_emits_a_resource_warning_and_is_closed(tmp_path, mode, subject):
    pyreplog.open(tmp_path / "log").close()
    handle = pyreplog.open(tmp_path / "log", mode)
    gone = weakref.ref(handle)
    with pytest.warns(
        ResourceWarning, match=rf"(?s)unclosed {subject} .*test_handles.py.*in test_garbage_collected_handle"
    ):
        del handle
        until(lambda: (gc.collect(), gone() is None)[1])  # a housekeeper that is at it lets go of it
    until(lambda: (gc.collect(), not any(str(tmp_path) in mapped for mapped in descriptors()))[1])  # warnings name it


def descriptors() -> list[str]:
    """What this process has open."""
    link_targets = []
    for link in Path("/proc/self/fd").iterdir():
        with suppress(FileNotFoundError):  # that which lists them
            link_targets.append(str(link.readlink()))
    return link_targets


@pytest.mark.parametrize("mode", ["a", "r"])
def test_a_handle_that_did_not_open_is_not_forgotten(tmp_path, mode):
    """What was not opened, nobody can close."""
    pyreplog.open(tmp_path / "log").close()
    segment = next((tmp_path / "log").glob("*.log"))
    segment.write_bytes(b"not a segment".ljust(segment.stat().st_size, b"\0"))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(pyreplog.CorruptionError):
            pyreplog.open(tmp_path / "log", mode)
        gc.collect()


def test_handles_of_a_log_refuse_pickling_and_copying(handle):
    things = [handle, handle.get(0), next(handle.read()), handle.follow(0), handle.get(0).value_view, handle.read()]
    for thing in things:
        for use in (pickle.dumps, copy.deepcopy):
            with pytest.raises(TypeError, match="pickle"):
                use(thing)
    with pytest.raises(TypeError, match="open the path again"):
        copy.copy(handle)


def test_errors_can_be_pickled():
    """They travel between processes; the handles do not."""
    for error in (
        LockedError("a", 5), FormatVersionError("a", 2, 1), pyreplog.CorruptionError("a", 5, "x", "y"),
        pyreplog.FrameError(5, "x", "y"), ClosedError("a"), pyreplog.DiskFullError(28, "a"),
    ):  # fmt: skip
        again = pickle.loads(pickle.dumps(error))
        assert type(again) is type(error) and str(again) == str(error) and vars(again) == vars(error)
