"""Requests of every announced API and version with values at random: a listener answers them by the schema, or closes the
connection for a reason that it can name."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest

from pyreplog.kafka.apis.api_versions import versions_of
from pyreplog.kafka.apis.registry import APIS
from pyreplog.kafka.wire.codec import request_codec, response_codec
from pyreplog.kafka.wire.messages import ApiVersionsRequest, FetchReplicaState
from pyreplog.kafka.wire.schema import ApiKey
from tests.kafka.foreign import differences, is_struct, kio_class, kio_decode, kio_encode, kio_plain, kio_value
from tests.kafka.kafka_brokers import KafkaBrokers, RawClient

ROUNDS = 4
WAIT_MS = 50


@pytest.fixture(scope="module")
def brokers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaBrokers]:
    settings: dict[str, Any] = {"fetch_wait_ms": WAIT_MS, "rebalance_delay_ms": 0, "offsets_partitions": 1}
    path: Path = tmp_path_factory.mktemp("random")
    with KafkaBrokers(path, broker_settings={"transaction_state_partitions": 1}, **settings) as cluster:
        cluster.start("1")
        cluster.create("topic-1", partitions=2)
        yield cluster


def impatient(value: Any) -> Any:
    """The message with short time-outs, and as it is otherwise."""
    if is_struct(value):
        changed = {name: impatient(item) for name, item in value._asdict().items()}
        for name, item in changed.items():
            if name.endswith(("timeout_ms", "wait_ms")) and isinstance(item, int):
                changed[name] = min(item, WAIT_MS)
        return value._replace(**changed)
    return tuple(map(impatient, value)) if isinstance(value, tuple) else value


def drawn(key: ApiKey, version: int, rng: Random) -> Any:
    """Draw a request that gets an answer, whatever it is: a produce with acks, a fetch of a consumer."""
    codec = request_codec(key, version)
    message = impatient(codec.schema.decode(kio_encode(kio_value(kio_class(key, version, "Request"), rng))))
    if key == ApiKey.PRODUCE and message.acks == 0:
        return message._replace(acks=1)
    if key == ApiKey.FETCH:
        return message._replace(replica_id=-1, replica_state=FetchReplicaState())
    return message


def check_answer(client: RawClient, key: ApiKey, version: int, correlation_id: int) -> None:
    """Raises ConnectionError: the listener has closed the connection."""
    data, codec = client.receive(), response_codec(key, version)
    assert int.from_bytes(data[:4], "big") == correlation_id
    data = data[5 if codec.flexible and key != ApiKey.API_VERSIONS else 4 :]
    message = codec.schema.decode(data)
    if key != ApiKey.DESCRIBE_TRANSACTIONS:  # kio refuses a start of -1, which says that there is no transaction
        assert not differences(message, kio_plain(kio_decode(kio_class(key, version, "Response"), data)))
    assert codec.schema.encode(message) == data


@pytest.mark.parametrize("key", sorted(APIS), ids=lambda key: ApiKey(key).name.lower())
def test_requests_at_random_are_answered_by_their_schema(
    brokers: KafkaBrokers, key: ApiKey, seed: int, caplog: pytest.LogCaptureFixture
) -> None:
    rng, answers, tried = Random(f"{seed} {key}"), 0, 0
    first, last = versions_of(key)
    caplog.set_level(logging.WARNING, "pyreplog")
    for version in range(3 if key == ApiKey.PRODUCE else first, last + 1):
        for _ in range(ROUNDS):
            with RawClient(brokers.servers["1"]) as client:
                message = drawn(key, version, rng)
                tried += 1
                try:
                    check_answer(client, key, version, client.send(key, version, message))
                    answers += 1
                except ConnectionError:
                    continue
    assert "a request failed" not in caplog.text and "Traceback" not in caplog.text
    assert "an append failed" not in caplog.text and "cannot be encoded" not in caplog.text
    assert answers >= tried // 4 or key in (ApiKey.SASL_HANDSHAKE, ApiKey.SASL_AUTHENTICATE)
    with RawClient(brokers.servers["1"]) as client:
        assert client.ask(ApiKey.API_VERSIONS, 0, ApiVersionsRequest()).error_code == 0
