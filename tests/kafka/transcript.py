"""Transcripts of what clients and Apache Kafka said to each other, and how they are sent to our listener.

tests/foreign/record_transcripts.py records them.
"""

from __future__ import annotations

import base64
import json
import re
import socket
import struct
import time
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from crc32c import crc32c

from pyreplog.kafka.wire.codec import Request, decode_request, request_codec, response_codec
from pyreplog.kafka.wire.schema import ApiKey
from tests.waiting import PATIENCE_S

HERE = Path(__file__).parent / "transcripts"

_IDENTITY = re.compile(r"(?:\b|_)(topic_id|member_id|producer_id|leader_epoch|leader|cluster_id|port)$")
"""Fields whose values a broker chooses: ours stands for theirs from then on. (`leader` is a member of JoinGroup.)"""
RETRIABLE = {5, 6, 14, 15, 16, 51}
"""Error codes that say "not yet": the client sends the request again."""
_RETRY_S = 0.02
_CONTROL = 0x20
_MARKER = slice(5, 9)
"""Where a control record has its version and its type; times, and epochs of coordinators, differ."""
_CRC_AT, _CRC_FROM, _PRODUCER_ID_AT, _HEADER = 17, 21, 43, 61


PRESENT = "present"


class Difference(NamedTuple):
    """A field of a response that differs, or an item of a list that one of them has."""

    api: str
    path: str
    theirs: object
    ours: object


class Exchange(NamedTuple):
    """A request, or the response to it; None: not this one."""

    connection: int
    request: Request
    response: Any = None
    is_response: bool = False


def read_transcript(name: str) -> list[Exchange]:
    """Return the requests and responses of a transcript in their order, without those that were answered "not yet"."""
    exchanges: list[Exchange] = []
    sent: dict[int, list[int]] = defaultdict(list)
    skipped: set[int] = set()
    for line in (HERE / f"{name}.jsonl").read_text().splitlines():
        connection, kind, data = json.loads(line)
        frame = base64.b64decode(data)
        if kind == "request":
            request = decode_request(frame)
            assert request.message is not None
            if request.key != ApiKey.PRODUCE or request.message.acks:
                sent[connection].append(len(exchanges))
            exchanges.append(Exchange(connection, request))
            continue
        place = sent[connection].pop(0)
        request = exchanges[place].request
        response = decode_response(request, frame)
        if not RETRIABLE.isdisjoint(error_codes(response)):
            skipped.add(place)
        else:
            exchanges.append(Exchange(connection, request, response, True))
    unanswered = {place for places in sent.values() for place in places}
    return [one for place, one in enumerate(exchanges) if place not in skipped | unanswered]


def decode_response(request: Request, frame: bytes) -> Any:
    """Decode a response, without its size, to a request."""
    assert struct.unpack_from(">i", frame)[0] == request.correlation_id
    codec = response_codec(request.key, request.version)
    return codec.schema.decode(frame[5 if codec.flexible and request.key != ApiKey.API_VERSIONS else 4 :])


def error_codes(message: Any) -> set[int]:
    """Return all error codes of a message."""
    return {value for path, value in fields(message) if path.endswith("error_code")}


_NAMES = ("name", "topic", "partition_index", "partition", "api_key", "group_id", "key", "node_id")
"""Fields that tell the items of a list apart."""


