"""Entries whose messages are not what they should be: each is refused, and the error says where and why."""

from __future__ import annotations

import random
import struct
import zlib
from pathlib import Path

import numpy as np
import pytest

import pyreplog
from pyreplog._native.ledger_log.entries import encode_entries, parse_entries
from pyreplog._native.topic.message_encoder import compress_entry, encode_messages
from pyreplog._native.topic.messages import decode_messages
from pyreplog.errors import InvalidEntryError, ReplogError
from tests.fuzz import fuzz_messages as fuzz
from tests.topic.entries import LEDGER, decoded, encoded, records_of, some_messages
from tests.topic.twin import HEADER

GOOD = encode_messages(
    [b"one", b"two"],
    [None, b"k"],
    properties=[{"a": "b"}, None],
    event_times=[1, None],
    deliver_at=[0, 5],
    sequences=[3, 9],
    producer=b"p",
)
FIELDS = ("version", "codec", "flags", "producer", "reserved", "count", "raw_size", "first", "last")
BODY = 40
TOP = (1 << 63) - 1


def changed(**fields: int) -> bytes:
    head = dict(zip(FIELDS, HEADER.unpack_from(GOOD), strict=True))
    return HEADER.pack(*{**head, **fields}.values()) + GOOD[HEADER.size :]


def put(at: int, item: bytes) -> bytes:
    return GOOD[:at] + item + GOOD[at + len(item) :]


def u32(*items: int) -> bytes:
    return struct.pack(f"<{len(items)}I", *items)


RAW = len(GOOD) - BODY
KEY_ENDS, TIMES, SEQUENCES, PROPERTY_ENDS = BODY + 8, BODY + 16, BODY + 32, BODY + 64
PROPERTY = BODY + 72 + 1  # behind the only key

CASES = {
    "empty": (b"", 0, "a header of 32 bytes", "0"),
    "short": (GOOD[:31], 0, "a header of 32 bytes", "31"),
    "version": (changed(version=2), 0, "version 1", "2"),
    "codec": (changed(codec=3), 1, "a codec of 0 to 2", "3"),
    "flags": (changed(flags=0x3F), 2, "no flags but 0x1f", "63"),
    "producer": (changed(producer=60000), 4, f"a producer's name of at most {(len(GOOD) - 32) & ~7} bytes", "60000"),
    "raw_size": (changed(raw_size=(64 << 20) + 1), 12, "a body of at most 67108864 bytes", "67108865"),
    "none": (changed(count=0), 8, f"1 to {RAW // 4} messages", "0"),
    "count": (changed(count=1 << 31), 8, f"1 to {RAW // 4} messages", "2147483648"),
    "cut": (GOOD[:-1], 12, f"a body of {RAW - 1} bytes", str(RAW)),
    "more": (GOOD + b"x", 12, f"a body of {RAW + 1} bytes", str(RAW)),
    "columns": (changed(count=5), BODY, f"columns of at most {RAW} bytes", "192"),
    "first": (changed(first=-1), 16, "a first sequence number of 0 or more", "-1"),
    "last": (changed(last=8), 24, "9 as the last sequence number", "8"),
    "other first": (changed(first=2), 16, "3 as the first sequence number", "2"),
    "sequence": (put(SEQUENCES + 8, struct.pack("<q", 3)), SEQUENCES + 8, "a sequence number above 3", "3"),
    "highest twice": (
        changed(first=TOP, last=TOP)[:SEQUENCES] + struct.pack("<qq", TOP, TOP) + GOOD[SEQUENCES + 16 :],
        SEQUENCES + 8,
        f"a sequence number above {TOP}",
        str(TOP),
    ),
    "value ends": (put(BODY, u32(7, 6)), BODY + 4, "ends that ascend up to 6", "6"),
    "value end": (put(BODY, u32(3, 1 << 31)), BODY + 4, "ends that ascend up to 6", "2147483648"),
    "total": (put(BODY, u32(3, 5)), BODY, f"{RAW} bytes in all", str(RAW - 1)),
    "key ends": (put(KEY_ENDS, u32(2, 1)), KEY_ENDS + 4, "ends that ascend up to", "1"),
    "key end": (put(KEY_ENDS, u32(1 << 30, 1)), KEY_ENDS, "ends that ascend up to", "1073741824"),
    "no key": (put(KEY_ENDS, u32(1 | 1 << 31, 1)), KEY_ENDS, "the end before, 0, of a message without a key", "1"),
    "property ends": (put(PROPERTY_ENDS, u32(9, 8)), PROPERTY_ENDS + 4, "ends that ascend up to", "8"),
    "property end": (put(PROPERTY_ENDS, u32(5, 8)), PROPERTY, "a property within 5 bytes", "6"),
    "name": (put(PROPERTY, b"\xff\xff"), PROPERTY, "a property within 8 bytes", str(6 + 65535 + 1)),
    "property": (put(PROPERTY + 2, b"\xff" * 4), PROPERTY, "a property within 8 bytes", str(6 + 1 + (1 << 32) - 1)),
}


