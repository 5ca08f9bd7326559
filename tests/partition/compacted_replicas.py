"""Replicas of a compacted partition, and what readers must see of them, by brute force."""

from __future__ import annotations

import gc
import threading
from pathlib import Path
from random import Random
from typing import NamedTuple

from pyreplog._native.kafka.record_batch import encode_batch, encode_records, peek_header
from pyreplog.log import names
from pyreplog.partition.cleaned_segment_fetcher import CleanedSegmentFetcher
from pyreplog.partition.config import CompactionConfig
from pyreplog.partition.local_transport import LocalTransport
from pyreplog.partition.protocol.append_origin import AppendOrigin
from pyreplog.partition.protocol.error_codes import ErrorCode
from pyreplog.partition.protocol.record_batch import end_marker
from pyreplog.partition.protocol.transactions import TransactionMarker
from pyreplog.partition.store.log_cleaner import CleaningResult
from pyreplog.partition.store.partition_log import PartitionLog
from pyreplog.record_batches.batches import read_batch
from pyreplog.record_batches.compression import compress
from tests.ha.streams import SEGMENT_BYTES

from .managers import EVENTS, WALL_US, Broker, Cluster

RETENTION_MS = 100_000
COMPACTION = CompactionConfig(min_dirty_ratio=0.0, delete_retention_ms=RETENTION_MS)
MAP_BYTES = 1 << 20


class Row(NamedTuple):
    """A record that was appended. producer: of its transaction; -1: none."""

    key: bytes
    value: bytes | None
    producer: int = -1


