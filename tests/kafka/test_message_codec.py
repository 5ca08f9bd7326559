"""Every API in every version that is announced, against the schemas of kio and kafka-python."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest

from pyreplog.kafka.wire.codec import MessageCodec, request_codec, response_codec, served_versions
from pyreplog.kafka.wire.schema import ANNOUNCED, ApiKey
from tests.kafka.foreign import (
    NOT_IN_KAFKA_PYTHON,
    differences,
    kafka_python_class,
    kafka_python_encode,
    kafka_python_plain,
    kio_class,
    kio_decode,
    kio_encode,
    kio_plain,
    kio_value,
)

KINDS = {"Request": request_codec, "Response": response_codec}
MESSAGES = [(key, version, kind) for key in ApiKey for version in served_versions(key) for kind in KINDS]
NAMES = [f"{key.name.lower()}-{version}-{kind.lower()}" for key, version, kind in MESSAGES]
ROUNDS = 8


def codec_of(key: int, version: int, kind: str) -> MessageCodec:
    return KINDS[kind](key, version)


def type_name(key: ApiKey, version: int, kind: str) -> str:
    return codec_of(key, version, kind).schema.type.__name__


def test_announced_versions_are_served() -> None:
    """Produce 0 to 2 are announced, and not served: librdkafka 2.3 compresses only if it sees them (KAFKA-18659)."""
    assert {key: range(first, last + 1) for key, (first, last) in ANNOUNCED.items() if key} == {
        int(key): served_versions(key) for key in ApiKey if key
    }
    assert ANNOUNCED[ApiKey.PRODUCE] == (0, 11) and served_versions(ApiKey.PRODUCE) == range(3, 12)
    assert len(MESSAGES) > 350


@pytest.mark.parametrize(("key", "version", "kind"), MESSAGES, ids=NAMES)
def test_messages_of_kio_are_decoded_and_encoded(key: ApiKey, version: int, kind: str, seed: int) -> None:
    """What kio encodes is decoded to the same values, and encoded to the same bytes."""
    rng = Random(f"{seed} {key} {version} {kind}")
    codec, cls = codec_of(key, version, kind), kio_class(key, version, kind)
    assert codec.flexible == cls.__flexible__
    for _ in range(ROUNDS):
        value = kio_value(cls, rng)
        data = kio_encode(value)
        message = codec.schema.decode(data)
        assert not differences(message, kio_plain(value))
        assert codec.schema.encode(message) == data
        assert kio_decode(cls, codec.schema.encode(message)) == value


IN_KAFKA_PYTHON = [
    (key, version, kind)
    for key, version, kind in MESSAGES
    if type_name(key, version, kind).removesuffix(kind) not in NOT_IN_KAFKA_PYTHON
]


def test_kafka_python_lacks_what_is_not_compared_with_it() -> None:
    for name in NOT_IN_KAFKA_PYTHON:
        for kind in KINDS:
            with pytest.raises(ValueError, match="not enough values"):
                kafka_python_class(name + kind)
    assert len(IN_KAFKA_PYTHON) >= len(MESSAGES) - 8


@pytest.mark.parametrize(
    ("key", "version", "kind"),
    IN_KAFKA_PYTHON,
    ids=[name for name, message in zip(NAMES, MESSAGES, strict=True) if message in IN_KAFKA_PYTHON],
)
def test_messages_of_kafka_python_are_decoded_and_encoded(key: ApiKey, version: int, kind: str, seed: int) -> None:
    """kafka-python encodes our values to our bytes, and decodes these to the same values."""
    rng = Random(f"{seed} {key} {version} {kind}")
    codec = codec_of(key, version, kind)
    name = codec.schema.type.__name__
    for _ in range(ROUNDS):
        message: Any = codec.schema.decode(kio_encode(kio_value(kio_class(key, version, kind), rng)))
        data = codec.schema.encode(message)
        assert kafka_python_encode(name, version, message) == data
        if name != "ApiVersionsResponse" or not message.error_code:  # these it takes for version 0, whatever they are
            assert not differences(message, kafka_python_plain(name, version, data))
