"""A compacted partition of several replicas: what readers of each replica see under any leader, and which bytes it has."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from random import Random

import pytest

from pyreplog.errors import NotConnectedError
from pyreplog.log import names
from pyreplog.log.fsck.check import check as fsck
from pyreplog.partition.protocol.error_codes import ErrorCode
from pyreplog.partition.protocol.messages import DivergingEpoch
from pyreplog.partition.requests import ConsumerFetch, FetchParams, FetchPartitionData
from tests.ha.streams import SEGMENT_BYTES

from .compacted_replicas import MAP_BYTES, RETENTION_MS, Replicas
from .managers import EVENTS, NAMES


@pytest.fixture
def replicas(tmp_path: Path, seed: int) -> Iterator[Replicas]:
    cluster = Replicas(tmp_path, Random(seed))
    yield cluster
    cluster.close()
    for name in NAMES:
        assert fsck(tmp_path / name / str(EVENTS)).damages == ()


def test_followers_take_over_compacted_segments(replicas: Replicas) -> None:
    replicas.fill(4)
    before = [replicas.check(name) for name in NAMES]
    replicas.assert_same()
    result = replicas.clean()
    assert result.segments >= 3
    leader = replicas.leader.name
    with pytest.raises(AssertionError):
        replicas.assert_same()
    assert replicas.mirror_all() >= 3 * 2
    replicas.assert_same()
    rows = [replicas.check(name) for name in NAMES]
    assert rows[0] == rows[1] == rows[2]
    assert len(rows[0]) < len(before[0]) / 2
    assert replicas.mirror_all() == 0
    others = [name for name in NAMES if name != leader]
    replicas.cluster.lead(others[0])
    replicas.fill(2)
    replicas.clean()
    replicas.mirror_all()
    replicas.assert_same()
    for name in NAMES:
        replicas.check(name)
        replicas.brokers[name].restart()
    replicas.settle()
    for name in NAMES:
        replicas.check(name)
    replicas.assert_same()


def test_reads_that_go_on_meanwhile_keep_no_segment_from_later_ones(replicas: Replicas) -> None:
    """Nothing is left to be cleaned: readers get the compacted segments when the last read of the former ones is over."""
    replicas.fill(3)
    leader, params = replicas.leader, FetchParams(max_wait_ms=0)

    def fetched() -> FetchPartitionData:
        return leader.manager.fetch_messages(params, {EVENTS: ConsumerFetch(0, 1 << 20)}).result(0)[EVENTS]

    before = fetched()  # its views pin the segments
    size = before.size
    replicas.clean()
    assert fetched().size == size, "they are read"
    del before
    gc.collect()
    leader.partition.refresh_cleaned_segments()
    assert fetched().size < size


def test_a_follower_that_was_killed_takes_over_segments_before_it_writes_their_indexes(replicas: Replicas) -> None:
    replicas.fill(3)
    replicas.clean()
    name = next(name for name in NAMES if name != replicas.leader.name)
    replicas.brokers[name].restart()
    replicas.cluster.settle(30)
    assert replicas.mirror(name) >= 2
    replicas.settle()  # now it writes those that are left
    replicas.check(name)
    replicas.brokers[name].restart()
    replicas.settle()
    replicas.check(name)


def test_tombstones_stay_until_all_replicas_are_compacted(replicas: Replicas) -> None:
    """A replica that was away has records that a tombstone deletes: it may lead, or lose its segments, at any time."""
    replicas.put(replicas.leader, [b"gone"], [b"once"])
    replicas.append()
    replicas.put(replicas.leader, [b"gone"], [None])
    replicas.fill(3)
    leader, one, other = replicas.leader.name, *(name for name in NAMES if name != replicas.leader.name)
    replicas.clean()
    replicas.clean()
    replicas.mirror(one)
    rows = replicas.check(leader)
    tombstones = {offset for offset, row in rows.items() if row.value is None and offset < replicas.cleaned}
    assert tombstones
    replicas.cluster.advance_ms(RETENTION_MS + 1)
    replicas.clean()
    assert replicas.check(leader) == rows
    replicas.mirror(other)
    replicas.clean()
    rows = replicas.check(leader)
    assert tombstones.isdisjoint(rows)
    replicas.mirror(one)
    replicas.cluster.lead(other)  # it still has them
    replicas.settle()
    replicas.check(one)
    assert tombstones <= {*replicas.check(other)}
    replicas.mirror(one)
    replicas.clean()
    replicas.mirror_all()
    replicas.check(one)
    replicas.check(other)


@pytest.mark.parametrize("fetch_bytes", [1, 5000, 1 << 20])
def test_a_follower_that_was_away_catches_up(replicas: Replicas, fetch_bytes: int) -> None:
    """Its log ends within a segment that was compacted meanwhile, where its leader has no record by now."""
    rng = replicas.rng
    away = rng.choice([name for name in NAMES if name != replicas.leader.name])
    present = next(name for name in NAMES if name not in (away, replicas.leader.name))
    for _ in range(rng.randint(0, 150)):
        replicas.append()
    replicas.settle()
    replicas.brokers[away].is_fetching = False
    for _ in range(3):
        for _ in range(rng.randint(20, 60)):
            replicas.append()
            replicas.cluster.settle(1)
        replicas.cluster.advance_ms(20_000)
        for broker in replicas.brokers.values():
            broker.manager.check_isr()
        replicas.cluster.settle()
        replicas.cluster.lead(rng.choice([replicas.leader.name, present]))
        replicas.cluster.settle()
    replicas.fill(2)
    assert replicas.leader.log.high_watermark.position > SEGMENT_BYTES
    replicas.clean()
    assert replicas.brokers[away].log.end_mark.entry < replicas.cleaned
    replicas.brokers[away].is_fetching = True
    replicas.cluster.fetch_bytes = fetch_bytes
    for number in range(4000):
        replicas.cluster.settle(3)
        if replicas.brokers[away].log.high_watermark == replicas.leader.log.high_watermark:
            break
        if rng.random() < 0.01:
            replicas.brokers[away].restart()
        if number % 50 == 49:
            replicas.clean()
    assert replicas.brokers[away].log.end_mark == replicas.leader.log.end_mark
    replicas.settle()
    replicas.check(away)
    assert replicas.brokers[away].log.history == replicas.leader.log.history
    replicas.mirror_all()
    replicas.assert_same()
    replicas.check(away)


def test_only_the_leader_cleans_its_log(replicas: Replicas) -> None:
    replicas.fill(2)
    for broker in replicas.brokers.values():
        if broker is not replicas.leader:
            assert broker.partition.dirty_segments() is None
            assert broker.partition.clean(MAP_BYTES) is None


def test_a_copy_of_a_former_leader_is_given_up(replicas: Replicas) -> None:
    replicas.fill(2)
    replicas.clean()
    leader = replicas.leader
    name, other = (name for name in NAMES if name != leader.name)
    partition = replicas.brokers[name].partition
    mirrored = partition.begin_mirroring()
    assert mirrored is not None
    digest = leader.partition.cleaned_segments(partition.member, leader.epoch, 0).segments[0]
    copy = partition.begin_segment_copy(digest)
    copy.write(names.segment_path(leader.log.path, digest.base).read_bytes()[: digest.size])
    copy.finish()
    before = names.segment_path(replicas.brokers[name].log.path, digest.base).read_bytes()
    replicas.cluster.lead(other)
    replicas.settle()
    assert not partition.take_over_segment(mirrored, copy)
    assert not partition.end_mirroring(mirrored, replicas.cleaned)
    copy.discard()
    assert names.segment_path(replicas.brokers[name].log.path, digest.base).read_bytes() == before
    refused = leader.partition.cleaned_segments(partition.member, mirrored.epoch, 0)
    assert refused.code is ErrorCode.NOT_LEADER_OR_FOLLOWER


def test_a_follower_that_is_further_waits_for_its_leader(tmp_path: Path, seed: int) -> None:
    replicas = Replicas(tmp_path, Random(seed), keys=200)
    try:
        replicas.fill(3)
        replicas.clean()
        name, other = (name for name in NAMES if name != replicas.leader.name)
        replicas.mirror(name)
        replicas.cluster.lead(other)
        replicas.settle()
        leader = replicas.leader
        while not leader.partition.cleaned_segments(leader.partition.member, leader.epoch, 0).segments:
            assert replicas.clean(1024).cleaned < replicas.cleaned
        assert replicas.mirror(name) == 0
        replicas.check(name)
        while replicas.clean(2048).cleaned < replicas.cleaned:
            pass
        replicas.mirror_all()
        replicas.assert_same()
    finally:
        replicas.close()


def test_a_follower_that_cuts_its_log_is_dirty_again(replicas: Replicas) -> None:
    """What it fetches in place of what it cuts may have records that a tombstone deletes."""
    replicas.fill(3)
    replicas.clean()
    leader, name = replicas.leader, next(name for name in NAMES if name != replicas.leader.name)
    replicas.mirror(name)
    broker = replicas.brokers[name]
    mirrored = broker.partition.begin_mirroring()
    assert mirrored is not None and mirrored.cleaned == replicas.cleaned
    start = leader.log.segment_start(SEGMENT_BYTES)
    assert broker.last_fetch is not None
    number, history, log_start = broker.last_fetch.number, leader.log.history, leader.log.start_mark
    broker.partition.fetch_answered(DivergingEpoch(number, leader.epoch, history, log_start, start))
    assert broker.log.end_mark.entry == start.entry
    mirrored = broker.partition.begin_mirroring()
    assert mirrored is not None and mirrored.cleaned == start.entry
    broker.restart()
    replicas.settle()
    mirrored = broker.partition.begin_mirroring()
    assert mirrored is not None and mirrored.cleaned == start.entry
    replicas.check(name)


def test_compacted_replicas_agree_in_random_runs(replicas: Replicas) -> None:
    """Leaders change, connections break and brokers are killed while segments are compacted and taken over."""
    rng, cluster = replicas.rng, replicas.cluster
    for _ in range(40):
        action = rng.random()
        if action < 0.35:
            for _ in range(rng.randint(1, 25)):
                replicas.append()
            if rng.random() < 0.3:
                replicas.transaction()
        elif action < 0.55 and replicas.leader.partition.is_leader:
            replicas.clean(rng.choice((1024, 1 << 20)))
        elif action < 0.75:
            name = rng.choice(NAMES)
            with suppress(NotConnectedError):
                replicas.mirror(name, rng.randint(0, 5))
        elif action < 0.8:
            cluster.advance_ms(rng.choice((10, RETENTION_MS)))
        elif action < 0.9:
            state = cluster.states[EVENTS][1]
            cluster.lead(rng.choice([member.broker for member in state.isr]))
        elif action < 0.95:
            replicas.brokers[rng.choice([name for name in NAMES if name != replicas.leader.name])].restart()
        if rng.random() < 0.7:
            replicas.settle()
            for name in NAMES:
                replicas.check(name)
        else:
            cluster.settle(rng.randint(0, 6))
    replicas.settle()
    replicas.fill(1)
    replicas.clean()
    replicas.mirror_all()
    for name in NAMES:
        replicas.check(name)
