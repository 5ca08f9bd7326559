"""AutoRecovery beside pyreplog's: `python -m benchmarks.peers.bookkeeper.recovery`.

Six bookies, each in a process of its own, and a ZooKeeper; closed ledgers, some that stay open with an idle writer, and
a client that adds all the time. One bookie is killed for good, and its registration is deleted at that moment, as
ZooKeeper does when the session ends: no time-out is part of what is measured. BookKeeper's auditor begins then
(lostBookieRecoveryDelay=0); on our side an operator declares the bookie lost then. Both sides have one process that
audits and copies.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from benchmarks import machine, report
from benchmarks.limits.build import ROOT
from benchmarks.metadata_scan import zookeeper
from benchmarks.peers import java
from benchmarks.peers.bookkeeper.cluster import SERVER_MEMORY, build, configure, java_command
from benchmarks.peers.bookkeeper.zookeeper_view import ZooKeeperView
from benchmarks.peers.replicated.peer import Servers, free_ports
from benchmarks.proc import Load
from benchmarks.result import Durability
from pyreplog.autorecovery.bookie_operations import BookieOperations
from pyreplog.autorecovery.config import change_config
from pyreplog.autorecovery.worker_status import list_workers
from pyreplog.bookie.registration import availability_key
from pyreplog.clock import SystemClock
from pyreplog.ledger.cluster import LedgerCluster
from pyreplog.metadata.url import open_store

BOOKIES = 6
_SIDES = ["bookkeeper", "pyreplog"]
_HEAP_MB = 512
_TOLD_S = 15.0


@dataclass(frozen=True)
class Workload:
    """What both sides do.

    quorums: ensemble, write quorum, ack quorum. ledgers: closed ones; entries: of each, a multiple of the ensemble, so
    that all members have the same share; size: bytes of an entry. idle: ledgers that stay open. throttle: bytes that
    the worker copies in a second; 0: no limit. limit_s: when to give up.
    """

    quorums: tuple[int, int, int] = (3, 3, 2)
    ledgers: int = 10_000
    entries: int = 30
    size: int = 1024
    durability: Durability = "synced"
    idle: int = 10
    quiet_s: int = 10
    limit_s: int = 900
    throttle: int = 0


@dataclass(frozen=True)
class Recovered:
    """What was found.

    seconds: from the end of the registration until the last closed ledger stopped to name the bookie. declared_s: part
    of it until the operator's command had ended. needed, left: closed ledgers that named it, that do now.
    copied_per_needed: entries copied for each one that was missing. requests, writes: of ZooKeeper meanwhile, each for
    a ledger. cpu_s: of the process that audits and copies. fenced: idle writers that lost their ledgers. failed: adds
    of the client. others: share of the cores that other processes used.
    """

    seconds: float
    declared_s: float
    needed: int
    left: int
    copied_per_needed: float
    requests: float
    writes: float
    cpu_s: float
    quiet_p99_ms: float
    p99_ms: float
    adds: int
    failed: int
    fenced: int
    others: float = 0.0


_COLUMNS: dict[str, Callable[[Recovered], str]] = {
    "ledgers": lambda found: f"{found.needed:,}",
    "seconds": lambda found: f"{found.left:,} ledgers left" if found.left else f"{found.seconds:.1f}",
    "copied / needed": lambda found: f"{found.copied_per_needed:.3f}",
    "requests / ledger": lambda found: f"{found.requests:.1f}",
    "writes / ledger": lambda found: f"{found.writes:.1f}",
    "CPU": lambda found: f"{found.cpu_s:.1f} s",
    "p99 of adds, before": lambda found: f"{found.quiet_p99_ms:.1f} ms",
    "p99 meanwhile": lambda found: f"{found.p99_ms:.1f} ms",
    "writers fenced": lambda found: str(found.fenced),
    "others": lambda found: f"{found.others:.0%}",
}


def main() -> None:
    """Parse the command line and run; the sides take turns."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.peers.bookkeeper.recovery", description=__doc__)
    add = parser.add_argument
    add("--ledgers", type=int, default=Workload.ledgers)
    add("--entries", type=int, default=Workload.entries, help="of each ledger")
    add("--size", type=int, default=Workload.size, help="bytes of an entry")
    add("--durability", choices=["appended", "synced"], default=Workload.durability)
    add("--throttle", type=int, action="append", help="bytes in a second; 0: no limit; may be given again (default 0)")
    add("--limit-s", type=int, default=Workload.limit_s, help="give up after so many seconds")
    add("--side", choices=_SIDES, action="append", help="only this one")
    add("--quorums", action="append", help="E,Qw,Qa; may be given again (default 3,3,2)")
    add("--repeat", type=int, default=1)
    options = parser.parse_args()
    print(report.header(machine.describe(data_folder())), flush=True)
    title = f"{options.ledgers:,} ledgers of {options.entries} entries of {options.size} B, {options.durability}"
    print(f"\n## {title}", flush=True)
    for quorums in options.quorums or ["3,3,2"]:
        ensemble, write, ack = map(int, quorums.split(","))
        for throttle in options.throttle or [0]:
            work = Workload(
                (ensemble, write, ack), options.ledgers, options.entries, options.size, options.durability,
                limit_s=options.limit_s, throttle=throttle,
            )  # fmt: skip
            found = [(side, measure(side, work)) for side in (options.side or _SIDES) * options.repeat]
            for side, one in found:
                print(json.dumps({"side": side, **asdict(work), **asdict(one)}), file=sys.stderr, flush=True)
            print(f"\n### E={ensemble} Qw={write}, limit: {_rate(throttle)}", end="\n\n")
            print(report.table(["side", *_COLUMNS], [_cells(side, found) for side in dict(found)]), flush=True)


