"""Retention: which records go, led by the leader, never those that are not committed or belong to an open transaction."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from pyreplog.clock import ManualClock
from pyreplog.errors import ReplicaError
from pyreplog.partition.config import RetentionConfig
from pyreplog.partition.protocol.append_origin import AppendOrigin
from pyreplog.partition.protocol.record_batch import TRANSACTIONAL, end_marker
from pyreplog.partition.protocol.transactions import TransactionMarker
from tests.ha.streams import SEGMENT_BYTES, assert_same_files, kill

from .managers import EVENTS, WALL_US, Broker, Cluster, batch, config, messages
from .partition_logs import ALL, catch_up, epoch, open_replica

HOUR_MS = 3_600_000
HOUR_US = HOUR_MS * 1000
DAY = RetentionConfig(retention_ms=24 * HOUR_MS)


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    cluster = Cluster(tmp_path)
    cluster.elect()
    cluster.settle()
    yield cluster
    cluster.close()


@pytest.fixture
def a(cluster: Cluster) -> Broker:
    return cluster.brokers["a"]


def retain(cluster: Cluster, retention: RetentionConfig) -> None:
    for broker in cluster.brokers.values():
        broker.partition.config_changed(config(retention=retention))


def append(broker: Broker, *values: bytes, acks: int = -1) -> None:
    broker.manager.append_records(acks, {EVENTS: messages(*values)})


def apply_retention(cluster: Cluster) -> None:
    """As the housekeepers of all brokers do, until no more goes."""
    for _ in range(10):
        again = [broker.partition.apply_retention() for broker in cluster.brokers.values()]
        cluster.settle()
        cluster.advance_ms(600)  # fetches that wait are answered
        cluster.settle()
        if not any(again):
            return
    raise AssertionError("retention does not end")


# ---- a log ------------------------------------------------------------------------------------------------------


def test_segments_go_by_the_time_of_their_last_record(tmp_path: Path) -> None:
    clock = ManualClock(WALL_US)
    with open_replica(tmp_path, clock=clock) as log:
        log.lead(epoch(1))
        for _ in range(4):
            log.append_messages([b"v"])
            clock.advance(HOUR_US)
            log.append_messages([b"v"])
            log.roll()
        for hours, first in ((3.5, 0), (4.0, 2), (5.0, 4), (9.0, 8)):
            now_us = WALL_US + round(hours * HOUR_US)
            keep = RetentionConfig(retention_ms=3 * HOUR_MS)
            assert log.expired_before(keep, now_us, ALL).entry == first
            assert log.expired_before(RetentionConfig(), now_us, ALL).entry == 0
        with_floor = log.expired_before(RetentionConfig(retention_ms=0), WALL_US + 9 * HOUR_US, log.mark_of(5))
        assert with_floor.entry == 4, "what lies at or behind the floor stays, with its segment"


def test_segments_go_while_enough_is_left(tmp_path: Path) -> None:
    with open_replica(tmp_path) as log:
        log.lead(epoch(1))
        for _ in range(40):
            log.append_messages([bytes(9000)])
        end, now_us = log.end_mark.position, WALL_US
        for size in (0, 1, SEGMENT_BYTES, 3 * SEGMENT_BYTES + 5, end, end + 1):
            start = log.expired_before(RetentionConfig(retention_bytes=size), now_us, ALL).position
            assert end - start >= min(size, end), "so much stays"
            is_last = start + SEGMENT_BYTES >= end
            assert is_last or end - start - SEGMENT_BYTES < size, "and no segment more"


def test_a_follower_begins_no_segment(tmp_path: Path) -> None:
    with open_replica(tmp_path) as log, pytest.raises(ReplicaError):
        log.roll()


def test_segments_that_were_begun_early_are_the_same_everywhere(tmp_path: Path) -> None:
    with open_replica(tmp_path / "a") as a, open_replica(tmp_path / "b") as b:
        a.lead(epoch(1))
        for number in range(5):
            a.append_messages([b"%d" % number] * number)
            a.roll()
            a.roll()  # which has nothing to do but the record of the epoch
            catch_up(a, b)
        a.append_messages([b"last"])
        catch_up(a, b)
        a.show_high_watermark(ALL)
        assert_same_files(a, b)
        assert a.start == 0 and a.end == 11
        a.stop_leading()
        kill(a)
        with open_replica(tmp_path / "a") as again:
            assert (again.end_mark, again.history) == (b.end_mark, b.history)


# ---- replicas ---------------------------------------------------------------------------------------------------


def test_all_replicas_let_old_records_go(cluster: Cluster, a: Broker) -> None:
    retain(cluster, DAY)
    append(a, b"old", b"old")
    cluster.settle()
    cluster.clock.advance(23 * HOUR_US)
    apply_retention(cluster)
    assert a.log.start == 0
    cluster.clock.advance(HOUR_US)
    apply_retention(cluster)
    assert [broker.log.start for broker in cluster.brokers.values()] == [2, 2, 2]
    assert a.log.start_mark.position == SEGMENT_BYTES
    append(a, b"new")
    cluster.settle()
    apply_retention(cluster)
    assert a.log.start == 2 and a.log.end == 3, "a segment of its own, which is not old"
    assert_same_files(a.log, cluster.brokers["b"].log)


def test_elections_do_not_keep_old_records(cluster: Cluster, a: Broker) -> None:
    """The record of a leader's epoch is new; those that are old go a while after their time all the same."""
    retain(cluster, DAY)
    append(a, b"old")
    cluster.settle()
    for _ in range(8):
        cluster.clock.advance(6 * HOUR_US)
        for name in "ba":
            cluster.lead(name)
            cluster.settle()
        apply_retention(cluster)
    assert a.log.start == 1


