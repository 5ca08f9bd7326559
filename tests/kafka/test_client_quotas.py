"""Quotas over the wire: what is answered, and how long a client is not read."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer

from pyreplog.kafka import SaslUsers
from pyreplog.kafka.metrics import kafka_metrics
from pyreplog.kafka.quotas.client_quotas import QuotaEntity, alter_client_quota
from pyreplog.kafka.wire.messages import (
    AlterClientQuotasEntityData,
    AlterClientQuotasEntryData,
    AlterClientQuotasOpData,
    AlterClientQuotasRequest,
    DescribeClientQuotasComponentData,
    DescribeClientQuotasRequest,
    MetadataRequest,
)
from pyreplog.kafka.wire.schema import ApiKey
from pyreplog.partition.protocol.error_codes import ErrorCode
from pyreplog.record_batches.batches import build_batch
from tests.kafka.kafka_brokers import KafkaBrokers, RawClient, encode_request, fetch, frame, produce
from tests.waiting import PATIENCE_S, until

Code = ErrorCode
NOTHING = MetadataRequest(())


@pytest.fixture
def brokers(tmp_path: Path) -> Iterator[KafkaBrokers]:
    with KafkaBrokers(tmp_path) as cluster:
        cluster.start("1")
        cluster.create()
        yield cluster


@pytest.fixture
def client(brokers: KafkaBrokers) -> Iterator[RawClient]:
    with RawClient(brokers.servers["1"]) as raw:
        yield raw


def entry(entity: dict[str, str | None], **quotas: float | None) -> AlterClientQuotasEntryData:
    return AlterClientQuotasEntryData(
        tuple(AlterClientQuotasEntityData(kind.replace("_", "-"), name) for kind, name in entity.items()),
        tuple(AlterClientQuotasOpData(kind, value or 0.0, value is None) for kind, value in quotas.items()),
    )


def alter(client: RawClient, *entries: AlterClientQuotasEntryData, validate_only: bool = False) -> list[int]:
    response = client.ask(ApiKey.ALTER_CLIENT_QUOTAS, 1, AlterClientQuotasRequest(entries, validate_only))
    assert [each.entity for each in response.entries] == [each.entity for each in entries]
    return [each.error_code for each in response.entries]


def describe(client: RawClient, *components: tuple[str, int, str | None], strict: bool = False) -> Any:
    filters = tuple(DescribeClientQuotasComponentData(*component) for component in components)
    response = client.ask(ApiKey.DESCRIBE_CLIENT_QUOTAS, 1, DescribeClientQuotasRequest(filters, strict))
    if response.error_code:
        assert response.entries is None
        return response.error_code
    return [
        ({part.entity_type: part.entity_name for part in each.entity}, {item.key: item.value for item in each.values})
        for each in response.entries
    ]


# ---- settings -------------------------------------------------------------------------------------------------


def test_quotas_are_altered_and_described(client: RawClient) -> None:
    both = {"user": "u", "client-id": "c"}
    assert alter(
        client,
        entry({"user": "u"}, producer_byte_rate=1e9, request_percentage=50.5),
        entry({"user": None}, consumer_byte_rate=2e9),
        entry(both, producer_byte_rate=3e9),
        entry({"client-id": "c"}, producer_byte_rate=4e9),
    ) == [0, 0, 0, 0]
    of_user = ({"user": "u"}, {"producer_byte_rate": 1e9, "request_percentage": 50.5})
    by_default, of_both = ({"user": None}, {"consumer_byte_rate": 2e9}), (both, {"producer_byte_rate": 3e9})
    of_client = ({"client-id": "c"}, {"producer_byte_rate": 4e9})
    assert describe(client) == [of_client, by_default, of_user, of_both]
    assert describe(client, strict=True) == []
    assert describe(client, ("user", 0, "u")) == [of_user, of_both]
    assert describe(client, ("user", 0, "u"), strict=True) == [of_user]
    assert describe(client, ("user", 1, None)) == [by_default]
    assert describe(client, ("user", 2, None)) == [by_default, of_user, of_both]
    assert describe(client, ("user", 2, None), ("client-id", 2, None)) == [of_both]
    assert describe(client, ("client-id", 0, "c"), strict=True) == [of_client]
    assert describe(client, ("ip", 2, None)) == []
    assert alter(client, entry({"user": "u"}, producer_byte_rate=None), entry(both, producer_byte_rate=None)) == [0, 0]
    assert describe(client, ("user", 0, "u")) == [({"user": "u"}, {"request_percentage": 50.5})]


def test_quotas_that_are_only_validated_are_not_stored(client: RawClient) -> None:
    assert alter(client, entry({"user": "u"}, producer_byte_rate=1), validate_only=True) == [0]
    assert alter(client, entry({"user": "u"}, producer_byte_rate=0.5), validate_only=True) == [Code.INVALID_REQUEST]
    assert describe(client) == []


REFUSED = {
    "no entity": entry({}, producer_byte_rate=1),
    "an address": entry({"ip": "127.0.0.1"}, connection_creation_rate=1),
    "a group": entry({"group": "g"}, producer_byte_rate=1),
    "an empty name": entry({"user": ""}, producer_byte_rate=1),
    "a kind that is not served": entry({"user": "u"}, controller_mutation_rate=1),
    "nothing": entry({"user": "u"}, producer_byte_rate=0),
    "half a byte": entry({"user": "u"}, consumer_byte_rate=1.5),
    "two users": AlterClientQuotasEntryData((AlterClientQuotasEntityData("user", "u"),) * 2, ()),
    "a kind twice": entry({"user": "u"})._replace(ops=(AlterClientQuotasOpData("request_percentage", 1.0, False),) * 2),
}


def test_quotas_that_cannot_be_are_refused_and_others_are_stored(client: RawClient) -> None:
    codes = alter(client, *REFUSED.values(), entry({"user": "good"}, producer_byte_rate=1))
    assert codes == [Code.INVALID_REQUEST] * len(REFUSED) + [0]
    twice = entry({"user": "v"}, producer_byte_rate=1)
    assert alter(client, twice, twice) == [Code.INVALID_REQUEST] * 2
    assert [entity for entity, _ in describe(client)] == [{"user": "good"}]


def test_filters_that_mean_nothing_are_refused(client: RawClient) -> None:
    assert describe(client, ("user", 0, None)) == Code.INVALID_REQUEST
    assert describe(client, ("user", 1, "u")) == Code.INVALID_REQUEST
    assert describe(client, ("user", 3, None)) == Code.INVALID_REQUEST
    assert describe(client, ("user", 2, None), ("user", 2, None)) == Code.INVALID_REQUEST
    assert describe(client, ("user", 2, None), ("ip", 2, None)) == Code.INVALID_REQUEST
    assert describe(client, ("group", 2, None)) == Code.UNSUPPORTED_VERSION


def test_all_brokers_know_of_a_quota_also_later_ones(tmp_path: Path) -> None:
    with KafkaBrokers(tmp_path) as brokers:
        brokers.start("1", "2")
        with RawClient(brokers.servers["1"]) as one, RawClient(brokers.servers["2"]) as two:
            assert alter(one, entry({"user": "u"}, producer_byte_rate=7)) == [0]
            quotas = [({"user": "u"}, {"producer_byte_rate": 7.0})]
            assert describe(one) == quotas, "the broker that changed it knows it when it answers"
            until(lambda: describe(two) == quotas)
        brokers.start("3")
        with RawClient(brokers.servers["3"]) as three:
            until(lambda: describe(three) == quotas)


# ---- what they do ---------------------------------------------------------------------------------------------


def records(size: int) -> bytes:
    return build_batch([b"x" * size], timestamps_ms=[1])


def test_a_produce_above_the_quota_is_answered_at_once_and_then_nothing_is_read(client: RawClient) -> None:
    """100,000 bytes are free at once, and the next ones come at 10,000 a second."""
    assert alter(client, entry({"client-id": "raw"}, producer_byte_rate=10_000)) == [0]
    began_s = time.monotonic()
    free = client.ask(ApiKey.PRODUCE, 9, produce(records(90_000)))
    assert free.throttle_time_ms == 0
    above = client.send(ApiKey.PRODUCE, 9, produce(records(12_000)))
    behind = client.send(ApiKey.METADATA, 9, NOTHING)  # it may be on its way already
    response = client.answer(ApiKey.PRODUCE, 9, above)
    assert response.responses[0].partition_responses[0].base_offset == 1
    if time.monotonic() - began_s < 1:  # else the machine was too slow for the numbers
        assert 200 <= response.throttle_time_ms <= 300
    client.answer(ApiKey.METADATA, 9, behind)
    assert time.monotonic() - began_s >= response.throttle_time_ms / 1000, "the next request was read too early"


def is_muted(client: RawClient, other: RawClient) -> bool:
    """Whether a request of one connection is not answered, though later ones of another are."""
    client.send(ApiKey.METADATA, 9, NOTHING)
    for _ in range(3):
        other.ask(ApiKey.METADATA, 9, NOTHING)
    client.socket.settimeout(0.2)
    try:
        client.receive()
    except TimeoutError:
        return True
    return False


@pytest.mark.parametrize("acks", [0, 1])
def test_throttled_connection_is_muted_and_others_are_served(
    brokers: KafkaBrokers, client: RawClient, acks: int
) -> None:
    with RawClient(brokers.servers["1"]) as other:
        assert alter(other, entry({"client-id": "raw"}, producer_byte_rate=1)) == [0]
        sent = client.send(ApiKey.PRODUCE, 9, produce(records(1_000), acks=acks))
        if acks:
            assert client.answer(ApiKey.PRODUCE, 9, sent).throttle_time_ms > 900_000
        assert is_muted(client, other)


def test_requests_that_were_read_already_wait_too(brokers: KafkaBrokers, client: RawClient) -> None:
    with RawClient(brokers.servers["1"]) as other:
        assert alter(other, entry({"client-id": "raw"}, producer_byte_rate=1)) == [0]
        requests = [encode_request(ApiKey.PRODUCE, 9, number, produce(records(1_000))) for number in (7, 8)]
        client.socket.sendall(b"".join(map(frame, requests)))
        client.answer(ApiKey.PRODUCE, 9, 7)
        assert is_muted(client, other)
        partition = brokers.brokers["1"].partition("events", 0)
        assert partition is not None and partition.high_watermark.entry == 1


def test_fetch_is_limited_to_the_free_quota_and_returns_its_throttle_time(client: RawClient) -> None:
    for _ in range(5):
        client.ask(ApiKey.PRODUCE, 9, produce(records(40_000)))
    assert alter(client, entry({"client-id": "raw"}, consumer_byte_rate=10_000)) == [0]
    response = client.ask(ApiKey.FETCH, 11, fetch(0, min_bytes=190_000, max_wait_ms=60_000, max_bytes=1 << 20))
    size = len(response.responses[0].partitions[0].records)
    assert 80_000 <= size <= 100_000 and response.throttle_time_ms == 0, "no more than is free in ten seconds"
    began_s = time.monotonic()
    response = client.ask(ApiKey.FETCH, 11, fetch(2, max_bytes=22_000))  # a batch at least
    if time.monotonic() - began_s < 1:
        assert 1_000 <= response.throttle_time_ms <= 2_200


def test_the_time_of_requests_has_a_quota(brokers: KafkaBrokers, client: RawClient) -> None:
    assert alter(client, entry({"user": None}, request_percentage=1e-9)) == [0]
    began_s = time.monotonic()
    throttle_ms = client.ask(ApiKey.METADATA, 9, NOTHING).throttle_time_ms
    assert throttle_ms == 1_000, "a second at most"
    client.ask(ApiKey.METADATA, 9, NOTHING)
    assert time.monotonic() - began_s >= 1
    told = {
        (metric.name, labels["quota"]): value
        for metric in kafka_metrics(brokers.servers["1"])
        for labels, value in metric.samples
        if "quota" in labels
    }
    assert told["pyreplog_kafka_throttles", "request_percentage"] >= 2
    assert told["pyreplog_kafka_throttle_seconds", "request_percentage"] >= 2.0
    assert told["pyreplog_kafka_throttles", "producer_byte_rate"] == 0


def test_confluent_producer_is_throttled_by_the_quota_of_its_user(tmp_path: Path) -> None:
    throttles: list[Any] = []
    with KafkaBrokers(tmp_path) as brokers:
        brokers.start("1", users=SaslUsers({"billing": "secret"}, ("PLAIN",)))
        brokers.create()
        producer = Producer({
            "bootstrap.servers": brokers.addresses, "security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "PLAIN",
            "sasl.username": "billing", "sasl.password": "secret", "client.id": "c", "throttle_cb": throttles.append,
        })  # fmt: skip
        alter_client_quota(brokers.store, QuotaEntity(client_id="c"), {"producer_byte_rate": 1 << 40})
        alter_client_quota(brokers.store, QuotaEntity(user="billing"), {"producer_byte_rate": 1_000})

        def is_throttled() -> bool:
            producer.produce("events", b"x" * 1_100, partition=0)
            assert producer.flush(PATIENCE_S) == 0
            return bool(throttles)

        until(is_throttled)
        assert throttles[0].throttle_time > 0
