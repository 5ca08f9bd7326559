"""FORMAT.md's tables of the bookie, and the code."""

from __future__ import annotations

import re
import struct
from enum import IntEnum, IntFlag
from pathlib import Path

import pytest

import pyreplog
from pyreplog.bookie import holdings, identity, protocol
from pyreplog.bookie.controls import ControlCode
from pyreplog.bookie.protocol import (
    Flag,
    Reply,
    ReplyStatus,
    Request,
    RequestKind,
    decode_reply,
    decode_request,
    encode_reply,
    encode_request,
)
from pyreplog.errors import InvalidMessageError, UnsupportedRequestError

FORMAT = (Path(pyreplog.__file__).parent / "_native" / "FORMAT.md").read_text()


def section(title: str) -> str:
    return FORMAT.partition(f"\n## {title}")[2].partition("\n## ")[0]


def test_documented_codes_of_control_records_are_those_of_the_code() -> None:
    rows = re.findall(r"^\| (\d+) \| (\w+) \|", section("Control records"), re.MULTILINE)
    assert {(int(code), name) for code, name in rows} == {(code.value, code.name) for code in ControlCode}


@pytest.mark.parametrize("enum", [RequestKind, Flag, ReplyStatus])
def test_documented_codes_of_the_bookie_protocol_are_those_of_the_code(enum: type[IntEnum] | type[IntFlag]) -> None:
    said = {(int(code), name) for code, name in re.findall(r"\b(\d+) ([A-Z_]+)\b", section("Bookie protocol"))}
    assert {(member.value, member.name) for member in enum if member} <= said


@pytest.mark.parametrize(
    "packed",
    [protocol._REQUEST, protocol._REPLY, identity._HEAD, holdings.HEAD],
    ids=["request", "reply", "identity", "holdings"],
)
def test_offsets_and_sizes_in_format_tables_add_up(packed: struct.Struct) -> None:
    title = "Identity file" if packed is identity._HEAD else "Bookie protocol"
    text = section(title).partition(f"`{packed.format}`")[2].partition("\n| offset")[2].partition("\n\n")[0]
    rows = [(int(at), int(size)) for at, size in re.findall(r"^\| (\d+) \| (\d+) \|", text, re.MULTILINE)]
    assert [at + size for at, size in rows] == [*[at for at, _ in rows[1:]], packed.size]


def test_features_and_limits_of_holdings() -> None:
    features = re.search(r"Features of the service `bookie`: (.*?)\.", FORMAT, re.DOTALL)
    assert features is not None and {*re.findall(r"`(\w+)`", features[1])} == protocol.FEATURES
    assert f"number of ranges, at most {holdings.RANGES_MAX} |" in section("Bookie protocol")


def test_requests_and_replies_as_bytes() -> None:
    request = Request(RequestKind.ADD, 5, 6, 7, b"k" * 16, Flag.RECOVERY | Flag.UNSYNCED, 8, 9, 3, b"records")
    encoded = encode_request(request) + b"records"
    assert (
        encoded.hex() == "01050309"
        "00000008"
        "0000000000000005"
        "0000000000000006"
        "0000000000000007" + (b"k" * 16 + b"records").hex()
    )
    assert decode_request(memoryview(encoded)) == request
    reply = Reply(ReplyStatus.UNKNOWN, 1, 2, 3, -1, b"why")
    encoded = encode_reply(reply) + b"why"
    assert (
        encoded.hex() == "04" + "00" * 7 + "000000000000000100000000000000020000000000000003" + "ff" * 8 + b"why".hex()
    )
    assert decode_reply(memoryview(encoded)) == reply


