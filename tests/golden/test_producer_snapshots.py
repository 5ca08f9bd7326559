"""Producer snapshots, as every released version wrote them, are read; this version writes the same."""

from __future__ import annotations

import json
import struct
from pathlib import Path

import pytest

from pyreplog._native.system.checksum import crc32c
from pyreplog.errors import CorruptionError
from pyreplog.partition.store.producer_snapshot import ProducerLoss, decode_snapshot, encode_snapshot
from tests.golden.producer_snapshots import EMPTY, SNAPSHOT, VERSION

GOLDEN = [
    bytes.fromhex(value)
    for value in json.loads((Path(__file__).parent / f"producer-snapshots-v{VERSION}.json").read_text())
]
PATH = Path("00000000000000065536.producers")


def with_crc(data: bytes) -> bytes:
    return data[:8] + struct.pack("<I", crc32c(data[12:])) + data[12:]


def test_files_are_read_and_written() -> None:
    assert [encode_snapshot(snapshot) for snapshot in (EMPTY, SNAPSHOT)] == GOLDEN
    assert [decode_snapshot(PATH, data) for data in GOLDEN] == [EMPTY, SNAPSHOT]


def test_the_tables_of_the_format() -> None:
    """FORMAT.md, "Producer snapshots of a partition", field by field."""
    data, at = GOLDEN[1], 16

    def take(layout: str) -> tuple[object, ...]:
        nonlocal at
        values = struct.unpack_from("<" + layout, data, at)
        at += struct.calcsize("<" + layout)
        return values

    leader = SNAPSHOT.epoch.term.master.encode()
    assert data[:8] == b"RPPRODS1"
    assert take("16sqq") == (SNAPSHOT.uuid, *SNAPSHOT.end)
    expected = (SNAPSHOT.epoch.term.number, len(leader), leader, *SNAPSHOT.epoch.start)
    assert take(f"QB{len(leader)}sqq") == expected
    assert take("I") == (2,)
    for number, entry in SNAPSHOT.producers:
        assert take("qqhB") == (number, entry.used_us, entry.epoch, len(entry.batches))
        assert [take("iiqq") for _ in entry.batches] == list(entry.batches)
    assert take("I") == (3,)
    assert take("qhBiqq") == (7, 3, 2, 0, 1 << 41, 1 << 42)
    assert take("qhBiqq") == (8, 32767, 1, (1 << 31) - 1, 0, 0)
    assert take("qhBiqq") == (9, 0, 3, 0, 0, 0)
    for transactions in (SNAPSHOT.transactions.unreplicated, SNAPSHOT.aborted):
        assert take("I") == (1,)
        (ended,) = transactions
        assert take("qBqqqq") == (ended.producer_id, ended.is_aborted, *ended.first, *ended.end)
    assert at == len(data)


def test_a_later_version_may_say_more() -> None:
    assert decode_snapshot(PATH, with_crc(GOLDEN[1] + b"\0more")) == SNAPSHOT


def test_a_loss_is_written_behind_all_that_earlier_versions_know() -> None:
    loss = ProducerLoss(SNAPSHOT.end.entry, 1_700_000_000_000_000)
    lossy = SNAPSHOT._replace(loss=loss)
    data = encode_snapshot(lossy)
    assert data[16:] == GOLDEN[1][16:] + struct.pack("<Bqq", 1, *loss)
    assert decode_snapshot(PATH, data) == decode_snapshot(PATH, with_crc(data + b"more")) == lossy


@pytest.mark.parametrize("loss", [(2, 0, 0), (1, -1, 0), (1, SNAPSHOT.end.entry + 1, 0)])
def test_a_loss_that_cannot_be_is_refused(loss: tuple[int, int, int]) -> None:
    with pytest.raises(CorruptionError):
        decode_snapshot(PATH, with_crc(GOLDEN[1] + struct.pack("<Bqq", *loss)))


@pytest.mark.parametrize("data", GOLDEN)
@pytest.mark.parametrize("has_crc", [False, True])
def test_every_cut_producer_snapshot_is_refused(data: bytes, has_crc: bool) -> None:
    for size in range(len(data)):
        cut = data[:size]
        with pytest.raises(CorruptionError):
            decode_snapshot(PATH, with_crc(cut) if has_crc and size >= 16 else cut)


def test_every_flipped_bit_is_refused() -> None:
    for bit in range(8 * len(GOLDEN[1])):
        data = bytearray(GOLDEN[1])
        data[bit // 8] ^= 1 << bit % 8
        with pytest.raises(CorruptionError):
            decode_snapshot(PATH, bytes(data))


def test_producer_snapshots_with_false_counts_are_refused() -> None:
    head = GOLDEN[0][:-16]
    for index in range(4):
        for count in (1, 1 << 24, (1 << 32) - 1):
            counts = [0] * 4
            counts[index] = count
            with pytest.raises(CorruptionError):
                decode_snapshot(PATH, with_crc(head + struct.pack("<4I", *counts)))
