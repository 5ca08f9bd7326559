"""Two clusters of processes, with ZooKeeper or SQLite: servers of either cluster are killed, and ZooKeeper is, too."""

from __future__ import annotations

import signal
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

import pyreplog
from pyreplog import Cluster
from pyreplog.topic.client.remote.client import Client
from tests.geo.sites import SYNCED
from tests.ledger.processes import Process, ProcessGroup
from tests.metadata.zookeeper import Ensemble
from tests.waiting import until


class Place:
    """A cluster: a bookie and two topic servers."""

    def __init__(self, stack: ExitStack, folder: Path, url: str) -> None:
        folder.mkdir()
        self.name = folder.name
        self.processes = stack.enter_context(ProcessGroup(folder, url))
        self.processes.start_bookies("bookie")
        self.servers: dict[str, Process] = {}
        started = [self.processes.start("pyreplog", "serve", url, "--json") for _ in range(2)]
        for process in started:
            self.servers[process.wait_for("address")] = process
        self.cluster = stack.enter_context(Cluster.connect(url))
        self.url = "pyreplog://" + ",".join(self.servers)
        self.client = stack.enter_context(pyreplog.connect(self.url, timeout=60.0))

    def know(self, other: Place) -> None:
        self.cluster.geo.add_cluster(other.name, other.url)
        self.cluster.geo.set_policy("t", targets=[other.name], replicated_subscriptions=True)

    def kill_owner(self) -> None:
        """Kill the server that owns the topic with SIGKILL; wait until the other server has the topic, after the lease
        has ended."""
        owner = self.cluster.topics.owner("t")
        assert owner is not None
        process = self.servers.pop(owner.address)
        process.signal(signal.SIGKILL)
        process.wait()

        def is_taken() -> bool:
            now = self.cluster.topics.owner("t")
            return now is not None and now.address in self.servers

        until(is_taken, pause_s=0.1)

    def numbers(self) -> list[int]:
        topic: Any = self.client.topic("t", create=False)
        return [int(value) for batch in topic.read() for value in batch.values()]

    def publish(self, start: int, end: int) -> None:
        topic: Any = self.client.topic("t", **SYNCED)
        topic.publish_batch([b"%d" % number for number in range(start, end)])

    def is_ready(self) -> bool:
        """Return whether a fail-over to the other cluster would lose and repeat nothing."""
        rows = self.cluster.geo.readiness("t", everywhere=True)
        return any(row.is_ready and not row.error for row in rows)


def test_servers_and_zookeeper_are_killed(tmp_path: Path, zookeeper_url: str) -> None:
    with ExitStack() as stack:
        ensemble = stack.enter_context(Ensemble(tmp_path / "zookeeper", 1))
        a = Place(stack, tmp_path / "a", f"zk://{ensemble.hosts}/a")
        b = Place(stack, tmp_path / "b", zookeeper_url)
        a.know(b)
        b.know(a)
        a.publish(0, 20)
        until(lambda: "t" in b.client.topics(), pause_s=0.1)
        b.publish(100, 120)
        everything = [*range(20), *range(100, 120)]
        until(lambda: sorted(a.numbers()) == sorted(b.numbers()) == everything, pause_s=0.1)
        acked: list[int] = []
        topic: Any = a.client.topic("t", create=False)
        with topic.subscribe("s", start="earliest", type="shared") as consumer:
            for place in (a, b):
                for _ in range(10):
                    message = consumer.receive(timeout=60.0)
                    acked.append(int(message.value))
                    consumer.acknowledge(message)
                consumer.flush()
                until(a.is_ready, pause_s=0.1)
                place.kill_owner()
                place.publish(200 + len(acked), 205 + len(acked))
            ensemble.servers[0].kill()
            a.publish(300, 305)
            until(lambda: 304 in b.numbers(), pause_s=0.1)  # servers that run are not affected
            ensemble.servers[0].start()
            (row,) = a.cluster.geo.handover("t", "s", "b", grace=1.0, timeout=120.0)
            assert row.phase == "done"
        everything += [*range(210, 215), *range(220, 225), *range(300, 305)]
        until(lambda: sorted(a.numbers()) == sorted(b.numbers()) == everything, pause_s=0.1)
        there: Any = b.client.topic("t", create=False)
        with there.subscribe("s", type="shared") as consumer:
            received = [int(consumer.receive(timeout=60.0).value) for _ in range(len(everything) - len(acked))]
        assert len(acked) == 20 and sorted(acked + received) == everything


def test_an_order_goes_on_with_the_next_owner(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The owner is killed while consumers hold messages. The process that ordered the handover waits for the next
    owner."""
    ask, phases = Client.geo_handover, list[str]()

    def note_phase(self: Client, *names: str, **options: Any) -> dict[str, Any] | None:
        row = ask(self, *names, **options)
        phases.append("unknown" if row is None else row["phase"])
        return row

    monkeypatch.setattr(Client, "geo_handover", note_phase)
    with ExitStack() as stack:
        a, b = (Place(stack, tmp_path / name, f"sqlite:{tmp_path}/{name}.sqlite") for name in "ab")
        a.know(b)
        b.know(a)
        a.publish(0, 20)
        until(lambda: "t" in b.client.topics(), pause_s=0.1)
        topic: Any = a.client.topic("t", create=False)
        pool = stack.enter_context(ThreadPoolExecutor(1))
        with topic.subscribe("s", start="earliest", type="shared") as consumer:
            held = [consumer.receive(timeout=60.0) for _ in range(20)]
            consumer.acknowledge(held[3])
            consumer.flush()
            until(a.is_ready, pause_s=0.1)
            handed = pool.submit(a.cluster.geo.handover, "t", "s", "b", grace=3.0, timeout=120.0)
            until(lambda: "stopping" in phases, pause_s=0.1)
            a.kill_owner()
            consumer.acknowledge(held[5])  # over a new connection
            consumer.flush(timeout=60.0)
            (row,) = handed.result(150.0)
            assert row.phase == "done" and row.target == "b"
            there: Any = b.client.topic("t", create=False)
            with there.subscribe("s", type="shared") as other:
                received = [int(other.receive(timeout=60.0).value) for _ in range(18)]
                assert sorted(received) == [number for number in range(20) if number not in (3, 5)]
                consumer.acknowledge(held[7])  # the message was revoked from this consumer; its acknowledgement counts
                consumer.flush(timeout=60.0)
                until(lambda: has_acknowledged(b, 3), pause_s=0.1)


def has_acknowledged(place: Place, count: int) -> bool:
    """Return whether so many messages after the first one are acknowledged there."""
    rows = place.cluster.geo.where("t", "s", everywhere=True)
    return any(row.at == "" and row.below == 0 and row.beyond == count for row in rows)