@pytest.mark.parametrize("wrong", [{"status": 99}, {"ledger": -1}, {"first": -1}, {"last": -2}, {"lac": -2}])
def test_a_reply_with_a_number_below_its_lowest(wrong: dict[str, int]) -> None:
    """It would be believed: a writer and a reader count on what a bookie says of the LAC."""
    lowest = Reply(ReplyStatus.OK, 0, 0, -1, -1)
    assert decode_reply(memoryview(encode_reply(lowest))) == lowest
    with pytest.raises(InvalidMessageError):
        decode_reply(memoryview(encode_reply(lowest._replace(**wrong))))


def test_bytes_that_are_no_message() -> None:
    for length in range(48):
        with pytest.raises(InvalidMessageError):
            decode_request(memoryview(bytes([1, 0, 1, 1]) + bytes(length))[:length])
    for length in range(40):
        with pytest.raises(InvalidMessageError):
            decode_reply(memoryview(bytes(length)))
    fine = bytearray(encode_request(Request(RequestKind.READ)))
    for at, value in ((0, 0), (0, 99), (1, 16), (3, 0), (8, 0x80), (16, 0x80), (24, 0x80)):
        bad = bytearray(fine)
        bad[at] = value
        with pytest.raises(UnsupportedRequestError if at < 2 else InvalidMessageError):
            decode_request(memoryview(bad))


def test_a_request_at_its_limits() -> None:
    kinds, flags = max(RequestKind), sum(Flag)
    for request in (
        Request(RequestKind.ADD, 0, 0, -1, limit=0, step=1, run=1),
        Request(kinds, protocol.ID_MAX, protocol.ID_MAX, protocol.ID_MAX, b"\xff" * 16, flags, (1 << 32) - 1, 255, 255),
        Request(RequestKind.READ, step=255, run=1),
    ):
        assert decode_request(memoryview(encode_request(request))) == request
    for beyond in (Request(kinds + 1), Request(RequestKind.ADD, flags=flags + 1)):
        with pytest.raises(UnsupportedRequestError, match=f"kinds 1 to {kinds} and flags up to {flags}"):
            decode_request(memoryview(encode_request(beyond)))
    for wrong in (Request(RequestKind.READ, step=2, run=3), Request(RequestKind.READ, step=1, run=0)):
        with pytest.raises(InvalidMessageError, match="runs of entries"):
            decode_request(memoryview(encode_request(wrong)))
    with pytest.raises(InvalidMessageError, match="ids from 0 on"):
        decode_request(memoryview(encode_request(Request(RequestKind.READ, last=-2))))


def test_every_status_is_known_and_none_beyond() -> None:
    for status in ReplyStatus:
        assert decode_reply(memoryview(encode_reply(Reply(status)))).status == status
    with pytest.raises(InvalidMessageError, match="a known status"):
        decode_reply(memoryview(encode_reply(Reply(max(ReplyStatus) + 1))))


def test_requests_need_the_documented_features() -> None:
    expected = {RequestKind.HOLDINGS: protocol.HOLDINGS_FEATURE, RequestKind.SCRUB: protocol.SCRUB_FEATURE}
    for kind in RequestKind:
        assert Request(kind).feature == expected.get(kind)
        is_copy = kind == RequestKind.ADD
        assert Request(kind, flags=Flag.COPY | Flag.RECOVERY).is_copy is is_copy
        assert Request(kind, flags=Flag.COPY).feature == (protocol.COPY_FEATURE if is_copy else expected.get(kind))
        assert not Request(kind, flags=sum(Flag) - Flag.COPY).is_copy


@pytest.mark.parametrize(
    ("step", "run", "count", "expected"),
    [
        (1, 1, 3, [5, 6, 7]),
        (3, 1, 3, [5, 8, 11]),
        (3, 2, 5, [5, 6, 8, 9, 11]),
        (3, 2, 4, [5, 6, 8, 9]),
        (4, 4, 5, [5, 6, 7, 8, 9]),
        (4, 3, 0, []),
    ],
)
def test_entries_that_a_read_asks_for(step: int, run: int, count: int, expected: list[int]) -> None:
    assert Request(RequestKind.READ, first=5, step=step, run=run).asked(count).tolist() == expected
