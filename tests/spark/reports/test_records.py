"""Reports on records of real logs, topics and ledgers: by both engines, beside plain Python."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import pyreplog
from pyreplog._native.ledger_log.entries import encode_entries
from pyreplog.bookie.ledger_log import LedgerLog
from pyreplog.clock import ManualClock
from pyreplog.config import LogConfig
from pyreplog.reports.catalogue import report_of
from pyreplog.reports.snapshot import Snapshot, TopicSnapshot
from pyreplog.topic.model.positions import ORIGIN
from tests.spark.clusters import SEGMENT, Nodes, corrupt, fill, value_of
from tests.spark.reading import read_table
from tests.spark.reports.both import check
from tests.spark.reports.oracle import ORACLES, Record, partition_skew

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

BEGIN_US = 1_700_000_000_000_000
FACTS = Snapshot(as_of_us=BEGIN_US)
SECRET = b"sixteen bytes it is"
KEYS = (None, b"", b"key 1", b"key 2", b"x" * 70 + b"1", b"x" * 70 + b"2")


class Wavering:
    """A clock that steps back now and then, when it is told to go on; stamps do not follow it there."""

    def __init__(self, rng: random.Random) -> None:
        self._rng, self._now, self._passed = rng, BEGIN_US, 0
        self.stamp = BEGIN_US

    def now_us(self) -> int:
        return self._now

    def monotonic_us(self) -> int:
        self._passed += 1
        return self._passed

    def go_on(self) -> None:
        self._now += self._rng.choice((0, 1_000_000, 30_000_000, 90_000_000, -1, -2_500_000))
        self.stamp = max(self.stamp, self._now)


def values(rng: random.Random, count: int) -> list[bytes]:
    return [bytes([rng.randrange(3)]) * rng.choice((0, 1, 60, 2047, 3001)) for _ in range(count)]


def keys(rng: random.Random, count: int) -> list[bytes | None]:
    return [rng.choice(KEYS) for _ in range(count)]


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory, seed: int) -> tuple[Path, list[Record]]:
    """Several segments."""
    path, rng = tmp_path_factory.mktemp("logs") / "orders", random.Random(seed)
    clock, records = Wavering(rng), list[Record]()
    with pyreplog.open(path, segment_bytes=1 << 16, clock=clock) as log:
        for _ in range(60):
            new_values = values(rng, 5), keys(rng, 5)
            log.append_batch(*new_values)
            for value, key in zip(*new_values, strict=True):
                records.append(Record(len(records), clock.stamp, value, key, topic="orders"))
            clock.go_on()
    return path, records


@pytest.fixture(scope="module")
def topics(tmp_path_factory: pytest.TempPathFactory, seed: int) -> tuple[Path, dict[str, list[Record]]]:
    """A topic of two partitions and one without, in several ledgers each: producers that leave numbers out, and give
    some again, with the same value or another one."""
    path, rng = tmp_path_factory.mktemp("topics") / "data", random.Random(seed)
    clock, records = Wavering(rng), dict[str, list[Record]]()
    with pyreplog.Cluster.embedded(
        path, bookies=1, durability="appended", segment_bytes=SEGMENT, clock=clock
    ) as cluster:
        for name, topic, partition in (("t-partition-0", "t", 0), ("t-partition-1", "t", 1), ("alone", "alone", -1)):
            records[name] = publish(cluster, name, Record(0, topic=topic, partition=partition), rng, clock)
    return path, records


def publish(cluster: pyreplog.Cluster, name: str, like: Record, rng: random.Random, clock: Wavering) -> list[Record]:
    records = list[Record]()
    topic = cluster.topic(name, ensemble=1, durability="appended", roll_entries=4)
    topic.create_subscription("keeps", start="earliest")  # what nobody waits for is trimmed
    for n in range(20):
        producer, count = rng.choice((None, "a", "b")), rng.randrange(1, 12)
        new_values, given = values(rng, count), keys(rng, count)
        sequences = None if producer is None else sorted(rng.sample(range(80), count))
        offsets = (
            topic.publish_batch(new_values, given)
            if producer is None
            else topic.producer(producer).publish_batch(new_values, given, sequences=sequences)
        )
        for at, offset in enumerate(offsets):
            sequence = None if sequences is None else sequences[at]
            records.append(
                like._replace(
                    offset=offset, value=new_values[at], key=given[at], producer=producer,
                    sequence=sequence,
                )
            )  # fmt: skip
        clock.go_on()
        if n in (0, 19):  # in the last ledger, what the first one has
            records += again(topic, like)
    stamps = dict(
        stamp
        for batch in topic.read()
        for stamp in zip(batch.offset.tolist(), batch.publish_time.tolist(), strict=True)
    )
    topic.close()
    return [record._replace(time=stamps[record.offset]) for record in records]


def again(topic: pyreplog.Topic, like: Record) -> list[Record]:
    records = list[Record]()
    for value in (b"once", b"once", b"otherwise"):
        for sequence in (900, 903)[: 2 if value == b"once" else 1]:
            offset = topic.producer("again").publish(value, sequence=sequence)
            records.append(like._replace(offset=offset, value=value, producer="again", sequence=sequence))
    return records


@pytest.mark.parametrize("name", ORACLES)
def test_report_of_a_log_equals_its_oracle(spark: SparkSession, log: tuple[Path, list[Record]], name: str) -> None:
    path, records = log
    check(report_of(name), {"path": str(path)}, FACTS, ORACLES[name](records), spark=spark)


@pytest.mark.parametrize("name", ORACLES)
def test_report_of_topics_equals_its_oracle(
    spark: SparkSession, topics: tuple[Path, dict[str, list[Record]]], name: str
) -> None:
    path, records = topics
    expected = ORACLES[name]([record for some in records.values() for record in some])
    check(report_of(name), {"path": str(path), "topics": "t, alone"}, FACTS, expected, spark=spark)


def test_report_of_an_offset_range_equals_its_oracle(topics: tuple[Path, dict[str, list[Record]]]) -> None:
    path, records = topics
    low, high = len(records["alone"]) // 10, len(records["alone"]) // 2
    some = [record for record in records["alone"] if low <= record.offset < high]
    options = {"path": str(path), "topics": "alone", "startingOffsets": str(low), "endingOffsets": str(high)}
    for name in ORACLES:
        check(report_of(name), options, FACTS, ORACLES[name](some))


def test_partitions_without_records_count(topics: tuple[Path, dict[str, list[Record]]]) -> None:
    path, records = topics
    known = [("t", 0), ("t", 1), ("t", 2), ("alone", -1), ("other", 0)]
    snapshot = Snapshot(
        as_of_us=0,
        topics=tuple(
            TopicSnapshot(name=f"{topic}-{n}", topic=topic, partition=n, start=ORIGIN, end=ORIGIN) for topic, n in known
        ),
    )
    expected = partition_skew([record for some in records.values() for record in some], known)
    assert ("t", 2, 0, 0.0) in [
        tuple(row[k] for k in ("topic", "partition", "entries", "ratio_to_mean")) for row in expected
    ]
    check(report_of("partition_skew"), {"path": str(path), "topicsPattern": ".*"}, snapshot, expected)


def test_logs_of_equal_names_are_reported_separately(tmp_path: Path) -> None:
    """One is older than the other, and lacks its beginning: neither is a fault of a log that both are."""
    records = list[Record]()
    for place, folder in enumerate("ab"):
        clock = ManualClock((1_700_000_000 - place * 10**6) * 10**6)
        with pyreplog.open(tmp_path / folder / "log", segment_bytes=64 << 10, clock=clock) as log:
            for _ in range(60):
                log.append_batch([b"x" * 90] * 40)
                clock.advance(1000)
            log.trim(1000 * place)
            for record in (record for batch in log.read() for record in batch):
                records.append(Record(record.entry, record.timestamp, record.value, topic=f"{folder}/log"))
    for name in ("order_violations", "rate_by_minute", "partition_skew"):
        check(report_of(name), {"path": str(tmp_path / "*" / "log")}, FACTS, ORACLES[name](records))


# ---- ledgers, and what is missing ------------------------------------------------------------------------------


def ledger_records(path: Path | None, **options: object) -> list[Record]:
    rows = read_table(path, columns="ledgerId,entryId,timestamp", **options).to_pylist()
    return [
        Record(
            row["entryId"], round(row["timestamp"].timestamp() * 1e6), value_of(row["ledgerId"], row["entryId"]),
            topic=None, ledger=row["ledgerId"],
        )
        for row in rows
    ]  # fmt: skip


def holey(records: Sequence[Record], *lost: int) -> list[Record]:
    return [record for record in records if record.offset not in lost]


def test_report_of_a_bookie_log_with_holes_equals_its_oracle(spark: SparkSession, tmp_path: Path, seed: int) -> None:
    """Of a bookie's log: two ledgers side by side, with holes, and times that step back."""
    rng, records = random.Random(seed), list[Record]()
    config = LogConfig.of({"segment_bytes": 64 << 10, "durability": "appended"})
    ends, time = {3: 0, 4: 0}, BEGIN_US
    with LedgerLog(tmp_path / "log", config) as log:
        for _ in range(300):
            ledger, value = rng.choice((3, 4)), b"v" * rng.choice((1, 500))
            ends[ledger] += rng.choice((1,) * 20 + (2, 3))
            time += rng.choice((0, 1, 20_000_000, -1, -1_500_000))
            log.append(
                bytes(encode_entries([value], None, None, ledger=ledger, first=ends[ledger], lac=-1, time=time).view)
            )
            records.append(Record(ends[ledger], time, value, topic=None, ledger=ledger))
    rows = read_table(tmp_path / "log", columns="ledgerId,entryId,segment").to_pylist()
    files = {(row["ledgerId"], row["entryId"]): row["segment"] for row in rows}
    records = [record._replace(segment=files[record.ledger, record.offset]) for record in records]
    assert any(row["violations"] for row in ORACLES["order_violations"](records))
    assert ORACLES["log_gaps"](records)
    for name in ("rate_by_minute", "log_gaps", "order_violations"):
        check(report_of(name), {"path": str(tmp_path / "log")}, FACTS, ORACLES[name](records), spark=spark)


