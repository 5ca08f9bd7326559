"""Wrong settings, and wrong answers of another cluster: each raises an alarm of its own, which says what to do."""

from __future__ import annotations

import dataclasses
import shutil
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any, cast

import pytest

from pyreplog._native.topic.wire_fields import WireReader
from pyreplog.clock import SystemClock
from pyreplog.cluster import Cluster
from pyreplog.errors import ClusterExistsError, ClusterUnreachableError, InvalidMessageError
from pyreplog.geo import target_links
from pyreplog.geo.clusters import RemoteCluster
from pyreplog.geo.mismatch import CLOCKS_APART_US, mismatch
from pyreplog.geo.policy import ReplicationPolicy
from pyreplog.geo.replicator import Replicator
from pyreplog.geo.replicator_status import ReplicatorStatus
from pyreplog.geo.target_link import Opening, TargetLink, TargetSession
from pyreplog.geo.target_links import explained
from pyreplog.net.sockets import Address
from pyreplog.origins.origin import Origin
from pyreplog.topic.client.remote.client import Client
from pyreplog.topic.model.config import TopicConfig
from pyreplog.topic.model.wire.protocol import OriginOpened, encode_reply
from pyreplog.topic.server.topic_server import TopicServer
from tests.geo.sites import GLOBAL, SYNCED, Site, has_all, values
from tests.topic.remoting import Wire
from tests.waiting import until

DAY_US = 86_400_000_000


class Ahead(SystemClock):
    """A clock that is set two days ahead."""

    ahead_us = 2 * DAY_US

    def now_us(self) -> int:
        return super().now_us() + self.ahead_us


@pytest.fixture
def a(tmp_path: Path) -> Iterator[Site]:
    with Site(tmp_path / "a") as site:
        yield site


@pytest.fixture
def b(tmp_path: Path) -> Iterator[Site]:
    with Site(tmp_path / "b") as site:
        yield site


def again(replicator: object) -> None:
    """Make the replicator open another session, in which it compares the two clusters again."""
    replicator.pause()  # type: ignore[attr-defined]
    replicator.resume()  # type: ignore[attr-defined]


# ---- clocks and settings ---------------------------------------------------------------------------------------------


def test_clocks_that_are_days_apart(a: Site, tmp_path: Path) -> None:
    clock = Ahead()
    with Site(tmp_path / "b", clock) as b:
        a.topic().publish(b"1")
        replicator = a.replicate("west", b.server.address)
        has_all(replicator, 1)
        until(lambda: replicator.status().alarm)
        assert "the clock of west is 1 day, 23:59:5" in (alarm := replicator.status().alarm) or "2 days" in alarm
        assert "ahead of the one here" in alarm and "Set the clocks" in alarm
        assert replicator.status().state == "running"  # messages are replicated all the same
        clock.ahead_us = 0
        again(replicator)
        until(lambda: not replicator.status().alarm)
        replicator.close()


def test_clock_difference_does_not_include_the_time_of_the_request() -> None:
    """The time that the answer was in flight is not counted as a difference of the clocks."""
    here, minute, apart = TopicConfig(), 60_000_000, CLOCKS_APART_US

    def alarm_of(clock_us: object, asked_us: int, answered_us: int) -> str:
        return mismatch("b", here, {"clock_us": clock_us}, asked_us, answered_us)

    assert not alarm_of(10 * minute, 10 * minute, 10 * minute)
    assert not alarm_of(10 * minute + apart, 0, 10 * minute)
    assert "0:05:01 ahead of" in alarm_of(10 * minute + apart + 1_000_000, 0, 10 * minute)
    assert not alarm_of(30 * minute, 30 * minute + apart, 90 * minute)
    assert "0:05:01 behind" in alarm_of(30 * minute, 30 * minute + apart + 1_000_000, 90 * minute)
    assert "40 days, 0:00:00 behind" in alarm_of(0, 40 * DAY_US, 40 * DAY_US)
    for nonsense in (None, "soon", True, 1.5, []):  # a server of an older version sends no time
        assert not alarm_of(nonsense, 10 * minute, 10 * minute)