def test_an_empty_log_begins_no_more_segments(cluster: Cluster, a: Broker) -> None:
    retain(cluster, RetentionConfig(retention_ms=0, segment_ms=1))
    append(a, b"old")
    cluster.settle()
    apply_retention(cluster)
    before = a.log.end_mark
    assert a.log.start == a.log.end == 1
    for _ in range(5):
        cluster.clock.advance(HOUR_US)
        apply_retention(cluster)
    assert a.log.end_mark == before


def test_retention_keeps_uncommitted_records(cluster: Cluster, a: Broker) -> None:
    retain(cluster, RetentionConfig(retention_ms=0))
    append(a, b"committed")
    cluster.settle()
    for name in "bc":
        cluster.brokers[name].is_fetching = False
    for number in range(20):
        append(a, b"%d" % number + bytes(9000), acks=1)
    for _ in range(5):
        a.partition.apply_retention()
        cluster.settle()
    assert a.log.start <= a.partition.high_watermark.entry == 1
    for name in "bc":
        cluster.brokers[name].is_fetching = True
    cluster.settle(40)
    apply_retention(cluster)
    assert [broker.log.start for broker in cluster.brokers.values()] == [21, 21, 21]


def test_retention_keeps_an_open_transaction(cluster: Cluster, a: Broker) -> None:
    retain(cluster, RetentionConfig(retention_ms=0))
    append(a, b"before")
    verification = a.partition.begin_verification(7)
    data = batch(2, producer_id=7, producer_epoch=0, base_sequence=0, attributes=TRANSACTIONAL)
    a.manager.append_records(-1, {EVENTS: data}, verifications={EVENTS: verification})
    append(a, *(bytes(9000) for _ in range(20)))
    cluster.settle()
    apply_retention(cluster)
    assert a.log.start == 0, "the segment in which it began"
    marker = end_marker(TransactionMarker(7, 1, 0, True), WALL_US // 1000)
    a.manager.append_records(-1, {EVENTS: marker}, origin=AppendOrigin.COORDINATOR)
    cluster.settle()
    apply_retention(cluster)
    assert a.log.start == a.log.end == 24


def test_a_follower_removes_nothing_by_itself(cluster: Cluster) -> None:
    retain(cluster, RetentionConfig(retention_ms=0))
    append(cluster.brokers["a"], b"old")
    cluster.settle()
    b = cluster.brokers["b"]
    assert b.partition.apply_retention() is False
    assert b.log.start == 0 and b.log.end_mark == cluster.brokers["a"].log.end_mark


def test_segments_end_by_age_and_stay(cluster: Cluster, a: Broker) -> None:
    retain(cluster, RetentionConfig(segment_ms=HOUR_MS))
    for _ in range(3):
        append(a, b"v")
        cluster.settle()
        cluster.clock.advance(HOUR_US)
        apply_retention(cluster)
    assert a.log.start == 0 and a.log.end_mark.position > 3 * SEGMENT_BYTES
