"""The stream of a connection is cut into requests; headers by version, of requests and of responses."""

from __future__ import annotations

import struct
import sys
from random import Random

import pytest
from kio.schema.request_header.v1.header import RequestHeader as HeaderV1
from kio.schema.request_header.v2.header import RequestHeader as HeaderV2

from pyreplog._native.kafka.request_parser import MAX_REQUEST_BYTES, RequestParser
from pyreplog.errors import InvalidArgumentError, InvalidRequestError
from pyreplog.kafka.wire.codec import Request, decode_request, encode_response, request_codec, served_versions
from pyreplog.kafka.wire.messages import (
    ApiVersionsRequest,
    ApiVersionsResponse,
    HeartbeatResponse,
    MetadataRequest,
    ProduceResponse,
)
from pyreplog.kafka.wire.schema import ApiKey
from tests.kafka.foreign import kio_encode


def framed(*requests: bytes) -> bytes:
    return b"".join(struct.pack(">i", len(request)) + request for request in requests)


def received(parser: RequestParser, data: bytes) -> tuple[list[memoryview], int]:
    """Give the parser what fits into its memory; also returns how much that was."""
    window = parser.get_buffer(-1)
    count = min(len(data), len(window))
    window[:count] = data[:count]
    return parser.received(count), count


# ---- cutting ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("through_buffer", [False, True], ids=["feed", "buffer"])
def test_requests_however_they_are_cut(through_buffer: bool, seed: int) -> None:
    """What was returned stays as it is, whatever arrives later."""
    rng = Random(seed)
    for _ in range(30):
        sizes = [rng.choice((8, 9, 100, 4092, 4096, 5000, 200_000)) for _ in range(rng.randint(1, 30))]
        requests = [rng.randbytes(size) for size in sizes]
        stream, parser, views, at = framed(*requests), RequestParser(), [], 0
        while at < len(stream):
            piece = stream[at : at + rng.choice((1, 3, 4, 1000, 4096, 100_000))]
            found, count = received(parser, piece) if through_buffer else (parser.feed(piece), len(piece))
            views += found
            at += count
        assert [bytes(view) for view in views] == requests
        assert all(view.readonly for view in views)
        assert parser.buffered == 0 and parser.error is None


@pytest.mark.parametrize("size", [-1, 0, 7, 1001, -(1 << 31), (1 << 31) - 1])
def test_a_size_out_of_range(size: int) -> None:
    """What is in front of it counts."""
    parser = RequestParser(max_request_bytes=1000)
    whole = framed(b"x" * 8, b"y" * 1000)
    views = parser.feed(whole + struct.pack(">i", size) + b"z" * 2000)
    assert views == [b"x" * 8, b"y" * 1000]
    error = parser.error
    assert isinstance(error, InvalidRequestError)
    assert (error.path, error.offset, error.expected, error.found) == ("size", len(whole), "8 to 1000", f"{size}")
    for call in (parser.get_buffer, lambda: parser.received(0), lambda: parser.feed(b"")):
        with pytest.raises(InvalidRequestError) as again:
            call()
        assert again.value is error


def test_offsets_of_errors_count_the_whole_stream(seed: int) -> None:
    rng, parser, total = Random(seed), RequestParser(max_request_bytes=10_000), 0
    for _ in range(200):
        data = framed(*(bytes(rng.randint(8, 9000)) for _ in range(rng.randint(1, 4))))
        parser.feed(data)
        total += len(data)
    parser.feed(bytes(4))
    assert parser.error is not None and parser.error.offset == total


def test_memory_grows_as_bytes_arrive() -> None:
    """A request of 100 MB is announced, and 100 bytes of it come."""
    parser = RequestParser()
    received(parser, struct.pack(">i", MAX_REQUEST_BYTES))
    given = 4
    while given < 1 << 20:
        window = len(parser.get_buffer(-1))
        assert window <= max(128 << 10, 2 * given)
        found, count = received(parser, bytes(min(window, 5000)))
        assert not found
        given += count
    assert parser.buffered == given


def test_requests_keep_their_memory_and_parsers_do_not() -> None:
    """A connection between two requests holds nothing, so that ten thousand idle ones are cheap."""
    parser = RequestParser()
    (view,) = parser.feed(framed(bytes(3000)))
    assert sys.getrefcount(view.obj) == 3, "the view, the attribute, the argument"


def test_the_buffer_of_a_parser_follows_the_traffic() -> None:
    """Windows grow while they are filled, up to 256 KiB, and shrink again."""
    parser, windows, request = RequestParser(), [], framed(bytes(1 << 20))
    for _ in range(5):
        data = request
        while data:
            windows.append(len(parser.get_buffer(-1)))
            data = data[received(parser, data)[1] :]
    assert max(windows) >= 256 << 10
    for _ in range(20):
        received(parser, framed(bytes(8)))
    assert len(parser.get_buffer(-1)) == 4096


