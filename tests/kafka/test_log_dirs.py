"""DescribeLogDirs: what the directories of a broker hold."""

from __future__ import annotations

import os
import warnings
from pathlib import Path
from random import Random
from typing import Any

import pyreplog.kafka
from pyreplog.kafka.wire.messages import DescribeLogDirsDescribableLogDirTopic, DescribeLogDirsRequest
from pyreplog.kafka.wire.schema import ApiKey
from pyreplog.metadata.sqlite import SQLiteStore
from pyreplog.partition.broker import Broker
from pyreplog.partition.config import BrokerConfig
from pyreplog.partition.protocol.error_codes import ErrorCode
from pyreplog.record_batches.batches import build_batch
from tests.kafka.kafka_brokers import KafkaBrokers, RawClient, produce
from tests.waiting import until

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)  # it reads its files with importlib.resources.read_text
    from kafka import KafkaAdminClient

SEGMENT_BYTES = 1 << 16


def taken(path: Path) -> int:
    """Bytes of the files of all replicas below a directory."""
    logs = [each for each in path.iterdir() if each.is_dir()]
    return sum(file.stat().st_blocks * 512 for log in logs for file in log.rglob("*") if file.is_file())


def sizes(result: Any) -> dict[tuple[str, int], int]:
    return {
        (topic.name, each.partition_index): each.partition_size for topic in result.topics for each in topic.partitions
    }


def test_the_sizes_are_those_of_the_files(tmp_path: Path, seed: int) -> None:
    with KafkaBrokers(tmp_path, broker_settings={"segment_bytes": SEGMENT_BYTES}) as brokers:
        brokers.start("1")
        brokers.create("events", partitions=2)
        brokers.create("others")
        rng, sent = Random(seed), 0
        with RawClient(brokers.servers["1"]) as client:
            for _ in range(10):
                batch = build_batch([rng.randbytes(rng.randrange(10_000, 20_000))], timestamps_ms=[1])
                assert not client.ask(ApiKey.PRODUCE, 9, produce(batch)).responses[0].partition_responses[0].error_code
                sent += len(batch)
            for version in range(1, 5):
                (result,) = client.ask(ApiKey.DESCRIBE_LOG_DIRS, version, DescribeLogDirsRequest(None)).results
                assert result.log_dir == str(tmp_path / "1") and not result.error_code
                found = sizes(result)
                assert found.keys() == {("events", 0), ("events", 1), ("others", 0)}
                assert found["events", 0] >= sent and min(found.values()) > 0
                assert not any(each.offset_lag or each.is_future_key for t in result.topics for each in t.partitions)
                room = os.statvfs(tmp_path)
                assert result.total_bytes == (room.f_blocks * room.f_frsize if version >= 4 else -1)
                assert (0 < result.usable_bytes < result.total_bytes) if version >= 4 else result.usable_bytes == -1

            def are_real() -> bool:  # segments are prepared in the background
                answer = client.ask(ApiKey.DESCRIBE_LOG_DIRS, 4, DescribeLogDirsRequest(None))
                return sum(sizes(answer.results[0]).values()) == taken(tmp_path / "1")

            until(are_real)
            wanted = (
                DescribeLogDirsDescribableLogDirTopic("events", (1, 9)),
                DescribeLogDirsDescribableLogDirTopic("x"),
            )
            (result,) = client.ask(ApiKey.DESCRIBE_LOG_DIRS, 4, DescribeLogDirsRequest(wanted)).results
            assert sizes(result).keys() == {("events", 1)}
            (result,) = client.ask(ApiKey.DESCRIBE_LOG_DIRS, 4, DescribeLogDirsRequest(())).results
            assert not result.topics and not result.error_code


def test_describe_log_dirs_reports_a_failed_disk(tmp_path: Path) -> None:
    broken, works = tmp_path / "a file", tmp_path / "works"
    broken.write_bytes(b"no directory")
    config = BrokerConfig(segment_bytes=SEGMENT_BYTES)
    with (
        SQLiteStore(tmp_path / "metadata") as store,
        Broker(tmp_path / "1", "1", store, config=config, directories=[broken, works]) as broker,
        pyreplog.kafka.Server(broker) as server,
        RawClient(server) as client,
    ):
        results = client.ask(ApiKey.DESCRIBE_LOG_DIRS, 4, DescribeLogDirsRequest(None)).results
        assert [(each.log_dir, each.error_code) for each in results] == [
            (str(tmp_path / "1"), 0),
            (str(broken), ErrorCode.KAFKA_STORAGE_ERROR),
            (str(works), 0),
        ]
        assert [each.total_bytes > 0 for each in results] == [True, False, True]


def test_kafka_python_describes_log_dirs(tmp_path: Path) -> None:
    with KafkaBrokers(tmp_path) as brokers:
        brokers.start("1", "2")
        brokers.create(replication_factor=2)
        admin = KafkaAdminClient(bootstrap_servers=brokers.addresses)
        try:
            text = until(lambda: text if (text := str(admin.describe_log_dirs())).count("events") == 2 else "")
            assert str(tmp_path / "1") in text and str(tmp_path / "2") in text
        finally:
            admin.close()
