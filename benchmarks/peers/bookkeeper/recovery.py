"""AutoRecovery beside pyreplog's: `python -m benchmarks.peers.bookkeeper.recovery`.

Six bookies, each in a process of its own, in one ZooKeeper; closed ledgers, some that stay open with an idle writer,
and a client that adds all the time. One bookie is killed for good. Both sides are told to begin at once and have one
worker.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from benchmarks.limits.build import ROOT
from benchmarks.metadata_scan import zookeeper
from benchmarks.peers import java
from benchmarks.peers.bookkeeper.cluster import SERVER_MEMORY, build, configure, java_command
from benchmarks.peers.replicated.peer import Servers, free_ports
from pyreplog.autorecovery.config import change_config
from pyreplog.autorecovery.worker_status import list_workers
from pyreplog.errors import InvalidMetadataError, ReplogError
from pyreplog.ledger.cluster import LedgerCluster
from pyreplog.ledger.ledger_handle import Ledger
from pyreplog.ledger.ledger_store import load_many
from pyreplog.metadata.store import MetadataStore
from pyreplog.metadata.url import open_store

BOOKIES = 6
_ADDS_PER_S = 200
_HEAP_MB = 512


@dataclass(frozen=True)
class Workload:
    """What both sides do. throttle: bytes that a worker copies in a second; 0: no limit."""

    quorums: tuple[int, int, int] = (3, 3, 2)
    ledgers: int = 10_000
    entries: int = 10
    size: int = 1024
    idle: int = 10
    quiet_s: int = 10
    limit_s: int = 900
    throttle: int = 0


@dataclass(frozen=True)
class Recovered:
    """seconds: from the kill until no closed ledger names the bookie. needed, left: ledgers that named it, that do now.
    copied_per_needed: entries copied for each one that was missing. fenced: idle writers that lost their ledgers.
    failed: adds of the client."""

    seconds: float
    needed: int
    left: int
    copied_per_needed: float
    quiet_p99_ns: int
    p99_ns: int
    fenced: int
    failed: int


def main() -> None:
    """Parse the command line and run."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.peers.bookkeeper.recovery", description=__doc__)
    add = parser.add_argument
    add("--ledgers", type=int, default=Workload.ledgers)
    add("--entries", type=int, default=Workload.entries, help="of each ledger")
    add("--size", type=int, default=Workload.size, help="bytes of an entry")
    add("--throttle", type=int, default=0, help="replicationRateByBytes and bytes_per_s; 0: no limit")
    add("--limit-s", type=int, default=Workload.limit_s, help="give up after so many seconds")
    add("--side", choices=["bookkeeper", "pyreplog"], action="append", help="only this one")
    add("--quorums", default="3,3,2", help="E,Qw,Qa")
    options = parser.parse_args()
    ensemble, write, ack = map(int, options.quorums.split(","))
    work = Workload(
        (ensemble, write, ack), options.ledgers, options.entries, options.size, limit_s=options.limit_s,
        throttle=options.throttle,
    )  # fmt: skip
    for side in options.side or ["bookkeeper", "pyreplog"]:
        print(json.dumps({"side": side, **asdict(work), **asdict(measure(side, work))}), flush=True)


