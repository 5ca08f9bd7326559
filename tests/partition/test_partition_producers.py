"""Producers of a partition over changes of leaders, retention and time: one owner knows them, in all roles."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest

from pyreplog.errors import InvalidMessageError, PeerTimeoutError
from pyreplog.future import AppendFuture, set_exception
from pyreplog.partition import partition as partition_module
from pyreplog.partition import producer_snapshot_fetcher
from pyreplog.partition.producer_snapshot_fetcher import ProducerSnapshotFetcher
from pyreplog.partition.protocol.append_origin import AppendOrigin
from pyreplog.partition.protocol.error_codes import ErrorCode
from pyreplog.partition.protocol.record_batch import TRANSACTIONAL, end_marker
from pyreplog.partition.protocol.transactions import TransactionMarker
from pyreplog.partition.requests import PartitionProduceResponse, ProducerSnapshotPiece, ProducerSnapshotRequest
from pyreplog.partition.store.partition_log import PartitionLog
from pyreplog.partition.store.producer_snapshot import decode_snapshot, snapshot_bases, snapshot_path
from pyreplog.partition.store.producer_state_manager import ProducerStateManager
from tests.ha.streams import SEGMENT_BYTES
from tests.waiting import PATIENCE_S

from .managers import EVENTS, LAG_US, WALL_US, Broker, Cluster, batch, messages

DAY_US = 86_400_000_000


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    cluster = Cluster(tmp_path)
    cluster.lead("a")
    cluster.settle()
    yield cluster
    cluster.close()


@pytest.fixture
def a(cluster: Cluster) -> Broker:
    return cluster.brokers["a"]


def append(broker: Broker, records: Any, **settings: Any) -> PartitionProduceResponse:
    return broker.manager.append_records(1, {EVENTS: records}, **settings).result(0)[EVENTS]


def of_producer(number: int, sequence: int, size: int = 20, **settings: Any) -> bytes:
    return batch(size=size, producer_id=number, producer_epoch=0, base_sequence=sequence, **settings)


def move(cluster: Cluster, name: str) -> Broker:
    cluster.lead(name)
    cluster.settle()
    assert cluster.brokers[name].partition.is_leader
    return cluster.brokers[name]


@pytest.fixture
def bytes_replayed(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Of logs, by each look of a replica for producers."""
    sizes: list[int] = []
    read: Callable[..., Any] = PartitionLog.read_positions

    def counted(log: PartitionLog, start: int, end: int | None = None, **settings: Any) -> Any:
        sizes.append((log.end_mark.position if end is None else end) - start)
        return read(log, start, end, **settings)

    monkeypatch.setattr(PartitionLog, "read_positions", counted)
    return sizes


def test_a_new_leader_does_not_read_its_log_again(cluster: Cluster, a: Broker, bytes_replayed: list[int]) -> None:
    for number in range(60):
        append(a, messages(bytes(30_000)))
        assert append(a, of_producer(7, number, 20_000)).code is ErrorCode.NONE
        cluster.settle(4)
    size = a.log.end_mark.position
    assert size > 2_500_000
    bytes_replayed.clear()
    b = move(cluster, "b")
    assert sum(bytes_replayed) < 400_000
    assert append(b, of_producer(7, 59)).base_offset == 119, "the last one is known"
    assert append(b, of_producer(7, 61)).code is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER


def test_a_replica_that_starts_begins_with_its_snapshots(
    cluster: Cluster, a: Broker, bytes_replayed: list[int]
) -> None:
    for number in range(20):
        append(a, of_producer(7, number, 20_000))
        cluster.settle(4)
    b = cluster.brokers["b"]
    move(cluster, "b")
    b.partition.write_producer_snapshots()
    assert len(snapshot_bases(b.log.path)) == (b.log.end_mark.position - 1) // SEGMENT_BYTES
    move(cluster, "a")
    b.restart()
    cluster.settle()
    bytes_replayed.clear()
    move(cluster, "b")
    assert sum(bytes_replayed) <= 2 * SEGMENT_BYTES
    assert append(b, of_producer(7, 15)).base_offset == 15


