"""Partitions' logs with Kafka's record batches, and all that a reader should see of them, by brute force."""

from __future__ import annotations

import hashlib
from pathlib import Path
from random import Random
from typing import NamedTuple

from pyreplog._native.kafka.record_batch import encode_batch, encode_records
from pyreplog.partition.protocol.record_batch import end_marker, stamped
from pyreplog.partition.protocol.transactions import TransactionMarker
from pyreplog.partition.store.partition_log import PartitionLog
from pyreplog.record_batches.compression import compress
from tests.ha.streams import config

from .partition_logs import epoch

TOPIC_ID = "0123456789abcdef" * 2
Headers = list[tuple[bytes, bytes | None]]


class Expected(NamedTuple):
    """A record that was appended. transaction: number of its transaction; -1: none."""

    offset: int
    key: bytes | None
    value: bytes | None
    timestamp_ms: int
    headers: Headers
    transaction: int = -1


class Writer:
    """Appends record batches, messages and markers. rows: of records. aborted: numbers of transactions. first: where
    each transaction that is open begins, by producer id."""

    def __init__(self, path: Path, rng: Random, codecs: tuple[int, ...] = (0, 1, 2, 3, 4)) -> None:
        uuid = hashlib.blake2b(path.name.encode(), digest_size=16).digest()
        self.log, self._rng, self._codecs = PartitionLog.open_or_create(path, config(), uuid=uuid), rng, codecs
        self.log.lead(epoch(1))
        self.rows: list[Expected] = []
        self.aborted: set[int] = set()
        self.open: dict[int, tuple[int, int]] = {}  # producer id -> transaction, first offset
        self.batches = 0
        self._transactions = 0

    def append(self, producer: int | None = None, count: int | None = None) -> None:
        """A batch; producer: a part of the open transaction of this producer, or of a new one."""
        rng, first = self._rng, self.log.end_mark.entry
        count = count or rng.choice((1, 1, 2, 5, 40))
        values = [None if rng.random() < 0.1 else rng.randbytes(rng.choice((0, 3, 100, 900))) for _ in range(count)]
        keys = [None if rng.random() < 0.5 else rng.randbytes(rng.choice((0, 8))) for _ in range(count)]
        times = [1_700_000_000_000 + rng.randint(-5000, 5000) for _ in range(count)]
        headers: list[Headers] = [
            [(b"h%d" % i, rng.choice((None, b"", b"x" * 9))) for i in range(rng.choice((0, 0, 1, 3)))]
            for _ in range(count)
        ]
        transaction = -1
        if producer is not None:
            if producer not in self.open:
                self._transactions += 1
                self.open[producer] = self._transactions, first
            transaction = self.open[producer][0]
        codec = rng.choice(self._codecs)
        batch = encode_batch(
            compress(codec, encode_records(values, keys, times, headers)), count, base_timestamp=times[0],
            max_timestamp=max(times), codec=codec, producer_id=-1 if producer is None else producer,
            producer_epoch=-1 if producer is None else 0, base_sequence=-1 if producer is None else 0,
            transactional=producer is not None,
        )  # fmt: skip
        self.append_bytes(stamped(batch, first, 1), count)
        rows = zip(keys, values, times, headers, strict=True)
        self.rows += [Expected(first + i, *row, transaction) for i, row in enumerate(rows)]

    def append_bytes(self, batch: bytes | bytearray, count: int) -> None:
        self.log.append_records([batch], [count])
        self.batches += 1

    def end(self, producer: int, *, is_commit: bool) -> None:
        """The marker of a producer."""
        number, _ = self.open.pop(producer)
        if not is_commit:
            self.aborted.add(number)
        marker = end_marker(TransactionMarker(producer, 0, 1, is_commit), 1_700_000_000_000)
        self.append_bytes(stamped(marker, self.log.end_mark.entry, 1), 1)

    def at_random(self, steps: int) -> None:
        for _ in range(steps):
            draw, producer = self._rng.random(), self._rng.randint(1, 3)
            if draw < 0.25 and producer in self.open:
                self.end(producer, is_commit=self._rng.random() < 0.5)
            elif draw < 0.7:
                self.append(producer)
            else:
                self.append()

    def show(self) -> None:
        self.log.show_high_watermark(self.log.end_mark)

    def visible(self, *, committed: bool, end: int | None = None) -> list[Expected]:
        """What a reader sees up to an offset; None: the end."""
        end = self.log.end_mark.entry if end is None else end
        if not committed:
            return [row for row in self.rows if row.offset < end]
        stable = min([end, *(first for _, first in self.open.values())])
        return [row for row in self.rows if row.offset < stable and row.transaction not in self.aborted]


def partition_path(folder: Path, number: int = 0) -> Path:
    return folder / f"{TOPIC_ID}-{number}"