@pytest.mark.parametrize("name", CASES)
def test_invalid_entry_error_names_position_and_reason(name: str) -> None:
    entry, at, expected, case = CASES[name]
    good = encode_messages([b"fine"])
    with pytest.raises(InvalidEntryError) as caught:
        decoded([good, entry], [1, 5 if name == "columns" else 2])
    text = str(caught.value)
    assert text.startswith(f"ledger {LEDGER}, entry 1, byte {at} of its messages: expected ")
    assert expected in text
    assert text.endswith(f", found {case}")
    assert caught.value.exit_code == 4


def test_the_good_one_is_good() -> None:
    assert decoded([GOOD], [2]).values() == [b"one", b"two"]


@pytest.mark.parametrize(("first", "last"), [(-2, -1), (5, 5), (5, 7), ((1 << 63) - 1, -(1 << 63)), (-1, 0)])
def test_sequences_without_a_column_are_decoded(first: int, last: int) -> None:
    good = encode_messages([b"a", b"b"], first_sequence=5)
    head = [*HEADER.unpack_from(good)]
    assert head[-2:] == [5, 6]
    with pytest.raises(InvalidEntryError, match="sequence number"):
        decoded([HEADER.pack(*head[:-2], first, last) + good[HEADER.size :]], [2])


def test_every_changed_header_byte_of_messages_is_decoded_or_refused() -> None:
    rng = random.Random(6)
    for messages in (some_messages(rng, 3), some_messages(rng, 3, plain=True)):
        entry = encoded(messages, b"name")
        for at in range(BODY):
            for item in range(256):
                fuzz.check(bytes([2, 0]) + entry[:at] + bytes([item]) + entry[at + 1 :])


def test_every_column_byte_and_every_cut() -> None:
    rng = random.Random(5)
    entry = encoded(some_messages(rng, 4))
    for at in range(32, len(entry)):
        for item in (0, 1, 127, 128, 255, entry[at] ^ 1, (entry[at] + 1) % 256):
            fuzz.check(bytes([3, 0]) + entry[:at] + bytes([item]) + entry[at + 1 :])
    for stop in range(len(entry)):
        fuzz.check(bytes([3, 0]) + entry[:stop])
        cut = entry[:12] + u32(max(stop - 32, 0)) + entry[16:stop]
        fuzz.check(bytes([3, 0]) + cut[:stop])


def entries_of(*said: tuple[int, int, int, int], offset: int = 0, entries: int = 0, size: int = 0) -> None:
    """Read entries of 2 messages and 48 bytes each, whose records say (entry, messages, bytes before, messages before)."""
    value = encode_messages([b"abcd", b"efgh"])
    assert len(value) == 48
    new_entries = [
        encode_entries(
            [value], ledger=LEDGER, first=entry, lac=-1, time=1, ledger_bytes=nbytes, ledger_messages=before,
            messages=[messages],
        )
        for entry, messages, nbytes, before in said
    ]  # fmt: skip
    records = parse_entries(
        b"".join(bytes(each.view) for each in new_entries), ledger=LEDGER, first=0, last=(1 << 63) - 1
    )
    assert len(records) == len(said)
    decode_messages(records, offset=offset, entries=entries, size=size)


