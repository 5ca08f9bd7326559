"""Nodes in processes of their own are killed, stopped, promoted and started again."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

import pyreplog
from pyreplog.errors import CommandRefusedError
from pyreplog.ha.remote_node import RemoteNode
from pyreplog.log import names
from tests.ha.nodes import SEGMENT_BYTES, until
from tests.ledger.processes import Process


class Group:
    """Nodes in processes of their own, in folders of one directory."""

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        self.folder, self._stack = folder, stack
        self.addresses: dict[str, str] = {}

    def start(self, role: str, name: str, **settings: Any) -> Process:
        process = Process("tests.ha.process", role, str(self.folder / name), name, json.dumps(settings))
        self._stack.callback(process.close)
        self.addresses[name] = process.wait_for("address")
        return process

    def command(self, name: str, command: str, **arguments: Any) -> dict[str, Any]:
        """Send a command to a node; return its answer."""
        with RemoteNode(self.addresses[name]) as node:
            return node.ask(command, **arguments)

    def introduce(self) -> None:
        """Tell each node the addresses of the others."""
        for name in self.addresses:
            others = {other: address for other, address in self.addresses.items() if other != name}
            self.command(name, "peers", addresses=others)

    def end_of(self, name: str) -> int:
        end: int = self.command(name, "status")["received"]["position"]
        return end

    def numbers(self, name: str) -> list[int]:
        """Return the numbers of the records in a node's log, read by another process; check that they ascend."""
        with pyreplog.open(self.folder / name, "r") as log:
            values = [int(value.split()[0]) for batch in log.read() for value in batch.values()]
        assert values == sorted(set(values))
        return values

    def assert_same_files(self, each_name: str, other: str) -> None:
        end = self.end_of(each_name)
        until(lambda: self.end_of(other) == end)
        for base in names.segment_bases(self.folder / each_name):
            stop = min(end - base, SEGMENT_BYTES)
            if stop > 4096:
                ours, theirs = (
                    names.segment_path(self.folder / name, base).read_bytes() for name in (each_name, other)
                )
                assert ours[:stop] == theirs[:stop], f"segment {base}"


@pytest.fixture
def group(tmp_path: Path) -> Iterator[Group]:
    with ExitStack() as stack:
        yield Group(tmp_path, stack)


def promote_the_further(group: Group, name: str, other: str) -> tuple[str, str]:
    """Promote the node with the longer log; return its name and that of the other one.

    Records of the former master may still arrive when the logs are compared, so that the other log is longer and the
    promotion is
    refused. A candidate that was refused may have promised a term that the other node does not know.
    """
    chosen: list[tuple[str, str]] = []

    def promoted() -> bool:
        names = (name, other) if group.end_of(name) >= group.end_of(other) else (other, name)
        try:
            answer = group.command(names[0], "promote")
        except CommandRefusedError as error:
            assert error.kind in ("PromotionRefusedError", "HigherTermError")
            return False
        assert answer["possible_loss"] == ""
        chosen.append(names)
        return True

    until(promoted)
    return chosen[0]


def test_nothing_acknowledged_is_lost_when_the_master_is_killed(group: Group) -> None:
    master = group.start("master", "a", members=["a", "b", "c"], sync_replicas=1)
    for name in "bc":
        group.start("replica", name, master=group.addresses["a"])
    group.introduce()
    master.wait_for("acked", 400)
    master.kill()
    last = master.output["last"]
    del group.addresses["a"]
    heir, other = promote_the_further(group, "b", "c")
    group.command(other, "follow", master=group.addresses[heir])
    group.start("replica", "a", master=group.addresses[heir])
    until(lambda: group.end_of(other) == group.end_of(heir))
    assert max(group.numbers(heir)) >= last
    assert group.numbers(heir)[: last + 1] == list(range(last + 1))
    group.assert_same_files(heir, "a")
    group.assert_same_files(heir, other)


def test_a_stopped_replica_is_not_waited_for_and_a_stopped_master_is_deposed(group: Group) -> None:
    master = group.start("master", "a", members=["a", "b", "c"], sync_replicas=1)
    b, _ = (group.start("replica", name, master=group.addresses["a"], election_timeout_ms=1500) for name in "bc")
    group.introduce()
    master.wait_for("acked", 100)
    b.signal(signal.SIGSTOP)
    master.wait_for("acked", master.output["acked"] + 200)  # c acknowledges
    b.signal(signal.SIGCONT)
    until(lambda: group.end_of("b") > 0)
    master.signal(signal.SIGSTOP)
    heir, other = promote_the_further(group, "b", "c")
    group.command(other, "follow", master=group.addresses[heir])
    until(lambda: group.command(heir, "status")["committed"]["position"] == group.end_of(heir))
    term_start = group.numbers(heir)[-1]
    master.signal(signal.SIGCONT)
    assert master.wait_for("ended") in ("DeposedError", "HigherTermError", "NotMasterError", "ClosedError")
    assert master.output["last"] <= term_start, "the old master acknowledged something after its time"
    until(lambda: group.command("a", "status")["role"] == "replica")
    group.command("a", "follow", master=group.addresses[heir])
    group.assert_same_files(heir, "a")


def test_a_killed_replica_goes_on_where_it_stopped(group: Group) -> None:
    master = group.start("master", "a", members=["a", "b", "c"], sync_replicas=1)
    b = group.start("replica", "b", master=group.addresses["a"])
    group.start("replica", "c", master=group.addresses["a"])
    for _ in range(3):
        master.wait_for("acked", master.output.get("acked", 0) + 60)
        b.kill()
        b = group.start("replica", "b", master=group.addresses["a"])
    master.wait_for("acked", master.output["acked"] + 60)
    master.send_line()
    assert master.wait_for("ended") == ""
    group.assert_same_files("a", "b")