@pytest.mark.parametrize("how", ["the leader itself", "a follower", "a follower that was empty", "one that restarts"])
def test_retention_forgets_no_producer(cluster: Cluster, a: Broker, how: str) -> None:
    """KIP-360. Its batches are gone; it is told of them all the same, and may not begin anywhere."""
    c = cluster.brokers["c"]
    c.is_fetching = how != "a follower that was empty"
    assert append(a, of_producer(7, 0)).base_offset == 0
    assert append(a, of_producer(7, 1)).base_offset == 1
    for _ in range(30):
        append(a, messages(bytes(9000)))
        cluster.settle(4)
    if not c.is_fetching:
        cluster.clock.advance(LAG_US + 1)
        append(a, messages(b"x"))
        cluster.settle()
        a.manager.check_isr()
        cluster.settle()
    assert a.partition.trim(20) is ErrorCode.NONE
    cluster.settle()
    c.is_fetching = True
    append(a, messages(b"x"))
    cluster.settle()
    assert c.log.start == a.log.start > 2
    leader = a if how == "the leader itself" else c
    if how == "one that restarts":
        c.restart()
        cluster.settle()
    if leader is c:
        move(cluster, "c")
    assert append(leader, of_producer(7, 1)).base_offset == 1, "a duplicate"
    assert append(leader, of_producer(7, 5)).code is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert append(leader, of_producer(7, 2)).code is ErrorCode.NONE


