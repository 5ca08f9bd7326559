"""Kafka's own Java client, with its default settings, at topics on ledgers."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from pyreplog.cluster import Cluster
from tests.foreign.java_client import JavaClient
from tests.kafka.kafka_brokers import KafkaBrokers
from tests.kafka.test_java_client import check_equal, draw_records

KEEP: dict[str, Any] = {"retention_bytes": None, "retention_ms": None}


class Setup(NamedTuple):
    cluster: Cluster
    java: JavaClient


@pytest.fixture(scope="module")
def setup(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Setup]:
    path: Path = tmp_path_factory.mktemp("topics")
    with ExitStack() as stack:
        cluster = stack.enter_context(Cluster.embedded(path / "cluster", bookies=1))
        brokers = stack.enter_context(KafkaBrokers(path, rebalance_delay_ms=0, offsets_partitions=2))
        brokers.start("1", topics=cluster.topics)
        yield Setup(cluster, stack.enter_context(JavaClient(brokers.addresses, path)))


@pytest.mark.parametrize("deduplicate", [True, False])
@pytest.mark.parametrize("codec", ["none", "zstd"])
def test_records_of_a_default_producer_reach_a_group(setup: Setup, codec: str, deduplicate: bool, seed: int) -> None:
    """The default is an idempotent producer with acks=all. Records have null values, and headers of one name."""
    topic = f"codec-{codec}-{deduplicate}"
    setup.cluster.topic(topic, partitions=2, deduplicate=deduplicate, **KEEP)
    records = draw_records(seed, 400)
    places = setup.java.produce(topic, records, compression_type=codec)
    check_equal(setup.java.consume(topic, f"group-{topic}", len(records)), records, places)


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_a_group_goes_on_where_it_was(setup: Setup, protocol: str, seed: int) -> None:
    setup.cluster.topic(f"resumed-{protocol}", **KEEP)
    records = draw_records(seed, 20, partitions=1)
    setup.java.produce(f"resumed-{protocol}", records)
    settings = {"max_poll_records": 4, "group_protocol": protocol}
    first = setup.java.consume(f"resumed-{protocol}", protocol, 8, **settings)
    second = setup.java.consume(f"resumed-{protocol}", protocol, 12, **settings)
    assert [record.offset for record in first + second] == list(range(20))
