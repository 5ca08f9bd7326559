"""Messages that lie: in lengths, counts, tags; messages that end too early or too late. And what cannot be encoded."""

from __future__ import annotations

import pickle
import struct
import tracemalloc
from random import Random
from typing import Any

import pytest

from pyreplog.errors import InvalidArgumentError, InvalidRequestError, WrongTypeError
from pyreplog.kafka.wire.codec import request_codec, response_codec, served_versions
from pyreplog.kafka.wire.messages import (
    AlterClientQuotasEntryData,
    AlterClientQuotasOpData,
    AlterClientQuotasRequest,
    ApiVersionsRequest,
    FetchableTopicResponse,
    FetchPartition,
    FetchPartitionData,
    FetchReplicaState,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    MetadataRequest,
    MetadataRequestTopic,
    OffsetDeleteRequest,
    ProducePartitionProduceData,
    ProduceRequest,
    ProduceTopicProduceData,
    SaslAuthenticateRequest,
    SaslHandshakeRequest,
)
from pyreplog.kafka.wire.schema import ApiKey
from tests.kafka.foreign import kio_class, kio_encode, kio_value

REQUESTS = [(key, version) for key in ApiKey for version in served_versions(key)]
LIES = [
    bytes([0xFF]), bytes([0x7F]), bytes([0x80]), bytes([1]), bytes([0]),
    b"\x7f\xff", b"\x80\x00", b"\xff\xff", b"\xff\xfe",
    b"\x7f\xff\xff\xff", b"\x80\x00\x00\x00", b"\xff\xff\xff\xff", b"\xff\xff\xff\xfe", b"\x00\x10\x00\x00",
    b"\xff\xff\xff\xff\x07", b"\xff\xff\xff\xff\x0f", b"\xff\xff\xff\xff\xff\x01", b"\x80\x80\x80\x80\x80\x80",
]  # fmt: skip


def sample(key: ApiKey, version: int, rng: Random) -> bytes:
    return kio_encode(kio_value(kio_class(key, version, "Request"), rng))


def refused(key: ApiKey, version: int, data: bytes, **options: Any) -> InvalidRequestError:
    with pytest.raises(InvalidRequestError) as info:
        request_codec(key, version).schema.decode(data, **options)
    return info.value


def holds(key: ApiKey, version: int, data: bytes) -> bool:
    """Whether the bytes are a request. If so, encoding gives bytes that are the same request."""
    schema = request_codec(key, version).schema
    try:
        message = schema.decode(data)
    except InvalidRequestError as error:
        assert 0 <= error.offset <= len(data) and error.message == schema.label
        return False
    assert schema.decode(schema.encode(message)) == message
    return True


@pytest.mark.parametrize(("key", "version"), REQUESTS)
def test_every_prefix_is_refused(key: ApiKey, version: int, seed: int) -> None:
    rng = Random(f"{seed} {key} {version}")
    data = sample(key, version, rng)
    assert holds(key, version, data) and not holds(key, version, data + b"\0")
    for size in {*range(min(len(data), 64)), *(rng.randrange(len(data)) for _ in range(64 if data else 0))}:
        assert not holds(key, version, data[:size])


@pytest.mark.parametrize(("key", "version"), REQUESTS)
def test_a_lie_at_every_byte(key: ApiKey, version: int, seed: int) -> None:
    """What is decoded of it is of the size of the message."""
    rng = Random(f"{seed} {key} {version}")
    data = sample(key, version, rng)
    while len(data) > 120:
        data = sample(key, version, rng)
    holds(key, version, data)
    tracemalloc.start()
    for at in range(len(data)):
        for lie in rng.sample(LIES, 6):
            holds(key, version, data[:at] + lie + data[at + len(lie) :])
    kept, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 200_000 and kept < 50_000


# ---- counts and lengths ----------------------------------------------------------------------------------------


def test_a_count_above_the_bytes_that_follow() -> None:
    data = struct.pack(">iiiib", -1, 0, 1, 100, 0) + struct.pack(">i", 3) + b"\0\1a" + bytes(4) + bytes(9)
    error = refused(ApiKey.FETCH, 4, data)
    assert (error.path, error.offset, error.expected, error.found) == ("topics", 17, "at most 2 items in 16 bytes", "3")
    assert error.message == "Fetch v4 request"
    again = pickle.loads(pickle.dumps(error))
    assert str(again) == str(error) and vars(again) == vars(error)


