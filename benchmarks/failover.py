"""How long a replica group acknowledges nothing when its master is gone: `python -m benchmarks.failover`.

Three nodes, each a process, fail over by themselves; the master appends. Round by round the master is killed
(SIGKILL) or stopped (SIGSTOP), and the time until another node's first acknowledged append is taken; then the former
master comes back. Printed are the times, and their distribution beside the lease.
"""

from __future__ import annotations

import argparse
import json
import signal
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import ExitStack
from pathlib import Path
from queue import Queue

from pyreplog import ha
from pyreplog.config import LogConfig
from pyreplog.errors import ReplogError
from pyreplog.ha.failover import LEASE_MS, Failover
from pyreplog.ha.remote_node import RemoteNode
from pyreplog.metadata import open_store

NAMES = ("a", "b", "c")
PATIENCE_S = 120.0
_PAUSE_S = 0.005
_REPORT_S = 0.02
_GROUP = "failover"


def _serve(folder: str, name: str, lease_s: float) -> None:
    """A node, until its standard input ends. Prints its address, and when it had an append acknowledged."""
    path, log = Path(folder), LogConfig(segment_bytes=1 << 20)
    began = (path / name / "terms").exists()
    with ExitStack() as stack:
        if name == NAMES[0] and not began:
            node = ha.open_master(path / name, name=name, members=NAMES, sync_replicas=1, log=log, ack_timeout_ms=1000)
        else:
            node = ha.open_replica(path / name, name=name, log=log, ack_timeout_ms=1000)
        stack.enter_context(node)
        store = stack.enter_context(open_store(f"sqlite:{path / 'metadata'}"))
        stack.enter_context(Failover(node, store, _GROUP, lease_ms=round(lease_s * 1000)))
        print(json.dumps({"address": node.address}), flush=True)
        threading.Thread(target=_append, args=(node,), daemon=True).start()
        sys.stdin.read()


def _append(node: ha.Node) -> None:
    reported_s = 0.0
    while True:
        try:
            if node.role == "master":
                node.append(b"x" * 100)
                if (now_s := time.monotonic()) - reported_s >= _REPORT_S:
                    reported_s = now_s
                    print(json.dumps({"acked": now_s}), flush=True)
        except ReplogError:
            pass  # its role changes; it is tried again
        time.sleep(_PAUSE_S)


class Group:
    """The three processes."""

    def __init__(self, folder: Path, stack: ExitStack, lease_s: float) -> None:
        self._folder, self._stack, self._lease_s = folder, stack, lease_s
        self.processes: dict[str, subprocess.Popen[str]] = {}
        self._addresses: dict[str, str] = {}
        self._acked: Queue[tuple[str, float]] = Queue()
        for name in NAMES:
            self.start(name)

    def start(self, name: str) -> None:
        command = [sys.executable, "-m", "benchmarks.failover", "--node", name, str(self._folder), str(self._lease_s)]
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self._stack.callback(_end, process)
        self.processes[name] = process
        assert process.stdout is not None
        self._addresses[name] = json.loads(process.stdout.readline())["address"]
        threading.Thread(target=self._read, args=(name, process), daemon=True).start()

    def _read(self, name: str, process: subprocess.Popen[str]) -> None:
        assert process.stdout is not None
        for line in process.stdout:
            self._acked.put((name, json.loads(line)["acked"]))

    def await_ack(self, after_s: float, other_than: str = "") -> tuple[str, float]:
        """(who, when) of the first append of another node that is acknowledged after that time. Queue's Empty."""
        while True:
            name, acked_s = self._acked.get(timeout=PATIENCE_S)
            if acked_s > after_s and name != other_than:
                return name, acked_s

    def await_replicas(self, master: str) -> None:
        """Until both others follow it."""
        deadline = time.monotonic() + PATIENCE_S
        while time.monotonic() < deadline:
            try:
                with RemoteNode(self._addresses[master]) as node:
                    status = node.status()
                if sum(replica["in_sync"] for replica in status.get("replicas", ())) == 2:
                    return
            except ReplogError:
                pass
            time.sleep(0.05)
        raise TimeoutError(f"{master} has no two replicas after {PATIENCE_S:g} s")


def _end(process: subprocess.Popen[str]) -> None:
    process.kill()
    process.wait()
    for pipe in (process.stdin, process.stdout):
        if pipe is not None:
            pipe.close()


def measure(folder: Path, how: str, rounds: int, lease_s: float) -> list[float]:
    """Seconds without an acknowledged append, of each round. how: "kill" or "stop"."""
    times: list[float] = []
    with ExitStack() as stack:
        group = Group(folder, stack, lease_s)
        master, _ = group.await_ack(0.0)
        for _ in range(rounds):
            group.await_replicas(master)
            victim, process = master, group.processes[master]
            began_s = time.monotonic()
            process.send_signal(signal.SIGKILL if how == "kill" else signal.SIGSTOP)
            master, acked_s = group.await_ack(began_s, other_than=victim)
            times.append(acked_s - began_s)
            if how == "kill":
                process.wait()
                group.start(victim)
            else:
                process.send_signal(signal.SIGCONT)
    return times


def summarize(how: str, times: list[float], lease_s: float) -> str:
    """One line of figures."""
    ordered = sorted(times)
    p50 = ordered[len(ordered) // 2]
    p90 = ordered[min(len(ordered) - 1, len(ordered) * 9 // 10)]
    each = " ".join(f"{seconds:.2f}" for seconds in times)
    return (
        f"{how}: p50 {p50:.2f} s, p90 {p90:.2f} s, max {ordered[-1]:.2f} s, lease {lease_s:g} s, "
        f"{len(times)} rounds: {each}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.failover", description=__doc__)
    parser.add_argument("--rounds", type=int, default=10, help="of each kind")
    parser.add_argument("--lease-s", type=float, default=LEASE_MS / 1000)
    parser.add_argument("--how", choices=("kill", "stop"), nargs="*", default=["kill", "stop"])
    parser.add_argument("--node", nargs=3, metavar=("NAME", "FOLDER", "LEASE"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.node is not None:
        name, folder, lease_s = arguments.node
        _serve(folder, name, float(lease_s))
        return
    for how in arguments.how:
        with tempfile.TemporaryDirectory() as folder:
            print(summarize(how, measure(Path(folder), how, arguments.rounds, arguments.lease_s), arguments.lease_s))


if __name__ == "__main__":
    main()