def test_running_totals_that_do_not_fit_are_refused() -> None:
    entries_of((0, 2, 0, 0), (1, 2, 48, 2), (7, 2, 1000, 500))
    header = rf"ledger {LEDGER}, entry \d+, header of its record: expected "
    for said, expected in {
        ((0, 3, 0, 0),): "2 messages in the ledger",
        ((0, 2, 0, 1),): "2 messages in the ledger",
        ((5, 1, 0, 0),): "2 messages in the ledger",
        ((5, 2, 0, 20), (6, 1, 48, 22)): "24 messages in the ledger",
        ((5, 2, 0, 20), (6, 3, 48, 22)): "24 messages in the ledger",
        ((5, 2, 0, 20), (8, 2, 100, 19)): "24 messages in the ledger",
        ((5, 2, 0, 20), (6, 2, 49, 22)): "96 value bytes in the ledger",
        ((5, 2, 0, 20), (8, 2, 47, 22)): "96 value bytes in the ledger",
        ((0, 2, 1, 0),): "48 value bytes in the ledger",
    }.items():
        with pytest.raises(InvalidEntryError, match=header + expected):
            entries_of(*said)


def test_a_topics_totals_fit_into_64_bits() -> None:
    top = (1 << 63) - 1
    entries_of((0, 2, 0, 0), offset=top - 2, size=top - 48)
    for bad in ({"offset": top - 1}, {"size": top - 47}):
        with pytest.raises(InvalidEntryError, match="header of its record"):
            entries_of((0, 2, 0, 0), **bad)
    with pytest.raises(InvalidEntryError, match=rf"expected entry {(1 << 62)} at most"):
        entries_of(((1 << 62) + 1, 2, 0, 0), entries=(1 << 62) - 2)


def test_entries_of_one_ledger_in_order() -> None:
    records = records_of([encode_messages([b"x"])] * 3, [1] * 3)
    with pytest.raises(InvalidEntryError, match="entry 0, header of its record: expected an entry behind 2, found 0"):
        decode_messages(records.select(np.array([2, 0])), offset=0, entries=0, size=0)


def test_entries_of_a_plain_log_are_no_messages(tmp_path: Path) -> None:
    with pyreplog.open(tmp_path / "log") as log:
        log.append(b"x")
        batch = next(iter(log.read(0)))
        with pytest.raises(
            InvalidEntryError, match=r"a record of a log without ledgers.*expected an entry of a ledger"
        ):
            decode_messages(batch, offset=0, entries=0, size=0)


def test_bodies_that_do_not_decompress() -> None:
    packed = compress_entry(encode_messages([b"a" * 1000]), 1, zlib.compress)
    with pytest.raises(InvalidEntryError, match="byte 1 of its messages: expected a body that is not compressed"):
        decoded([packed], [1])
    for size in (1007, 1009):
        with pytest.raises(InvalidEntryError, match=f"expected a body of 1008 bytes, found {size}"):
            decoded([packed], [1], decompress=lambda *_, size=size: bytes(size))
    with pytest.raises(InvalidEntryError, match="expected a body of codec 1, found error: Error -3") as caught:
        decoded([packed[:-9] + bytes(9)], [1], decompress=lambda _, body, __: zlib.decompress(body))
    assert isinstance(caught.value.__cause__, zlib.error)
    for wrong in (1008, None, "text"):  # bytes(1008) would be zeros
        with pytest.raises(InvalidEntryError, match="found TypeError"):
            decoded([packed], [1], decompress=lambda *_, wrong=wrong: wrong)

    def missing(*_: object) -> bytes:
        raise ReplogError("no such codec here")

    with pytest.raises(ReplogError, match=r"^no such codec here$"):
        decoded([packed], [1], decompress=missing)


def test_names_that_are_no_text_are_mended() -> None:
    entry = encode_messages([b"x"], properties=[{"ab": "c"}])
    batch = decoded([entry.replace(b"ab", b"a\xff")], [1])
    assert batch.properties(0) == {"a\ufffd": b"c"}
