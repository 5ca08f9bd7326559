"""Writes tests/golden/producer-snapshots-v1.json: files of producers and transactions beside a segment.

Run it once for a new version of the format, never again for an old one: old bytes must stay readable.
"""

from __future__ import annotations

import json
from pathlib import Path

from pyreplog.partition.protocol.epochs import LeaderEpoch
from pyreplog.partition.protocol.producers import BatchMetadata, ProducerStateEntry
from pyreplog.partition.protocol.transactions import EndedTransaction, TransactionalProducer, TransactionsSnapshot
from pyreplog.partition.store.producer_snapshot import ProducerSnapshot, encode_snapshot
from pyreplog.stream.log_position import LogPosition
from pyreplog.stream.terms import TermStart

VERSION = 1
EMPTY = ProducerSnapshot(
    bytes(range(16)), TermStart(LeaderEpoch(1, "a"), LogPosition(0, 0)), LogPosition(1 << 16, 7), (),
    TransactionsSnapshot(), (),
)  # fmt: skip
SNAPSHOT = ProducerSnapshot(
    bytes(range(16, 32)),
    TermStart(LeaderEpoch(1 << 40, "süd"), LogPosition(1 << 41, 1 << 42)),
    LogPosition((1 << 41) + (1 << 20), (1 << 42) + 3000),
    (
        (7, ProducerStateEntry(3, (BatchMetadata((1 << 31) - 2, 1, 90, 93),), 1_700_000_000_000_000)),
        (1 << 62, ProducerStateEntry(0, tuple(BatchMetadata(n, n, 100 + n, 100 + n) for n in range(5)), 5)),
    ),
    TransactionsSnapshot(
        (
            TransactionalProducer(7, 3, None, LogPosition(1 << 41, 1 << 42)),
            TransactionalProducer(8, 32767, (1 << 31) - 1, None),
            TransactionalProducer(9, 0, 0, LogPosition(0, 0)),
        ),
        (EndedTransaction(8, LogPosition(64, 1), LogPosition(1 << 41, 1 << 42), False),),
    ),
    (EndedTransaction(9, LogPosition(4096, 0), LogPosition(8192, 30), True),),
)


def main() -> None:
    path = Path(__file__).with_name(f"producer-snapshots-v{VERSION}.json")
    assert not path.exists(), f"{path} is there: never write it again"
    path.write_text(json.dumps([encode_snapshot(snapshot).hex() for snapshot in (EMPTY, SNAPSHOT)], indent=1) + "\n")


if __name__ == "__main__":
    main()