def test_a_request_parser_refuses_impossible_sizes() -> None:
    for limit in (7, 1 << 31):
        with pytest.raises(InvalidArgumentError, match="max_request_bytes: expected 8 to 2147483647"):
            RequestParser(max_request_bytes=limit)
    parser = RequestParser()
    with pytest.raises(InvalidArgumentError, match="count: expected 0 to 0, found 1"):
        parser.received(1)
    room = len(parser.get_buffer(-1))
    for count in (-1, room + 1):
        with pytest.raises(InvalidArgumentError, match=f"count: expected 0 to {room}"):
            parser.received(count)


# ---- headers ---------------------------------------------------------------------------------------------------


def request_bytes(key: int, version: int, flexible: bool, client_id: str | None, body: bytes) -> bytes:
    header = (HeaderV2 if flexible else HeaderV1)(
        request_api_key=key, request_api_version=version, correlation_id=-7, client_id=client_id
    )
    return kio_encode(header) + body


@pytest.mark.parametrize("client_id", [None, "", "me", "grün" * 500])
def test_request_headers_of_all_versions_are_decoded(client_id: str | None) -> None:
    for key in ApiKey:
        for version in served_versions(key):
            codec = request_codec(key, version)
            message = codec.schema.type()
            data = request_bytes(key, version, codec.flexible, client_id, codec.schema.encode(message))
            assert decode_request(data) == Request(key, version, -7, client_id, message)


def test_tags_of_a_header_are_skipped() -> None:
    body = request_codec(ApiKey.METADATA, 12).schema.encode(MetadataRequest())
    head = struct.pack(">hhih", 3, 12, 1, 2) + b"me"
    assert decode_request(head + b"\2\0\1x\5\2yz" + body).message == MetadataRequest()
    with pytest.raises(
        InvalidRequestError, match="request header: the message at byte 16: expected a tag above 0, found 0"
    ):
        decode_request(head + b"\2\0\1x\0\2yz" + body)


def test_decode_request_of_an_unserved_version_has_no_message() -> None:
    """The listener answers 35; to ApiVersions of any version with a response of version 0."""
    assert decode_request(struct.pack(">hhih", 18, 99, 5, -1) + b"\0???") == Request(18, 99, 5, None, None)
    assert decode_request(struct.pack(">hhih", 0, 2, 5, 1) + b"c???") == Request(0, 2, 5, "c", None)
    assert decode_request(struct.pack(">hhih", 999, 0, 5, 1) + b"c???") == Request(999, 0, 5, "c", None)
    assert decode_request(struct.pack(">hhih", -1, -1, 5, 1) + b"c???") == Request(-1, -1, 5, "c", None)


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (b"", "the message at byte 0: expected 8 bytes, found 0"),
        (bytes(7), "the message at byte 0: expected 8 bytes, found 7"),
        (bytes(9), "client_id at byte 8: expected 2 bytes, found 1"),
        (bytes(8) + b"\0\2a", "client_id at byte 8: expected 2 bytes, found 1"),
        (bytes(8) + b"\xff\xfe", "client_id at byte 8: expected a length of 0 or more, found -2"),
        (bytes(8) + b"\0\1\xff", "client_id at byte 10: expected text in UTF-8"),
        (struct.pack(">hhih", 18, 4, 5, -1), "the message at byte 10: expected a number of at most 32 bits"),
    ],
)
def test_malformed_request_headers_are_refused(data: bytes, text: str) -> None:
    with pytest.raises(InvalidRequestError, match=f"request header: {text}"):
        decode_request(data)


def test_errors_count_bytes_from_the_header_on() -> None:
    data = request_bytes(18, 3, True, "me", request_codec(18, 3).schema.encode(ApiVersionsRequest("a", "b")))
    with pytest.raises(InvalidRequestError, match="ApiVersions v3 request: the message at byte 17: expected a number"):
        decode_request(data[:-1])
    with pytest.raises(InvalidRequestError, match="topics at byte 10: expected at most 1 items in a message, found 2"):
        decode_request(struct.pack(">hhihi", 3, 1, 1, -1, 2) + b"\0\1a\0\1b", max_items=1)


def test_response_headers_follow_the_version_of_the_api() -> None:
    heartbeat = HeartbeatResponse(0, 16)
    assert b"".join(encode_response(ApiKey.HEARTBEAT, 3, 7, heartbeat)) == struct.pack(">iiih", 10, 7, 0, 16)
    assert b"".join(encode_response(ApiKey.HEARTBEAT, 4, 7, heartbeat)) == struct.pack(">iibihb", 12, 7, 0, 0, 16, 0)
    assert b"".join(encode_response(ApiKey.HEARTBEAT, 4, -7, heartbeat))[4:8] == struct.pack(">i", -7)
    versions = b"".join(encode_response(ApiKey.API_VERSIONS, 3, 7, ApiVersionsResponse(35)))
    assert versions == struct.pack(">iihbib", 12, 7, 35, 1, 0, 0), "no tags in the header"
    assert b"".join(encode_response(ApiKey.PRODUCE, 3, 1, ProduceResponse())) == struct.pack(">iiii", 12, 1, 0, 0)
