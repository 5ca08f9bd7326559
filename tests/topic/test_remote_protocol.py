"""Requests, replies, errors, statistics and messages as bytes: decoding returns what was encoded, and invalid bytes are
refused."""

from __future__ import annotations

import dataclasses
import json
from datetime import UTC, datetime
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyreplog import errors
from pyreplog._native.topic.message_encoder import encode_messages
from pyreplog._native.topic.messages import MessageBatch, decode_messages
from pyreplog._native.topic.wire_fields import WireReader
from pyreplog.errors import (
    InvalidMessageError,
    MissingExtraError,
    PeerError,
    ReplogError,
    UnsupportedRequestError,
)
from pyreplog.origins.origin import GAPS_MAX, Gap, GapCause, OriginEntry
from pyreplog.origins.replicate_to import attribute_of
from pyreplog.topic.client.remote.connection_pool import outcome_of, parse_address
from pyreplog.topic.client.remote.sender import _offsets
from pyreplog.topic.model.positions import TopicPosition
from pyreplog.topic.model.stats import (
    ConsumerStats,
    CursorStats,
    InternalStats,
    LedgerStats,
    Stats,
    SubscriptionStats,
    TopicStats,
)
from pyreplog.topic.model.wire import protocol
from pyreplog.topic.model.wire.batches import Delivered, cut, decode_delivered, encode_delivered, size_of
from pyreplog.topic.model.wire.json_codec import decode_stats, encode_stats
from pyreplog.topic.model.wire.protocol import (
    CallResult,
    Done,
    Moved,
    Opened,
    OriginOpened,
    Replicated,
    decode_fault,
    decode_reply,
    decode_request,
    encode_fault,
    encode_reply,
    encode_request,
)
from tests.topic.entries import records_of

OFFSETS = np.array([0, 3, 4, 1 << 40], np.int64)
ENTRY = OriginEntry(b"one", 2, 5, 7, ())
REQUESTS: list[Any] = [
    protocol.Open(7, True, "news", "me", "c1", '{"ensemble": 1}'),
    protocol.CloseProducer(7),
    protocol.Publish(7, [b"one", b"", b"three" * 100]),
    protocol.Subscribe(8, -3, False, "earliest", "news", "ü" * 100, "c", ""),
    protocol.Subscribe(8, 0, True, 17, "news", "s", "c", "{}"),
    protocol.Subscribe(8, 0, True, datetime.fromtimestamp(1_700_000_000.25, UTC), "news", "s", "c", "{}"),
    protocol.Detach(8),
    protocol.Flow(8, 1 << 20),
    protocol.Fetch((1 << 32) - 1),
    protocol.Acknowledge(8, 3, OFFSETS),
    protocol.AcknowledgeRange(8, (1 << 32) - 1, 0, 1 << 61),
    protocol.AcknowledgeAndFetch(8, 2, 7, 8),
    protocol.Resume(8, (1 << 61) + 1, 5, np.array([[7, 9], [12, 13]])),
    protocol.Resume(8, 0, 0, np.zeros((0, 2), np.int64)),
    protocol.AcknowledgeCumulative(8, 0, 5),
    protocol.Nack(8, -1, OFFSETS),
    protocol.NackWithReason(8, 5_000_000, "no such customer", OFFSETS),
    protocol.Redeliver(8),
    protocol.Seek(8, "latest"),
    protocol.Flush(8),
    protocol.ReadRequest(5, 9, 1 << 20, "news"),
    protocol.Call("news", "skip", '{"messages": 3}'),
    protocol.OpenOrigin(9, 1 << 40, True, 3, bytes(range(16)), "news", "0123abcd", ""),
    protocol.Replicate(9, (Gap(7, 9, GapCause.FILTERED),), []),
    protocol.Exchange(1 << 40, 3, True, 7, 5, 7, 0xFEDCBA98, -7, bytes(range(16)), "news", "0123abcd", [b"one", b""]),
    protocol.Replicate(9, (), [OriginEntry(b"one", 2, 5, -7, (Gap(0, 1, GapCause.FOREIGN), Gap(1, 5, GapCause.LOST)))]),
    protocol.PublishTo(7, [attribute_of(("west",)), attribute_of(()), None], [b"one", b"", b"three"]),
    protocol.ReplicateTo(9, (), [None, attribute_of(("süd", "west"))], [ENTRY, ENTRY._replace(first=7)]),
]


def body_of(request: Any) -> bytes:
    return b"".join(bytes(part) for part in encode_request(request))


def plain(request: Any) -> list[Any]:
    return [type(request), *(value.tolist() if isinstance(value, np.ndarray) else value for value in request)]


