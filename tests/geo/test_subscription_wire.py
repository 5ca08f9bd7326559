"""The EXCHANGE request and the records of the journal, byte by byte, and with hostile bytes."""

from __future__ import annotations

import struct
from random import Random

import pytest

from pyreplog._native.topic.wire_fields import WireReader
from pyreplog.errors import DamagedMessageError, InvalidMessageError, InvalidMetadataError
from pyreplog.geo.subscription_journal import decode_records, encode_records
from pyreplog.topic.model.wire.origins import MESSAGES_BYTES_MAX, MESSAGES_MAX
from pyreplog.topic.model.wire.protocol import (
    Exchange,
    Exchanged,
    decode_reply,
    decode_request,
    encode_reply,
    encode_request,
)

ASKED = Exchange(5, 6, True, 70, 60, 70, 1, 2, bytes(16), "news", "token", [b"one", b"", b"three"])
ANSWER = Exchanged(True, -1, -1, 0, 0, 0, bytes(range(16)), "token", [b"four"])


def body(*, is_checked: bool = False) -> bytes:
    return b"".join(bytes(part) for part in encode_request(ASKED, is_checked=is_checked))


def answered(data: bytes) -> Exchanged:
    answer: Exchanged = decode_reply(Exchanged, WireReader("reply", memoryview(data), 1))
    return answer


def test_an_answer_is_read_as_it_was_sent() -> None:
    data = encode_reply(ANSWER)
    assert answered(data) == ANSWER
    assert data.hex() == (
        "00" + "01" + "ff" * 16 + "00" * 8 + "00" * 4 + "00" * 8 + bytes(range(16)).hex() + "05" + b"token".hex()
        + "01" + "00000004" + b"four".hex()
    )  # fmt: skip


def test_hostile_bytes_are_refused_or_read_as_something_else(seed: int) -> None:
    """Each byte of the request and of the answer is changed, and both are cut at each length."""
    random = Random(seed)
    asked, answer = body(), encode_reply(ANSWER)
    for at in range(1, len(asked)):
        hostile = bytearray(asked)
        hostile[at] ^= random.randrange(1, 256)
        for data in (bytes(hostile), asked[:at]):
            try:
                request = decode_request(memoryview(data))
            except InvalidMessageError:
                continue
            assert isinstance(request, Exchange) and request != ASKED
    for at in range(1, len(answer)):
        with pytest.raises(InvalidMessageError):
            answered(answer[:at])
    with pytest.raises(DamagedMessageError):
        damaged = bytearray(body(is_checked=True))
        damaged[30] ^= 1
        decode_request(memoryview(bytes(damaged)))


@pytest.mark.parametrize(
    ("tail", "why"),
    [
        (bytes((MESSAGES_MAX + 1,)), f"at most {MESSAGES_MAX} messages"),
        (bytes((1,)) + struct.pack(">I", MESSAGES_BYTES_MAX + 1), f"at most {MESSAGES_BYTES_MAX} bytes"),
        (bytes((1,)) + struct.pack(">I", 1000), "1000 bytes more"),
        (bytes((2,)) + struct.pack(">I", 0), "4 bytes more"),
    ],
)
def test_counts_are_bounded_before_they_are_believed(tail: bytes, why: str) -> None:
    whole = b"".join(bytes(part) for part in encode_request(ASKED._replace(messages=[])))
    with pytest.raises(InvalidMessageError, match=why):
        decode_request(memoryview(whole[:-1] + tail))


def test_journal_records_have_their_golden_bytes() -> None:
    state = encode_records([b"one", b""], whole=True)
    assert state == b"\x01\x01\0\0\2\0\0\0" + b"\3\0\0\0one" + b"\0\0\0\0"
    assert decode_records(state) == (True, [b"one", b""])
    assert decode_records(encode_records([], whole=False)) == (False, [])


def test_hostile_records_of_the_journal(seed: int) -> None:
    state = encode_records([b"first", b"second"], whole=False)
    for at in range(len(state)):
        with pytest.raises(InvalidMetadataError):
            decode_records(state[:at])
    for size in (6, 1 << 31, (1 << 32) - 1):
        with pytest.raises(InvalidMetadataError):
            decode_records(state[:8] + struct.pack("<I", size) + state[12:])
    with pytest.raises(InvalidMetadataError):
        decode_records(state[:4] + struct.pack("<I", (1 << 32) - 1) + state[8:])
    with pytest.raises(InvalidMetadataError, match="version 1, found 2"):
        decode_records(b"\2" + state[1:])
    random = Random(seed)
    for _ in range(300):
        hostile = bytearray(state)
        hostile[random.randrange(len(state))] = random.randrange(256)
        try:
            decode_records(bytes(hostile))
        except InvalidMetadataError:
            continue
