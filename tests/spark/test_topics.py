"""Topics: every message once, with its offset in the topic and all that was published with it."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

import pyreplog
from pyreplog.clock import ManualClock
from pyreplog.errors import (
    ConfigError,
    InvalidArgumentError,
    NoSuchSubscriptionError,
    NoSuchTopicError,
    OutOfRangeError,
    TrimmedError,
    UnreadableError,
)
from pyreplog.tables.cluster import topics as planning
from pyreplog.tables.planning import plan
from tests.spark.clusters import KEPT, corrupt, embedded
from tests.spark.reading import bytes_planned, column, options_of, read_slices, read_table
from tests.spark.streams import Query, offsets

BEGIN_US = 1_700_000_000_000_000
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
Row = dict[str, Any]


def moment(microseconds: int) -> datetime:
    return EPOCH + timedelta(microseconds=microseconds)


def publish(cluster: pyreplog.Cluster, name: str, rng: random.Random, **settings: Any) -> list[Row]:
    """Messages of every sort, in several ledgers; what is to be read of them."""
    topic = cluster.topic(name, durability="appended", roll_entries=4, **KEPT, **settings)
    producer = topic.producer("made")
    rows: list[Row] = []
    next_sequence = 0
    for _ in range(14):
        count = rng.randrange(1, 30)
        values = [rng.randbytes(rng.choice((0, 1, 50))) + b"." * rng.choice((0, 400)) for _ in range(count)]
        keys = [rng.choice((None, b"", b"key %d" % rng.randrange(5))) for _ in range(count)]
        properties = [rng.choice(({}, {"a": b"1"}, {"ü": b"", "b": rng.randbytes(4)})) for _ in range(count)]
        times = [rng.choice((None, BEGIN_US + rng.randrange(10**9))) for _ in range(count)]
        named = rng.random() < 0.5
        sequences = sorted(rng.sample(range(next_sequence, next_sequence + 2 * count), count))
        next_sequence += 2 * count
        if named:
            offsets = producer.publish_batch(
                values, keys, properties=properties, event_times=times, sequences=sequences
            )
        else:
            offsets = topic.publish_batch(values, keys, properties=properties, event_times=times)
        for n, offset in enumerate(offsets):
            rows.append({
                "offset": offset, "key": keys[n], "value": values[n], "size": len(values[n]),
                "headers": [{"key": name, "value": value} for name, value in properties[n].items()],
                "eventTime": None if times[n] is None else moment(times[n]),
                "producerName": "made" if named else None, "sequenceId": sequences[n] if named else None,
            })  # fmt: skip
    topic.close()
    return rows


@pytest.fixture(scope="module")
def origin(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, dict[str, list[Row]]]]:
    path = tmp_path_factory.mktemp("topics") / "data"
    rng = random.Random(11)
    with embedded(path) as cluster:
        rows = {
            "plain": publish(cluster, "plain", rng),
            "zstd": publish(cluster, "zstd", rng, compression="zstd", ensemble=3, write_quorum=2),
            "lz4": publish(cluster, "lz4", rng, compression="lz4"),
        }
    yield path, rows


def columns_of(rows: list[Row]) -> str:
    return ",".join(rows[0])


@pytest.mark.parametrize("name", ["plain", "zstd", "lz4"])
def test_each_message_of_a_topic_is_read_once(origin: tuple[Path, dict[str, list[Row]]], name: str) -> None:
    path, published = origin
    rows = published[name]
    assert read_table(path, topics=name, columns=columns_of(rows)).to_pylist() == rows
    assert read_table(path, topics=name, columns=columns_of(rows), minPartitions=5, batchRows=7).to_pylist() == rows


def test_rows_of_messages_name_ledger_and_entry(origin: tuple[Path, dict[str, list[Row]]]) -> None:
    path, published = origin
    rows = read_table(path, topics="plain", includeMetadata=True).to_pylist()
    assert len({row["ledgerId"] for row in rows}) >= 3
    assert {(row["topic"], row["partition"], row["timestampType"]) for row in rows} == {("plain", -1, 1)}
    for name in ("segment", "position", "crc", "storedSize", "bookie"):
        assert {row[name] for row in rows} == {None}
    assert {row["crcOk"] for row in rows} == {True}
    places = [(row["ledgerId"], row["entryId"]) for row in rows]
    assert places == sorted(places)
    assert len(set(places)) == 14
    assert all(row["timestamp"] == row["publishTime"] for row in rows)
    assert len(rows) == len(published["plain"])


@pytest.mark.parametrize("narrow", [0, 1 << 30])
def test_ranges_of_offsets_select_messages(
    origin: tuple[Path, dict[str, list[Row]]], monkeypatch: pytest.MonkeyPatch, narrow: int
) -> None:
    path, published = origin
    monkeypatch.setattr(planning, "NARROW_BYTES", narrow)
    end = len(published["zstd"])
    rng = random.Random(5)
    for _ in range(25):
        low, high = sorted(rng.randrange(end + 1) for _ in range(2))
        offsets = column(path, "offset", topics="zstd", startingOffsets=low, endingOffsets=high)
        assert offsets == list(range(low, high))


def test_empty_topics_and_ranges_have_no_rows(tmp_path: Path) -> None:
    """A topic without messages, and ranges that hold none, of a topic and of ledgers: no rows, and no error."""
    with embedded(tmp_path / "data") as cluster:
        cluster.topic("empty", durability="appended").close()
        topic = cluster.topic("t", durability="appended", **KEPT)
        topic.publish_batch([b"a", b"b", b"c"])
        topic.close()
    assert column(tmp_path / "data", "offset", topics="empty") == []
    for bound in (0, 1, 3):
        assert column(tmp_path / "data", "offset", topics="t", startingOffsets=bound, endingOffsets=bound) == []
    moment_ms = 1_700_000_000_000
    assert column(tmp_path / "data", "offset", topics="t", startingTimestamp=moment_ms, endingTimestamp=moment_ms) == []
    assert column(tmp_path / "data", "entryId", startingOffsets=1, endingOffsets=1) == []
    assert column(tmp_path / "data", "offset", topics="t") == [0, 1, 2]


def test_a_range_within_a_large_ledger_takes_its_part(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(planning, "NARROW_BYTES", 1)
    with embedded(tmp_path / "data") as cluster:
        topic = cluster.topic("t", durability="appended")
        for n in range(200):
            topic.publish_batch([b"%d.%d" % (n, k) for k in range(1 + n % 3)])
        topic.close()
    (task,) = plan(options_of(tmp_path / "data", topics="t"))
    options = options_of(tmp_path / "data", topics="t", startingOffsets=100, endingOffsets=103, columns="offset")
    tasks = plan(options)
    assert bytes_planned(tasks) * 50 <= bytes_planned([task])
    assert read_slices(options, tasks)["offset"].to_pylist() == [100, 101, 102]


@pytest.mark.parametrize("narrow", [0, 1 << 30])
def test_ranges_of_times_select_messages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, narrow: int) -> None:
    monkeypatch.setattr(planning, "NARROW_BYTES", narrow)
    clock = ManualClock(BEGIN_US)
    with pyreplog.Cluster.embedded(tmp_path / "data", bookies=1, durability="appended", clock=clock) as cluster:
        topic = cluster.topic("t", ensemble=1, durability="appended", roll_entries=5, **KEPT)
        for _ in range(40):
            topic.publish(b"x")
            clock.advance(1_000_000)
        topic.close()
    rows = read_table(tmp_path / "data", topics="t", columns="offset,timestamp").to_pylist()
    stamps = [row["timestamp"] for row in rows]
    assert stamps == sorted(stamps)
    for low, high in ((0, 40), (3, 4), (17, 31), (9, 9), (39, 99)):
        bounds = {
            "startingTimestamp": moment(BEGIN_US + low * 10**6),
            "endingTimestamp": moment(BEGIN_US + high * 10**6),
        }
        wanted = [row["offset"] for row in rows if bounds["startingTimestamp"] <= row["timestamp"]
                  and row["timestamp"] < bounds["endingTimestamp"]]  # fmt: skip
        isoformat = {name: value.isoformat() for name, value in bounds.items()}
        assert column(tmp_path / "data", "offset", topics="t", **isoformat) == wanted


@pytest.mark.parametrize("narrow", [0, 1 << 30])
def test_times_where_a_clock_was_set_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, narrow: int) -> None:
    """By the clock, the first ledger ended before its last entries came."""
    monkeypatch.setattr(planning, "NARROW_BYTES", narrow)
    clock = ManualClock(BEGIN_US)
    for values, set_back_us in (([b"first"] * 10, 30_000_000), ([b"second"] * 2, 0)):
        with pyreplog.Cluster.embedded(tmp_path / "data", bookies=1, durability="appended", clock=clock) as cluster:
            topic = cluster.topic("t", ensemble=1, durability="appended", **KEPT)
            for value in values:
                topic.publish(value)
                clock.advance(5_000_000)
            clock._start_us -= set_back_us  # the wall's: the other one goes on
            topic.close()
    stamps = read_table(tmp_path / "data", topics="t", columns="timestamp")["timestamp"].to_pylist()
    assert sorted(stamps) != stamps
    for low, high in itertools.product(range(0, 60, 5), repeat=2):
        start, end = moment(BEGIN_US + low * 10**6), moment(BEGIN_US + high * 10**6)
        if start <= end:
            bounds = {"startingTimestamp": start.isoformat(), "endingTimestamp": end.isoformat()}
            wanted = [offset for offset, stamp in enumerate(stamps) if start <= stamp < end]
            assert column(tmp_path / "data", "offset", topics="t", **bounds) == wanted
    start = moment(BEGIN_US + 40_000_000)
    with Query(tmp_path / "data", topics="t", startingTimestamp=start.isoformat()) as query:
        assert offsets(query.read()) == [*range(8, 12)], "a stream has no gaps: all from the first that is wanted on"


# ---- names -----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def named(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("names") / "data"
    with embedded(path) as cluster:
        for name in ("orders-partition-0", "orders-partition-1", "orders-partition-10", "orders", "other", "a/b c"):
            topic = cluster.topic(name, durability="appended")
            topic.publish_batch([name.encode()] * 3)
            topic.close()
    return path


def rows(path: Path, **options: object) -> list[tuple[str, int, int]]:
    rows = read_table(path, columns="topic,partition,offset,value", **options).to_pylist()
    for row in rows:
        name = row["topic"] if row["partition"] < 0 else f"{row['topic']}-partition-{row['partition']}"
        assert row["value"] == name.encode()
    return [(row["topic"], row["partition"], row["offset"]) for row in rows]


def test_a_topic_means_its_partitions(named: Path) -> None:
    wanted = [("orders", partition, offset) for partition in (-1, 0, 1, 10) for offset in range(3)]
    assert rows(named, topics="orders") == wanted
    assert rows(named, topics="orders-partition-1") == [("orders", 1, n) for n in range(3)]
    assert rows(named, topics="orders,orders-partition-1, other") == [*wanted, *[("other", -1, n) for n in range(3)]]


def test_topic_patterns_select_topics(named: Path) -> None:
    assert {topic for topic, _, _ in rows(named, topicsPattern="o.*")} == {"orders", "other"}
    assert {topic for topic, _, _ in rows(named, topicsPattern="a/b c|other")} == {"a/b c", "other"}
    with pytest.raises(NoSuchTopicError, match="the pattern matches none of 3 topics"):
        plan(options_of(named, topicsPattern="rders"))


def test_ranges_of_offsets_may_name_partitions(named: Path) -> None:
    starts = '{"orders": {"-1": 3, "0": 1, "1": -2, "10": 2}}'
    ends = '{"orders": {"-1": -1, "0": -1, "1": 1, "10": 2}}'
    actual_rows = rows(named, topics="orders", startingOffsets=starts, endingOffsets=ends)
    assert actual_rows == [("orders", 0, 1), ("orders", 0, 2), ("orders", 1, 0)]
    with pytest.raises(
        ConfigError, match=r"expected offsets of orders partition -1, .*found those of orders partition 0"
    ):
        plan(options_of(named, topics="orders", startingOffsets='{"orders": {"0": 1}}'))


@pytest.mark.parametrize(
    ("options", "error", "says"),
    [
        ({"topics": "nobody"}, NoSuchTopicError, "topic nobody: it does not exist"),
        ({"topics": "x" * 300}, InvalidArgumentError, "a name has 1 to 200 bytes"),
        ({"topics": "other", "subscription": "s"}, NoSuchSubscriptionError, "topic other: there is no subscription s"),
        (
            {"topics": "other", "startingOffsets": "9"},
            OutOfRangeError,
            "topic other: startingOffsets 9, but the log ends",
        ),
    ],
)
def test_missing_topics_subscriptions_and_offsets_raise(
    named: Path, options: dict[str, object], error: type[Exception], says: str
) -> None:
    with pytest.raises(error, match=says):
        plan(options_of(named, **options))


def test_many_small_topics_share_a_task(named: Path) -> None:
    options = options_of(named, topicsPattern=".*", columns="topic")
    assert len(plan(options)) == 1
    assert len(plan(options_of(named, topicsPattern=".*", maxPartitionBytes=300))) > 2


# ---- what is lost ----------------------------------------------------------------------------------------------


def test_ranges_below_the_start_of_a_trimmed_topic_are_refused(tmp_path: Path) -> None:
    with embedded(tmp_path / "data") as cluster:
        topic = cluster.topic("t", durability="appended", roll_entries=2)
        topic.create_subscription("s", start="earliest")
        for n in range(9):
            topic.publish(b"%d" % n)
        topic.skip("s", 5)
        topic.trim()
        start = topic.start
        topic.close()
    assert 0 < start <= 5
    assert column(tmp_path / "data", "offset", topics="t") == list(range(start, 9))
    with pytest.raises(TrimmedError, match=f"topic t: offset 0 was removed, the log begins at {start}"):
        plan(options_of(tmp_path / "data", topics="t", startingOffsets=0))
    lenient = column(tmp_path / "data", "offset", topics="t", startingOffsets=0, failOnDataLoss=False)
    assert lenient == list(range(start, 9))


def with_an_entry_nobody_has(path: Path) -> int:
    """A topic of 30 entries of two messages, of which no copy of the eighth can be read; its ledger."""
    with embedded(path) as cluster:
        topic = cluster.topic("t", durability="appended")
        for n in range(30):
            topic.publish_batch([b"%d" % n, b"more"])
        topic.close()
    (ledger,) = set(column(path, "ledgerId", topics="t"))
    corrupt(path, (ledger, 7))
    return int(ledger)


def test_unreadable_entry_is_dropped_or_marked_according_to_the_mode(tmp_path: Path) -> None:
    path = tmp_path / "data"
    ledger = with_an_entry_nobody_has(path)
    offsets = column(path, "offset", topics="t", mode="DROPMALFORMED")
    assert offsets == [n for n in range(60) if n not in (14, 15)]
    bad = [row for row in read_table(path, topics="t", mode="PERMISSIVE", columns="topic,crcOk,ledgerId").to_pylist()
           if not row["crcOk"]]  # fmt: skip
    assert bad == [{"topic": "t", "crcOk": False, "ledgerId": ledger}]


def test_unreadable_entry_at_a_bound_follows_the_mode(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Planning reads entries of large ledgers: one that cannot be read is for the mode, like any other."""
    path = tmp_path / "data"
    with_an_entry_nobody_has(path)
    monkeypatch.setattr(planning, "NARROW_BYTES", 1)
    for bounds in ({"startingOffsets": 15}, {"endingOffsets": 15}, {"startingOffsets": 14, "endingOffsets": 15}):
        wanted = range(bounds.get("startingOffsets", 0), bounds.get("endingOffsets", 60))
        offsets = column(path, "offset", topics="t", mode="DROPMALFORMED", **bounds)
        assert offsets == [n for n in wanted if n not in (14, 15)]
        with pytest.raises(UnreadableError, match="entry 7 cannot be read"):
            column(path, "offset", topics="t", **bounds)
