"""Commands that run until a signal: they end whatever they are at when it comes."""

from __future__ import annotations

import signal
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager, nullcontext
from pathlib import Path

import pytest

import pyreplog
from pyreplog.cli import app
from pyreplog.cli.shared import serving
from tests.ledger.processes import PATIENCE_S, SEGMENT_BYTES, Process, ProcessGroup
from tests.waiting import until

PROGRAM = """
import signal, sys
from pyreplog.cli.shared import serving

def traced(frame, event, _):
    global events
    frame.f_trace_opcodes = True
    events += 1
    if events == at:
        signal.raise_signal(signal.SIGTERM)
    return traced

sys._getframe().f_trace_opcodes = True  # before settrace, for CPython 3.12: see tests/tracing.py
at, waits = 1, True
while waits:
    events, stop = 0, serving.stopped_by_signals()
    sys.settrace(traced)
    waits = stop.wait(0.2)
    sys.settrace(None)
    at += 1
print(at)
"""
"""Waits again and again, and gets a signal at the next step of it each time, until none of its steps is left."""


def test_a_signal_ends_the_wait_wherever_it_is() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=60, check=True)
    assert int(done.stdout) > 3


# ---- servers, with clients and stores that hang ------------------------------------------------------------------

DRAIN_S = 3.0
BOUND_S = DRAIN_S + serving.GRACE_S + 4.0
"""The end of the interpreter, of a machine that is busy, included."""

TOPICS = 500


@pytest.fixture
def processes(tmp_path: Path) -> Iterator[ProcessGroup]:
    with ProcessGroup(tmp_path, f"sqlite:{tmp_path}/metadata.sqlite") as processes:
        yield processes


@contextmanager
def locked(processes: ProcessGroup) -> Iterator[None]:
    """Somebody stands still in a transaction of the metadata store."""
    with closing(sqlite3.connect(processes.folder / "metadata.sqlite", isolation_level=None)) as connection:
        connection.execute("BEGIN IMMEDIATE")
        yield
        connection.execute("ROLLBACK")


def end(process: Process) -> tuple[int, float]:
    """SIGTERM: exit code, and seconds until it ended."""
    began = time.monotonic()
    process.signal(signal.SIGTERM)
    return process.wait(), time.monotonic() - began


def serve(processes: ProcessGroup) -> tuple[Process, str, list[str]]:
    """A server of topics, its URL, and what it complains of: that is read, however much it is."""
    server = processes.start("pyreplog", "serve", processes.url, "--json", "--drain-s", str(DRAIN_S))
    url, lines = f"pyreplog://{server.wait_for('address')}", list[str]()
    assert server.popen.stderr is not None
    threading.Thread(target=lines.extend, args=(server.popen.stderr,), daemon=True).start()
    return server, url, lines


@pytest.mark.parametrize("is_locked", [False, True])
def test_a_server_of_many_topics_ends_in_time(processes: ProcessGroup, is_locked: bool) -> None:
    """Nothing of what is on its way can be stored; the next owner finds all that was confirmed."""
    processes.start_bookies("b1")
    (bookie,) = processes.bookies.values()
    server, url, lines = serve(processes)
    with pyreplog.connect(url, timeout=PATIENCE_S) as client:
        topics = [client.topic(f"t{number}", ensemble=1, retention_ms=3_600_000) for number in range(TOPICS)]
        for future in [topic.submit(b"a") for topic in topics]:
            future.result(PATIENCE_S)
        bookie.signal(signal.SIGSTOP)
        with locked(processes) if is_locked else nullcontext():
            pending = [topic.submit(b"b") for topic in topics]
            topics[-1].stats()  # it has the others, too: requests of a connection come in order
            code, took_s = end(server)
        for future in pending:
            with pytest.raises(pyreplog.ReplogError):
                future.result(PATIENCE_S)
    until(lambda: any(f"{TOPICS} of {TOPICS} topics were closed" in line for line in lines))
    assert (code, took_s < BOUND_S) == (0, True), (code, took_s, lines[-3:])
    assert not is_locked or any("were dropped" in line for line in lines)
    bookie.signal(signal.SIGCONT)
    server, url, _ = serve(processes)
    with pyreplog.connect(url, timeout=PATIENCE_S) as client:
        for number in range(0, TOPICS, 25):
            batches = client.topic(f"t{number}", create=False).read()
            values = [value for batch in batches for value in batch.values()]
            assert values in ([b"a"], [b"a", b"b"]), "what has no outcome may be there"
    assert end(server)[0] == 0


