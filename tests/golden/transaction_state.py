"""Writes tests/golden/transaction-state-v1.json: keys and values of `__transaction_state`.

Run it once for a new version of the format, never again for an old one: old bytes must stay readable.
"""

from __future__ import annotations

import json
from pathlib import Path

from pyreplog.partition.topic_partition import TopicPartition
from pyreplog.partition.transactions.transaction_log import encode_key, encode_value
from pyreplog.partition.transactions.transaction_metadata import TransactionMetadata, TransactionState

VERSION = 1
PARTITIONS = frozenset({TopicPartition("flights", 0), TopicPartition("flights", 7), TopicPartition("süd", 1)})
STATES = [
    ("empty", TransactionMetadata(0, 0, 60_000, TransactionState.EMPTY, updated_ms=1_700_000_000_000)),
    ("ongoing", TransactionMetadata(1 << 40, 3, 1, TransactionState.ONGOING, PARTITIONS, 1_700_000_000_001, 9)),
    ("done", TransactionMetadata(7, 32_766, 900_000, TransactionState.COMPLETE_ABORT, updated_ms=1_700_000_000_001)),
    (
        "süd",
        TransactionMetadata(
            7, 32_767, 900_000, TransactionState.PREPARE_COMMIT, PARTITIONS, 5, 4, next_producer_id=1 << 33,
            transaction_version=2,
        ),
    ),
    (
        "rotated",
        TransactionMetadata(
            1 << 33, 0, 1, TransactionState.COMPLETE_COMMIT, updated_ms=5, previous_producer_id=7, transaction_version=2
        ),
    ),
]  # fmt: skip


def main() -> None:
    path = Path(__file__).with_name(f"transaction-state-v{VERSION}.json")
    assert not path.exists(), f"{path} is there: never write it again"
    rows = [[encode_key(name).hex(), encode_value(metadata).hex()] for name, metadata in STATES]
    path.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