def test_an_error_names_the_way_to_the_field() -> None:
    request = ProduceRequest(topic_data=[
        ProduceTopicProduceData("a", [ProducePartitionProduceData(0, b"x")] * 2),
        ProduceTopicProduceData("b", [ProducePartitionProduceData(0, b"y"), ProducePartitionProduceData(1, b"12345678")]),
    ])  # fmt: skip
    data = request_codec(ApiKey.PRODUCE, 3).schema.encode(request)
    error = refused(ApiKey.PRODUCE, 3, data[:-1])
    assert (error.path, error.offset) == ("topic_data[1].partition_data[1].records", len(data) - 12)
    assert (error.expected, error.found) == ("8 bytes", "7")


def test_the_items_of_a_message_are_counted() -> None:
    """A byte of a compact array can make an object of 100: the limit is one for all arrays of the message."""
    request = MetadataRequest([MetadataRequestTopic(name="a")] * 50)
    schema = request_codec(ApiKey.METADATA, 12).schema
    data = schema.encode(request)
    assert schema.decode(data, max_items=50) == schema.decode(data)
    error = refused(ApiKey.METADATA, 12, data, max_items=49)
    assert (error.path, error.expected, error.found) == ("topics", "at most 49 items in a message", "50")
    nested = FetchRequest(topics=[FetchTopic("a", partitions=[FetchPartition()] * 10)] * 10)
    data = request_codec(ApiKey.FETCH, 4).schema.encode(nested)
    assert request_codec(ApiKey.FETCH, 4).schema.decode(data, max_items=110)
    error = refused(ApiKey.FETCH, 4, data, max_items=109)
    assert (error.path, error.found) == ("topics[9].partitions", "110")


def test_a_count_costs_nothing_before_it_is_believed() -> None:
    """A million items of one byte are in the message: the limit refuses them before the tuple is made."""
    data = b"\x80\x80\x80\x05" + b"\1" * (10 << 20)
    tracemalloc.start()
    error = refused(ApiKey.METADATA, 12, data)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert error.path == "topics" and peak < 100_000


@pytest.mark.parametrize("lie", [b"\xff\xff\xff\xfe", b"\x80\x00\x00\x00"])
def test_a_message_with_a_negative_count_is_refused(lie: bytes) -> None:
    assert refused(ApiKey.METADATA, 1, lie).expected == "a length"


def test_null_where_none_may_be() -> None:
    assert request_codec(ApiKey.METADATA, 1).schema.decode(b"\xff\xff\xff\xff").topics is None
    assert refused(ApiKey.METADATA, 0, b"\xff\xff\xff\xff").expected == "a length that is not null"
    assert refused(ApiKey.SASL_HANDSHAKE, 1, b"\xff\xff").expected == "a length of 0 or more"
    assert refused(ApiKey.SASL_AUTHENTICATE, 0, b"\xff\xff\xff\xff").expected == "a length of 0 or more"
    assert refused(ApiKey.SASL_AUTHENTICATE, 2, b"\0\0").expected == "a length of 0 or more"


def test_a_string_has_at_most_32767_bytes() -> None:
    schema = request_codec(ApiKey.API_VERSIONS, 3).schema
    longest = ApiVersionsRequest("x" * 32767, "y")
    assert schema.decode(schema.encode(longest)) == longest
    error = refused(ApiKey.API_VERSIONS, 3, b"\x81\x80\x02" + b"x" * 32768 + b"\2y\0")
    assert (error.path, error.found) == ("client_software_name", "32768")
    with pytest.raises(InvalidArgumentError, match="client_software_name: expected at most 32767 bytes"):
        schema.encode(ApiVersionsRequest("x" * 32768))
    with pytest.raises(InvalidArgumentError, match="found 32768"):
        schema.encode(ApiVersionsRequest("ü" * 16384))


def test_text_that_is_not_utf_8() -> None:
    error = refused(ApiKey.SASL_HANDSHAKE, 1, b"\0\3a\xffb")
    assert (error.path, error.offset, error.expected) == ("mechanism", 2, "text in UTF-8")
    assert error.found == "byte 0xff at 1"


def test_a_number_of_more_than_32_bits() -> None:
    error = refused(ApiKey.SASL_AUTHENTICATE, 2, b"\xff\xff\xff\xff\x1f" + bytes(10))
    assert error.expected == "a number of at most 32 bits and 5 bytes" and error.found == "ff ff ff ff 1f 00"
    assert refused(ApiKey.SASL_AUTHENTICATE, 2, b"").found == "the end"


# ---- tagged fields ---------------------------------------------------------------------------------------------


def tagged(*fields: tuple[int, bytes]) -> bytes:
    """A Fetch request of version 15 with these tagged fields."""
    plain = request_codec(ApiKey.FETCH, 15).schema.encode(FetchRequest())
    assert plain[-1] == 0
    return plain[:-1] + bytes([len(fields)]) + b"".join(bytes([tag, len(data)]) + data for tag, data in fields)


