"""`python -m benchmarks.instructions`: user-space instructions of one message or append, counted by callgrind.

A busy machine changes them little: what the process executes while nothing is done, for as long, is subtracted. The
kernel's instructions are not among them, nor what it costs to wake a thread.
"""

from __future__ import annotations

import argparse
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pyreplog
from pyreplog import Cluster, ha
from pyreplog.ha import master as master_module
from pyreplog.ledger.cluster import LedgerCluster

_ROOT = Path(__file__).parent.parent
_WARM_UPS = 150
_SETTLE_S = 4.0
"""Time for the housekeepers to import what they need."""
_CONTROL_S = 60.0
_TOTALS = re.compile(rb"^totals: (\d+)$", re.MULTILINE)
_VALUE = {"message": bytes(100), "append": bytes(1024)}


# ---- what is done ------------------------------------------------------------------------------------------------


def _publish_and_receive(opened: Callable[[], Any], count: int) -> Iterator[None]:
    topic = opened()
    with topic.subscribe("instructions") as consumer:
        expected = topic.offsets().stop

        def once() -> None:
            nonlocal expected
            topic.publish(_VALUE["message"])
            message = consumer.receive(timeout=_CONTROL_S)
            assert message is not None and (message.offset, message.value) == (expected, _VALUE["message"])
            consumer.acknowledge(message)
            expected += 1

        yield from _repeat(once, count)


def _repeat(once: Callable[[], object], count: int) -> Iterator[None]:
    """Yield before the repetitions that are counted, and after them."""
    for _ in range(_WARM_UPS):
        once()
    time.sleep(_SETTLE_S)  # in which nothing has to happen: what happens is not counted
    for _ in range(_WARM_UPS):
        once()
    yield
    for _ in range(count):
        once()
    yield


def _embedded(folder: str, bookies: str, count: str) -> Iterator[None]:
    with Cluster.embedded(folder, bookies=int(bookies)) as cluster:
        yield from _publish_and_receive(lambda: cluster.topic("messages"), int(count))


def _remote(address: str, count: str) -> Iterator[None]:
    with pyreplog.connect(address, timeout=_CONTROL_S) as client:
        yield from _publish_and_receive(lambda: client.topic("messages"), int(count))


def _ledger(url: str, durability: str, count: str) -> Iterator[None]:
    with LedgerCluster.connect(url) as cluster, cluster.create_ledger(3, 3, 3, durability=durability) as ledger:
        yield from _repeat(lambda: ledger.append(_VALUE["append"]), int(count))
        with cluster.open_ledger(ledger.id, recover=False) as reader:
            entry = ledger.last_add_confirmed
            (batch,) = reader.read(entry, entry + 1)
            assert list(batch.values()) == [_VALUE["append"]]


def _master(folder: str, count: str) -> Iterator[None]:
    """Append as the master of a group of two. It prints its address first, and the first append waits for the replica.

    Its timers are put off, that of the message with the commit point as well: callgrind makes each append so slow that
    one would follow each, and without it one follows tens of appends.
    """
    master_module.COMMIT_DELAY_S = master_module.TICK_S = 3600.0
    patience_ms = round(10 * _CONTROL_S * 1000)
    with ha.open_master(folder, name="a", members=["a", "b"], sync_replicas=1, ack_timeout_ms=patience_ms) as node:
        print(node.address, flush=True)
        yield from _repeat(lambda: node.append(_VALUE["append"]), int(count))
        assert node.log[node.log.end - 1] == _VALUE["append"]


def _replica(folder: str, master: str) -> Iterator[None]:
    """Follow the master until the process ends."""
    with ha.open_replica(folder, name="b", master=master):
        yield


_JOBS: dict[str, Callable[..., Iterator[None]]] = {
    "embedded": _embedded,
    "remote": _remote,
    "ledger": _ledger,
    "master": _master,
    "replica": _replica,
}


def _job(name: str, arguments: list[str]) -> None:
    for _ in _JOBS[name](*arguments):
        print("ready", flush=True)
        sys.stdin.readline()


# ---- processes ----------------------------------------------------------------------------------------------------


class _Process:
    """A process, under callgrind if its instructions are to be counted."""

    def __init__(self, command: list[str], folder: Path, *, is_counted: bool) -> None:
        self._folder = Path(tempfile.mkdtemp(dir=folder)) if is_counted else None
        self._dumps = 0
        valgrind = ["valgrind", "--tool=callgrind", "--instr-atstart=no", f"--callgrind-out-file={self._folder}/%p"]
        self._process = subprocess.Popen(
            [*(valgrind if is_counted else ()), sys.executable, "-m", *command],
            cwd=_ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
        )  # fmt: skip

    def line(self) -> str:
        """Return the next line that it prints."""
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"a process that was measured ended with status {self._process.wait()}")
        return line.strip()

    def go_on(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()

    def count(self, is_counting: bool) -> None:
        """Begin to count, or stop."""
        if self._folder is not None:
            self._control("-i", "on" if is_counting else "off")

    def counted(self) -> int:
        """Return the instructions that were counted."""
        assert self._folder is not None
        self._control("-d")
        self._dumps += 1
        deadline_s = time.monotonic() + _CONTROL_S
        while time.monotonic() < deadline_s:  # a file is complete when its totals are there
            found = [total for path in self._folder.glob("*.*") for total in _TOTALS.findall(path.read_bytes())]
            if len(found) >= self._dumps:
                return sum(map(int, found))
            time.sleep(0.05)
        raise RuntimeError("callgrind wrote no totals")

    def _control(self, *arguments: str) -> None:
        command = ["callgrind_control", *arguments, str(self._process.pid)]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, timeout=_CONTROL_S)

    def end(self) -> None:
        self._process.kill()
        self._process.wait()


