"""Records of leader epochs, as every released version wrote them, are read; this version writes the same."""

from __future__ import annotations

import json
import struct
from pathlib import Path

import pytest

from pyreplog.errors import InvalidMessageError
from pyreplog.partition.store.epoch_record import decode_epoch, encode_epoch
from tests.golden.epoch_records import STARTS, VERSION

GOLDEN = [
    bytes.fromhex(value) for value in json.loads((Path(__file__).parent / f"epoch-records-v{VERSION}.json").read_text())
]


def test_values_are_read_and_written() -> None:
    assert [encode_epoch(start) for start in STARTS] == GOLDEN
    assert [decode_epoch(value) for value in GOLDEN] == STARTS


def test_the_table_of_the_format() -> None:
    """FORMAT.md, "Epoch records of a partition", field by field."""
    for (epoch, start), value in zip(STARTS, GOLDEN, strict=True):
        leader = epoch.master.encode()
        fields = (b"RPEPOCH1", epoch.number, len(leader), leader, *start)
        assert struct.unpack(f"<8sQB{len(leader)}sqq", value) == fields


def test_a_later_version_may_say_more() -> None:
    assert [decode_epoch(value + b"more") for value in GOLDEN] == STARTS


@pytest.mark.parametrize("value", GOLDEN)
def test_every_cut_epoch_record_is_refused(value: bytes) -> None:
    assert decode_epoch(value[:7]) is None
    for size in range(8, len(value)):
        with pytest.raises(InvalidMessageError, match="epoch record"):
            decode_epoch(value[:size])