def test_tags_that_are_not_known_are_skipped() -> None:
    schema = request_codec(ApiKey.FETCH, 15).schema
    state = struct.pack(">iq", 7, 8) + b"\0"
    assert schema.decode(tagged((1, state), (9, b"later"), (100, b""))) == FetchRequest(
        replica_state=FetchReplicaState(7, 8)
    )
    assert schema.decode(tagged((0, b"\2c"), (1, state))).cluster_id == "c"


@pytest.mark.parametrize(
    ("fields", "path", "expected", "found"),
    [
        ([(1, struct.pack(">iq", 7, 8) + b"\0"), (1, b"")], "the message", "a tag above 1", "1"),
        ([(1, struct.pack(">iq", 7, 8) + b"\0"), (0, b"\2c")], "the message", "a tag above 1", "0"),
        ([(9, b""), (9, b"")], "the message", "a tag above 9", "9"),
        ([(0, b"\2cd")], "cluster_id", "3 bytes of the field with tag 0", "2"),
        ([(0, b"\3c")], "cluster_id", "2 bytes", "1"),
        ([(1, struct.pack(">iq", 7, 8))], "replica_state", "a number of at most 32 bits and 5 bytes", "the end"),
    ],
)  # fmt: skip
def test_malformed_tagged_fields_are_refused(
    fields: list[tuple[int, bytes]], path: str, expected: str, found: str
) -> None:
    error = refused(ApiKey.FETCH, 15, tagged(*fields))
    assert (error.path, error.expected, error.found) == (path, expected, found)


def test_a_tagged_field_that_is_longer_than_the_message() -> None:
    data = tagged((9, b"12345"))
    error = refused(ApiKey.FETCH, 15, data[:-1])
    assert (error.path, error.expected, error.found) == ("the message", "5 bytes of the field with tag 9", "4")
    assert refused(ApiKey.FETCH, 15, data[:-7] + b"\xff\xff\xff\xff\x0f").path == "the message"


# ---- records ---------------------------------------------------------------------------------------------------


def test_records_are_views_of_the_request() -> None:
    schema = request_codec(ApiKey.PRODUCE, 9).schema
    records = bytes(range(256)) * 40
    partition = ProducePartitionProduceData(0, records)
    request = ProduceRequest(topic_data=[ProduceTopicProduceData("a", [partition])])
    data = b"head" + schema.encode(request)
    view = schema.decode(data, start=4).topic_data[0].partition_data[0].records
    assert isinstance(view, memoryview) and view.readonly and view.obj is data and view == records
    assert schema.decode(memoryview(bytearray(data))[4:]).topic_data[0].partition_data[0].records == records


def test_large_records_of_a_response_are_not_copied() -> None:
    """Small ones are: a piece costs more than copying it."""
    codec = response_codec(ApiKey.FETCH, 12)
    large, small = bytes(4096), b"s" * 4095
    partitions = [
        FetchPartitionData(0, records=large), FetchPartitionData(1, records=[small, large, large]),
        FetchPartitionData(2, records=None), FetchPartitionData(3, records=[]),
    ]  # fmt: skip
    response = FetchResponse(responses=[FetchableTopicResponse("a", partitions=partitions)])
    pieces = codec.schema.encode_frame(response, b"head")
    assert [piece.obj is large for piece in pieces if isinstance(piece, memoryview)] == [True] * 3
    frame = b"".join(pieces)
    assert frame[:8] == struct.pack(">i", len(frame) - 4) + b"head"
    assert frame[8:] == codec.schema.encode(response)
    decoded = codec.schema.decode(frame, start=8).responses[0].partitions
    assert [part.records for part in decoded] == [large, small + large + large, None, b""]


