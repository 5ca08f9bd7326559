"""Appends to a partition of one broker in this process, beside batches to a log of its own; both recycle segments."""

from __future__ import annotations

import time
from contextlib import ExitStack
from pathlib import Path

import pyreplog
from benchmarks.entries import BATCH, in_turn, make_values
from benchmarks.logs import CountingFiles, RecycledLog, recycled, settle
from benchmarks.plan import Plan
from benchmarks.result import Comparison, Figure, Goal, Section
from benchmarks.sampling import Run, interleave, timed
from pyreplog._native.kafka.record_batch import encode_batch, encode_records
from pyreplog.metadata.sqlite import SQLiteStore
from pyreplog.partition.broker import Broker
from pyreplog.partition.config import BrokerConfig
from pyreplog.partition.local_transport import LocalTransport
from pyreplog.partition.metadata.topic_metadata import create_topic
from pyreplog.partition.protocol.error_codes import ErrorCode
from pyreplog.partition.requests import Messages, Records
from pyreplog.partition.topic_partition import TopicPartition
from pyreplog.record_batches.batches import build_batch, read_batch

_SIZE = 100
_TURNS = 400
_LIMIT = 0.6
_WAIT_S = 60.0
_BUILT = 8
_RETAINED = 2
_WARM_SEGMENTS = 12
_KINDS = {
    "messages": "messages", "record batch": "one record batch",
    "produced": "one record batch of an idempotent producer",
}  # fmt: skip


class _Partition:
    """A partition with one replica under retention, and how many records it was given."""

    def __init__(self, stack: ExitStack, folder: Path, plan: Plan) -> None:
        store = stack.enter_context(SQLiteStore(folder / "metadata"))
        config = BrokerConfig(segment_bytes=plan.segment_bytes)
        self.files = CountingFiles()
        broker = stack.enter_context(
            Broker(folder / "a", "a", store, LocalTransport(), config=config, files=self.files)
        )
        topic = create_topic(
            store, "records", partitions=1, replication_factor=1, now_us=time.time_ns() // 1000,
            settings={"retention.bytes": _RETAINED * plan.segment_bytes},
        )  # fmt: skip
        self.replicas, self.name = broker.replicas, TopicPartition("records", 0)
        self.path = broker.directory / f"{topic.topic_id}-0"
        self.records = self._sequence = 0
        deadline_s = time.monotonic() + _WAIT_S
        while (partition := broker.partition(*self.name)) is None or not partition.is_leader:
            if time.monotonic() > deadline_s:
                raise RuntimeError("the partition has no leader")
            time.sleep(0.01)
        self._partition = partition

    def warm(self, batch: list[bytes], segment_bytes: int) -> None:
        """Append until segments are recycled ones."""
        for _ in range(_WARM_SEGMENTS * segment_bytes // (BATCH * _SIZE * 8)):
            self.append(Messages(batch), 8)
            self.remove_expired()

    def remove_expired(self) -> None:
        """Remove the segments that retention does not keep. Their files are recycled."""
        self._partition.apply_retention()

    def append(self, records: Records, turns: int) -> None:
        """Append these BATCH records again and again, each time when those before are committed."""
        data = {self.name: records}
        for _ in range(turns):
            (response,) = self.replicas.append_records(-1, data).result(_WAIT_S).values()
            if response.code is not ErrorCode.NONE:
                raise RuntimeError(f"{response.code.name}: {response.message}")
        self.records += turns * BATCH

    def append_produced(self, body: bytes, turns: int) -> float:
        """Append the records of `body` as batches of an idempotent producer; return the seconds for each record.

        The batches are built outside of the measured time, a few at a time, so that they are in a cache as those of a
        connection are.
        """
        seconds = 0.0
        for turn in range(0, turns, _BUILT):
            batches = [self._produced(body) for _ in range(min(_BUILT, turns - turn))]
            begin = time.perf_counter()
            for batch in batches:
                self.append(batch, 1)
            seconds += time.perf_counter() - begin
        return seconds / (turns * BATCH)

    def _produced(self, body: bytes) -> bytes:
        sequence, self._sequence = self._sequence, self._sequence + BATCH
        now_ms = time.time_ns() // 1_000_000
        return encode_batch(
            body, BATCH, base_timestamp=now_ms, max_timestamp=now_ms, producer_id=1, producer_epoch=0,
            base_sequence=sequence,
        )  # fmt: skip

    def verified(self, values: list[bytes]) -> str:
        """Read all back and compare it with what was appended; say how much that was."""
        expected = in_turn(values, BATCH)
        with pyreplog.open(self.path, "r") as log:
            first = entry = log.start
            for batch in log.read():
                for record in batch:
                    if record.entry_count == 1:
                        stored = [record.value]
                    else:
                        stored = read_batch(record.value)[1].values()
                    if stored != [expected[(entry + each) % BATCH] for each in range(len(stored))]:
                        raise ValueError(f"{self.path}: the records from {entry} on are not what was appended")
                    entry += len(stored)
        if entry != self.records:
            raise ValueError(f"{self.path}: read back to record {entry} of {self.records}")
        return f"the last {entry - first:,} of {entry:,} records"


def append(plan: Plan) -> Section:
    """`append_records` of 256 records, acks=-1, one replica: as messages, and as the record batch of a Kafka client.

    The batch is of no producer, or of an idempotent one.
    """
    section = Section("partitions-append", f"append_records, {BATCH} records of {_SIZE} B, one broker in this process")
    values = make_values(_SIZE)
    batch, turns = in_turn(values, BATCH), plan.scaled(_TURNS * BATCH) // BATCH
    with recycled(plan, _SIZE) as log, plan.folder() as folder, ExitStack() as stack:
        partition = _Partition(stack, folder, plan)
        partition.warm(batch, plan.segment_bytes)
        created = partition.files.created
        timestamps_ms = [time.time_ns() // 1_000_000] * BATCH
        sent, body = build_batch(batch, timestamps_ms=timestamps_ms), encode_records(batch, None, timestamps_ms, None)
        sides: dict[str, Run] = {
            "log": lambda: _append_to_log(log, batch, turns),
            "messages": lambda: _append_to_partition(partition, Messages(batch), turns),
            "record batch": lambda: _append_to_partition(partition, sent, turns),
            "produced": lambda: _append_produced(partition, body, turns),
        }
        rates = {name: 1 / seconds for name, seconds in interleave(plan, sides).items()}
        fresh = partition.files.created - created
        verified = f"{partition.verified(values)}, {fresh} new segments; log: {log.verified()}"
    for name, kind in _KINDS.items():
        section.comparisons.append(
            Comparison(
                f"{BATCH} records as {kind}",
                Figure("append_records, acks=-1", rates[name], "/s", "appended"),
                Figure("CommitLog.append_batch", rates["log"], "/s", "appended"),
                Goal("at least", _LIMIT),
                verified,
            )
        )
    section.notes.append(
        "Segments are recycled on both sides. The CRC of a record batch is checked, and that of its record is made."
    )
    return section


def _append_to_log(ours: RecycledLog, batch: list[bytes], turns: int) -> float:
    ours.written += turns * BATCH
    took = timed(lambda: [ours.log.append_batch(batch) for _ in range(turns)], turns * BATCH)
    settle(ours.log)
    return took


def _append_to_partition(partition: _Partition, records: Records, turns: int) -> float:
    took = timed(lambda: partition.append(records, turns), turns * BATCH)
    partition.remove_expired()
    return took


def _append_produced(partition: _Partition, body: bytes, turns: int) -> float:
    took = partition.append_produced(body, turns)
    partition.remove_expired()
    return took