def fields(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the plain values of a message with their paths; items of lists are named where they have names."""
    if hasattr(value, "_fields"):
        for name, item in value._asdict().items():
            yield from fields(item, f"{path}.{name}" if path else name)
    elif isinstance(value, (tuple, list)):
        for number, item in enumerate(value):
            names = [getattr(item, name) for name in _NAMES if hasattr(item, name)]
            yield from fields(item, f"{path}[{names[0] if names and names[0] != '' else number}]")
    else:
        yield path, bytes(value) if isinstance(value, memoryview) else value


def _sorted(value: Any) -> Any:
    """Return a message with its lists in an order of their own, where Kafka promises none."""
    if hasattr(value, "_fields"):
        return value._replace(**{name: _sorted(item) for name, item in value._asdict().items()})
    return tuple(sorted(map(_sorted, value), key=repr)) if isinstance(value, (tuple, list)) else value


class Batch(NamedTuple):
    """What a fetched record batch says."""

    base_offset: int
    last_delta: int
    attributes: int
    times: tuple[int, int]
    producer_id: object
    producer_epoch: int
    base_sequence: int
    records: bytes


def batches(data: bytes) -> Iterator[Batch]:
    """Yield the whole record batches of a fetch."""
    at = 0
    while at + _HEADER <= len(data):
        base, size = struct.unpack_from(">qi", data, at)
        if at + 12 + size > len(data):
            return
        attributes, last, first_ms, last_ms, producer, epoch, sequence, _ = struct.unpack_from(
            ">hiqqqhii", data, at + 21
        )
        yield Batch(
            base, last, attributes, (first_ms, last_ms), producer, epoch, sequence, data[at + _HEADER : at + 12 + size]
        )
        at += 12 + size


class Replay:
    """Sends the requests of a transcript to a listener.

    Args:
        address: of the listener, host and port.
    """

    def __init__(self, address: tuple[str, int]) -> None:
        self._address = address
        self._sockets: dict[int, socket.socket] = {}
        self._streams: dict[int, BinaryIO] = {}
        self._ours: dict[tuple[str, object], object] = {}
        self.differences: list[Difference] = []
        self.fetched: dict[tuple[object, int], tuple[dict[int, Batch], dict[int, Batch]]] = defaultdict(
            lambda: ({}, {})
        )
        """What was fetched of each partition by base offset: theirs, and ours."""

    def run(self, exchanges: list[Exchange]) -> None:
        """Send all requests, and compare the responses with those of the transcript."""
        for connection, request, response, is_response in exchanges:
            if is_response:
                self._compare(request, response, self._receive(connection, request))
            else:
                self._send(connection, request)

    def _send(self, connection: int, request: Request) -> None:
        codec = request_codec(request.key, request.version)
        body = codec.schema.encode(self._translated(request.message))
        client = (request.client_id or "").encode()
        head = struct.pack(">hhi", request.key, request.version, request.correlation_id)
        head += struct.pack(">h", -1) if request.client_id is None else struct.pack(">h", len(client)) + client
        head += b"\0" if codec.flexible else b""
        if connection not in self._sockets:
            self._sockets[connection] = socket.create_connection(self._address, PATIENCE_S)
            self._streams[connection] = self._sockets[connection].makefile("rb")
        self._sockets[connection].sendall(struct.pack(">i", len(head) + len(body)) + head + body)

    def _receive(self, connection: int, request: Request) -> Any:
        """Receive a response; ask again while it says "not yet"."""
        deadline_s = time.monotonic() + PATIENCE_S
        while True:
            stream = self._streams[connection]
            (size,) = struct.unpack(">i", stream.read(4))
            response = decode_response(request, stream.read(size))
            if RETRIABLE.isdisjoint(error_codes(response)) or time.monotonic() > deadline_s:
                return response
            time.sleep(_RETRY_S)
            self._send(connection, request)

    def _translated(self, value: Any, name: str = "") -> Any:
        """Return a message with our identities in place of theirs."""
        if hasattr(value, "_fields"):
            return value._replace(**{name: self._translated(item, name) for name, item in value._asdict().items()})
        if isinstance(value, (tuple, list)):
            return tuple(self._translated(item, name) for item in value)
        if name == "records" and value is not None:
            return self._with_our_producer(bytearray(value))
        kind = _IDENTITY.search(name)
        return value if kind is None else self._ours.get((kind[1], value), value)

    def _with_our_producer(self, data: bytearray) -> bytes:
        (producer,) = struct.unpack_from(">q", data, _PRODUCER_ID_AT)
        struct.pack_into(">q", data, _PRODUCER_ID_AT, self._ours.get(("producer_id", producer), producer))
        struct.pack_into(">I", data, _CRC_AT, crc32c(bytes(data[_CRC_FROM:])))
        return bytes(data)

    def _compare(self, request: Request, theirs: Any, ours: Any) -> None:
        api = ApiKey(request.key).name
        if request.key == ApiKey.FETCH:
            theirs, ours = self._without_records(theirs, 0), self._without_records(ours, 1)
        expected, found = dict(fields(_sorted(theirs))), dict(fields(_sorted(ours)))
        missing = {
            path.rpartition(".")[0] if path.rpartition(".")[0].endswith("]") else path
            for path in {*expected} ^ {*found}
        }
        for path in sorted(missing):
            is_theirs = any(one.startswith(path) for one in expected)
            self.differences.append(Difference(api, path, *((PRESENT, None) if is_theirs else (None, PRESENT))))
        for path in sorted({*expected} & {*found}):
            if not self._is_same(path, expected[path], found[path]):
                self.differences.append(Difference(api, path, expected[path], found[path]))

    def _is_same(self, path: str, theirs: object, ours: object) -> bool:
        kind = _IDENTITY.search(path)
        if kind is None or theirs in (-1, "", None, bytes(16)):
            return theirs == ours
        return self._ours.setdefault((kind[1], theirs), ours) == ours

    def _without_records(self, response: Any, side: int) -> Any:
        topics = []
        for topic in response.responses:
            for partition in topic.partitions:
                name = topic.topic or self._ours.get(("topic_id", topic.topic_id), topic.topic_id)
                for batch in batches(bytes(partition.records or b"")):
                    if not side:
                        batch = batch._replace(
                            producer_id=self._ours.get(("producer_id", batch.producer_id), batch.producer_id)
                        )
                    if batch.attributes & _CONTROL:
                        batch = batch._replace(times=(0, 0), records=batch.records[_MARKER])
                    self.fetched[name, partition.partition_index][side][batch.base_offset] = batch
            topics.append(topic._replace(partitions=tuple(one._replace(records=None) for one in topic.partitions)))
        return response._replace(responses=tuple(topics))

    def close(self) -> None:
        """End all connections."""
        for one in (*self._streams.values(), *self._sockets.values()):
            one.close()
