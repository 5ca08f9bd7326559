"""Appends to a partition of one broker in this process, beside batches to a log of its own."""

from __future__ import annotations

import time
from contextlib import ExitStack
from pathlib import Path

import pyreplog
from benchmarks.entries import BATCH, in_turn, make_values, verify
from benchmarks.plan import Plan
from benchmarks.result import Comparison, Figure, Goal, Section
from benchmarks.sampling import Run, interleave, timed
from pyreplog import CommitLog
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
_KINDS = {
    "messages": "messages", "record batch": "one record batch",
    "produced": "one record batch of an idempotent producer",
}  # fmt: skip


class _Partition:
    """A partition with one replica, and how many records it was given."""

    def __init__(self, stack: ExitStack, folder: Path, plan: Plan) -> None:
        store = stack.enter_context(SQLiteStore(folder / "metadata"))
        config = BrokerConfig(segment_bytes=plan.segment_bytes)
        broker = stack.enter_context(Broker(folder / "a", "a", store, LocalTransport(), config=config))
        topic = create_topic(store, "records", partitions=1, replication_factor=1, now_us=time.time_ns() // 1000)
        self.replicas, self.name = broker.replicas, TopicPartition("records", 0)
        self.path = broker.directory / f"{topic.topic_id}-0"
        self.records = self._sequence = 0
        deadline_s = time.monotonic() + _WAIT_S
        while (partition := broker.partition(*self.name)) is None or not partition.is_leader:
            if time.monotonic() > deadline_s:
                raise RuntimeError("the partition has no leader")
            time.sleep(0.01)

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
        expected, entry = in_turn(values, BATCH), 0
        with pyreplog.open(self.path, "r") as log:
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
        return f"{entry:,} records"


def append(plan: Plan) -> Section:
    """`append_records` of 256 records, acks=-1, one replica: as messages, and as the record batch of a Kafka client.

    The batch is of no producer, or of an idempotent one.
    """
    section = Section("partitions-append", f"append_records, {BATCH} records of {_SIZE} B, one broker in this process")
    values = make_values(_SIZE)
    batch, turns = in_turn(values, BATCH), plan.scaled(_TURNS * BATCH) // BATCH
    with plan.folder() as folder, ExitStack() as stack:
        log = stack.enter_context(pyreplog.open(folder / "log", segment_bytes=plan.segment_bytes))
        partition = _Partition(stack, folder, plan)
        timestamps_ms = [time.time_ns() // 1_000_000] * BATCH
        sent, body = build_batch(batch, timestamps_ms=timestamps_ms), encode_records(batch, None, timestamps_ms, None)
        sides: dict[str, Run] = {
            "log": lambda: timed(lambda: _append_to_log(log, batch, turns), turns * BATCH),
            "messages": lambda: timed(lambda: partition.append(Messages(batch), turns), turns * BATCH),
            "record batch": lambda: timed(lambda: partition.append(sent, turns), turns * BATCH),
            "produced": lambda: partition.append_produced(body, turns),
        }
        rates = {name: 1 / seconds for name, seconds in interleave(plan, sides).items()}
        verified = f"{partition.verified(values)}; log: {verify(log, values, log.end)}"
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
        "Segments are new on both sides. The CRC of a record batch is checked, and that of its record is made."
    )
    return section


def _append_to_log(log: CommitLog, batch: list[bytes], turns: int) -> None:
    for _ in range(turns):
        log.append_batch(batch)
