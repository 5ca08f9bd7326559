"""RocketMQ's records: encoding, damage and scans. That RocketMQ can read them is tested in benchmarks/peers/rocketmq."""

from __future__ import annotations

import struct
from dataclasses import replace
from zlib import crc32

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyreplog._native.net.frame import FrameParser
from pyreplog.errors import InvalidArgumentError, InvalidRecordsError
from pyreplog.rocketmq.records import RocketMQMessage, blank, decode, encode, walk

from .records import message
from .replay import FOLDER, Transcript

BASE = 1 << 30
LAYOUT = struct.Struct(">iIIiiqqiq4siq4siiqi")  # sizes in RocketMQ's CommitLog, up to the body


def file_of(records: list[bytes], size: int = 4096) -> memoryview:
    return memoryview(b"".join(records).ljust(size, b"\0"))


def chain(count: int, base: int = BASE) -> list[bytes]:
    records: list[bytes] = []
    for number in range(count):
        records.append(encode(message(number), base + sum(map(len, records))))
    return records


def test_a_rocketmq_record_has_its_documented_bytes() -> None:
    given = message(7, 5)
    record = encode(given, BASE)
    fields = LAYOUT.unpack_from(record)
    assert fields == (
        len(record), 0xDAA320A7, crc32(given.body) & 0x7FFFFFFF, 0, 0, 7, BASE, 0, given.born_ms, bytes((10, 1, 2, 3)),
        4567, given.stored_ms, bytes((10, 1, 2, 4)), 10911, 0, 0, 5,
    )  # fmt: skip
    assert record[LAYOUT.size :] == given.body + b"\7flights" + b"\0\x14KEYS\1key7\2TAGS\1late\2"
    assert len(record) == 91 + 5 + 7 + 20
    assert blank(100) == bytes.fromhex("00000064 cbd43194")


def test_a_record_of_rocketmq_itself() -> None:
    """The first record of the recorded session is decoded, and encoded to the same bytes."""
    lines = Transcript(FOLDER / "session.txt").lines
    sent = b"".join(line.data or b"" for line in lines if line.side == "M")
    (position, body), *_ = FrameParser().feed(sent)
    record = bytes(body[: int.from_bytes(body[:4], "big")])
    decoded = decode(record)
    assert (decoded.topic, decoded.queue_offset, len(decoded.body)) == ("pyreplog", 24, 60)
    assert decoded.properties["KEYS"] == "key22"
    assert encode(decoded, position) == record


texts = st.text(st.characters(exclude_characters="\0\1\2", exclude_categories=["Cs"]), max_size=20)


@given(
    st.builds(
        RocketMQMessage,
        topic=st.text(st.characters(exclude_characters="\0\1\2", exclude_categories=["Cs"]), min_size=1, max_size=30),
        body=st.binary(max_size=300),
        properties=st.dictionaries(texts, texts, max_size=4),
        queue=st.integers(0, 2**31 - 1),
        queue_offset=st.integers(0, 2**63 - 1),
        stored_ms=st.integers(0, 2**63 - 1),
        retries=st.integers(0, 2**31 - 1),
        store_host=st.tuples(st.just("192.168.1.9"), st.integers(0, 65535)),
    ),
    st.integers(0, 2**62),
)
def test_decode_reverses_encode_of_rocketmq_messages(given: RocketMQMessage, position: int) -> None:
    assert decode(encode(given, position)) == given


@pytest.mark.parametrize(
    "changed",
    [
        {"topic": ""},
        {"topic": "t" * 128},
        {"properties": {"k": "v" * 32767}},
        {"system_flag": 1 << 4},
        {"queue": 1 << 31},
        {"topic": "a\0"},
        {"properties": {"a\1": "b"}},
        {"properties": {"a": "b\2"}},
        {"born_host": ("::1", 1)},
        {"born_host": ("no address", 1)},
    ],
)
def test_encode_refuses_fields_that_do_not_fit(changed: dict[str, object]) -> None:
    with pytest.raises(InvalidArgumentError):
        encode(replace(message(1), **changed), 0)  # type: ignore[arg-type]


def ipv6(record: bytes, version_2: bool) -> bytes:
    """Return the record with IPv6 hosts, and in version 2 with two bytes for the length of the topic."""
    head, body = bytearray(record[:84]), record[84:]
    head[36:40] = (0x30).to_bytes(4, "big")
    for at in (64, 48):
        head[at : at + 4] = bytes(15) + b"\1"
    data = bytes(head) + body
    if version_2:
        at = 112 + int.from_bytes(data[108:112], "big")
        data = data[:at] + b"\0" + data[at:]
        data = data[:4] + (0xDAA320AB).to_bytes(4, "big") + data[8:]
    return len(data).to_bytes(4, "big") + data[4:]


