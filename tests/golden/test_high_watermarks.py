"""Files of high watermarks, as every released version wrote them, are read; this version writes the same."""

from __future__ import annotations

import json
import struct
from pathlib import Path

import pytest

from pyreplog._native.system.checksum import crc32c
from pyreplog.errors import CorruptionError, FormatVersionError
from pyreplog.partition.store.high_watermarks import decode_high_watermarks, encode_high_watermarks
from tests.golden.high_watermarks import STORED, VERSION

EMPTY, GOLDEN = (
    bytes.fromhex(value)
    for value in json.loads((Path(__file__).parent / f"high-watermarks-v{VERSION}.json").read_text())
)
PATH = Path("high_watermarks")


def with_crc(data: bytes) -> bytes:
    return data[:8] + struct.pack("<I", crc32c(data[12:])) + data[12:]


def test_files_are_read_and_written() -> None:
    assert (encode_high_watermarks({}), encode_high_watermarks(STORED)) == (EMPTY, GOLDEN)
    assert (decode_high_watermarks(PATH, EMPTY), decode_high_watermarks(PATH, GOLDEN)) == ({}, STORED)


def test_the_table_of_the_format() -> None:
    """FORMAT.md, "High watermarks of a broker", field by field."""
    assert GOLDEN[:8] == b"RPHIGHW1" and struct.unpack_from("<HHI", GOLDEN, 12) == (1, 1, len(STORED))
    at = 20
    for partition, (uuid, (epoch, start), high_watermark, _) in STORED.items():
        (size,) = struct.unpack_from("<H", GOLDEN, at)
        name, leader = partition.encode(), epoch.master.encode()
        layout = f"<B{len(name)}s16sqqQB{len(leader)}sqq"
        assert size == struct.calcsize(layout)
        assert struct.unpack_from(layout, GOLDEN, at + 2) == (
            len(name), name, uuid, *high_watermark, epoch.number, len(leader), leader, *start
        )  # fmt: skip
        at += 2 + size
    assert at == len(GOLDEN)


def test_a_later_version_may_say_more() -> None:
    (size,) = struct.unpack_from("<H", GOLDEN, 20)
    entry = GOLDEN[22 : 22 + size] + b"more"
    data = GOLDEN[:20] + struct.pack("<H", len(entry)) + entry + GOLDEN[22 + size :] + b"still more"
    assert decode_high_watermarks(PATH, with_crc(data)) == STORED
    with pytest.raises(FormatVersionError):
        decode_high_watermarks(PATH, with_crc(GOLDEN[:12] + struct.pack("<HH", 2, 2) + GOLDEN[16:]))


@pytest.mark.parametrize("has_crc", [False, True])
def test_every_cut_file_of_high_watermarks_is_refused(has_crc: bool) -> None:
    for size in range(len(GOLDEN)):
        cut = GOLDEN[:size]
        with pytest.raises(CorruptionError):
            decode_high_watermarks(PATH, with_crc(cut) if has_crc and size >= 16 else cut)


def test_every_flipped_bit_is_refused() -> None:
    for bit in range(8 * len(GOLDEN)):
        data = bytearray(GOLDEN)
        data[bit // 8] ^= 1 << bit % 8
        with pytest.raises(CorruptionError):
            decode_high_watermarks(PATH, bytes(data))


def test_a_count_is_not_believed() -> None:
    for count in (3, 1 << 20, (1 << 32) - 1):
        with pytest.raises(CorruptionError):
            decode_high_watermarks(PATH, with_crc(GOLDEN[:16] + struct.pack("<I", count) + GOLDEN[20:]))