def lose_snapshots(broker: Broker, *, damage: bool = False) -> None:
    """Lose all producer snapshots of a replica, which restarts."""
    for base in snapshot_bases(broker.log.path):
        path = snapshot_path(broker.log.path, base)
        if damage:
            data = bytearray(path.read_bytes())
            data[len(data) // 2] ^= 1
            path.write_bytes(data)
        else:
            path.unlink()
    broker.restart()


@pytest.fixture
def trimmed(cluster: Cluster, a: Broker) -> int:
    """Offset of the batch of producer 7, which is trimmed everywhere."""
    assert append(a, of_producer(7, 0)).base_offset == 0
    for _ in range(30):
        append(a, messages(bytes(9000)))
        cluster.settle(4)
    assert a.partition.trim(20) is ErrorCode.NONE
    append(a, messages(b"x"))
    cluster.settle()
    assert all(broker.log.start > 0 for broker in cluster.brokers.values())
    return 0


@pytest.mark.parametrize("damage", [False, True])
@pytest.mark.parametrize("is_elected_first", [False, True])
def test_lost_snapshot_is_copied_from_another_replica(
    cluster: Cluster, a: Broker, trimmed: int, caplog: pytest.LogCaptureFixture, damage: bool, is_elected_first: bool
) -> None:
    b = cluster.brokers["b"]
    lose_snapshots(b, damage=damage)
    if not is_elected_first:
        cluster.settle()
        assert damage or snapshot_bases(b.log.path), "it is copied before the replica is elected"
    b = move(cluster, "b")
    assert "other replicas are asked for theirs" in caplog.text
    assert append(b, of_producer(7, 0)).base_offset == trimmed, "a duplicate"
    assert append(b, of_producer(7, 5)).code is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert append(b, of_producer(7, 1)).code is ErrorCode.NONE
    assert not b.partition.lacks_producers and not b.partition.has_lost_producers
    b.restart()
    cluster.settle()
    assert append(move(cluster, "b"), of_producer(7, 0)).base_offset == trimmed, "the copy is durable"


def test_elected_replica_without_its_snapshot_waits_for_those_that_may_have_it(
    cluster: Cluster, a: Broker, trimmed: int
) -> None:
    b, c = cluster.brokers["b"], cluster.brokers["c"]
    a.is_answering = c.is_answering = False
    lose_snapshots(b)
    cluster.lead("b")
    cluster.settle()
    assert b.partition.awaits_producers and not b.partition.is_leader
    assert append(b, of_producer(7, 0)).code is ErrorCode.NOT_LEADER_OR_FOLLOWER
    c.is_answering = True
    cluster.settle()
    assert b.partition.is_leader
    assert append(b, of_producer(7, 0)).base_offset == trimmed


def test_elected_replica_without_its_snapshot_leaves_the_isr_to_others_that_do_not_answer(
    cluster: Cluster, a: Broker, trimmed: int
) -> None:
    b, c = cluster.brokers["b"], cluster.brokers["c"]
    a.is_answering = c.is_answering = False
    lose_snapshots(b)
    cluster.lead("b")
    cluster.settle()
    cluster.clock.advance(9_999_999)
    cluster.settle()
    assert b.partition.awaits_producers
    cluster.clock.advance(2)
    cluster.settle()
    state = cluster.states[EVENTS][1]
    assert not state.leader and [member.broker for member in state.isr] == ["a", "c"]
    assert not b.partition.is_leader and not b.partition.has_lost_producers


def test_last_member_of_the_isr_leads_without_its_snapshot_after_a_wait(
    cluster: Cluster, a: Broker, trimmed: int, caplog: pytest.LogCaptureFixture
) -> None:
    b, c = cluster.brokers["b"], cluster.brokers["c"]
    a.is_answering = c.is_answering = False
    for broker in (a, c):
        cluster.register(broker.name, 1, is_stopping=True)
    lose_snapshots(b)
    cluster.lead("b")
    cluster.settle()
    assert not b.partition.is_leader
    cluster.clock.advance(10_000_001)
    cluster.settle()
    assert b.partition.is_leader and b.partition.has_lost_producers
    assert "may be stored twice" in caplog.text


def test_elected_replica_without_its_snapshot_does_not_wait_for_brokers_that_are_not_alive(
    cluster: Cluster, a: Broker, trimmed: int
) -> None:
    b = cluster.brokers["b"]
    a.is_answering = cluster.brokers["c"].is_answering = False
    lose_snapshots(b)
    cluster.register("a", 1, is_fenced=True)
    cluster.lead("b")
    cluster.settle()
    assert b.partition.awaits_producers and not b.partition.is_leader, "c is alive"
    cluster.registered = {name: each for name, each in cluster.registered.items() if name != "c"}
    b.manager.brokers_changed(cluster.registered)
    cluster.settle()
    assert b.partition.is_leader and b.partition.has_lost_producers


def test_search_ends_as_soon_as_the_broker_that_it_waits_for_counts_as_dead(
    cluster: Cluster, a: Broker, trimmed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    class HangingTransport:
        """Takes requests that are never answered, from then on the others know that the brokers are dead."""

        def producer_snapshot(
            self, broker: str, request: ProducerSnapshotRequest
        ) -> AppendFuture[ProducerSnapshotPiece]:  # fmt: skip
            cluster.register(broker, 1, is_fenced=True)
            return AppendFuture[ProducerSnapshotPiece]()

    monkeypatch.setattr(producer_snapshot_fetcher, "_ANSWER_S", 2 * PATIENCE_S)
    b = cluster.brokers["b"]
    lose_snapshots(b)
    cluster.inbox.clear()
    b.partition.state_changed(cluster.states[EVENTS][0] + 1, cluster.states[EVENTS][1].led_by("b"))
    assert b.partition.awaits_producers
    with ProducerSnapshotFetcher(HangingTransport()) as fetcher:
        begun_s = time.monotonic()
        assert fetcher.fetch(b.partition)
        assert time.monotonic() - begun_s < PATIENCE_S
    assert b.partition.is_leader and b.partition.has_lost_producers


def test_search_ends_as_soon_as_the_connections_to_all_brokers_time_out(
    cluster: Cluster, a: Broker, trimmed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such an error is a TimeoutError, as that of a wait without an answer."""

    class BrokenTransport:
        """Its connections time out before they answer."""

        def producer_snapshot(
            self, broker: str, request: ProducerSnapshotRequest
        ) -> AppendFuture[ProducerSnapshotPiece]:  # fmt: skip
            future = AppendFuture[ProducerSnapshotPiece]()
            set_exception(future, PeerTimeoutError("no answer within 1 s"))
            return future

    monkeypatch.setattr(producer_snapshot_fetcher, "_ANSWER_S", 10.0)
    b = cluster.brokers["b"]
    lose_snapshots(b)
    cluster.inbox.clear()
    b.partition.state_changed(cluster.states[EVENTS][0] + 1, cluster.states[EVENTS][1].led_by("b"))
    with ProducerSnapshotFetcher(BrokenTransport()) as fetcher:
        begun_s = time.monotonic()
        assert not fetcher.fetch(b.partition)
        assert time.monotonic() - begun_s < 10.0, "it ends with the first error"


def test_replica_on_a_live_broker_is_asked_although_another_broker_is_dead(
    cluster: Cluster, a: Broker, trimmed: int
) -> None:
    b = cluster.brokers["b"]
    a.is_answering = False
    lose_snapshots(b)
    cluster.register("a", 1, is_fenced=True)
    cluster.lead("b")
    cluster.settle()
    assert append(b, of_producer(7, 0)).base_offset == trimmed, "a duplicate, which c knows"
    assert not b.partition.has_lost_producers


def test_search_of_a_broker_that_registered_nowhere_counts_all_brokers_as_alive(
    cluster: Cluster, a: Broker, trimmed: int
) -> None:
    """A broker that has just begun has not read the registrations."""
    b = cluster.brokers["b"]
    a.is_answering = cluster.brokers["c"].is_answering = False
    lose_snapshots(b)
    b.manager.brokers_changed({})
    cluster.lead("b")
    cluster.settle()
    assert b.partition.awaits_producers and not b.partition.is_leader


def test_snapshot_that_every_replica_has_lost_is_given_up(
    cluster: Cluster, a: Broker, trimmed: int, caplog: pytest.LogCaptureFixture
) -> None:
    for broker in cluster.brokers.values():
        lose_snapshots(broker)
    b = move(cluster, "b")
    assert "no other replica has a snapshot of them" in caplog.text
    assert b.partition.has_lost_producers
    assert append(b, of_producer(7, 5)).code is ErrorCode.NONE
    cluster.settle()
    assert b.partition.trim(b.log.high_watermark.entry) is ErrorCode.NONE


def test_lost_producers_are_remembered_until_they_would_have_expired(
    cluster: Cluster, a: Broker, trimmed: int, caplog: pytest.LogCaptureFixture
) -> None:
    """In later snapshots, after a restart, as follower and as leader."""
    for broker in cluster.brokers.values():
        lose_snapshots(broker)
    b = move(cluster, "b")
    for number in range(30):
        append(b, of_producer(9, number, 9000))
        cluster.settle(4)
    b.partition.write_producer_snapshots()
    bases = snapshot_bases(b.log.path)
    assert len(bases) > 3
    for base in bases[:-1]:
        snapshot_path(b.log.path, base).unlink()
    move(cluster, "a")
    b.restart()
    cluster.settle()
    assert b.partition.has_lost_producers, "of a follower that has not read its producers"
    b = move(cluster, "b")
    assert b.partition.has_lost_producers
    assert b.partition.trim(b.log.high_watermark.entry) is ErrorCode.NONE
    b.restart()
    cluster.settle()
    b = move(cluster, "b")
    assert b.partition.has_lost_producers
    cluster.clock.advance(DAY_US + 1)
    b.manager.expire_producers(DAY_US)
    assert not b.partition.has_lost_producers
    for _ in range(10):
        append(b, messages(bytes(9000)))
        cluster.settle(4)
    b.partition.write_producer_snapshots()
    b.restart()
    cluster.settle()
    assert not b.partition.has_lost_producers


def test_lost_producers_of_a_follower_that_is_idle_are_forgotten_in_time(
    cluster: Cluster, a: Broker, trimmed: int
) -> None:
    for broker in cluster.brokers.values():
        lose_snapshots(broker)
    b = move(cluster, "b")
    move(cluster, "a")
    b.restart()
    cluster.settle()
    assert b.partition.has_lost_producers
    cluster.clock.advance(DAY_US + 1)
    b.manager.expire_producers(DAY_US)
    assert not b.partition.has_lost_producers


def test_snapshot_of_a_replica_that_has_lost_producers_counts_only_if_no_other_is_whole(
    cluster: Cluster, a: Broker, trimmed: int
) -> None:
    """b has gone on without them; c is away, and has them."""
    b, c = cluster.brokers["b"], cluster.brokers["c"]
    c.is_answering = False
    cluster.register("c", 1, is_fenced=True)
    for broker in (a, b):
        lose_snapshots(broker)
    b = move(cluster, "b")
    assert b.partition.has_lost_producers
    for number in range(10):
        append(b, of_producer(9, number, 9000))
        cluster.settle(4)
    assert a.partition.lacks_producers, "a follower waits for the replica that may be whole"
    cluster.register("c", 1)
    c.is_answering = True
    cluster.settle()
    assert not a.partition.lacks_producers and not a.partition.has_lost_producers
    assert append(move(cluster, "a"), of_producer(7, 0)).base_offset == trimmed, "a duplicate"


def test_producers_that_a_replica_learned_after_its_loss_are_copied(cluster: Cluster, a: Broker, trimmed: int) -> None:
    for broker in cluster.brokers.values():
        lose_snapshots(broker)
    b = move(cluster, "b")
    appended = append(b, of_producer(9, 0))
    for _ in range(30):
        append(b, messages(bytes(9000)))
        cluster.settle(4)
    assert b.partition.trim(appended.base_offset + 20) is ErrorCode.NONE
    append(b, messages(b"x"))
    cluster.settle()
    lose_snapshots(a)
    cluster.settle()
    a = move(cluster, "a")
    assert a.log.start > appended.base_offset
    assert append(a, of_producer(9, 0)).base_offset == appended.base_offset, "a duplicate"
    assert a.partition.has_lost_producers


def test_replica_without_others_leads_without_its_snapshot(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    cluster = Cluster(tmp_path, replicas="a", min_isr=1)
    cluster.lead("a")
    cluster.settle()
    a = cluster.brokers["a"]
    append(a, of_producer(7, 0))
    for _ in range(30):
        append(a, messages(bytes(9000)))
    assert a.partition.trim(20) is ErrorCode.NONE
    lose_snapshots(a)
    cluster.settle()
    cluster.lead("a")
    cluster.settle()
    assert a.partition.is_leader and a.partition.has_lost_producers
    assert "may be stored twice" in caplog.text
    cluster.close()


def test_later_snapshot_of_its_own_replaces_a_lost_one(cluster: Cluster, a: Broker, trimmed: int) -> None:
    b = move(cluster, "b")
    for _ in range(20):
        append(b, messages(bytes(9000)))
        cluster.settle(4)
    b.partition.write_producer_snapshots()
    bases = snapshot_bases(b.log.path)
    assert len(bases) > 3
    for base in bases[:-1]:
        snapshot_path(b.log.path, base).unlink()
    move(cluster, "a")
    for other in (a, cluster.brokers["c"]):
        other.is_answering = False
    b.restart()
    cluster.settle()
    assert append(move(cluster, "b"), of_producer(7, 0)).base_offset == trimmed


def test_snapshot_that_is_too_large_for_an_answer_to_a_fetch_is_copied_in_pieces(
    cluster: Cluster, a: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(partition_module, "_SNAPSHOT_MAX", 100)
    monkeypatch.setattr(producer_snapshot_fetcher, "PIECE_BYTES", 50)
    c = cluster.brokers["c"]
    c.is_fetching = False
    append(a, of_producer(7, 0))
    for _ in range(30):
        append(a, messages(bytes(9000)))
        cluster.settle(4)
    cluster.clock.advance(LAG_US + 1)
    append(a, messages(b"x"))
    cluster.settle()
    a.manager.check_isr()
    cluster.settle()
    assert a.partition.trim(20) is ErrorCode.NONE
    c.is_fetching = True
    append(a, messages(b"x"))
    cluster.settle(30)
    assert c.log.start == a.log.start > 0
    assert append(move(cluster, "c"), of_producer(7, 0)).base_offset == 0, "a duplicate"


def test_a_wrong_snapshot_of_the_leader_is_not_taken(cluster: Cluster, a: Broker) -> None:
    append(a, of_producer(7, 0))
    for _ in range(30):
        append(a, messages(bytes(9000)))
        cluster.settle(4)
    assert a.partition.trim(20) is ErrorCode.NONE
    manager = ProducerStateManager(a.log)
    data = manager.snapshot_at_start()
    assert data is not None
    for start, wrong in ((a.log.start_mark, data[:-1]), (a.log.mark_of(a.log.start + 1), data)):
        with pytest.raises(InvalidMessageError):
            manager.keep_for_reset(start, wrong)


def test_idle_producers_are_forgotten(cluster: Cluster, a: Broker) -> None:
    append(a, of_producer(7, 0))
    token = a.partition.begin_verification(8)
    opened = append(a, of_producer(8, 0, attributes=TRANSACTIONAL), verifications={EVENTS: token})
    assert opened.code is ErrorCode.NONE
    cluster.settle()
    cluster.clock.advance(DAY_US // 2)
    append(a, of_producer(9, 0))
    cluster.clock.advance(DAY_US // 2 + 1)
    a.manager.expire_producers(DAY_US)
    assert a.partition.producer_count == 2, "one is young, one has an open transaction"
    assert append(a, of_producer(7, 55)).code is ErrorCode.NONE
    assert append(a, of_producer(9, 55)).code is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    marker = end_marker(TransactionMarker(8, 1, 1, True), WALL_US // 1000)
    assert append(a, marker, origin=AppendOrigin.COORDINATOR).code is ErrorCode.NONE
    cluster.clock.advance(DAY_US - 1)
    a.manager.expire_producers(DAY_US)
    assert a.partition.producer_count == 2, "two were at work not quite a day ago"
    cluster.clock.advance(2)
    a.manager.expire_producers(DAY_US)
    assert a.partition.producer_count == 1, "it is not known that its marker is committed"
    append(a, messages(b"x"))
    cluster.settle()
    a.manager.expire_producers(DAY_US)
    assert a.partition.producer_count == 0


def test_clock_that_is_set_forward_makes_no_producer_idle(cluster: Cluster, a: Broker) -> None:
    append(a, of_producer(7, 0))
    a.manager.expire_producers(DAY_US)
    cluster.clock.set(cluster.clock.now_us() + 3 * DAY_US)
    a.manager.expire_producers(DAY_US)
    assert append(a, of_producer(7, 0)).base_offset == 0, "a duplicate"
    for step_us in (-3 * DAY_US, 2 * DAY_US):  # in all two days ahead
        cluster.clock.set(cluster.clock.now_us() + step_us)
        a.manager.expire_producers(DAY_US)
    cluster.clock.advance(DAY_US - 1)
    a.manager.expire_producers(DAY_US)
    assert a.partition.producer_count == 1
    cluster.clock.advance(1)
    a.manager.expire_producers(DAY_US)
    assert a.partition.producer_count == 0


def test_clock_that_is_set_back_and_forward_keeps_no_producer_for_longer(cluster: Cluster, a: Broker) -> None:
    append(a, of_producer(7, 0))
    for step_us in (-DAY_US, DAY_US) * 5:
        cluster.clock.set(cluster.clock.now_us() + step_us)
        a.manager.expire_producers(DAY_US)
    cluster.clock.advance(DAY_US + 1)
    a.manager.expire_producers(DAY_US)
    assert a.partition.producer_count == 0


def test_transactions_of_a_follower_are_forgotten_when_they_are_committed(cluster: Cluster, a: Broker) -> None:
    """Else the snapshots of a follower would grow for ever."""
    for number in range(40):
        token = a.partition.begin_verification(8)
        records = batch(size=20_000, producer_id=8, producer_epoch=number, base_sequence=0, attributes=TRANSACTIONAL)
        assert append(a, records, verifications={EVENTS: token}).code is ErrorCode.NONE
        marker = end_marker(TransactionMarker(8, number + 1, 1, True), WALL_US // 1000)
        assert append(a, marker, origin=AppendOrigin.COORDINATOR).code is ErrorCode.NONE
        cluster.settle(4)
    b = cluster.brokers["b"]
    move(cluster, "b")
    b.partition.write_producer_snapshots()
    last = snapshot_path(b.log.path, snapshot_bases(b.log.path)[-1])
    assert len(decode_snapshot(last, last.read_bytes()).transactions.unreplicated) < 30


def test_producers_are_those_of_the_log_whatever_happens(tmp_path: Path, seed: int) -> None:
    """Leaders change, logs are trimmed, brokers restart: sequence numbers of one producer stay without a gap."""
    rng, cluster = Random(seed), Cluster(tmp_path)
    cluster.lead("a")
    cluster.settle()
    leader, sequence = cluster.brokers["a"], 0
    for _ in range(40):
        for _ in range(rng.randint(1, 6)):
            append(leader, messages(bytes(rng.choice((10, 9000, 20_000)))))
            if sequence:
                gap = append(leader, of_producer(7, sequence + 1))
                assert gap.code is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
            response = append(leader, of_producer(7, sequence, rng.choice((20, 5000))))
            assert response.code is ErrorCode.NONE
            again = append(leader, of_producer(7, sequence))
            assert (again.code, again.base_offset) == (ErrorCode.NONE, response.base_offset)
            sequence += 1
        cluster.settle()
        action = rng.random()
        if action < 0.4:
            leader = move(cluster, rng.choice("abc"))
        elif action < 0.6:
            rng.choice([broker for broker in cluster.brokers.values() if broker is not leader]).restart()
            cluster.settle()
        elif action < 0.8 and leader.log.high_watermark.entry:
            assert (
                leader.partition.trim(rng.randint(leader.log.start, leader.log.high_watermark.entry)) is ErrorCode.NONE
            )
            cluster.settle()
        else:
            leader.partition.write_producer_snapshots()
    cluster.close()