# ---- what cannot be encoded ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("request_", "error", "text"),
    [
        (FetchRequest(max_wait_ms=1 << 31), InvalidArgumentError, "max_wait_ms: expected a number of 32 bits, found 2147483648"),
        (FetchRequest(max_wait_ms=-(1 << 31) - 1), InvalidArgumentError, "max_wait_ms: expected a number of 32 bits"),
        (FetchRequest(isolation_level=128), InvalidArgumentError, "isolation_level: expected a number of 8 bits"),
        (FetchRequest(max_wait_ms=1 << 99), InvalidArgumentError, "max_wait_ms: expected a number of 32 bits"),
        (FetchRequest(max_wait_ms=1.5), WrongTypeError, "max_wait_ms: expected int, found float"),
        (FetchRequest(topics="abc"), WrongTypeError, "topics: expected a tuple or list, found str"),
        (FetchRequest(topics=None), WrongTypeError, "topics: expected a tuple or list, found NoneType"),
        (FetchRequest(topics=[FetchTopic(None)]), WrongTypeError, r"topics\[0\].topic: expected a value, found NoneType"),
        (FetchRequest(topics=[FetchTopic(b"a")]), WrongTypeError, r"topics\[0\].topic: expected str, found bytes"),
        (FetchRequest(topics=[FetchPartition()]), WrongTypeError, r"topics\[0\]: expected FetchTopic, or a tuple of 3"),
        (FetchRequest(topics=[FetchTopic("a", bytes(16), [5])]), WrongTypeError, r"topics\[0\].partitions\[0\]: expected FetchPart"),
        (FetchRequest(session_id=5), InvalidArgumentError, None),
        (FetchRequest(topics=[FetchTopic("a", b"t" * 16)]), InvalidArgumentError, None),
        (FetchRequest(replica_state=FetchReplicaState(1, 2)), InvalidArgumentError, "replica_state: expected the default in this version"),
        (OffsetDeleteRequest(), WrongTypeError, "the message: expected FetchRequest"),
    ],
)  # fmt: skip
def test_encode_of_invalid_messages_raises(request_: Any, error: type[Exception], text: str | None) -> None:
    """Fields that the version lacks must have their defaults, unless Kafka's definition calls them ignorable."""
    schema = request_codec(ApiKey.FETCH, 4).schema
    if text is None:
        assert schema.decode(schema.encode(request_)) != request_
        return
    with pytest.raises(error, match=f"Fetch v4 request: {text}"):
        schema.encode(request_)


def test_a_float_field_takes_numbers_only() -> None:
    schema = request_codec(ApiKey.ALTER_CLIENT_QUOTAS, 0).schema

    def quota(value: Any) -> AlterClientQuotasRequest:
        operation = AlterClientQuotasOpData("request_percentage", value)
        return AlterClientQuotasRequest([AlterClientQuotasEntryData((), [operation])])

    for value in (0.0, -1.5, 1e308, float("inf"), 7):
        assert schema.decode(schema.encode(quota(value))).entries[0].ops[0].value == value
    data = schema.encode(quota(1.0)).replace(struct.pack(">d", 1.0), struct.pack(">d", float("nan")))
    error = refused(ApiKey.ALTER_CLIENT_QUOTAS, 0, data)
    assert "value" in str(error) and "expected a number, found nan" in str(error)
    for value in (float("nan"), 1 << 2000):
        with pytest.raises(InvalidArgumentError, match=r"value: expected a number"):
            schema.encode(quota(value))
    with pytest.raises(WrongTypeError, match="value: expected float, found str"):
        schema.encode(quota("1"))


def test_fields_of_bytes_and_uuids_check_their_values() -> None:
    sasl = request_codec(ApiKey.SASL_AUTHENTICATE, 2).schema
    for value in (b"abc", bytearray(b"abc"), memoryview(b"abc")):
        assert sasl.decode(sasl.encode(SaslAuthenticateRequest(value))) == (b"abc",)
    with pytest.raises(WrongTypeError, match="auth_bytes: expected a bytes-like object, found str"):
        sasl.encode(SaslAuthenticateRequest("abc"))
    metadata = request_codec(ApiKey.METADATA, 12).schema
    with pytest.raises(WrongTypeError, match=r"topics\[0\].topic_id: expected 16 bytes, found bytes"):
        metadata.encode(MetadataRequest([MetadataRequestTopic(b"short")]))
    with pytest.raises(WrongTypeError, match=r"records: expected a bytes-like object, or several, found int"):
        partition = ProducePartitionProduceData(0, [5])
        request_codec(ApiKey.PRODUCE, 9).schema.encode(
            ProduceRequest(topic_data=[ProduceTopicProduceData("a", [partition])])
        )


def test_request_codec_refuses_unserved_versions() -> None:
    for key, version in [
        (4, 0),
        (ApiKey.PRODUCE, 2),
        (ApiKey.PRODUCE, 12),
        (ApiKey.FETCH, 3),
        (ApiKey.FETCH, -1),
        (-1, 0),
    ]:
        with pytest.raises(InvalidArgumentError, match=f"found key {key} version {version}"):
            request_codec(key, version)
    assert not served_versions(4)


def test_start_is_within_the_message() -> None:
    schema = request_codec(ApiKey.SASL_HANDSHAKE, 1).schema
    assert schema.decode_prefix(b"xx\0\1ayy", start=2) == (SaslHandshakeRequest("a"), 5)
    for start in (-1, 4):
        with pytest.raises(InvalidArgumentError, match="start: expected 0 to 3"):
            schema.decode(b"\0\1a", start=start)
