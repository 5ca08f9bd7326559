"""Messages between a client and a node: they match FORMAT.md, and all other bytes are refused."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

import pyreplog
from pyreplog._native.ha.client_batch import encode_record
from pyreplog.errors import InvalidMessageError
from pyreplog.ha.protocol import client_messages as wire
from pyreplog.ha.protocol.client_messages import (
    Append,
    Appended,
    ClientKind,
    ClientRefusal,
    CommittedEntries,
    Read,
    Refused,
    Run,
)

FORMAT = (Path(pyreplog.__file__).parent / "_native" / "FORMAT.md").read_text()
CLIENT = bytes(range(16))
RECORD = encode_record(b"value", b"key", 5, {"a": "b"})

REQUESTS = [
    ("2000000000000001000102030405060708090a0b0c0d0e0f0000000000000007", wire.encode_append(CLIENT, 7, 1)),
    (
        "22000000000010000000006400000000000000000000000a000000000000000c",
        wire.encode_read(Read(10, 12, 4096, 100)),
    ),
]
REPLIES = [
    (
        "21020000000000000000000000000005000000000000000300000000000000090000000000000001",
        wire.encode_appended(Appended((Run(5, 3), Run(9, 1)))),
    ),
    (
        "23010000000000000000000000000002000000000000000800000000000000030000000000001000",
        wire.encode_entries(CommittedEntries(2, 8, 3, 4096, True, memoryview(b"x"))),
    ),
    ("24010008623a3730303100046e6f6e65", wire.encode_refused(Refused(1, "none", "b:7001\x00\x00"))),
]


def test_client_messages_have_their_golden_bytes() -> None:
    """The messages that version 3 sends, byte by byte."""
    for expected, encoded in [*REQUESTS, *REPLIES[:2]]:
        assert encoded.hex() == expected
    assert wire.encode_refused(Refused(1, "none", "b:7001")).hex() == "24010006623a3730303100046e6f6e65"


def test_a_record_of_a_client_has_its_golden_bytes() -> None:
    """The members version, the time and its delta are 0, and nothing is claimed to be synced."""
    assert encode_record(b"v").hex() == (
        "21000000" + encode_record(b"v")[4:8].hex() + "00000000" + "0101" + "0000" + "00" * 8 + "00000000" + "ffffffff"
        "7600000000000000"
    )


def test_kinds_and_codes_are_as_documented() -> None:
    text = FORMAT.partition("\n## Clients of a replica group")[2].partition("\n## ")[0]
    kinds = re.findall(r"^([A-Z]+), (\d+)\b", text, re.MULTILINE)
    assert {name: int(number) for name, number in kinds} == {kind.name: kind.value for kind in ClientKind}
    codes = text.partition("Codes: ")[2].partition(". After")[0]
    assert dict(re.findall(r"\b(\d+) ([A-Z_]+)\b", codes)) == {str(code.value): code.name for code in ClientRefusal}
    assert f"1 to {wire.BATCH_ENTRIES_MAX:,} |" in text and f"1 to {wire.RUNS_MAX};" in text
    assert f"of which {wire.WAIT_MS_MAX:,} count" in text


def test_is_client_request_distinguishes_requests_from_replies() -> None:
    for kind in range(256):
        is_request = kind in (ClientKind.APPEND, ClientKind.READ)
        assert wire.is_client_request(memoryview(bytes([kind]) + bytes(40))) is is_request
    assert not wire.is_client_request(memoryview(b""))


@pytest.mark.parametrize(("sequence", "count"), [(0, 1), (wire.NUMBER_MAX, wire.BATCH_ENTRIES_MAX)])
def test_an_append_at_its_limits(sequence: int, count: int) -> None:
    append = wire.decode_request(memoryview(wire.encode_append(CLIENT, sequence, count)))
    assert append == Append(CLIENT, sequence, count, memoryview(b""))


@pytest.mark.parametrize(
    "read",
    [Read(0, -1, 0, 0), Read(wire.NUMBER_MAX, wire.NUMBER_MAX, (1 << 32) - 1, wire.WAIT_MS_MAX), Read(0, 0, 1, 1)],
)
def test_a_read_at_its_limits(read: Read) -> None:
    assert wire.decode_request(memoryview(wire.encode_read(read))) == read


def test_client_requests_are_decoded_as_encoded() -> None:
    body = memoryview(wire.encode_append(CLIENT, 7, 1) + RECORD)
    append = wire.decode_request(body)
    assert isinstance(append, Append)
    assert (append.client, append.sequence, append.entries, bytes(append.records)) == (CLIENT, 7, 1, RECORD)
    read = Read(10, -1, 1 << 20, 5)
    assert wire.decode_request(memoryview(wire.encode_read(read))) == read
    assert wire.decode_request(memoryview(wire.encode_read(read._replace(wait_ms=1 << 30)))) == read._replace(
        wait_ms=wire.WAIT_MS_MAX
    )


@pytest.mark.parametrize(
    "reply",
    [
        Appended((Run(5, 3), Run(9, 1))),
        CommittedEntries(2, 8, 3, 4096, True, memoryview(RECORD)),
        CommittedEntries(2, 8, -1, 0, False, memoryview(b"")),
        Appended((Run(0, 1),)),
        Appended((Run(wire.NUMBER_MAX, wire.BATCH_ENTRIES_MAX),) * wire.RUNS_MAX),
        CommittedEntries(0, 0, -1, 0, True, memoryview(b"")),
        CommittedEntries(2, wire.NUMBER_MAX, 2, 0, False, memoryview(RECORD)),
        Refused(1, "this is no master", "host:7001"),
    ],
)
def test_replies_to_clients_are_decoded_as_encoded(reply: Any) -> None:
    body = {
        Appended: lambda: wire.encode_appended(reply),
        CommittedEntries: lambda: wire.encode_entries(reply) + bytes(reply.records),
        Refused: lambda: wire.encode_refused(reply),
    }[type(reply)]()
    assert wire.decode_reply(body) == reply


def spoiled() -> list[bytes]:
    append, read = wire.encode_append(CLIENT, 7, 1), wire.encode_read(Read(10, 12, 4096, 100))
    return [
        b"",
        b"\x20",
        append[:-1],
        append[:1] + b"\x01" + append[2:],
        wire.encode_append(CLIENT, 0, 0),
        wire.encode_append(CLIENT, 0, wire.BATCH_ENTRIES_MAX + 1),
        wire.encode_append(CLIENT, -1, 1),
        wire.encode_append(CLIENT, wire.NUMBER_MAX + 1, 1),
        read[:-1],
        read + b"\x00",
        wire.encode_read(Read(-1, 12, 0, 0)),
        wire.encode_read(Read(0, -2, 0, 0)),
        b"\x25" + read[1:],
        wire.encode_read(Read(wire.NUMBER_MAX + 1, -1, 0, 0)),
        wire.encode_read(Read(0, wire.NUMBER_MAX + 1, 0, 0)),
        *(changed(append, at) for at in range(1, 4)),
        *(changed(read, at) for at in (1, 2, 3, 12, 13, 14, 15)),
    ]


def changed(body: bytes, at: int) -> bytes:
    """Return the body with another byte in place of a 0."""
    assert body[at] == 0
    return body[:at] + b"\x01" + body[at + 1 :]


@pytest.mark.parametrize("body", spoiled())
def test_malformed_client_requests_are_refused(body: bytes) -> None:
    with pytest.raises(InvalidMessageError):
        wire.decode_request(memoryview(body))


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"\x26" * 40,
        wire.encode_appended(Appended(())),
        wire.encode_appended(Appended((Run(1, 1),)))[:-1],
        wire.encode_appended(Appended((Run(1, 0),))),
        wire.encode_appended(Appended((Run(-1, 1),))),
        wire.encode_entries(CommittedEntries(9, 8, -1, 0, False, memoryview(b""))),
        wire.encode_entries(CommittedEntries(2, 8, 3, 0, False, memoryview(b""))),
        wire.encode_entries(CommittedEntries(2, 8, 1, 0, False, memoryview(b""))) + b"records",
        wire.encode_refused(Refused(1, "text", "master")) + b"x",
        wire.encode_refused(Refused(1, "text", "master"))[:-1],
        wire.encode_appended(Appended((Run(1, 1),) * (wire.RUNS_MAX + 1))),
        wire.encode_appended(Appended((Run(1, wire.BATCH_ENTRIES_MAX + 1),))),
        wire.encode_appended(Appended((Run(wire.NUMBER_MAX + 1, 1),))),
        wire.encode_appended(Appended((Run(1, 1),))) + b"\x00",
        *(changed(wire.encode_appended(Appended((Run(1, 1),))), at) for at in range(2, 8)),
        *(
            changed(wire.encode_entries(CommittedEntries(0, 8, -1, 0, False, memoryview(b""))), at)
            for at in range(2, 8)
        ),
        b"\x23\x02" + wire.encode_entries(CommittedEntries(0, 8, -1, 0, False, memoryview(b"")))[2:],
        wire.encode_entries(CommittedEntries(-1, 8, -1, 0, False, memoryview(b""))),
        wire.encode_entries(CommittedEntries(0, wire.NUMBER_MAX + 1, -1, 0, False, memoryview(b""))),
        wire.encode_entries(CommittedEntries(2, 8, -2, 0, False, memoryview(b""))),
        wire.encode_entries(CommittedEntries(2, 8, 3, -1, False, memoryview(b""))) + b"records",
    ],
)
def test_malformed_replies_to_clients_are_refused(body: bytes) -> None:
    with pytest.raises(InvalidMessageError):
        wire.decode_reply(body)


def test_every_cut_and_every_bit_is_an_answer_or_an_error() -> None:
    """Decoding any bytes returns a message or raises InvalidMessageError."""
    whole = [bytes.fromhex(text) for text, _ in [*REQUESTS, *REPLIES]]
    for body in whole:
        for changed in [body[:at] for at in range(len(body))] + [
            body[:at] + bytes((body[at] ^ 1 << bit,)) + body[at + 1 :] for at in range(len(body)) for bit in range(8)
        ]:
            for decode in (lambda data: wire.decode_request(memoryview(data)), wire.decode_reply):
                try:
                    decode(changed)  # type: ignore[no-untyped-call]
                except InvalidMessageError:
                    continue
