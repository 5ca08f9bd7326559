"""Records of `__transaction_state` are Kafka's, as every released version wrote them; this version writes the same."""

from __future__ import annotations

import json
import struct
from pathlib import Path

import pytest

from pyreplog.errors import InvalidRecordBatchError
from pyreplog.partition.transactions.transaction_log import (
    decode_key,
    decode_record_batch,
    decode_value,
    encode_key,
    encode_record_batch,
    encode_value,
    partition_of,
)
from tests.golden.transaction_state import STATES, VERSION

GOLDEN = [
    (bytes.fromhex(key), bytes.fromhex(value))
    for key, value in json.loads((Path(__file__).parent / f"transaction-state-v{VERSION}.json").read_text())
]


def test_records_are_read_and_written() -> None:
    assert [(encode_key(name), encode_value(metadata)) for name, metadata in STATES] == GOLDEN
    assert [(decode_key(key), decode_value(value)) for key, value in GOLDEN] == STATES
    batch = encode_record_batch([*STATES, ("removed", None)], 5)
    assert list(decode_record_batch(batch)) == [*STATES, ("removed", None)]


def test_transaction_records_follow_kafkas_schema() -> None:
    """TransactionLogKey and TransactionLogValue, versions 0, field by field."""
    assert GOLDEN[0][0] == struct.pack(">hh5s", 0, 5, b"empty")
    assert GOLDEN[0][1] == struct.pack(">hqhibiqq", 0, 0, 0, 60_000, 0, -1, 1_700_000_000_000, -1)
    topics = struct.pack(">i", 2)
    topics += struct.pack(">h7siii", 7, b"flights", 2, 0, 7) + struct.pack(">h4sii", 4, "süd".encode(), 1, 1)
    value = struct.pack(">hqhib", 0, 1 << 40, 3, 1, 1) + topics + struct.pack(">qq", 1_700_000_000_001, 9)
    assert GOLDEN[1][1] == value


def test_a_transactional_id_has_kafkas_partition() -> None:
    """abs(String.hashCode()) % partitions, with the values that Java gives; that of a hash of -2^31 is 0."""
    assert partition_of("hello", 1 << 30) == 99162322
    assert partition_of("my-transactional-id", 50) == 46
    assert partition_of("polygenelubricants", 50) == 0


def test_decode_of_truncated_or_invalid_transaction_state_is_refused(seed: int) -> None:
    for key, value in GOLDEN:
        for at in range(len(value)):
            with pytest.raises(InvalidRecordBatchError):
                decode_value(value[:at])
        for at in range(len(key)):
            with pytest.raises(InvalidRecordBatchError):
                decode_key(key[:at])
    with pytest.raises(InvalidRecordBatchError):
        decode_value(b"\0\2" + GOLDEN[0][1][2:])
    with pytest.raises(InvalidRecordBatchError):
        decode_value(GOLDEN[1][1][:17] + b"\x7f\xff\xff\xff" + GOLDEN[1][1][21:])
    assert decode_key(b"\0\1" + GOLDEN[0][0][2:]) is None
