"""Private memory of a master and its replica while the replica stands still."""

from __future__ import annotations

import os
import signal
import time
from contextlib import ExitStack

from benchmarks.entries import SIZES, VALUES, stride
from benchmarks.plan import Plan
from benchmarks.result import Comparison, Figure, Goal, Section
from benchmarks.rows.ha.node import RemoteNode, remote

_SIZE = 1024
_STOPPED_S = 60.0
_LOADED_BYTES = 2 << 30
_MOST_BYTES = 64 << 20
_POLL_S = 0.05


def memory(plan: Plan) -> Section:
    """A master under load, its replica stopped by SIGSTOP for a minute, then catching up."""
    section = Section("ha-memory", f"Private memory over idle while a replica is stopped, {SIZES[_SIZE]}, under load")
    is_long = plan.full or plan.budget >= 5
    stopped_s = _STOPPED_S if is_long else 0.2
    entries = (_LOADED_BYTES if is_long else 4 * plan.segment_bytes) // stride(_SIZE)
    with plan.folder() as folder, ExitStack() as stack:
        log = {"segment_bytes": plan.segment_bytes}
        master = remote(stack, folder / "master", "master", members=["master", "b"], log=log)
        replica = remote(stack, folder / "replica", "b", master=master.address, log=log)
        first = master.call("fill", _SIZE, VALUES)
        replica.call("received", first)
        watch = _Watch({"master": master, "replica": replica})
        lag = _stop_and_load(watch, master, replica, stopped_s, entries) - first
        checked = replica.call("verified", _SIZE, VALUES, VALUES + entries // VALUES * VALUES)
    for name, value in watch.most.items():
        section.comparisons.append(
            Comparison(
                f"{name}, at most in {stopped_s:g} s and while {lag / (1 << 20):,.0f} MiB are caught up",
                Figure("anonymous memory over idle", value, "B", "appended"),
                Figure("64 MiB", _MOST_BYTES, "B", "appended"),
                Goal("at most", 1.0),
                checked,
            )
        )
    section.notes.append("Idle: joined, with the first few entries; the master waits for nobody (sync_replicas=0).")
    return section


class _Watch:
    """Most private bytes that processes had above those at first."""

    def __init__(self, nodes: dict[str, RemoteNode]) -> None:
        self._nodes = nodes
        self._idle = {name: node.private_bytes() for name, node in nodes.items()}
        self.most = dict.fromkeys(nodes, 0)

    def measure(self) -> None:
        for name, node in self._nodes.items():
            self.most[name] = max(self.most[name], node.private_bytes() - self._idle[name])


def _stop_and_load(
    watch: _Watch, master: RemoteNode, replica: RemoteNode, stopped_s: float, entries: int
) -> int:  # fmt: skip
    """Load the master evenly while the replica is stopped, watch until that has caught up; where the log ends."""
    os.kill(replica.pid, signal.SIGSTOP)
    try:
        looks = max(int(stopped_s / _POLL_S), 1)
        for look in range(looks):
            count = entries // VALUES * (look + 1) // looks - entries // VALUES * look // looks
            end = int(master.call("fill", _SIZE, count * VALUES))
            watch.measure()
            time.sleep(_POLL_S)
    finally:
        os.kill(replica.pid, signal.SIGCONT)
    replica.ask("received", end)
    while not replica.has_answered(_POLL_S):
        watch.measure()
    replica.answer()
    watch.measure()
    return end
