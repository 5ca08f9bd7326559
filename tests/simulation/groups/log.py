"""The partition of `__consumer_offsets`: a log with a leader, whose followers are late."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from pyreplog._native.kafka.record_batch import encode_batch, encode_records
from pyreplog.future import AppendFuture, set_result
from pyreplog.kafka.groups.group_records import LoadedBatch, decode_group_batch
from pyreplog.partition.protocol.error_codes import ErrorCode
from pyreplog.partition.requests import PartitionProduceResponse

if TYPE_CHECKING:
    from .brokers import Broker
    from .schedule import Schedule

Response = AppendFuture[PartitionProduceResponse]


@dataclass
class Stored:
    """A batch of the log, and who waits for it."""

    base_offset: int
    end_offset: int
    data: bytes
    batch: LoadedBatch
    future: Response = field(default_factory=AppendFuture)
    generations: dict[str, int] = field(default_factory=dict)

    def answer(self, code: ErrorCode) -> None:
        set_result(self.future, PartitionProduceResponse(code, self.base_offset, self.end_offset))


class Log:
    """What the replicas of the partition have, as its leaders see it."""

    def __init__(self, schedule: Schedule) -> None:
        self._schedule, self._world = schedule, schedule.world
        self.batches: list[Stored] = []
        self.epoch, self.leader = 0, ""
        self.start = self.end = self.high_watermark = 0
        self.known_from = 0  # a new leader knows its high watermark when all up to there is committed
        self.is_stalled = False
        self.elections = self.lost = self.rewritten = 0

    def elect(self, leader: str) -> None:
        """A new leader has what is committed, and the beginning of what was not."""
        tail = [batch for batch in self.batches if batch.end_offset > self.high_watermark]
        kept = self._world.random.randint(0, len(tail))
        cut = tail[kept:]
        self.lost += len(cut)
        self.batches = self.batches[: len(self.batches) - len(cut)]
        self.end = self.batches[-1].end_offset if self.batches else max(self.start, self.high_watermark)
        self.epoch, self.leader, self.known_from = self.epoch + 1, leader, self.end
        self.elections += 1
        self._schedule.invariants.elected()
        self._world.note("election:", leader, "epoch", self.epoch, "keeps", kept, "cuts", len(cut))
        for batch in tail:
            code = self._world.random.choice((ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.REQUEST_TIMED_OUT))
            self._world.after(self._schedule.lag(), batch.answer, code)
            batch.future = AppendFuture()
        self._world.after(self._schedule.lag(), self._replicate, self.epoch)

    def append(self, leader: str, epoch: int, batch: bytes) -> Response:
        if leader != self.leader or epoch != self.epoch:
            return self._append_apart(batch)
        decoded = decode_group_batch(self.end, batch)
        stored = Stored(self.end, self.end + (len(decoded.records) or 1), batch, decoded)
        future = stored.future
        self._schedule.invariants.appended(stored)
        self.batches.append(stored)
        self._schedule.invariants.reconcile(stored)
        self.end = stored.end_offset
        self._world.after(self._schedule.lag(), self._replicate, epoch)
        self._world.after(self._schedule.plan.append_timeout_s, self._time_out, stored, future)
        return future

    def _append_apart(self, batch: bytes) -> Response:
        """A broker that was deposed, and does not know it, appends to a log that nobody follows."""
        future = Response()
        if self._world.chance(0.3):
            set_result(future, PartitionProduceResponse(ErrorCode.NOT_LEADER_OR_FOLLOWER))
            return future
        stored = Stored(self.end, self.end + 1, batch, decode_group_batch(0, batch), future)
        code = self._world.random.choice((ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.REQUEST_TIMED_OUT))
        self._world.after(self._schedule.plan.append_timeout_s, stored.answer, code)
        return future

    def _time_out(self, stored: Stored, future: Response) -> None:
        if not future.done():
            set_result(
                future, PartitionProduceResponse(ErrorCode.REQUEST_TIMED_OUT, stored.base_offset, stored.end_offset)
            )

    def _replicate(self, epoch: int) -> None:
        if epoch != self.epoch:
            return
        if self.is_stalled:
            self._world.after(0.01, self._replicate, epoch)
            return
        waiting = [batch for batch in self.batches if batch.end_offset > self.high_watermark]
        self.high_watermark = self.end
        self._world.random.shuffle(waiting)  # requests are completed in any order
        for batch in waiting:
            batch.answer(ErrorCode.NONE)

    # ---- what a broker asks ---------------------------------------------------------------------------------

    def delete_records(self, before: int) -> None:
        """Whole batches, and none of an open transaction."""
        before = min(before, self.last_stable())
        self.rewritten += 1
        while self.batches and self.batches[0].end_offset <= min(before, self.high_watermark):
            self.batches.pop(0)
        self.start = self.batches[0].base_offset if self.batches else self.high_watermark

    def last_stable(self) -> int:
        first: dict[int, int] = {}
        for batch in self.batches:
            if batch.batch.marker is not None:
                first.pop(batch.batch.producer_id, None)
            elif batch.batch.producer_id >= 0:
                first.setdefault(batch.batch.producer_id, batch.base_offset)
        return min(first.values(), default=self.end)


class LogOfBroker:
    """The partition as one broker sees it (`OffsetsLog`)."""

    def __init__(self, schedule: Schedule, broker: Broker) -> None:
        self._log, self._broker = schedule.log, broker

    def append(self, partition: int, batch: bytes, epoch: int, verification: int | None) -> Response:
        return self._log.append(self._broker.name, epoch, batch)

    def committed_range(self, partition: int, epoch: int) -> tuple[int, int, int] | None:
        log = self._log
        if log.leader != self._broker.name or log.epoch != epoch or log.high_watermark < log.known_from:
            return None
        return log.start, log.high_watermark, log.end

    def read(self, partition: int, start: int, end: int) -> Iterator[tuple[int, bytes]]:
        for batch in list(self._log.batches):
            if start <= batch.base_offset < end:
                yield batch.base_offset, batch.data

    def delete_records(self, partition: int, before: int) -> None:
        if self._log.leader == self._broker.name:
            self._log.delete_records(before)

    def begin_verification(self, partition: int, producer_id: int) -> int:
        return 1


def marker(producer_id: int, *, committed: bool, epoch: int = 0) -> bytes:
    """A marker of a transaction, as its coordinator appends it."""
    key, value = bytes((0, 0, 0, committed)), bytes(6)
    body = encode_records([value], [key], [0], None)
    return encode_batch(
        body, 1, base_timestamp=0, max_timestamp=0, producer_id=producer_id, producer_epoch=epoch, transactional=True,
        control=True,
    )  # fmt: skip
