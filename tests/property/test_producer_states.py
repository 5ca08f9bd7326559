"""The producers of a log in native code, beside the same rules in plain Python, in random histories."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from random import Random

from pyreplog._native.partition.producer_states_base import BATCHES_KEPT
from pyreplog.partition.protocol.error_codes import ErrorCode
from pyreplog.partition.protocol.producers import (
    BatchMetadata,
    ProducerBatch,
    ProducerStateEntry,
    ProducerStates,
)
from pyreplog.partition.protocol.transactions import TransactionsSnapshot
from pyreplog.partition.store.producer_snapshot import ProducerSnapshot, decode_snapshot, encode_snapshot
from pyreplog.stream.log_position import ORIGIN, LogPosition
from pyreplog.stream.terms import Term, TermStart

SEQUENCES = 1 << 31
PRODUCERS = (1, 7, (1 << 63) - 1)


@dataclass
class PlainEntry:
    epoch: int
    used_us: int
    batches: list[tuple[int, int, int, int]] = field(default_factory=list)


class PlainStates:
    """The rules, as KIP-98 words them."""

    def __init__(self) -> None:
        self.entries: dict[int, PlainEntry] = {}

    def check(self, batch: ProducerBatch) -> tuple[ErrorCode, tuple[int, int, int, int] | None]:
        entry = self.entries.get(batch.producer_id)
        if entry is None:
            return ErrorCode.NONE, None
        if batch.epoch < entry.epoch:
            return ErrorCode.INVALID_PRODUCER_EPOCH, None
        expected = 0 if batch.epoch > entry.epoch else (entry.batches[-1][1] + 1) % SEQUENCES
        if batch.epoch == entry.epoch:
            for stored in entry.batches:
                if stored[:2] == (batch.first_sequence, batch.last_sequence):
                    return ErrorCode.DUPLICATE_SEQUENCE_NUMBER, stored
        return ErrorCode.NONE if batch.first_sequence == expected else ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, None

    def append(self, batch: ProducerBatch, offset: int, now_us: int) -> None:
        entry = self.entries.get(batch.producer_id)
        if entry is None or entry.epoch != batch.epoch:
            entry = PlainEntry(batch.epoch, now_us)
        entry.batches.append((batch.first_sequence, batch.last_sequence, offset, offset + batch.records - 1))
        del entry.batches[:-BATCHES_KEPT]
        entry.used_us = now_us
        self.entries[batch.producer_id] = entry

    def note_use(self, producer_id: int, now_us: int) -> None:
        entry = self.entries.get(producer_id)
        if entry is not None and now_us > entry.used_us:
            entry.used_us = now_us


def test_each_verdict_is_that_of_the_plain_rules(seed: int) -> None:
    """Sequence numbers wrap, epochs grow and fall back, producers expire, and snapshots are read back."""
    rng = Random(seed)
    native, plain = ProducerStates(), PlainStates()
    verdicts = dict.fromkeys(
        (ErrorCode.NONE, ErrorCode.DUPLICATE_SEQUENCE_NUMBER, ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
         ErrorCode.INVALID_PRODUCER_EPOCH), 0,
    )  # fmt: skip
    sent: list[ProducerBatch] = []
    offset = wraps = 0
    for now_us in range(4000):
        batch = next_batch(rng, plain, sent)
        code, duplicate = native.check(batch)
        assert (code, duplicate) == plain.check(batch)
        assert duplicate is None or isinstance(duplicate, BatchMetadata)
        verdicts[code] += 1
        # a follower appends without a check: whatever its leader has accepted
        if code is ErrorCode.NONE or (code is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER and rng.random() < 0.01):
            native.append(batch, offset, now_us)
            plain.append(batch, offset, now_us)
            wraps += batch.last_sequence < batch.first_sequence
            offset += batch.records
            sent = [*sent[-30:], batch]
        if rng.random() < 0.02:
            number = rng.choice(PRODUCERS)
            used_us = now_us - rng.randint(0, 3)
            native.note_use(number, used_us)
            plain.note_use(number, used_us)
        if rng.random() < 0.01:
            keep = {rng.choice(PRODUCERS)}
            idle = [
                number for number, entry in plain.entries.items() if entry.used_us < now_us - 4 and number not in keep
            ]
            assert sorted(native.expire(now_us - 4, keep)) == sorted(idle)
            for number in idle:
                del plain.entries[number]
        if rng.random() < 0.02:
            native = ProducerStates(read_back(native))
        assert {number: (entry.epoch, entry.used_us, list(entry.batches)) for number, entry in native.snapshot()} == {
            number: (entry.epoch, entry.used_us, entry.batches) for number, entry in plain.entries.items()
        }
        assert len(native) == len(plain.entries)
    assert min(verdicts.values()) > 50, verdicts
    assert wraps > 5


def next_batch(rng: Random, plain: PlainStates, sent: list[ProducerBatch]) -> ProducerBatch:
    """Mostly the next one; or one that was sent before, of another epoch, or with a gap."""
    number, records = rng.choice(PRODUCERS), rng.choice((1, 2, 5, SEQUENCES // 3))
    entry, draw = plain.entries.get(number), rng.random()
    if entry is None:
        return ProducerBatch(number, rng.choice((0, 3)), rng.choice((0, SEQUENCES - 3)), records)
    following = (entry.batches[-1][1] + 1) % SEQUENCES
    if draw < 0.5:
        return ProducerBatch(number, entry.epoch, following, records)
    if draw < 0.75 and sent:
        again = rng.choice(sent)
        return again if rng.random() < 0.8 else again._replace(records=again.records + 1)
    if draw < 0.85:
        epoch = min(entry.epoch + rng.choice((-1, 1)), (1 << 15) - 1)
        return ProducerBatch(number, epoch, rng.choice((0, following)), records)
    first = (following + rng.choice((-1, 1, SEQUENCES // 2))) % SEQUENCES
    return ProducerBatch(number, entry.epoch, first, records)


def read_back(states: ProducerStates) -> tuple[tuple[int, ProducerStateEntry], ...]:
    """As a snapshot of the state, which a restarted broker reads, has them."""
    start = TermStart(Term(1, "a"), ORIGIN)
    snapshot = ProducerSnapshot(bytes(16), start, LogPosition(64, 1), states.snapshot(), TransactionsSnapshot(), ())
    return decode_snapshot(Path("snapshot"), encode_snapshot(snapshot)).producers
