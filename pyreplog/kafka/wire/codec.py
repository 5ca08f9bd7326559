"""Encodes and decodes requests and responses of Kafka's protocol, as named tuples of `messages`.

A version that is not served has no schema; `served_versions` returns those that are.
"""

from __future__ import annotations

from functools import cache
from typing import Any, NamedTuple

from pyreplog._native.kafka.message_codec import ITEMS_MAX, StructSchema, decode_header
from pyreplog.errors import InvalidArgumentError
from pyreplog.kafka.wire.messages import CLASSES
from pyreplog.kafka.wire.schema import SCHEMA, ApiKey

_LAST = 32767


class _Line(NamedTuple):
    """A line of the schema table, with the lines indented below it."""

    words: list[str]
    below: list[_Line]


def _range(text: str) -> range:
    first, _, last = text.partition("-")
    return range(int(first), int(last or _LAST) + 1)


@cache
def _messages() -> dict[tuple[int, str], _Line]:
    """Return the messages of the schema table by API key and direction."""
    root = _Line([], [])
    stack = [root]
    for text in SCHEMA.splitlines():
        depth = len(text) - len(text.lstrip())
        line = _Line(text.split(), [])
        del stack[depth + 1 :]
        stack[depth].below.append(line)
        stack.append(line)
    kinds = ("Request", "Response")
    return {(int(line.words[1]), kind): line for line in root.below for kind in kinds if line.words[0].endswith(kind)}


def _field(line: _Line, default: object, version: int, label: str, flexible: bool) -> tuple[Any, ...]:
    name, kind, versions, *flags = line.words
    array = kind.startswith("[]")
    kind = kind.removeprefix("[]")
    present = version in _range(versions)
    child = _struct(line.below, kind, version, label, flexible) if present and kind in CLASSES else None
    nullable = "null" in flags and version in _range(flags[flags.index("null") + 1])
    tag = int(flags[flags.index("tag") + 1]) if "tag" in flags else -1
    wire_kind = "struct" if kind in CLASSES else kind
    return name, wire_kind, array, child, nullable, tag, present, "ignorable" in flags, default


def _struct(lines: list[_Line], name: str, version: int, label: str, flexible: bool) -> StructSchema:
    owner = CLASSES[name]
    fields: list[Any] = [_field(*line, version, label, flexible) for line in zip(lines, owner(), strict=True)]
    return StructSchema(label, owner, fields, flexible)


class MessageCodec:
    """Decodes and encodes one message of an API in one version; see `request_codec` and `response_codec`.

    Attributes:
        key: key of the API.
        version: version of the API.
        flexible: whether the version has tagged fields, also in headers.
        schema: schema of the message.
    """

    __slots__ = ("flexible", "key", "schema", "version")

    def __init__(self, key: int, version: int, kind: str) -> None:
        line = _messages().get((key, kind))
        if line is None or version not in _range(line.words[2]):
            raise InvalidArgumentError(
                f"expected an API and version that are served, found key {key} version {version}"
            )
        self.key, self.version = key, version
        self.flexible = "flexible" in line.words and version in _range(line.words[-1])
        label = f"{line.words[0].removesuffix(kind)} v{version} {kind.lower()}"
        self.schema = _struct(line.below, line.words[0], version, label, self.flexible)


@cache
def request_codec(key: int, version: int) -> MessageCodec:
    """Return the codec of an API's requests. Raises InvalidArgumentError if the version is not served."""
    return MessageCodec(key, version, "Request")


@cache
def response_codec(key: int, version: int) -> MessageCodec:
    """Return the codec of an API's responses. Raises InvalidArgumentError if the version is not served."""
    return MessageCodec(key, version, "Response")


class Request(NamedTuple):
    """A decoded request.

    Attributes:
        key: key of the API, which may be unknown.
        version: version of the API.
        correlation_id: number that the response repeats.
        client_id: client id that the client sent; None: none.
        message: a class of `messages`; None: the version is not served, and the rest was not decoded.
    """

    key: int
    version: int
    correlation_id: int
    client_id: str | None
    message: Any


@cache
def _flexible_from() -> dict[int, int]:
    """Return the first flexible version of each API that has one."""
    lines = {key: line for (key, kind), line in _messages().items() if kind == "Request" and "flexible" in line.words}
    return {key: _range(line.words[-1]).start for key, line in lines.items()}


def decode_request(data: bytes | memoryview, *, max_items: int = ITEMS_MAX) -> Request:
    """Decode a request with its header.

    Bytes after the message are ignored, as in Kafka's brokers: librdkafka appends three extra bytes to the Metadata
    request for all topics.

    Args:
        data: the request without its size field. Decoded records are views of it.
        max_items: maximum number of items in all arrays.

    Raises:
        InvalidRequestError: the data is malformed.
    """
    key, version, correlation_id, client_id, start = decode_header(data, _flexible_from())
    message = None
    if version in served_versions(key):
        message, _ = request_codec(key, version).schema.decode_prefix(data, start=start, max_items=max_items)
    return Request(key, version, correlation_id, client_id, message)


def encode_response(key: int, version: int, correlation_id: int, message: Any) -> list[bytes | memoryview]:
    """Encode a response with its size field and header, in pieces to be sent one after the other.

    Records of 4 KiB and more are not copied: they must not change until they are sent. A response of ApiVersions never
    has tagged fields in its header, for clients that do not know the broker's versions yet.

    Raises:
        InvalidArgumentError: the version is not served, or a value is out of range.
        WrongTypeError: a value has the wrong type.
    """
    codec = response_codec(key, version)
    header = correlation_id.to_bytes(4, "big", signed=True)
    if codec.flexible and key != ApiKey.API_VERSIONS:  # KIP-511
        header += b"\0"
    return codec.schema.encode_frame(message, header)


@cache
def served_versions(key: int) -> range:
    """Return the versions of an API that have schemas; an empty range: none."""
    line = _messages().get((key, "Request"))
    return range(0) if line is None else _range(line.words[2])