def test_producers_are_global_in_one_cluster_alone(a: Site, b: Site) -> None:
    here, there = a.topic(**GLOBAL), b.topic(**{**SYNCED, "deduplicate": True})
    here.publish(b"1", producer="p", sequence=1)
    replicator = a.replicate("west", b.server.address)
    until(lambda: "global_producers is true here and false in west" in replicator.status().alarm)
    has_all(replicator, 1)
    there.close()
    b.topic().configure(global_producers=True)
    again(replicator)
    until(lambda: not replicator.status().alarm)
    replicator.close()


LOCAL: dict[str, Any] = {
    "deduplicate": True, "compression": "zstd", "linger_ms": 5, "batch_messages": 10, "batch_bytes": 1 << 20,
    "retention_bytes": None, "retention_ms": None, "ttl_ms": 86_400_000, "subscription_expiry_ms": 86_400_000,
    "quota_bytes": 1 << 30, "quota_ms": 86_400_000, "quota_policy": "error", "ensemble": 1, "write_quorum": 1,
    "ack_quorum": 1, "roll_entries": 50, "roll_bytes": 1 << 20, "roll_ms": 60_000,
}  # fmt: skip
"""The settings that may differ between two clusters, with other values than the defaults."""


@pytest.mark.parametrize("who", ["source", "target"])
def test_settings_that_differ_withhold_no_message(a: Site, b: Site, who: str) -> None:
    """One cluster has the defaults. So one of the two deduplicates alone: it does so with its own publishers only."""
    assert {*LOCAL, "durability", "global_producers"} == {field.name for field in dataclasses.fields(TopicConfig)}
    here = a.topic(**(LOCAL if who == "source" else {"ensemble": 1}))
    there = b.topic(**(LOCAL if who == "target" else {"ensemble": 1}))
    for topic in (here, there):
        topic.create_subscription("keeps", start="earliest")
    for number in (1, 2, 2, 3):
        here.publish(b"%d" % number, producer="p", sequence=number)
    there.publish(b"before", producer="p", sequence=2)
    replicator = a.replicate("b", b.server.address)
    has_all(replicator, here.end)
    there.publish(b"behind", producer="p", sequence=3)
    sent = [b"1", b"2", b"3"] if who == "source" else [b"1", b"2", b"2", b"3"]
    assert values(there) == [b"before", *sent, b"behind"] and values(here) == sent
    assert (replicator.status().state, replicator.status().alarm) == ("running", "")


# ---- partitions ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("here", "there"), [(None, 2), (2, None)])
def test_a_topic_has_partitions_in_one_cluster_alone(tmp_path: Path, here: int | None, there: int | None) -> None:
    with (
        Cluster.embedded(tmp_path / "a", bookies=1) as a,
        Cluster.embedded(tmp_path / "b", bookies=1) as b,
        TopicServer(b) as server,
    ):
        a.geo.add_cluster("west", f"pyreplog://{server.address}")
        a.geo.set_policy("t", targets=["west"])
        b.topic("t", partitions=there, **SYNCED)
        a.topic("t", partitions=here, **SYNCED).publish(b"1", key=b"k")

        def rows() -> list[ReplicatorStatus]:
            return a.geo.status("t")

        until(lambda: len(rows()) == (here or 1) and all(row.state == "failed" for row in rows()))
        for row in rows():
            assert "A topic has partitions in both clusters or in none: delete it in one of them" in row.alarm
        b.topics.delete("t")
        until(lambda: not any(row.alarm or row.unsent_messages for row in rows()))
        assert sum(len(b.topic(name)) for name in b.topics.names()) == 1


def test_the_topic_is_deleted_at_the_target(a: Site, b: Site) -> None:
    a.topic().publish_batch([b"1", b"2"])
    replicator = a.replicate("b", b.server.address)
    has_all(replicator, 2)
    b.topic().delete()
    a.topic().publish(b"3")
    until(lambda: "it was deleted" in replicator.status().alarm)
    again(replicator)
    until(lambda: replicator.status().state == "diverged")
    alarm = replicator.status().alarm
    assert "the topic was deleted there, or one of the two clusters was rolled back" in alarm and "`resync`" in alarm
    assert values(b.topic()) == []
    replicator.resync()
    has_all(replicator, 3)
    assert values(b.topic()) == [b"1", b"2", b"3"] and not replicator.status().alarm
    replicator.close()


