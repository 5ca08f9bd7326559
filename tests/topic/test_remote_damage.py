"""Bytes that are damaged in transit without TCP noticing: a checksum finds the damage before messages are stored or
delivered."""

from __future__ import annotations

import numpy as np
import pytest

from pyreplog._native.ledger_log.entries import encode_entries, parse_entries
from pyreplog._native.topic.message_encoder import compress_entry, encode_messages
from pyreplog._native.topic.messages import decode_messages
from pyreplog._native.topic.wire_fields import WireReader, checksum
from pyreplog.errors import DamagedMessageError, InvalidMessageError, OutcomeUnknownError
from pyreplog.origins.origin import Gap, GapCause, OriginEntry
from pyreplog.topic.client.remote.connection_pool import is_transient, outcome_of
from pyreplog.topic.model.compression import RAW_BYTES_MAX, ZSTD, compressor, decompress
from pyreplog.topic.model.wire import protocol
from pyreplog.topic.model.wire.batches import Delivered, decode_delivered, encode_delivered
from pyreplog.topic.model.wire.protocol import decode_request, encode_request
from tests.topic.remoting import PATIENCE_S, PLAIN, ServedCluster, Wire, receive
from tests.topic.test_remote_protocol import batch_of

REQUESTS: list[protocol.Request] = [
    protocol.Publish(7, [encode_messages([b"one", b"two"], [b"k", None]), encode_messages([b"three"])]),
    protocol.AcknowledgeRange(3, 1, 10, 20),
    protocol.Acknowledge(3, 1, np.array([1, 5, 9], np.int64)),
    protocol.Resume(3, 77, 4, np.array([[5, 9], [11, 12]], np.int64)),
    protocol.Flow(3, 1000),
    protocol.OpenOrigin(3, 1 << 40, True, 3, bytes(range(16)), "news", "0123abcd", "{}"),
    protocol.Replicate(
        3, (Gap(9, 12, GapCause.EXPIRED),), [OriginEntry(b"one", 2, 5, 77, (Gap(0, 5, GapCause.LOST),))]
    ),
]


@pytest.mark.parametrize("request_", REQUESTS, ids=lambda item: type(item).__name__)
def test_no_bit_of_a_request_can_be_another(request_: protocol.Request) -> None:
    body = b"".join(bytes(part) for part in encode_request(request_, is_checked=True))
    assert type(decode_request(memoryview(body))) is type(request_)
    for bit in range(8 * len(body)):
        spoiled = bytearray(body)
        spoiled[bit // 8] ^= 1 << bit % 8
        with pytest.raises(InvalidMessageError):
            decode_request(memoryview(bytes(spoiled)))


def test_damaged_request_raises_damaged_message_error_with_the_expected_checksum() -> None:
    body = bytearray(b"".join(bytes(part) for part in encode_request(REQUESTS[0], is_checked=True)))
    body[-10] ^= 1
    with pytest.raises(DamagedMessageError, match="expected 0x") as caught:
        decode_request(memoryview(bytes(body)))
    assert is_transient(caught.value) and not caught.value.retriable


def test_no_bit_of_what_is_delivered_can_be_another() -> None:
    head, *records = map(bytes, encode_delivered(Delivered(2, True, batch_of(2, 3), {1051: 4}, 99)))
    body = b"".join((head, checksum(head), *records))

    def read(body: bytes) -> Delivered:
        outcome, _ = outcome_of(memoryview(body), is_checked=True)
        if not isinstance(outcome, WireReader):
            raise outcome
        return decode_delivered(outcome, has_era=True)

    assert read(body).redelivered == {1051: 4}
    stamps = {at + byte for at in (len(head) + 4, len(head) + 4 + len(records[0])) for byte in range(8, 12)}
    for bit in range(8 * len(body)):
        spoiled = bytearray(body)
        spoiled[bit // 8] ^= 1 << bit % 8
        if bit // 8 in stamps:  # the stamp of a log has no meaning here
            continue
        with pytest.raises(InvalidMessageError):
            read(bytes(spoiled))


def test_a_delivery_that_decompresses_to_too_much_is_refused() -> None:
    """An owner delivers at most 64 MiB of decompressed bodies at a time; of more, only that is decompressed."""
    plain = encode_messages([bytes(RAW_BYTES_MAX // 2 - 64)])
    compress = compressor("zstd")
    assert compress is not None
    packed = compress_entry(plain, ZSTD, compress)
    assert len(packed) < len(plain) // 100

    def delivery(count: int) -> WireReader:
        records = encode_entries([packed] * count, ledger=7, first=0, lac=-1, time=1, messages=[1] * count).view
        parsed = parse_entries(records, ledger=7, first=0, last=count - 1)
        batch = decode_messages(parsed, offset=0, entries=0, size=0, decompress=decompress)
        body = b"".join(map(bytes, encode_delivered(Delivered(1, True, batch, {}))))
        outcome, _ = outcome_of(memoryview(body), is_checked=False)
        assert isinstance(outcome, WireReader)
        return outcome

    received = decode_delivered(delivery(1)).batch
    assert received is not None and len(received[0].value) == RAW_BYTES_MAX // 2 - 64
    with pytest.raises(InvalidMessageError, match=r"after decompression, found more from entry 2 on"):
        decode_delivered(delivery(3))


def test_damaged_messages_are_not_stored(served: ServedCluster, wire: Wire) -> None:
    """Messages of a named producer are sent again. For others the outcome is unknown, and they are not stored."""
    client = served.client(wire.address)
    topic, numbered = client.topic("news", **PLAIN), client.topic("numbered", **PLAIN, deduplicate=True)
    for each_topic in (topic, numbered):
        each_topic.publish(b"first", producer="me")
    wire.spoils = b"a value", b"a walue"
    with pytest.raises(OutcomeUnknownError):
        topic.publish(b"a value", timeout=PATIENCE_S)
    assert wire.spoils is None and served.cluster.topic("news").end == 1
    wire.spoils = b"a value", b"a walue"
    numbered.publish(b"a value", producer="me", timeout=PATIENCE_S)
    assert wire.spoils is None
    values = [value for batch in served.cluster.topic("numbered").read() for value in batch.values()]
    assert values == [b"first", b"a value"]


def test_damaged_messages_are_not_received(served: ServedCluster, wire: Wire) -> None:
    topic = served.client(wire.address).topic("news", **PLAIN)
    with topic.subscribe("s", start="earliest") as consumer:
        topic.publish(b"first")
        assert receive(consumer, 1) == [b"first"]
        consumer.acknowledge([0])
        wire.spoils = b"a value", b"a walue"
        served.cluster.topic("news").publish(b"a value")
        assert receive(consumer, 1) == [b"a value"]
        assert wire.spoils is None


def test_an_older_client_is_understood(served: ServedCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """An older server works as well: messages of either have no checksums."""
    from pyreplog.topic.client.remote import connection_pool

    monkeypatch.setattr(connection_pool, "VERSION", 1)
    topic = served.client().topic("news", **PLAIN)
    with topic.subscribe("s", start="earliest") as consumer:
        assert topic.publish(b"one") == 0
        assert receive(consumer, 1) == [b"one"]
        consumer.acknowledge([0])
        consumer.flush(PATIENCE_S)