class Replicas:
    """Three brokers with one compacted partition. rows: all that was appended, by offset and leader epoch."""

    def __init__(self, path: Path, rng: Random, *, keys: int = 12) -> None:
        self.rng = rng
        self.cluster = Cluster(path, compaction=COMPACTION)
        self.cluster.elect()
        self.cluster.settle()
        self.keys = [b"key %d" % number for number in range(keys)]
        self.rows: dict[tuple[int, int], Row] = {}
        self.aborted: set[int] = set()
        self.producers = 100
        self.cleaned = 0

    @property
    def brokers(self) -> dict[str, Broker]:
        return self.cluster.brokers

    @property
    def leader(self) -> Broker:
        return self.brokers[self.cluster.states[EVENTS][1].leader]

    # ---- appends --------------------------------------------------------------------------------------------

    def append(self, broker: Broker | None = None, producer: int = -1, sequence: int = 0, token: int = 0) -> int:
        """A batch of some keys, of a transaction if there is a producer. Returns how many records were appended."""
        rng, broker = self.rng, self.leader if broker is None else broker
        count = rng.choice((1, 1, 2, 5, 20))
        values = [None if rng.random() < 0.1 else rng.randbytes(rng.choice((0, 30, 400, 900))) for _ in range(count)]
        return self.put(broker, [rng.choice(self.keys) for _ in range(count)], values, producer, sequence, token)

    def put(
        self, broker: Broker, keys: list[bytes], values: list[bytes | None], producer: int = -1, sequence: int = 0,
        token: int = 0,
    ) -> int:  # fmt: skip
        codec, time_ms, count = self.rng.choice((0, 0, 1, 4)), WALL_US // 1000, len(keys)
        data = encode_batch(
            compress(codec, encode_records(values, keys, [time_ms] * count, None)), count, base_timestamp=time_ms,
            max_timestamp=time_ms, codec=codec, producer_id=producer, producer_epoch=0 if producer >= 0 else -1,
            base_sequence=sequence if producer >= 0 else -1, transactional=producer >= 0,
        )  # fmt: skip
        verifications = {EVENTS: token} if producer >= 0 else None
        future = broker.manager.append_records(1, {EVENTS: data}, verifications=verifications)
        response = future.result()[EVENTS]
        if response.code is not ErrorCode.NONE:
            return 0
        for number, (key, value) in enumerate(zip(keys, values, strict=True)):
            self.rows[response.base_offset + number, broker.epoch.number] = Row(key, value, producer)
        return count

    def transaction(self) -> None:
        """A transaction of the leader, with batches of nobody among its own."""
        broker, self.producers, sequence = self.leader, self.producers + 1, 0
        if not broker.partition.is_leader:
            return
        producer = self.producers
        token = broker.partition.begin_verification(producer)
        for _ in range(self.rng.randint(1, 3)):
            sequence += self.append(broker, producer, sequence, token)
            self.append(broker)
        is_commit = self.rng.random() < 0.5
        marker = end_marker(TransactionMarker(producer, 1, 1, is_commit), WALL_US // 1000)
        future = broker.manager.append_records(1, {EVENTS: marker}, origin=AppendOrigin.COORDINATOR)
        assert future.result()[EVENTS].code is ErrorCode.NONE
        if not is_commit:
            self.aborted.add(producer)

    def fill(self, segments: int) -> None:
        """Append until so many more segments are full, and all replicas have them."""
        end = (self.leader.log.end_mark.position // SEGMENT_BYTES + segments) * SEGMENT_BYTES
        while self.leader.log.end_mark.position < end:
            self.transaction() if self.rng.random() < 0.1 else self.append()
            if self.rng.random() < 0.1:
                self.cluster.settle(2)
        self.settle()

    def settle(self) -> None:
        self.cluster.settle(30)
        gc.collect()  # messages that were delivered, whose cycles hold what was read
        for broker in self.brokers.values():
            broker.log.sync()
            broker.log.run_background_tasks()

    # ---- compaction -----------------------------------------------------------------------------------------

    def clean(self, map_bytes: int = MAP_BYTES) -> CleaningResult:
        """Compact, as the cleaner of the leader's broker does."""
        partition = self.leader.partition
        result = partition.clean(map_bytes)
        assert result is not None
        self.cleaned = max(self.cleaned, result.cleaned)
        partition.refresh_cleaned_segments()
        return result

    def mirror(self, name: str, stop_after: int = 1 << 30) -> int:
        """Take over compacted segments, as the cleaner of a follower's broker does. stop_after: so many pieces."""
        transport = LimitedTransport(stop_after)
        for broker in self.brokers.values():
            transport.register(broker.name, broker.manager)
        return CleanedSegmentFetcher(transport, threading.Event()).fetch(self.brokers[name].partition)

    def mirror_all(self) -> int:
        return sum(self.mirror(name) for name in self.brokers)

    # ---- what is read ---------------------------------------------------------------------------------------

    def expected(self, log: PartitionLog, end: int) -> dict[int, Row]:
        """All rows of committed data before an offset that lie in a log, had it never been compacted."""
        starts = [(start.entry, epoch.number) for epoch, start in log.history.starts]
        rows = {}
        for (offset, epoch), row in self.rows.items():
            wrote = max((at, number) for at, number in starts if at <= offset)[1]
            if offset < end and epoch == wrote and row.producer not in self.aborted:
                rows[offset] = row
        return rows

    def check(self, name: str) -> dict[int, Row]:
        """Readers of a replica see the latest value of each key, and nothing that was not appended."""
        log = self.brokers[name].log
        rows, end = read_rows(log, self.aborted), log.high_watermark.entry
        expected = self.expected(log, end)
        assert rows.items() <= expected.items()
        if end >= self.cleaned:
            assert state_of(rows) == state_of(expected)
        return rows

    def assert_same(self) -> None:
        """The closed segments of all replicas are equal, byte for byte."""
        logs = [broker.log for broker in self.brokers.values()]
        bases = range(
            max(log.start_position for log in logs), min(log.end_mark.position for log in logs), SEGMENT_BYTES
        )
        for base in [*bases][:-1]:
            assert len({names.segment_path(log.path, base).read_bytes() for log in logs}) == 1, f"the segment at {base}"

    def close(self) -> None:
        self.cluster.close()


class LimitedTransport(LocalTransport):
    """The connection breaks after so many pieces of segments."""

    def __init__(self, pieces: int) -> None:
        super().__init__()
        self.left = pieces

    def read_segment(self, broker, request):  # type: ignore[no-untyped-def]
        self.left -= 1
        if self.left < 0:
            self.unregister(broker)
        return super().read_segment(broker, request)


def read_rows(log: PartitionLog, aborted: set[int]) -> dict[int, Row]:
    """All that readers of committed data see below the high watermark; every offset is there once, in order."""
    rows, expected = dict[int, Row](), log.start
    for batch in log.read_positions(log.start_position):
        for record in batch:
            assert record.entry - record.entry_count + 1 == expected
            expected = record.entry + 1
            value = record.value
            head = peek_header(value)
            assert head is not None and head.base_offset + head.last_offset_delta == record.entry
            if head.control or (head.transactional and head.producer_id in aborted):
                continue
            header, columns = read_batch(value)
            numbers, producer = columns.number.tolist(), head.producer_id if head.transactional else -1
            for at, (key, content) in enumerate(zip(columns.keys(), columns.values(), strict=True)):
                rows[header.base_offset + numbers[at]] = Row(key, content, producer)
    return rows


def state_of(rows: dict[int, Row]) -> dict[bytes, tuple[int, bytes]]:
    """The latest value of each key, with its offset; without those that are deleted."""
    latest = {row.key: offset for offset, row in sorted(rows.items())}
    return {
        key: (offset, value) for key, offset in latest.items() if (value := rows[offset].value) is not None
    }  # fmt: skip
