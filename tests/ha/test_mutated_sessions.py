"""Recorded sessions are sent to a node again, cut or with changed bytes, numbers, lengths or order. The node serves
others as before, keeps acknowledged records, and releases the resources of these sessions."""

from __future__ import annotations

import gc
import logging
import threading
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from random import Random

import pytest

from pyreplog.errors import CommandRefusedError, ReplogError
from pyreplog.ha.node import Node
from pyreplog.ha.remote_node import RemoteNode
from pyreplog.net.sockets import parse_address
from tests.ha.inside import commands_pending, followers_of, peers_of, replica_of, server_of
from tests.ha.nodes import Lab, assert_same_files, level, until, values
from tests.ha.taps import Frame, Tap, brought_up_to_date, frames_of, mutated, play
from tests.thorough import one_in
from tests.waiting import PATIENCE_S

SESSIONS = 800 // one_in(8)
HELLOS = 1
"""How many frames the hello of a client without a secret has."""
GROWTH_BYTES = 96 << 20
"""How much the process may grow; it keeps about 1 MiB of logs."""


class Group:
    """Master a and replica b. Member c has no node; only its recorded sessions run."""

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        self.lab = Lab(folder, stack)
        self.a = self.lab.master(sync_replicas=1)
        self.b = self.lab.replica("b", self.a)
        self.tries = 0
        self.acked: list[bytes] = []
        self.append()

    @property
    def nodes(self) -> tuple[Node, Node]:
        return self.a, self.b

    def append(self) -> None:
        """Append one value until it is acknowledged. A command of an earlier session may still run, and depose a again."""
        until(lambda: self._leads() and self._appended(), pause_s=0.01)

    def _appended(self) -> bool:
        self.tries += 1
        value = b"%d" % self.tries
        try:
            self.a.append(value)
        except ReplogError:
            return False
        self.acked.append(value)
        return True

    def record(self) -> dict[str, list[list[Frame]]]:
        """Record sessions with a master and with a replica, by role: those of a replica, an observer, a candidate and
        an operator."""
        a, b, lab = self.a, self.b, self.lab
        with Tap(a.address) as master, Tap(b.address) as replica:
            c = lab.replica("c", master.address)
            observer = lab.replica("o", replica.address, observer=True)
            for _ in range(3):
                self.append()
                level(a, b, c, observer)
            ask(master.address, "status")
            ask(replica.address, "status")
            ask(master.address, "peers", addresses={"b": b.address})
            ask(replica.address, "peers", addresses={"a": a.address})
            ask(master.address, "sync-replicas", count=1)
            ask(master.address, "follow", master=a.address)
            ask(replica.address, "follow", master=a.address)
            ask(replica.address, "promote")
            self.append()
            level(a, b, c)
            c.learn_peers({"a": master.address, "b": replica.address})
            c.promote()
            self.append()
            lab.close(observer)
            lab.close(c)
        for node in self.nodes:
            node.learn_peers({"c": "127.0.0.1:1"})
        return {"master": [frames_of(s) for s in master.sessions], "replica": [frames_of(s) for s in replica.sessions]}

    def _leads(self) -> bool:
        """Restore the addresses, make a the master and have b follow it, as an operator does; return whether b streams.

        Sessions may ask for a higher term, another master or wrong addresses, and get them.
        """
        a, b = self.a, self.b
        a.learn_peers({"b": b.address})
        b.learn_peers({"a": a.address})
        try:
            if not a.is_leading:
                self._promote()
            if a.members is not None and a.members.quorum != (("a", "b", "c"), 1):
                a.set_members(list("abc"), 1, force=True)
            if b.role != "replica" or replica_of(b).master != parse_address(a.address):
                b.follow(a.address)
        except ReplogError:
            return False
        return bool(b.stats()["streaming"])

    def _promote(self) -> None:
        """Promote the node that has most records; then have a catch up and promote a."""
        for node in list(self.lab.nodes.values()):
            try:
                node.promote()
            except ReplogError:
                continue
            if node is not self.a:
                self.a.follow(node.address)
                level(node, self.a)
                self.a.promote()
            return


def ask(address: str, command: str, **arguments: object) -> None:
    with RemoteNode(address) as remote:
        with suppress(CommandRefusedError):
            remote.ask(command, **arguments)


@pytest.fixture
def group(tmp_path: Path) -> Iterator[Group]:
    with ExitStack() as stack:
        yield Group(tmp_path, stack)


def has_only_followers_that_live(node: Node) -> bool:
    master = node._master
    return master is None or all(connection.error is None for connection in list(master._followers))


def resident_bytes() -> int:
    gc.collect()
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


def test_mutated_sessions_do_not_affect_other_connections(
    group: Group, seed: int, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    unhandled: list[object] = []
    monkeypatch.setattr(threading, "excepthook", unhandled.append)
    rng = Random(seed)
    sessions = group.record()
    assert [len(sessions[role]) >= 5 for role in ("master", "replica")] == [True, True]
    others = [frame for each_session in sessions.values() for session in each_session for frame in session]
    caplog.set_level(logging.WARNING)
    caplog.clear()
    before, threads = resident_bytes(), threading.active_count()
    for number in range(SESSIONS):
        for node in group.nodes:
            role = "replica" if node.role == "replica" else "master"
            session = brought_up_to_date(rng.choice(sessions[role]), node, rng)
            play(node.address, mutated(session, others, HELLOS, rng), rng, PATIENCE_S)
            with RemoteNode(node.address) as remote:
                assert remote.status()["name"] == node.name
            until(lambda node=node: has_only_followers_that_live(node))  # type: ignore[misc]
        if number % 4 == 3:
            group.append()
    a, b = group.nodes
    until(lambda: not commands_pending(a) and not commands_pending(b))
    group.append()
    level(a, b)
    assert [value for value in values(a) if value in set(group.acked)] == group.acked
    assert values(b) == values(a)
    assert_same_files(a, b)
    assert not unhandled
    assert [record.getMessage() for record in caplog.records if record.exc_info] == []
    for node in group.nodes:
        until(lambda node=node: len(server_of(node).connections) <= 2 and not server_of(node).inflight_bytes)  # type: ignore[misc]
        assert len(peers_of(node).addresses) < 1000
    assert len(followers_of(a)) == 1
    until(lambda: threading.active_count() <= threads + 8)  # idle threads of commands end by themselves
    assert resident_bytes() - before < GROWTH_BYTES