def measure(side: str, work: Workload) -> Recovered:
    """One run of one side."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="recovery-", dir=_data())))
        if side == "bookkeeper":
            build()
            return _bookkeeper(folder, work, stack)
        return _pyreplog(folder, work, stack)


def _data() -> Path:
    path = ROOT / "build" / "bench-data"
    path.mkdir(parents=True, exist_ok=True)
    return path


# ---- BookKeeper -----------------------------------------------------------------------------------------------------


def _bookkeeper(folder: Path, work: Workload, stack: ExitStack) -> Recovered:
    hosts = stack.enter_context(zookeeper(_HEAP_MB))
    servers = Servers()
    stack.callback(servers.close)
    uri, more = f"zk+hierarchical://{hosts}/ledgers", f"lostBookieRecoveryDelay=0\n{_rate(work)}"
    ports = free_ports(BOOKIES)
    paths = [configure(folder / str(port), uri, port, "appended", more) for port in ports]
    shell = ("org.apache.bookkeeper.bookie.BookieShell", "-conf", str(paths[0]))
    java.run(java_command(*shell, "metaformat", "-nonInteractive", "-force"))
    processes = []
    for path in paths:
        main = ("org.apache.bookkeeper.server.Main", "--conf", str(path))
        processes.append(_process(stack, java_command(*SERVER_MEMORY, *main), path.with_suffix(".log")))
    for port in ports:
        servers.until(partial(java.listens, port), ConnectionRefusedError)
    main = ("org.apache.bookkeeper.replication.AutoRecoveryMain", "--conf", str(paths[0]))
    _process(stack, java_command("-Xmx512m", *main), folder / "autorecovery.log")
    numbers = (*work.quorums, work.ledgers, work.entries, work.size, work.idle)
    load = java_command("-Xmx1g", "pyreplog.Recover", uri, *map(str, numbers))
    client = _process(stack, load, folder / "client.log", pipes=True)
    _answer(client)
    quiet = _answer(client, f"quiet {work.quiet_s}")
    processes[0].kill()
    processes[0].wait()
    found = _answer(client, f"recover 127.0.0.1:{ports[0]} {work.limit_s}")
    copies = work.ledgers * work.entries * work.quorums[1]
    missing = found["needed"] * work.entries * work.quorums[1] / work.quorums[0]
    copied = found["entries_held"] - (copies - missing)
    return Recovered(
        found["seconds"], found["needed"], found["left"], copied / missing, quiet["p99_ns"], found["p99_ns"],
        found["fenced"], found["failed"],
    )  # fmt: skip


def _rate(work: Workload) -> str:
    return f"replicationRateByBytes={work.throttle}\n" if work.throttle else ""


def _process(stack: ExitStack, command: list[str], log: Path, *, pipes: bool = False) -> subprocess.Popen[str]:
    """Start a process that is killed in the end. pipes: its standard input and output are ours, not the log's."""
    file, pipe = stack.enter_context(log.open("wb")), subprocess.PIPE if pipes else None
    process = stack.enter_context(
        subprocess.Popen(command, stdin=pipe, stdout=pipe or file, stderr=file, text=True, cwd=ROOT)
    )
    stack.callback(process.kill)
    return process


def _answer(client: subprocess.Popen[str], line: str = "") -> dict[str, Any]:
    """What the client says to a line; its logs are between."""
    if client.stdin is None or client.stdout is None:
        raise ValueError("the client has no pipes")
    if line:
        client.stdin.write(line + "\n")
        client.stdin.flush()
    for said in client.stdout:
        if said.startswith("{"):
            found: dict[str, Any] = json.loads(said)
            return found
    raise ChildProcessError(f"the client ended with status {client.wait()}")


# ---- pyreplog -------------------------------------------------------------------------------------------------------


def _pyreplog(folder: Path, work: Workload, stack: ExitStack) -> Recovered:
    hosts = stack.enter_context(zookeeper(_HEAP_MB))
    url = f"zk://{hosts}/pyreplog"
    bookie = [sys.executable, "-m", "pyreplog", "bookie", "--json", "--metadata", url, "--durability", "appended"]
    folders = [folder / f"b{number}" for number in range(BOOKIES)]
    processes = [_process(stack, [*bookie, str(path)], path.with_suffix(".log"), pipes=True) for path in folders]
    victim, *_ = [_said(process)["bookie"] for process in processes]
    with open_store(url) as store:
        settings = {"delay_ms": 0, "settle_ms": 0, "round_ms": 1000, "bytes_per_s": work.throttle or None}
        change_config(store, settings)
        recovery = [sys.executable, "-m", "pyreplog", "autorecovery", "run", url]
        _process(stack, recovery, folder / "autorecovery.log")
        cluster = stack.enter_context(LedgerCluster.connect(url))
        closed, idle = _fill(cluster, work)
        with _adds(cluster, work) as quiet:
            time.sleep(work.quiet_s)
        with _adds(cluster, work) as meanwhile:
            processes[0].kill()
            begin = time.monotonic()
            needed, left, seconds = -1, closed, 0.0
            while left and seconds < work.limit_s:
                left = [ledger for ledger, found in load_many(store, left) if _names(found, victim)]
                needed = len(left) if needed < 0 else needed
                seconds = time.monotonic() - begin
                time.sleep(0.2)
        copied = _copied(store, needed - len(left))
        missing = needed * work.entries * work.quorums[1] / work.quorums[0]
    fenced = sum(not _takes(ledger, work) for ledger in idle)
    return Recovered(
        seconds, needed, len(left), copied / missing, quiet.p99_ns(), meanwhile.p99_ns(), fenced, meanwhile.failed
    )  # fmt: skip