def test_messages_are_kept_for_a_target_that_is_resynced(a: Site, b: Site) -> None:
    """Messages are kept for a target that is resynced, as it may have lost what it had; also after a restart of this
    process."""

    def mark() -> int:
        (cursor,) = (cursor for cursor in a.topic().system_cursors.all() if cursor.name == "pyreplog.geo.b")
        return cursor.mark.offset

    a.topic().publish_batch([b"1", b"2"])
    with Wire(b.server.address) as wire:
        replicator = a.replicate("b", wire.address)
        has_all(replicator, 2)
        until(lambda: mark() == 2)
        b.topic().delete()
        b.topic()
        wire.cut()
        until(lambda: replicator.status().state == "diverged")
        with wire.apart():
            replicator.resync()
            until(lambda: replicator.status().state == "connecting")
            a.end()
            a.begin()
            assert mark() == 0


# ---- topologies ------------------------------------------------------------------------------------------------------


def test_two_ways_to_one_cluster(a: Site, b: Site, tmp_path: Path) -> None:
    """With forward=all everywhere, c gets the messages of a from a and from b: their sessions end each other, with an
    alarm."""
    a.topic()
    a.end()
    a.begin()  # the epoch of this owner is higher than that of b, so that the numbers of sessions differ
    with Site(tmp_path / "c") as c, ExitStack() as stack:
        policy = ReplicationPolicy(targets=("b", "c"), forward="all")
        ways = [
            source.replicate(target.path.name, target.server.address, policy=policy)
            for source, target in ((a, b), (a, c), (b, c))
        ]
        for way in ways:
            stack.callback(way.close)
        at = 0

        def alarm() -> str:
            nonlocal at
            at += 1
            a.topic().publish(b"%d" % at)
            return next((text for way in ways[1:] if (text := way.status().alarm)), "")

        until(alarm, pause_s=0.05)
        assert "sends messages of" in alarm() and "forward=own" in alarm() and "replicated_from" in alarm()
        assert not ways[0].status().alarm
        ways[2].configure(ReplicationPolicy(targets=("c",)))
        ways[1].configure(ReplicationPolicy(targets=("c",)))
        until(lambda: not any(way.status().alarm for way in ways))
        has_all(ways[1], at)
        assert values(c.topic()) == values(a.topic())


# ---- ids -------------------------------------------------------------------------------------------------------------


def test_a_copy_of_a_cluster_is_no_other_one(a: Site, b: Site) -> None:
    """Two clusters that have one id, because one began with the files of the other one, are not added under two names."""
    geo, uuid = a.cluster.geo, b.topic().origin.cluster.hex()
    geo.add_cluster("west", f"pyreplog://{b.server.address}")
    with pytest.raises(ClusterExistsError, match="which has the name west already, or a copy of its files"):
        geo.add_cluster("copy", "pyreplog://127.0.0.1:1", uuid=uuid)
    own = a.topic().origin.cluster.hex()
    with pytest.raises(ClusterExistsError, match=r"is this cluster itself, or a copy of its files.* a new cluster"):
        geo.add_cluster("copy", "pyreplog://127.0.0.1:1", uuid=own)


def test_the_files_of_a_cluster_are_copied(a: Site, b: Site, tmp_path: Path) -> None:
    """Neither the original nor the copy can be added to the other, and a third cluster can add only one of them."""
    a.topic().publish(b"1")
    a.end()
    shutil.copytree(a.path, tmp_path / "copy")
    a.begin()
    with Site(tmp_path / "copy") as copy:
        assert values(copy.topic()) == values(a.topic()) == [b"1"] and copy.topic().origin == a.topic().origin
        for here, there in ((a, copy), (copy, a)):
            with pytest.raises(ClusterExistsError, match=r"or a copy of its files.* make a new cluster in its place"):
                here.cluster.geo.add_cluster("west", f"pyreplog://{there.server.address}")
            assert not here.cluster.geo.clusters()
        b.cluster.geo.add_cluster("east", f"pyreplog://{a.server.address}")
        with pytest.raises(ClusterExistsError, match=r"has the name east already.* make a new cluster in its place"):
            b.cluster.geo.add_cluster("west", f"pyreplog://{copy.server.address}")
        assert [*b.cluster.geo.clusters()] == ["east"]


# ---- nonsense --------------------------------------------------------------------------------------------------------