def _measure(doer: _Process, counted: _Process, count: int) -> float:
    """Return the instructions of `counted` for each of the repetitions of `doer`."""
    assert doer.line() == "ready"
    counted.count(True)
    began_s = time.monotonic()
    doer.go_on()
    assert doer.line() == "ready"
    took_s = time.monotonic() - began_s
    counted.count(False)
    busy = counted.counted()
    counted.count(True)
    time.sleep(took_s)
    counted.count(False)
    idle = counted.counted() - busy
    return (busy - idle) / count


@contextmanager
def _processes() -> Iterator[tuple[Path, Callable[..., _Process]]]:
    """Give a folder, and a function that starts a process in it; both end together."""
    with (
        tempfile.TemporaryDirectory(prefix="pyreplog-instructions-", ignore_cleanup_errors=True) as name,
        ExitStack() as stack,
    ):
        folder = Path(name)

        def start(*command: str, is_counted: bool = False) -> _Process:
            process = _Process(list(command), folder, is_counted=is_counted)
            stack.callback(process.end)
            return process

        yield folder, start


_ME = "benchmarks.instructions"


def _count_embedded(count: int, bookies: int) -> float:
    with _processes() as (folder, start):
        doer = start(_ME, "--job", "embedded", str(folder / "c"), str(bookies), str(count), is_counted=True)
        return _measure(doer, doer, count)


def _count_server(count: int, *, is_client: bool) -> float:
    with _processes() as (folder, start):
        server = start("pyreplog", "serve", str(folder / "c"), "--bookies", "1", is_counted=not is_client)
        address = server.line().split()[-1]
        client = start(_ME, "--job", "remote", address, str(count), is_counted=is_client)
        return _measure(client, client if is_client else server, count)


def _count_ledger(durability: str, count: int, *, is_client: bool) -> float:
    with _processes() as (folder, start):
        url = f"sqlite:{folder / 'metadata'}"
        bookies = []
        for number in range(3):
            path = folder / f"bookie-{number}"
            settings = ["--metadata", url, "--name", path.name, "--durability", durability]
            bookies.append(start("pyreplog", "bookie", str(path), *settings, is_counted=not (is_client or number)))
        for bookie in bookies:
            bookie.line()
        client = start(_ME, "--job", "ledger", url, durability, str(count), is_counted=is_client)
        return _measure(client, client if is_client else bookies[0], count)


def _count_group(count: int, *, is_master: bool) -> float:
    with _processes() as (folder, start):
        master = start(_ME, "--job", "master", str(folder / "a"), str(count), is_counted=is_master)
        replica = start(_ME, "--job", "replica", str(folder / "b"), master.line(), is_counted=not is_master)
        assert replica.line() == "ready"
        return _measure(master, master if is_master else replica, count)


ROWS: dict[str, tuple[str, Callable[[int], float]]] = {
    "message": (
        "publish, receive, acknowledge in one process, one bookie, synced",
        partial(_count_embedded, bookies=1),
    ),
    "message-3": ("the same, three bookies", partial(_count_embedded, bookies=3)),
    "server": ("the same through a server of one bookie: the server", partial(_count_server, is_client=False)),
    "client": ("the client of that server", partial(_count_server, is_client=True)),
    "append": ("append of 1 KiB, three bookies: the client", partial(_count_ledger, "appended", is_client=True)),
    "bookie": ("a bookie, appended", partial(_count_ledger, "appended", is_client=False)),
    "bookie-synced": ("a bookie, synced", partial(_count_ledger, "synced", is_client=False)),
    "master": (
        "append of 1 KiB to a replica group, one replica, received: the master",
        partial(_count_group, is_master=True),
    ),
    "replica": ("the replica", partial(_count_group, is_master=False)),
}


def main() -> None:
    """Parse the command line, count, and print a table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.instructions", description=__doc__)
    parser.add_argument("--only", action="append", choices=ROWS, help="only this row; may be given again")
    parser.add_argument("--count", type=int, default=300, help="repetitions that are counted (default 300)")
    parser.add_argument("--job", nargs="+", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.job:
        _job(options.job[0], options.job[1:])
        return
    if shutil.which("valgrind") is None:
        raise SystemExit("valgrind: expected to find it on PATH, found none: install the package `valgrind`")
    print("| work | instructions |\n|---|---|")
    for name in options.only or ROWS:
        title, count = ROWS[name]
        print(f"| `{name}`: {title} | {count(options.count):,.0f} |", flush=True)


if __name__ == "__main__":
    main()