def _copied(store: MetadataStore, ledgers: int) -> int:
    """Entries that workers copied, once they have told about so many ledgers, or 15 s later."""
    deadline = time.monotonic() + 15
    while True:
        workers = list_workers(store).values()
        if sum(worker.copied_ledgers for worker in workers) >= ledgers or time.monotonic() > deadline:
            return sum(worker.copied_entries for worker in workers)
        time.sleep(0.2)


def _said(process: subprocess.Popen[str]) -> dict[str, Any]:
    if process.stdout is None:
        raise ValueError("the bookie has no pipe")
    found: dict[str, Any] = json.loads(process.stdout.readline())
    return found


class _Found(Protocol):
    @property
    def metadata(self) -> Any: ...


def _names(found: _Found | InvalidMetadataError | None, bookie: str) -> bool:
    if found is None or isinstance(found, InvalidMetadataError):
        return False
    named: bool = bookie in found.metadata.bookies()
    return named


def _create(cluster: LedgerCluster, work: Workload) -> Ledger:
    ensemble, write, ack = work.quorums
    return cluster.create_ledger(ensemble, write, ack, durability="appended")


def _fill(cluster: LedgerCluster, work: Workload) -> tuple[list[int], list[Ledger]]:
    """Ids of closed ledgers, and ledgers that stay open with an entry each."""
    value = bytes(work.size)
    closed = []
    for _ in range(work.ledgers):
        with _create(cluster, work) as ledger:
            for _ in range(work.entries):
                ledger.submit(value)
        closed.append(ledger.id)
    idle = [_create(cluster, work) for _ in range(work.idle)]
    for ledger in idle:
        ledger.append(value)
    return closed, idle


def _takes(ledger: Ledger, work: Workload) -> bool:
    try:
        ledger.append(bytes(work.size))
        ledger.close()
    except ReplogError:
        return False
    return True


class _Adds:
    """Adds to a ledger of its own, one at a time at a fixed rate."""

    def __init__(self, ledger: Ledger, value: bytes) -> None:
        self.failed = 0
        self._ledger, self._value, self._taken, self._over = ledger, value, list[int](), threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        following = time.monotonic_ns()
        while not self._over.is_set():
            begin = time.monotonic_ns()
            if begin < following:
                self._over.wait((following - begin) * 1e-9)
                continue
            following = max(following + 1_000_000_000 // _ADDS_PER_S, begin - 1_000_000_000)
            try:
                self._ledger.append(self._value)
            except ReplogError:
                self.failed += 1
            self._taken.append(time.monotonic_ns() - begin)

    def stop(self) -> None:
        self._over.set()
        self._thread.join()

    def p99_ns(self) -> int:
        return sorted(self._taken)[len(self._taken) * 99 // 100]


@contextmanager
def _adds(cluster: LedgerCluster, work: Workload) -> Iterator[_Adds]:
    with _create(cluster, work) as ledger:
        adds = _Adds(ledger, bytes(work.size))
        try:
            yield adds
        finally:
            adds.stop()
    cluster.delete_ledger(ledger.id)  # its entries are not among those that are counted


if __name__ == "__main__":
    main()