@pytest.mark.parametrize("request_", REQUESTS, ids=lambda request: type(request).__name__)
def test_requests_come_as_they_went(request_: Any) -> None:
    body = body_of(request_)
    assert plain(decode_request(memoryview(body))) == plain(request_)
    for end in range(len(body)):
        with pytest.raises(InvalidMessageError):
            decode_request(memoryview(body[:end]))
    with pytest.raises(InvalidMessageError):
        decode_request(memoryview(body + b"!"))


@given(st.data())
def test_garbled_requests_are_refused_or_requests(data: st.DataObject) -> None:
    body = bytearray(body_of(data.draw(st.sampled_from(REQUESTS))))
    for _ in range(data.draw(st.integers(1, 4))):
        body[data.draw(st.integers(0, len(body) - 1))] = data.draw(st.integers(0, 255))
    try:
        actual_request = decode_request(memoryview(bytes(body)))
    except (InvalidMessageError, UnsupportedRequestError):
        return
    assert type(actual_request) in {type(request) for request in REQUESTS}


@given(st.binary(max_size=200))
def test_noise_is_no_request_that_breaks_anything(body: bytes) -> None:
    try:
        decode_request(memoryview(body))
    except (InvalidMessageError, UnsupportedRequestError):
        return


def replicate(*entries: OriginEntry, gaps: tuple[Gap, ...] = ()) -> bytes:
    return body_of(protocol.Replicate(9, gaps, entries))


@pytest.mark.parametrize(
    "body",
    [
        replicate(ENTRY._replace(messages=0)),
        replicate(ENTRY._replace(first=-1)),
        replicate(ENTRY._replace(first=(1 << 62) - 2)),
        replicate(ENTRY, ENTRY),
        replicate(ENTRY, ENTRY._replace(first=6)),
        replicate(ENTRY._replace(gaps=(Gap(3, 6, GapCause.LOST),))),
        replicate(ENTRY._replace(gaps=(Gap(3, 3, GapCause.LOST),))),
        replicate(gaps=(Gap(3, 4, GapCause.LOST), Gap(3, 5, GapCause.LOST))),
        replicate(gaps=(Gap(-1, 4, GapCause.LOST),)),
        replicate(gaps=tuple(Gap(at, at + 1, GapCause.LOST) for at in range(GAPS_MAX + 1))),
        b"\x15" + bytes(4) + b"\xff" * 200,
        b"\x15" + bytes(5) + b"\xff" * 4,
        b"\x15" + bytes(5) + b"\x00\x01\x00\x00",
    ],
)
def test_entries_of_an_origin_ascend_behind_their_gaps_within_bounds(body: bytes) -> None:
    with pytest.raises(InvalidMessageError, match="expected"):
        decode_request(memoryview(body))


LISTS_OF_NO_ENTRIES = body_of(protocol.PublishTo(7, [attribute_of(("west",))], [b"one"]))[:5]


@pytest.mark.parametrize(
    "body",
    [
        body_of(protocol.PublishTo(7, [None], [b"one", b"two"])),
        body_of(protocol.PublishTo(7, [None, attribute_of(())], [b"one"])),
        body_of(protocol.ReplicateTo(7, (), [], [ENTRY])),
        LISTS_OF_NO_ENTRIES + b"\xff" * 40,
        LISTS_OF_NO_ENTRIES + b"\0\0\0\1" + b"\xff" * 40,
        LISTS_OF_NO_ENTRIES + b"\0\0\0\1" + bytes(4) + b"\xff\xff" + b"\0" * 40,
        LISTS_OF_NO_ENTRIES + b"\0\0\0\1" + b"\0\0\0\1" + b"\x0c\x91" + b"\x01a" * 3000,
        LISTS_OF_NO_ENTRIES + b"\0\0\0\1" + b"\0\0\0\1" + b"\0\2" + b"\x01\n" + b"\0\0\0\1\0\0\0\1a",
        LISTS_OF_NO_ENTRIES + b"\0\0\0\1" + b"\0\0\0\1" + b"\0\x22" + b"\x01a" * 17 + b"\0\0\0\1\0\0\0\1a",
    ],
)
def test_lists_of_clusters_are_one_for_each_entry_within_bounds(body: bytes) -> None:
    with pytest.raises(InvalidMessageError, match="expected"):
        decode_request(memoryview(body))


def test_a_cause_of_a_newer_build_is_a_loss() -> None:
    body = bytearray(replicate(gaps=(Gap(3, 4, GapCause.LOST),)))
    body[-5] = 77
    assert decode_request(memoryview(bytes(body))).gaps == (Gap(3, 4, GapCause.LOST),)  # type: ignore[union-attr]


@pytest.mark.parametrize("offsets", [[], [3, 3], [4, 3], [-1, 5]], ids=["none", "equal", "descending", "negative"])
def test_offsets_ascend_from_0_on(offsets: list[int]) -> None:
    body = body_of(protocol.Acknowledge(1, 0, np.array(offsets, np.int64)))
    with pytest.raises(InvalidMessageError, match="offsets"):
        decode_request(memoryview(body))


