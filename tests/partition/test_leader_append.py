"""Appends of a leader, alone and with followers. While no thread is inside, its log appends without the lock of its
changes: responses, marks and bytes are those of the way with the lock."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import pytest

from pyreplog._native.log.log_position import AppendedOffsets
from pyreplog.future import AppendFuture
from pyreplog.log import names
from pyreplog.partition.protocol.append_origin import AppendOrigin
from pyreplog.partition.protocol.error_codes import ACKS_ALL, ErrorCode
from pyreplog.partition.protocol.messages import Fetch
from pyreplog.partition.protocol.partition_state import Member
from pyreplog.partition.protocol.record_batch import TRANSACTIONAL, end_marker
from pyreplog.partition.protocol.transactions import TransactionMarker
from pyreplog.partition.requests import (
    ConsumerFetch,
    FetchIsolation,
    FetchParams,
    Messages,
    PartitionProduceResponse,
)
from pyreplog.partition.store.partition_log import PartitionLog
from pyreplog.partition.store.producer_snapshot import snapshot_bases
from tests.ha.streams import SEGMENT_BYTES, assert_same_files

from .managers import EVENTS, WALL_US, Broker, Cluster, batch, fetch_alone

PRODUCER = {"producer_id": 7, "producer_epoch": 0}
MARKER = TransactionMarker(7, 1, 0, True)
HEAD_BYTES = 61


class Side:
    """A partition that broker a leads. On the long way its log appends under the lock of its changes."""

    def __init__(self, path: Path, *, is_short: bool, replicas: str = "a", **settings: Any) -> None:
        self.is_short = is_short
        self.cluster = Cluster(path, **{"min_isr": 1, "replicas": replicas, **settings})
        self.lead()

    def lead(self) -> None:
        self.cluster.lead("a")
        self.cluster.settle()
        assert self.broker.partition.is_leader
        if not self.is_short:
            self.broker.log.takes_appends = False

    @property
    def broker(self) -> Broker:
        return self.cluster.brokers["a"]

    def append(self, records: list[bytes] | bytes, acks: int = ACKS_ALL, **settings: Any) -> PartitionProduceResponse:
        return self.appending(records, acks, **settings).result(0)[EVENTS]

    def appending(self, records: list[bytes] | bytes, acks: int = ACKS_ALL, **settings: Any) -> AppendFuture[Any]:
        """Append, and let followers fetch."""
        data = records if isinstance(records, bytes) else Messages(records)
        future = self.broker.manager.append_records(acks, {EVENTS: data}, **settings)
        if len(self.cluster.states[EVENTS][1].replicas) > 1:
            self.cluster.settle(4)
        return future

    def append_in_transaction(self, sequence: int) -> PartitionProduceResponse:
        verification = self.broker.partition.begin_verification(7)
        data = batch(2, base_sequence=sequence, attributes=TRANSACTIONAL, **PRODUCER)
        return self.append(data, verifications=None if verification is None else {EVENTS: verification})

    def fetch(self, offset: int, **settings: Any) -> AppendFuture[Any]:
        return self.broker.manager.fetch_messages(FetchParams(**settings), {EVENTS: ConsumerFetch(offset)})

    @property
    def view(self) -> tuple[object, ...]:
        """What all who ask are told."""
        log, partition = self.broker.log, self.broker.partition
        return (
            log.end_mark, log.high_watermark, log.end, log.history.starts, partition.high_watermark,
            partition.offsets(), partition.producer_count, partition.active_producers(),
            *(partition.latest_offset(isolation) for isolation in FetchIsolation),
        )  # fmt: skip


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Callable[..., Side]]:
    sides: list[Side] = []

    def make(*, is_short: bool = True, **settings: Any) -> Side:
        sides.append(Side(tmp_path / str(len(sides)), is_short=is_short, **settings))
        return sides[-1]

    yield make
    for side in sides:
        side.cluster.close()


@pytest.mark.parametrize(
    ("log_append_time", "replicas"),
    [(False, "a"), (True, "a"), (False, "abc")],
    ids=["alone", "log-append-time", "three"],
)
def test_the_short_and_the_general_append_path_agree(
    make: Callable[..., Side], seed: int, log_append_time: bool, replicas: str
) -> None:
    rng = Random(seed)
    sides = [make(is_short=short, log_append_time=log_append_time, replicas=replicas) for short in (True, False)]
    sequence, is_open, sent = 0, False, list[tuple[bytes, int]]()
    for _ in range(300 if replicas == "a" else 150):
        outcomes: list[PartitionProduceResponse] = []
        size, acks = rng.choice((0, 7, 300, 1500, 9000)), rng.choice((ACKS_ALL, 0, 1))
        action = rng.randrange(12)
        if action < 4:
            values = [rng.randbytes(size) for _ in range(rng.randint(0, 4))]
            outcomes = [side.append(values, acks) for side in sides]
        elif action < 6:
            data = batch(rng.choice((1, 2, 30)), size, timestamp_ms=rng.choice((-1, WALL_US // 1000)))
            outcomes = [side.append(data, acks) for side in sides]
        elif action < 9 and not is_open:
            data = batch(2, size, base_sequence=sequence, **PRODUCER)
            outcomes, sequence = [side.append(data, acks) for side in sides], sequence + 2
            assert outcomes[0].code is ErrorCode.NONE
            sent = [*sent[-4:], (data, outcomes[0].base_offset)]
        elif action == 9 and not is_open:
            outcomes, sequence, is_open = [side.append_in_transaction(sequence) for side in sides], sequence + 2, True
            sent = []
        elif action == 10 and sent:
            data, offset = rng.choice(sent)
            outcomes = [side.append(data, acks) for side in sides]
            assert (outcomes[0].code, outcomes[0].base_offset) == (ErrorCode.NONE, offset), "the first one is answered"
            wrong = batch(2, size, base_sequence=sequence + 2, **PRODUCER)
            outcomes += [side.append(wrong, acks) for side in sides]
            assert outcomes[2].code is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
            assert outcomes.pop() == outcomes.pop()
        else:
            if is_open:
                marker = end_marker(MARKER._replace(producer_epoch=0), WALL_US // 1000)
                outcomes = [
                    side.append(marker, origin=AppendOrigin.COORDINATOR, transaction_version=1) for side in sides
                ]
                is_open = False
            elif rng.random() < 0.3:
                for side in sides:
                    side.lead()
            for side in sides:
                side.cluster.clock.advance(1000)
        assert outcomes[:1] == outcomes[1:]
        assert sides[0].view == sides[1].view
    short, long = (side.broker.log for side in sides)
    assert short.end_mark.position > 3 * SEGMENT_BYTES
    assert assert_same_files(short, long) > 3
    for name in replicas[1:]:
        assert assert_same_files(short, sides[0].cluster.brokers[name].log) > 3


@pytest.mark.parametrize("acks", [ACKS_ALL, 1])
def test_a_leader_with_followers_commits_what_they_have(make: Callable[..., Side], acks: int) -> None:
    """The high watermark is where the last of them is, and a produce with acks=-1 waits for it."""
    side = make(replicas="abc", min_isr=2)
    side.append(batch(2, base_sequence=0, **PRODUCER))
    sequence, committed = 2, side.broker.log.high_watermark
    assert committed == side.broker.log.end_mark
    for name in "bc":
        side.cluster.brokers[name].is_fetching = False
    for records in ([b"x"], batch(3), batch(2, base_sequence=sequence, **PRODUCER)):
        future = side.appending(records, acks)
        assert future.done() is (acks == 1)
        assert side.broker.log.high_watermark == side.broker.partition.high_watermark == committed
    again = side.appending(batch(2, base_sequence=sequence, **PRODUCER), acks)
    assert again.done() is (acks == 1)
    side.cluster.brokers["b"].is_fetching = True
    side.cluster.settle()
    assert side.broker.log.high_watermark == committed and future.done() is (acks == 1), "c lacks the records"
    side.cluster.brokers["c"].is_fetching = True
    side.cluster.settle()
    assert side.broker.log.high_watermark == side.broker.log.end_mark > committed
    assert future.result(0) == again.result(0)


def test_an_append_wakes_the_fetches_of_followers(make: Callable[..., Side]) -> None:
    side = make(replicas="abc", min_isr=2)
    for name in "bc":
        side.cluster.brokers[name].is_fetching = False
    for records in ([b"x"], batch(3), batch(2, base_sequence=0, **PRODUCER)):
        log = side.broker.log
        mark = log.end_mark
        fetch = Fetch(7, Member("b", 1), side.broker.epoch, mark, log.history.last, mark, log.high_watermark)
        future = fetch_alone(side.broker, fetch, max_wait_ms=1000)
        assert not future.done()
        side.appending(records, 1)
        assert future.result(0)[EVENTS].size > 0


def test_an_append_that_begins_a_segment_takes_the_lock_of_changes(
    make: Callable[..., Side], monkeypatch: pytest.MonkeyPatch
) -> None:  # fmt: skip
    """Python code runs there: the role of the log could change meanwhile."""
    side, ends, append = make(), list[int](), PartitionLog._append_record_batch

    def noted(log: PartitionLog, *args: Any) -> AppendedOffsets:
        ends.append(log.end_mark.position)
        return append(log, *args)

    monkeypatch.setattr(PartitionLog, "_append_record_batch", noted)
    while side.broker.log.end_mark.position < 4 * SEGMENT_BYTES:
        side.append(batch(1, 5000))
    assert [end // SEGMENT_BYTES for end in ends] == [0, 1, 2, 3]


def test_the_next_leader_knows_the_batches_of_the_former(make: Callable[..., Side]) -> None:
    side = make(replicas="abc", min_isr=2)
    batches = [batch(2, base_sequence=sequence, **PRODUCER) for sequence in range(0, 14, 2)]
    offsets = [side.append(each).base_offset for each in batches]
    side.cluster.lead("b")
    side.cluster.settle()
    manager = side.cluster.brokers["b"].manager

    def append(data: bytes) -> PartitionProduceResponse:
        future = manager.append_records(ACKS_ALL, {EVENTS: data})
        side.cluster.settle()
        return future.result(0)[EVENTS]

    for data, offset in zip(batches[-5:], offsets[-5:], strict=True):
        assert append(data).base_offset == offset
    assert append(batches[-6]).code is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, "a sixth one back is not known"
    old = {**PRODUCER, "producer_epoch": 1}
    assert append(batch(1, base_sequence=0, **old)).code is ErrorCode.NONE
    assert append(batch(1, base_sequence=14, **PRODUCER)).code is ErrorCode.INVALID_PRODUCER_EPOCH
    assert append(batch(1, base_sequence=1, **old)).code is ErrorCode.NONE


def test_sequence_numbers_of_a_producer_wrap(make: Callable[..., Side]) -> None:
    side, first = make(), (1 << 31) - 3
    batches = [batch(4, base_sequence=sequence, **PRODUCER) for sequence in (first, 1, 5)]
    assert [side.append(each).base_offset for each in batches] == [0, 4, 8]
    assert side.append(batch(4, base_sequence=first, **PRODUCER)).base_offset == 0
    assert side.append(batch(4, base_sequence=8, **PRODUCER)).code is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER


def test_offsets_and_marks_follow_each_append(make: Callable[..., Side]) -> None:
    side, offset = make(), 0
    for number in range(200):
        for records, count in (([b"x" * number] * 3, 3), (batch(5, 20 + number), 5)):
            response = side.append(records)
            assert response == PartitionProduceResponse(ErrorCode.NONE, offset, offset + count, 0)
            offset += count
            assert side.broker.log.end_mark.entry == side.broker.log.high_watermark.entry == offset
            assert side.broker.partition.high_watermark == side.broker.log.end_mark
            assert side.broker.log.end == offset, "readers see it"


def test_an_append_wakes_waiting_fetches(make: Callable[..., Side]) -> None:
    side = make()
    for sequence, isolation in enumerate(FetchIsolation):
        for records in ([b"x"], batch(), batch(base_sequence=sequence, **PRODUCER)):
            end = side.broker.log.end
            future = side.fetch(end, isolation=isolation)
            assert not future.done()
            side.append(records)
            assert future.done() and future.result()[EVENTS].high_watermark == end + 1


def test_a_batch_with_a_wrong_checksum_is_refused(make: Callable[..., Side]) -> None:
    side, data = make(), batch(3, 100)
    for at in (22, HEAD_BYTES, len(data) - 1):
        before = side.view
        response = side.append(data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :])
        assert response.code is ErrorCode.CORRUPT_MESSAGE and response.base_offset == -1
        assert side.view == before
    assert side.append(data).base_offset == 0


def test_a_fenced_leader_and_one_of_another_epoch_append_nothing(make: Callable[..., Side]) -> None:
    side = make()
    side.append([b"first"])
    epoch = side.broker.partition.leader_epoch
    assert epoch is not None
    for records in ([b"x"], batch()):
        before = side.view
        assert side.append(records, leader_epoch=epoch - 1).code is ErrorCode.NOT_LEADER_OR_FOLLOWER
        assert side.view == before
    side.lead()
    assert side.append(batch(), leader_epoch=epoch).code is ErrorCode.NOT_LEADER_OR_FOLLOWER
    side.append(batch(2))
    (record,) = [record for each in side.broker.log.read() for record in each if record.entry_count == 2]
    assert int.from_bytes(record.value[12:16], "big") == side.broker.partition.leader_epoch == epoch + 1
    side.cluster.set(EVENTS, side.cluster.states[EVENTS][1].led_by(""))
    side.cluster.settle()
    for records in ([b"x"], batch()):
        assert side.append(records).code is ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert side.broker.log.end == 3


def test_under_min_isr_appends_with_acks_all_are_refused(make: Callable[..., Side]) -> None:
    """And others are not committed."""
    side = make()
    for name in "bc":
        side.cluster.brokers[name].is_fetching = False
    side.cluster.set(EVENTS, replace(side.cluster.states[EVENTS][1], replicas=("a", "b", "c"), min_isr=2))
    side.cluster.settle()
    for records in ([b"x"], batch()):
        assert side.append(records).code is ErrorCode.NOT_ENOUGH_REPLICAS
        assert side.append(records, acks=1).code is ErrorCode.NONE
    assert side.broker.log.end_mark.entry == 2 and side.broker.log.end == 0


def test_appends_at_the_end_of_a_segment_are_known_after_a_start(make: Callable[..., Side]) -> None:
    """A snapshot of the producers lies beside each segment that an append has begun."""
    side, sequence = make(), 0
    while side.broker.log.end_mark.position < 4 * SEGMENT_BYTES:
        side.append(batch(1, 5000))
        side.append([bytes(5000)])
        side.append(batch(1, 5000, base_sequence=sequence, **PRODUCER))
        sequence += 1
    producers = side.broker.partition.active_producers()
    side.broker.partition.write_producer_snapshots()
    path, end = side.broker.log.path, side.broker.log.end_mark.position
    assert sorted(snapshot_bases(path)) == [base for base in names.segment_bases(path) if 0 < base < end]
    side.broker.restart()
    side.cluster.elect()
    side.lead()
    assert side.broker.partition.active_producers()[1][0].last_sequence == producers[1][0].last_sequence == sequence - 1