def _rate(throttle: int) -> str:
    return f"{throttle / (1 << 20):g} MiB/s" if throttle else "none"


def _cells(side: str, found: Sequence[tuple[str, Recovered]]) -> list[str]:
    """The runs of one side; figures of several stand beside each other."""
    runs = [one for name, one in found if name == side]
    return [side, *(" · ".join(text(one) for one in runs) for text in _COLUMNS.values())]


def measure(side: str, work: Workload) -> Recovered:
    """One run of one side."""
    if side == "bookkeeper":
        build()
    load = Load()
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="recovery-", dir=data_folder())))
        hosts = stack.enter_context(zookeeper(_HEAP_MB))
        view = ZooKeeperView(hosts)
        stack.callback(view.close)
        chosen: type[BookKeeperSide | OurSide] = BookKeeperSide if side == "bookkeeper" else OurSide
        found = _recover(chosen(folder, hosts, work, stack), view, work)
    return Recovered(**found, others=load.others())  # all processes have ended, so that theirs is not others'


def data_folder() -> Path:
    """Where files of benchmarks are made."""
    path = ROOT / "build" / "bench-data"
    path.mkdir(parents=True, exist_ok=True)
    return path


class Side(Protocol):
    """A cluster with filled ledgers, and processes: bookies, the recovery, and a client of which lines are asked.

    victim: the bookie to kill, as metadata name it. registration, ledgers: paths in ZooKeeper. depth: levels of these.
    """

    victim: str
    registration: str
    ledgers: str
    depth: int
    bookies: list[subprocess.Popen[str]]
    recovery: subprocess.Popen[str]
    client: subprocess.Popen[str]

    def declare_lost(self) -> None:
        """Have the recovery begin."""
        ...

    def copied(self, ledgers: int) -> int:
        """Return how many entries were copied, in so many ledgers."""
        ...


def _recover(side: Side, view: ZooKeeperView, work: Workload) -> dict[str, Any]:
    """The fields of Recovered, but the load."""
    paths = view.naming(side.ledgers, side.depth, side.victim)
    asked = partial(answer_of, side.client)
    asked(f"idle {work.idle}")
    asked("begin")
    time.sleep(work.quiet_s)
    quiet = asked("end")
    asked("begin")
    before, used = view.requests(), _cpu_s(side.recovery.pid)
    side.bookies[0].kill()
    side.bookies[0].wait()
    begin = time.time()  # the same clock as ZooKeeper's
    view.delete(side.registration)
    side.declare_lost()
    declared_s = time.time() - begin
    ended_ms, left = view.until_none_names(paths, side.victim, work.limit_s)
    after, used = view.requests(), _cpu_s(side.recovery.pid) - used
    meanwhile = asked("end")
    needed, (ensemble, write, _) = len(paths), work.quorums
    return {
        "seconds": ended_ms / 1000 - begin, "declared_s": declared_s, "needed": needed, "left": left,
        "copied_per_needed": side.copied(needed - left) / (needed * work.entries * write / ensemble),
        "requests": (after.requests - before.requests) / needed, "writes": (after.writes - before.writes) / needed,
        "cpu_s": used, "quiet_p99_ms": quiet["p99_ns"] * 1e-6, "p99_ms": meanwhile["p99_ns"] * 1e-6,
        "adds": meanwhile["adds"], "failed": quiet["failed"] + meanwhile["failed"], "fenced": asked("fenced")["fenced"],
    }  # fmt: skip


def _cpu_s(pid: int) -> float:
    """CPU time of a process, with that of its threads that have ended."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def start_process(stack: ExitStack, command: list[str], log: Path, *, pipes: bool = False) -> subprocess.Popen[str]:
    """Start a process that is killed in the end. pipes: its standard input and output are ours, not the log's."""
    file, pipe = stack.enter_context(log.open("wb")), subprocess.PIPE if pipes else None
    process = stack.enter_context(
        subprocess.Popen(command, stdin=pipe, stdout=pipe or file, stderr=file, text=True, cwd=ROOT)
    )
    stack.callback(process.kill)
    return process