@contextmanager
def answering(answer: bytes) -> Iterator[str]:
    """Run a server of another protocol, which sends the same answer to all clients."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            with suppress(OSError):
                while True:
                    connection, _ = listener.accept()
                    with connection, suppress(OSError):
                        connection.recv(4096)
                        connection.sendall(answer)

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield f"127.0.0.1:{listener.getsockname()[1]}"
        listener.shutdown(socket.SHUT_RDWR)
    thread.join()


ANSWERS = {
    "http": b"HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\n",
    "zeros": bytes(4096),
    "ones": b"\xff" * 4096,
    "nothing": b"",
}


@pytest.mark.parametrize("kind", ANSWERS)
def test_the_server_is_something_else(a: Site, b: Site, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The status says so, and what to check. A server that closes the connection may only restart: it is no alarm."""
    monkeypatch.setattr(target_links, "TIMEOUT_S", 2.0)  # until the last error of an opening is shown
    geo = a.cluster.geo
    with answering(ANSWERS[kind]) as address, Wire(b.server.address) as wire:
        with pytest.raises(ClusterUnreachableError, match="Check the URL"):
            geo.add_cluster("west", f"pyreplog://{address}")
        a.topic().publish(b"1")
        geo.add_cluster("west", f"pyreplog://{wire.address}")
        geo.set_policy("t", targets=["west"])

        def row() -> ReplicatorStatus:
            return until(lambda: next(iter(geo.status("t")), None))

        until(lambda: row().stored == 1)
        assert not row().error
        wire.lead_to(address)
        wire.cut()
        a.topic().publish(b"2")
        reason = "answers nonsense" if kind in ("http", "ones") else "no server"
        until(lambda: reason in row().error)
        shown = row()
        assert (shown.unsent_messages, shown.state) == (1, "connecting")
        assert f"pyreplog://{wire.address}" in shown.error and "Check the URL" in shown.error
        assert shown.alarm == (shown.error if kind in ("http", "ones") else "")
        wire.lead_to(b.server.address)
        until(lambda: row().stored == 2)
        until(lambda: not row().error and not row().alarm)
        assert values(b.topic()) == [b"1", b"2"]


class Pool:
    """A connection pool whose server answers each opening with these settings of the topic."""

    def __init__(self, settings: str) -> None:
        self.pool = self  # the link reads `client.pool`, and this object stands for the client as well
        self._reply = encode_reply(OriginOpened(0, -1, 0, 0, 0, b"B" * 16, settings))

    def next_handle(self) -> int:
        return 1

    def ask(self, topic: str, request: object, on_outcome: Callable[[Address, WireReader], object]) -> None:
        on_outcome(("b", 1), WireReader("reply", memoryview(self._reply), 1))

    def watch(self, *_: object, **__: object) -> None:
        """Do nothing: no connection is ever lost."""


@pytest.mark.parametrize("settings", ["", "no JSON", "[]", "[" * 10_000, '"{}"', "{", "NaN", "[1]{}"])
def test_malformed_settings_of_another_cluster_raise_an_alarm(settings: str) -> None:
    outcomes: list[object] = []
    link = TargetLink(cast("Client", Pool(settings)))
    link.open(Opening("t", Origin(b"A" * 16, "t"), 1, 0, "{}"), outcomes.append, outcomes.append)
    (error,) = outcomes
    assert isinstance(error, InvalidMessageError) and "settings of the topic: expected" in str(error)
    known: list[object] = []
    link = TargetLink(cast("Client", Pool('{"durability": "synced", "clock_us": 7, "of_tomorrow": []}')))
    link.open(Opening("t", Origin(b"A" * 16, "t"), 1, 0, "{}"), known.append, known.append)
    (session,) = known
    assert isinstance(session, TargetSession) and session.settings["clock_us"] == 7


def test_malformed_answer_raises_an_alarm(a: Site) -> None:
    """The server completes the handshake, and its answer to the opening of a session is nonsense."""
    a.topic().publish(b"1")
    cluster = RemoteCluster(uuid="b" * 32, url="pyreplog://west:1")
    replicator = Replicator(
        a.topic(), "west", TargetLink(cast("Client", Pool("no JSON"))), ReplicationPolicy(targets=("west",)),
        explain=partial(explained, "west", cluster),
    )  # fmt: skip
    a.replicators.append(replicator)
    replicator.start()
    until(lambda: replicator.status().alarm)
    alarm = replicator.status().alarm
    assert "cluster west: a server at pyreplog://west:1 gave a malformed answer: settings of the topic" in alarm
    assert "Check the URL" in alarm and replicator.status().unsent_messages == 1
