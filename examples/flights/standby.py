"""The fourth step of the demo: a replica takes over from a master that is killed, and an applier goes on over it."""

from __future__ import annotations

import filecmp
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

from carriers import counted
from children import PATIENCE_S, Child
from departures import Departures
from flightsnode import SEGMENT_BYTES
from verification import Mismatch, same

import pyreplog
from pyreplog.ha.relay import Relay
from pyreplog.ha.remote_node import RemoteNode

HERE = Path(__file__).parent
APPENDING_S = 4.0
NOWHERE = "127.0.0.1:1"


class Nodes:
    """The two processes, by their names. All end with it."""

    def __init__(self, directory: Path, log: Path) -> None:
        self._directory, self._log = directory, log
        self.running: dict[str, Child] = {}

    def path(self, name: str) -> Path:
        return self._directory / f"node-{name}"

    def start(self, name: str, master: str | None = None, *, seconds: float = 0.0) -> str:
        """Its address."""
        options = [str(self.path(name)), name, str(self._log), str(seconds), *([] if master is None else [master])]
        child = self.running[name] = Child(str(HERE / "flightsnode.py"), *options)
        return str(child.wait_for("address"))

    def kill(self, name: str) -> None:
        self.running.pop(name).close()

    def close(self) -> None:
        for name in list(self.running):
            self.kill(name)


def take_over(log: Path, directory: Path, table: Path) -> Iterator[str]:
    """All of it; yields what there is to say. log: that of the first step. Mismatch: something is not as it must be."""
    flights = counted(table.read_bytes().split(b"\n")[1:-1])
    total = sum(carrier.flights for carrier in flights.values())
    with ExitStack() as stack:
        nodes, departures = Nodes(directory, log), Departures(directory / "departures.sqlite")
        stack.callback(nodes.close)
        stack.callback(departures.close)
        first = nodes.start("a", seconds=APPENDING_S)
        second = nodes.start("b", first)
        relay = stack.enter_context(
            Relay(directory / "relay", master=first, apply=departures.apply, store=departures.positions)
        )
        relay.applier.start()
        yield "A master process appends the flights; a replica has each before it counts; an applier follows both."
        acked, lost = kill_the_master(nodes, total, first, second)
        yield f"Cut the replica off, and killed the master (SIGKILL) with {acked:,} flights acknowledged, {lost:,} not."
        promote(second)
        yield "Promoted the replica (`pyreplog ha promote`). The old master starts again, as its replica."
        relay.follow(second)
        nodes.start("a", second)
        nodes.running["b"].wait_for("acked", total)
        yield came_back(nodes, log, acked)
        relay.applier.wait_applied(total - 1, PATIENCE_S)
        if departures.carriers() != flights:
            raise Mismatch(f"the applier counted {departures.carriers()}, the file has {flights}")
        yield f"The applier's SQLite table has {len(flights)} carriers, {total:,} flights, each once, as in the file."


def kill_the_master(nodes: Nodes, total: int, first: str, second: str) -> tuple[int, int]:
    """Returns how many flights were acknowledged, and how many more the master had written."""
    master = nodes.running["a"]
    with RemoteNode(first) as a, RemoteNode(second) as b:

        def has_more() -> bool:
            mine, theirs = a.status(), b.status()
            return not theirs["streaming"] and mine["received"]["entry"] > theirs["received"]["entry"]

        master.wait_for("acked", total // 3)
        b.ask("follow", master=NOWHERE)
        wait(lambda: not b.status()["streaming"], "the replica was never cut off")
        master.go_on()
        wait(has_more, "the master never had more than the replica")
        held, written = b.status()["received"]["entry"], a.status()["received"]["entry"]
        nodes.kill("a")
    acked = master.said["acked"]
    if not acked <= held < total:
        raise Mismatch(f"{acked:,} flights were acknowledged, the replica has {held:,}")
    return acked, written - held


def came_back(nodes: Nodes, log: Path, acked: int) -> str:
    """The old master is a replica now, and the two logs are the same, byte for byte."""
    aside = sum(path.stat().st_size for path in (nodes.path("a") / "aside").rglob("*.cut"))
    if not aside:
        raise Mismatch("the old master has cut nothing")
    with (
        pyreplog.open(nodes.path("a"), "r") as mine,
        pyreplog.open(nodes.path("b"), "r") as theirs,
        pyreplog.open(log, "r") as source,
    ):
        wait(lambda: mine.end == theirs.end == source.end, "the old master does not follow")
        found = same(mine.read(), source.read())
        last = theirs.get(theirs.end - 1).position
    full = [path.name for path in nodes.path("b").glob("*.log") if int(path.stem) + SEGMENT_BYTES <= last]
    _, different, missing = filecmp.cmpfiles(nodes.path("a"), nodes.path("b"), full, shallow=False)
    if different or missing or found < acked:
        raise Mismatch(f"{found:,} flights; segments {different} differ, {missing} are missing")
    return (
        f"It cut {aside:,} bytes that nobody had acknowledged (they are in aside/) and follows: both hold {found:,} "
        f"flights, all as in the log of the first step; {len(full)} full segments are equal byte by byte."
    )


def promote(address: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "pyreplog", "ha", "promote", address], capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise Mismatch(f"pyreplog ha promote: {done.stderr}")


def wait(holds: Callable[[], bool], complaint: str) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not holds():
        if time.monotonic() > deadline:
            raise Mismatch(complaint)
        time.sleep(0.02)