def answer_of(process: subprocess.Popen[str], line: str = "") -> dict[str, Any]:
    """What a process says to a line, or of its own accord; its logs are between."""
    if process.stdin is None or process.stdout is None:
        raise ValueError("the process has no pipes")
    if line:
        process.stdin.write(line + "\n")
        process.stdin.flush()
    for said in process.stdout:
        if said.startswith("{"):
            found: dict[str, Any] = json.loads(said)
            return found
    raise ChildProcessError(f"{process.args!r} ended with status {process.wait()}")


class BookKeeperSide:
    """BookKeeper's bookies and its AutoRecoveryMain."""

    ledgers, depth = "/ledgers", 3

    def __init__(self, folder: Path, hosts: str, work: Workload, stack: ExitStack) -> None:
        self._work = work
        servers = Servers()
        stack.callback(servers.close)
        uri, more = f"zk+hierarchical://{hosts}/ledgers", "lostBookieRecoveryDelay=0\n"
        if work.throttle:
            more += f"replicationRateByBytes={work.throttle}\n"
        ports = free_ports(BOOKIES)
        paths = [configure(folder / str(port), uri, port, work.durability, more) for port in ports]
        shell = ("org.apache.bookkeeper.bookie.BookieShell", "-conf", str(paths[0]))
        java.run(java_command(*shell, "metaformat", "-nonInteractive", "-force"))
        self.bookies = []
        for path in paths:
            main = ("org.apache.bookkeeper.server.Main", "--conf", str(path))
            self.bookies.append(start_process(stack, java_command(*SERVER_MEMORY, *main), path.with_suffix(".log")))
        for port in ports:
            servers.until(partial(java.listens, port), ConnectionRefusedError)
        self.victim = f"127.0.0.1:{ports[0]}"
        self.registration = f"/ledgers/available/{self.victim}"
        main = ("org.apache.bookkeeper.replication.AutoRecoveryMain", "--conf", str(paths[0]))
        self.recovery = start_process(stack, java_command("-Xmx512m", *main), folder / "autorecovery.log")
        numbers = (*work.quorums, work.ledgers, work.entries, work.size)
        load = java_command("-Xmx1g", "pyreplog.Recover", uri, *map(str, numbers))
        self.client = start_process(stack, load, folder / "client.log", pipes=True)
        answer_of(self.client)

    def declare_lost(self) -> None:
        """The auditor watches the registrations."""

    def copied(self, ledgers: int) -> int:
        """Return how many entries the other bookies hold more than before."""
        ensemble, write, _ = self._work.quorums
        copies = self._work.ledgers * self._work.entries * write
        missing = ledgers * self._work.entries * write // ensemble
        held: int = answer_of(self.client, "held")["held"]
        return held - (copies - missing)


class OurSide:
    """Bookies of pyreplog and `pyreplog autorecovery run`."""

    ledgers, depth = "/pyreplog/ledgers", 2

    def __init__(self, folder: Path, hosts: str, work: Workload, stack: ExitStack) -> None:
        url = f"zk://{hosts}/pyreplog"
        bookie = [sys.executable, "-m", "pyreplog", "bookie", "--json", "--metadata", url]
        folders = [folder / f"b{number}" for number in range(BOOKIES)]
        commands = [[*bookie, "--durability", work.durability, str(path)] for path in folders]
        self.bookies = [
            start_process(stack, command, path.with_suffix(".log"), pipes=True)
            for path, command in zip(folders, commands, strict=True)
        ]
        self.victim, *_ = [answer_of(process)["bookie"] for process in self.bookies]
        self.registration = f"/pyreplog{availability_key(self.victim)}"
        self._store = stack.enter_context(open_store(url))
        change_config(self._store, {"settle_ms": 0, "round_ms": 1000, "bytes_per_s": work.throttle or None})
        recovery = [sys.executable, "-m", "pyreplog", "autorecovery", "run", url]
        self.recovery = start_process(stack, recovery, folder / "autorecovery.log")
        self._operations = BookieOperations(stack.enter_context(LedgerCluster.connect(url)).runtime, SystemClock())
        numbers = (*work.quorums, work.ledgers, work.entries, work.size)
        client = [sys.executable, "-m", "benchmarks.peers.bookkeeper.recovery_client", url, work.durability]
        self.client = start_process(stack, [*client, *map(str, numbers)], folder / "client.log", pipes=True)
        answer_of(self.client)

    def declare_lost(self) -> None:
        """Do what `pyreplog cluster lost` does."""
        self._operations.declare_lost(self.victim, force=True)

    def copied(self, ledgers: int) -> int:
        """Return how many entries the worker has copied, once it has told of so many ledgers."""
        deadline = time.monotonic() + _TOLD_S
        while True:
            workers = list_workers(self._store).values()
            if sum(worker.copied_ledgers for worker in workers) >= ledgers or time.monotonic() > deadline:
                return sum(worker.copied_entries for worker in workers)
            time.sleep(0.2)


if __name__ == "__main__":
    main()
