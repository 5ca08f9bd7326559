"""A replica group of three that waits for one replica: one member at a time is disturbed, masters and replicas alike."""

from __future__ import annotations

import threading
from collections import Counter
from pathlib import Path
from typing import Any

import pyreplog
from pyreplog.ha.remote_node import RemoteNode
from tests.chaos.faults import Availability, Outcome, RandomFaults
from tests.chaos.victims import Victim
from tests.ports import free_ports
from tests.waiting import until

LEASE_S = 3.0
BOUND_S = 20.0
NAMES = ("a", "b", "c")


class Appends:
    """What members say: which values were acknowledged, and which errors there were."""

    def __init__(self, availability: Availability) -> None:
        self._availability = availability
        self._lock = threading.Lock()
        self.acknowledged: list[str] = []
        self.errors = Counter[str]()

    def add_line(self, member: str, line: dict[str, Any]) -> None:
        with self._lock:
            if "acknowledged" in line:
                self.acknowledged.append(line["acknowledged"])
                self._availability.acknowledge()
            else:
                self.errors[str(line["error"]).partition(":")[0]] += 1


def run(folder: Path, seconds: float, seed: int) -> Outcome:
    """Disturb members for so long; read the last master's log."""
    availability = Availability("groups", BOUND_S)
    appends = Appends(availability)
    ports = dict(zip(NAMES, free_ports(3), strict=True))
    pairs = ",".join(f"{name}={port}" for name, port in ports.items())
    metadata = f"sqlite:{folder / 'metadata.sqlite'}"
    members = [
        Victim(
            name, folder,
            ["tests.chaos.member", str(folder / name), name, str(port), metadata, str(LEASE_S), pairs], appends.add_line,
        )
        for name, port in ports.items()
    ]  # fmt: skip
    try:
        for member in members:
            member.start()
        until(lambda: appends.acknowledged)
        faults = RandomFaults(members, seed)
        faults.start()
        threading.Event().wait(seconds)
        faults.end()
        held = availability.report(faults)
        acknowledged = list(appends.acknowledged)  # before the master is asked for: all of these are in its log
        master = until(lambda: master_of(ports), pause_s=0.05)
    finally:
        for member in members:
            member.end()
    with pyreplog.open(folder / master, "r") as log:
        values = {bytes(record.value).decode() for batch in log.read() for record in batch}
    lost = [value for value in acknowledged if value not in values]
    print(f"  {len(acknowledged):,} acknowledged, {len(lost)} missing; errors {dict(appends.errors)}")
    return Outcome(len(acknowledged), len(lost), held)


def master_of(ports: dict[str, int]) -> str | None:
    """Return the master's name once no member knows a newer term.

    A master that was stopped and has just been resumed still answers that it is master, for it has not yet heard of
    its successor.
    """
    statuses = []
    for port in ports.values():
        with RemoteNode(f"127.0.0.1:{port}") as node:
            statuses.append(node.status())
    newest = max(statuses, key=term_of)
    for status in statuses:
        if status["role"] == "master" and term_of(status) == term_of(newest):
            return str(status["name"])
    return None


def term_of(status: dict[str, Any]) -> tuple[int, str]:
    """Return number and master of the newest term that a member knows, such as (3, "b")."""
    number, _, master = str(status["term"]).partition(" of ")
    return (int(number), master) if master else (0, "")