def test_a_broker_ends_in_time(processes: ProcessGroup) -> None:
    """The metadata store does not answer: nobody learns that it goes."""
    broker = processes.start(
        "pyreplog",
        "broker",
        str(processes.folder / "a"),
        "--json",
        "--metadata",
        processes.url,
        "--drain-s",
        str(DRAIN_S),
    )
    broker.wait_for("broker")
    with locked(processes):
        code, took_s = end(broker)
    assert (code, took_s < BOUND_S) == (0, True), (took_s, broker.error_text())


def test_a_bookie_ends_in_time(processes: ProcessGroup) -> None:
    """Its client stands still, and the metadata store does not answer."""
    bookie = processes.start(
        "pyreplog", "bookie", str(processes.folder / "b1"), "--json", "--metadata", processes.url, "--segment-bytes",
        str(SEGMENT_BYTES), "--drain-s", str(DRAIN_S),
    )  # fmt: skip
    bookie.wait_for("bookie")
    writer = processes.writer(1, 1, 1)
    writer.wait_for("acked", 1)
    writer.signal(signal.SIGSTOP)
    with locked(processes):
        code, took_s = end(bookie)
    assert (code, took_s < BOUND_S) == (0, True), (took_s, bookie.error_text())


@pytest.mark.parametrize("drain_s", ["-1", "nan", "inf", "soon"])
@pytest.mark.parametrize(
    "command", ["serve D", "bookie D", "broker D", "ha replica D", "ha master D", "ha rocketmq-master D"]
)
def test_impossible_drain_times_are_refused(command: str, drain_s: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        app.main([*command.split(), "--drain-s", drain_s])
    assert "--drain-s: expected 0 to 86400 seconds" in capsys.readouterr().err


def test_a_process_that_cannot_be_closed_ends() -> None:
    """Though nobody reads what it says."""
    program = (
        "import os, threading; from pyreplog.cli.shared import serving; os.set_blocking(2, False)\n"
        "try:\n while True: os.write(2, b'.' * 4096)\n"
        "except BlockingIOError: os.set_blocking(2, True)\n"
        "serving.Drain(0.1); threading.Event().wait()"
    )
    with subprocess.Popen([sys.executable, "-c", program], stderr=subprocess.PIPE) as process:
        assert process.wait(60) == 1


def test_process_that_cannot_be_closed_exits_with_an_error_message() -> None:
    program = "import threading; from pyreplog.cli.shared import serving; serving.Drain(0.1); threading.Event().wait()"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)
    text = "pyreplog: not closed 1 s after the 0.1 s of --drain-s; the process ends; the outcome of open requests is unknown\n"
    assert (done.returncode, done.stderr) == (1, text)


SIGNAL_ELSEWHERE = """
import signal, threading, time
from pyreplog.cli.shared import serving

stop, waits = serving.stopped_by_signals(), threading.Event()

def take() -> None:
    waits.wait()
    time.sleep(0.2)  # the main thread sleeps by then; if not, the signal is taken all the same
    signal.pthread_kill(threading.get_ident(), signal.SIGTERM)

threading.Thread(target=take).start()
waits.set()
assert stop.wait()
"""


def test_a_signal_that_another_thread_takes_ends_a_command() -> None:
    """Of two signals that come together, the kernel gives one to a thread that is not the main one."""
    done = subprocess.run([sys.executable, "-c", SIGNAL_ELSEWHERE], timeout=PATIENCE_S, check=False)
    assert done.returncode == 0