@pytest.mark.parametrize("version_2", [False, True])
def test_rocketmq_records_with_ipv6_and_version_2_are_decoded(version_2: bool) -> None:
    record = ipv6(encode(message(3), BASE), version_2)
    assert walk(file_of([record]), 0, len(record), BASE) == (len(record), None)
    decoded = decode(record)
    assert decoded.born_host == ("::1", 4567)
    assert replace(decoded, born_host=("10.1.2.3", 4567), store_host=("10.1.2.4", 10911), system_flag=0) == message(3)


@given(st.integers(0, 3 * 227))
def test_a_walk_ends_behind_the_last_whole_record(stop: int) -> None:
    records = chain(3)
    ends = [0, *(sum(map(len, records[: i + 1])) for i in range(3))]
    stop = min(stop, ends[-1])
    assert walk(file_of(records), 0, stop, BASE) == (max(end for end in ends if end <= stop), None)


def test_a_blank_ends_the_file_when_all_of_it_is_there() -> None:
    (record,) = chain(1)
    file = file_of([record, blank(4096 - len(record)), b"garbage"])
    assert walk(file, 0, 4095, BASE) == (len(record), None)
    assert walk(file, 0, 4096, BASE) == (4096, None)
    end, fault = walk(file_of([record, blank(4095 - len(record))]), 0, 4096, BASE)
    assert end == len(record)
    assert fault is not None and "a blank of" in fault.expected


def test_zeros_are_no_record() -> None:
    end, fault = walk(file_of([]), 0, 4096, BASE)
    assert (end, fault) == (0, (0, "the magic of a record", "0x00000000"))


@pytest.mark.parametrize(
    ("at", "needed", "why"),
    [
        (0, 8, "a record of 91 to"),  # a size beyond the end of the file
        (4, 8, "magic"),
        (28, 36, "position"),
        (9, None, "CRC"),
        (90, None, "CRC"),
        (39, None, "in all"),  # the flags say that hosts have another length
        (88 + 100, None, "in all"),  # the length of the topic
    ],
)
def test_walk_reports_damage_as_soon_as_the_damaged_field_has_arrived(at: int, needed: int | None, why: str) -> None:
    first, second, third = chain(3)
    damaged = bytearray(second)
    damaged[at] ^= 0x10
    file = file_of([first, bytes(damaged), third])
    upto = len(first) + (len(second) if needed is None else needed)
    assert walk(file, 0, upto - 1, BASE) == (len(first), None)
    end, fault = walk(file, 0, upto, BASE)
    assert end == len(first)
    assert fault is not None and why in fault.expected


def test_a_record_whose_end_was_never_written() -> None:
    """RocketMQ issue 7437: zeros in place of properties pass its check."""
    (record,) = chain(1)
    for missing in range(1, 28):
        file = file_of([record[:-missing]])
        assert walk(file, 0, len(record), BASE)[1] is None or missing > 20
        assert walk(file, 0, len(record), BASE, torn=True)[0] == 0


@given(st.integers(0, 226), st.integers(1, 255))
def test_a_damaged_record_is_not_decoded(at: int, flip: int) -> None:
    """Fields that RocketMQ's CRC does not cover may be wrong; lengths and body may not."""
    record = bytearray(encode(message(3), BASE))
    at = at % len(record)
    record[at] ^= flip
    try:
        decoded = decode(bytes(record))
    except InvalidRecordsError:
        return
    assert decoded.body == message(3).body


@given(st.integers(0, 3 * 218 - 1), st.integers(1, 255), st.booleans())
def test_the_fast_scan_and_the_slow_one_agree(at: int, flip: int, six: bool) -> None:
    """`torn` selects the slow scan, which also refuses zeros; the records of this test have none."""
    records = chain(3)
    if six:
        records[1:] = [ipv6(encode(message(1), BASE + len(records[0])), False)]
    data = bytearray(b"".join(records))
    data[at % len(data)] ^= flip
    file = file_of([bytes(data)])
    ends = [walk(file, 0, len(data), BASE, torn=torn)[0] for torn in (False, True)]
    assert ends[0] == ends[1] or data[at % len(data)] == 0


@given(st.binary(max_size=400))
def test_arbitrary_bytes_are_no_rocketmq_records(data: bytes) -> None:
    end, _ = walk(file_of([data]), 0, len(data), BASE)
    assert end == 0
    with pytest.raises(InvalidRecordsError):
        decode(data)