def test_report_of_ledgers_over_tcp_equals_its_oracle(spark: SparkSession, tmp_path: Path) -> None:
    with Nodes(tmp_path, "abc", secret=SECRET) as nodes:
        with pyreplog.Cluster.connect(nodes.url, secret=SECRET) as cluster:
            fill(cluster, (40, 7))
        given = {"cluster": nodes.url, "secret": SECRET.decode()}
        records = ledger_records(None, **given)
        for name in ("rate_by_minute", "size_histogram", "log_gaps", "order_violations"):
            check(report_of(name), given, FACTS, ORACLES[name](records), spark=spark, cuts=({"minPartitions": "3"},))


def test_unreadable_entries_are_reported_as_gaps(tmp_path: Path) -> None:
    with pyreplog.Cluster.embedded(
        tmp_path / "data", bookies=2, durability="appended", segment_bytes=SEGMENT
    ) as cluster:
        ((ledger, _), *_) = fill(cluster, (30,), (2, 2, 2))
    records = ledger_records(tmp_path / "data", ledgers=ledger)
    for entry in (7, 8, 20):
        corrupt(tmp_path / "data", (ledger, entry))
    options = {"path": str(tmp_path / "data"), "mode": "DROPMALFORMED"}
    expected = ORACLES["log_gaps"](holey(records, 7, 8, 20))
    assert [(row["after_offset"], row["missing"]) for row in expected] == [(6, 2), (19, 1)]
    check(report_of("log_gaps"), options, FACTS, expected)