def test_a_count_is_bounded_before_it_is_believed() -> None:
    for head in (b"\x03" + bytes(4), b"\x08" + bytes(8)):
        with pytest.raises(InvalidMessageError, match="4294967295"):
            decode_request(memoryview(head + b"\xff" * 4))


@pytest.mark.parametrize(
    "reply",
    [
        Done(),
        Opened(-1, 1 << 20, "{}"),
        Moved(3, 4),
        CallResult("[1]"),
        OriginOpened(7, 3, 5, 1 << 31, -4, b"c" * 16, "{}"),
        Replicated(9),
    ],
    ids=lambda reply: type(reply).__name__,
)
def test_replies_come_as_they_went(reply: Any) -> None:
    outcome, _ = outcome_of(memoryview(encode_reply(reply)))
    assert isinstance(outcome, WireReader)
    assert decode_reply(type(reply), outcome) == reply


@pytest.mark.parametrize(
    "error",
    [
        errors.NoSuchTopicError("news", "there is none"),
        errors.BacklogFullError("news", "full"),
        errors.SequenceError("news", "back"),
        errors.OriginSessionError("news", "fenced"),
        errors.OriginGapError("news", "expected 7, found 9"),
        errors.OriginHistoryError("news", "rolled back"),
        errors.TrimmedError("gone"),
        errors.RecordTooLargeError("large"),
        errors.UnreadableError(7, "dark"),
        errors.ClosedError("closed"),
        errors.ConfigError("no"),
        errors.WrongTypeError("int"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_errors_keep_their_class_and_words(error: ReplogError) -> None:
    fault, address = decode_fault(WireReader("reply", memoryview(encode_fault(error, "h:1")), 1))
    assert (type(fault), str(fault), address) == (type(error), str(error), "h:1")


def test_errors_without_a_wire_number_are_decoded_as_the_nearest_class() -> None:
    def decoded_fault(error: BaseException) -> ReplogError:
        return decode_fault(WireReader("reply", memoryview(encode_fault(error)), 1))[0]

    assert type(decoded_fault(errors.DisconnectedError("lost"))) is PeerError
    strange = decoded_fault(KeyError("x"))
    assert type(strange) is PeerError and "KeyError" in str(strange)
    assert len(str(decoded_fault(errors.ClosedError("é" * 5000)))) < 1024


@given(st.binary(max_size=120), st.booleans())
def test_noise_is_no_reply_that_breaks_anything(body: bytes, messages: bool) -> None:
    outcome, _ = outcome_of(memoryview(body))
    if isinstance(outcome, WireReader):
        try:
            decode_delivered(outcome) if messages else decode_reply(Opened, outcome)
        except (InvalidMessageError, MissingExtraError):
            return


# ---- messages --------------------------------------------------------------------------------------------------


def batch_of(*entries: int) -> MessageBatch:
    """Return entries with these numbers of messages, behind other entries of their ledger and topic."""
    encoded = [
        encode_messages([b"%d.%d" % (entry, number) for number in range(count)]) for entry, count in enumerate(entries)
    ]
    records = records_of(encoded, list(entries), first=5, size=400, messages=50)
    return decode_messages(records, offset=1000, entries=30, size=9000)


def through(delivered: Delivered) -> Delivered:
    body = b"".join(bytes(part) for part in encode_delivered(delivered))
    outcome, _ = outcome_of(memoryview(body))
    assert isinstance(outcome, WireReader)
    return decode_delivered(outcome)


@given(st.lists(st.integers(1, 5), min_size=1, max_size=6), st.data())
def test_messages_come_as_they_lie_in_the_ledger(entries: list[int], data: st.DataObject) -> None:
    whole = batch_of(*entries)
    chosen = data.draw(st.sets(st.integers(0, len(whole) - 1), min_size=1))
    batch = whole.select(sorted(chosen))
    counts = {int(batch.offset[0]): 3}
    delivered = through(Delivered(2, False, batch, counts))
    assert delivered[:2] == (2, False) and delivered.redelivered == counts
    assert delivered.batch is not None
    assert delivered.batch.values() == batch.values()
    assert delivered.batch.offset.tolist() == batch.offset.tolist()
    assert delivered.batch.publish_time.tolist() == batch.publish_time.tolist()
    used = np.unique(batch.entry_index)
    assert delivered.batch.entry_id.tolist() == batch.entry_id[used].tolist()
    assert delivered.batch.entries_before.tolist() == batch.entries_before[used].tolist()
    assert delivered.batch.bytes_before.tolist() == batch.bytes_before[used].tolist()
    assert size_of(batch) == int(batch.entry_size[used].sum()) and size_of(batch.slice(0, 0)) == 0


def test_empty_delivery_is_encoded_and_decoded() -> None:
    assert through(Delivered(9, True, None, {})) == Delivered(9, True, None, {})


@given(st.data())
def test_garbled_messages_are_refused(data: st.DataObject) -> None:
    """Records have checksums, and all other fields are compared with the records."""
    body = bytearray(b"".join(bytes(part) for part in encode_delivered(Delivered(0, True, batch_of(2, 3), {}))))
    at = data.draw(st.integers(1, len(body) - 1))
    body[at] ^= data.draw(st.integers(1, 255))
    outcome, _ = outcome_of(memoryview(bytes(body)))
    assert isinstance(outcome, WireReader)
    try:
        delivered = decode_delivered(outcome)
    except InvalidMessageError:
        return
    assert at < 55 or delivered.batch is None or delivered.batch.values() == batch_of(2, 3).values()


def test_a_delivery_is_cut_between_entries() -> None:
    batch = batch_of(2, 3, 1).select([1, 2, 3, 4, 5])
    size = int(batch.entry_size[0])
    first, rest = cut(batch, size)
    assert rest is not None
    assert (first.values(), rest.values()) == ([b"0.1"], [b"1.0", b"1.1", b"1.2", b"2.0"])
    first, rest = cut(rest, 1)
    assert rest is not None
    assert (first.values(), rest.values()) == ([b"1.0", b"1.1", b"1.2"], [b"2.0"])
    assert cut(rest, 1)[1] is None


def test_offsets_of_what_is_stored() -> None:
    def offsets_of(first: int, total: int, stored: int, bits: bytes = b"") -> Any:
        head = first.to_bytes(8, "big", signed=True) + total.to_bytes(4, "big") + stored.to_bytes(4, "big")
        return _offsets(WireReader("reply", memoryview(head + bits)), 10)

    assert offsets_of(7, 10, 10) == range(7, 17)
    assert offsets_of(-1, 10, 0) == [-1] * 10
    assert offsets_of(7, 10, 3, b"\x41\x40") == [-1, 7, -1, -1, -1, -1, -1, 8, -1, 9]
    for wrong in [(7, 9, 9, b""), (-1, 10, 10, b""), (7, 10, 2, b"\x41\x40"), (7, 10, 11, b""), (7, 10, 3, b"\x41")]:
        with pytest.raises(InvalidMessageError):
            offsets_of(*wrong)


# ---- statistics ------------------------------------------------------------------------------------------------


def test_statistics_come_as_they_went() -> None:
    sub = SubscriptionStats(
        name="s", at_us=5, mark=TopicPosition(1, 2, 3), drain_s=1.5, properties={"a": "b"},
        consumers=(ConsumerStats(name="c", consumer=1),),
    )  # fmt: skip
    stats = TopicStats(name="news", at_us=5, end=TopicPosition(4, 5, 6), quota_exceeded=("age",), subscriptions=(sub,))
    assert decode_stats(TopicStats, encode_stats(stats)) == stats
    inside = InternalStats(
        name="news", state="open", epoch=3, last_entry=(4, 5),
        ledgers=(LedgerStats(ledger=4, start=TopicPosition(0, 0, 0), entries=1, messages=2, size=3, created_us=4),),
        cursors=(CursorStats(name="s", mark=TopicPosition(1, 2, 3)),),
    )  # fmt: skip
    assert decode_stats(InternalStats, encode_stats(inside)) == inside
    assert decode_stats(InternalStats, encode_stats(dataclasses.replace(inside, last_entry=None))).last_entry is None
    for wrong in ("", "[]", '{"name": 1}', '{"what": 1}', '{"name": "a", "at_us": 1, "start": 3}'):
        with pytest.raises(InvalidMessageError):
            decode_stats(TopicStats, wrong)


@pytest.mark.parametrize(
    ("kind", "numbers"),
    [
        (TopicStats, {"name": "t", "at_us": 1}),
        (SubscriptionStats, {"name": "s", "at_us": 1}),
        (ConsumerStats, {"name": "c", "consumer": 1}),
        (InternalStats, {"name": "t", "state": "open", "epoch": 1}),
    ],
)
def test_stats_missing_from_an_older_server_are_0(kind: type[Stats], numbers: dict[str, Any]) -> None:
    """A server of an older version does not count these."""
    stats = decode_stats(kind, json.dumps(numbers))
    others = [getattr(stats, item.name) for item in dataclasses.fields(stats) if item.name not in numbers]
    numbers = [value for value in others if type(value) in (int, float)]
    assert numbers and not any(numbers)


def test_addresses_in_messages_are_parsed() -> None:
    assert parse_address("[::1]:80") == ("::1", 80)
    for wrong in ("host", ":80", "host:x", "host:65536", ""):
        with pytest.raises(InvalidMessageError):
            parse_address(wrong)
