"""What could be removed, what pins the rest, and which subscriptions seem dead."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from pyreplog.cursors.subscription_metadata import SubscriptionMetadata, create_subscription
from pyreplog.reports.gathering import gather
from pyreplog.reports.snapshot import Snapshot
from pyreplog.reports.subscriptions.drain import DrainEstimate
from pyreplog.reports.subscriptions.retention_report import DeadSubscriptions, RetentionForecast
from pyreplog.topic.model.positions import position
from pyreplog.topic.model.retention import ClosedLedger, trimmable
from pyreplog.topic.model.system_cursor_record import SystemCursorRecord
from tests import samples
from tests.spark.reading import options_of, read_table
from tests.spark.reports.both import assert_rows, check
from tests.spark.reports.subscribed import BEGIN_US, SECOND, Row, World, fill, moment, world

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture(scope="module")
def sample(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    with world(tmp_path_factory.mktemp("retention") / "data") as environment:
        fill(environment, random.Random(5))
        yield environment


def expected_segments(sample: World) -> list[Row]:
    rows = []
    for row, known in sample.partitions():
        slowest = min(((sub.mark, name) for name, sub in known.subs.items()), default=None)
        for item in known.topic.managed.chain.ledgers:
            end = known.end if not item.is_closed else item.end.offset
            pinned_by = slowest[1] if slowest is not None and slowest[0] < end else None
            offsets = range(item.start.offset, end)
            rows.append({
                **row, "segment": str(item.ledger), "closes_ts": moment(item.closed_us or None),
                "deletable": item.is_closed and all(sub.mark >= end for sub in known.subs.values()),
                "bytes_freed": sample.stored_bytes(known.topic.name, offsets), "pinned_by": pinned_by,
            })  # fmt: skip
    return rows


def expected_dead(sample: World, since_us: int) -> list[Row]:
    rows = []
    for row, known, name, sub in sample.rows():
        left, (moved_us, mark) = known.left(name), sub.marks[-1]
        if left and moved_us < since_us:
            pinned = [item for item in known.topic.managed.chain.ledgers if item.is_closed and item.end.offset > mark]
            rows.append({
                **row, "last_cursor_move_ts": moment(moved_us), "pinned_segments": len(pinned),
                "backlog_bytes": sample.stored_bytes(known.topic.name, left),
            })  # fmt: skip
    return rows


def test_retention_forecast_names_deletable_segments_and_pins(sample: World, spark: SparkSession) -> None:
    rows = expected_segments(sample)
    assert {row["pinned_by"] for row in rows} >= {None, "audit", "billing"}
    assert {row["deletable"] for row in rows} == {True, False}
    check(RetentionForecast(), {"path": str(sample.path)}, sample.snapshot(), rows, spark=spark, cuts=())


def test_deletable_segments_equal_those_that_retention_would_trim(sample: World) -> None:
    """What may be removed is what the owner would remove if no setting kept it."""
    snapshot = sample.snapshot()
    merged = RetentionForecast().merge(RetentionForecast.parts.empty_table(), snapshot).to_pylist()
    for row, known in sample.partitions():
        ledgers = [
            ClosedLedger(item.end, item.closed_us, item.size)
            for item in known.topic.managed.chain.ledgers
            if item.is_closed
        ]
        marks = [subscription.cursor.durable_mark for subscription in known.topic.all_subscriptions()]
        count = trimmable(
            ledgers, min(marks, default=None), kept_bytes=1 << 40, retention_bytes=0, retention_ms=0, now_us=1 << 60
        )
        present = [item for item in merged if (item["topic"], item["partition"]) == (row["topic"], row["partition"])]
        assert [item["deletable"] for item in present[: len(ledgers)]] == [n < count for n in range(len(ledgers))]


@pytest.mark.parametrize("window_s", [30.0, 300.0, 2000.0])
def test_dead_subscriptions_are_those_of_plain_python(sample: World, spark: SparkSession, window_s: float) -> None:
    snapshot = sample.snapshot(window_s)
    rows = expected_dead(sample, snapshot.since_us)
    actual_rows = check(
        DeadSubscriptions(),
        {"path": str(sample.path)},
        snapshot,
        rows,
        spark=spark if window_s == 300 else None,
        cuts=(),
    )
    moved = actual_rows["last_cursor_move_ts"].to_pylist()
    assert moved == sorted(moved)


def test_longer_windows_find_fewer_dead_subscriptions(sample: World) -> None:
    counts = [len(expected_dead(sample, sample.snapshot(window_s).since_us)) for window_s in (30.0, 300.0, 2000.0)]
    assert counts[0] > counts[1] > counts[2] >= 1


def test_the_time_of_a_mark_outlives_the_owner(tmp_path: Path) -> None:
    """When a mark last moved is known without an owner, too, and to the next one."""
    path = tmp_path / "data"
    with world(path) as environment:
        known = environment.make("t", roll_entries=2)
        for _ in range(5):
            environment.publish(known, [1, 2])
        environment.subscribe(known, "s")
        environment.subscribe(known, "t")
        environment.clock.advance(60 * SECOND)
        environment.upto(known, "s", 5)
        environment.clock.advance(60 * SECOND)
        environment.acknowledge(known, "s", [7, 9])
        known.topic.close()
        rows = expected_dead(environment, BEGIN_US + 100 * SECOND)
        assert [row["pinned_segments"] for row in rows] == [2, 3]
        check(DeadSubscriptions(), {"path": str(path)}, environment.snapshot(20), rows, cuts=())
        environment.clock.advance(500 * SECOND)
        known.topic = environment.cluster.topic("t")
        check(DeadSubscriptions(), {"path": str(path)}, environment.snapshot(20), rows, cuts=())
        environment.upto(known, "t", 1)
        known.topic.close()
        rows = expected_dead(environment, BEGIN_US + 100 * SECOND)
        assert len(rows) == 1
        check(DeadSubscriptions(), {"path": str(path)}, environment.snapshot(20), rows, cuts=())


def test_the_cursor_of_duplicate_detection_pins_ledgers(tmp_path: Path) -> None:
    """It is no subscription of anybody's, and yet needs what its cursor has not passed."""
    with world(tmp_path / "data") as environment:
        known = environment.make("t", roll_entries=1, deduplicate=True)
        dedup: Any = known.topic.dedup
        dedup._taken_us = environment.clock.now_us()  # else upkeep stores it, as soon as there is something
        with known.topic.producer("p") as producer:
            for n in range(4):
                producer.publish_batch([b"x"], sequences=[n])
                known.times.append(environment.clock.now_us())
        merged = RetentionForecast().merge(RetentionForecast.parts.empty_table(), environment.snapshot()).to_pylist()
        assert {row["pinned_by"] for row in merged} == {"pyreplog.dedup"}
        assert not any(row["deletable"] for row in merged)
        assert len(DeadSubscriptions().merge(DeadSubscriptions.parts.empty_table(), environment.snapshot())) == 0
        dedup.store().result(30)
        merged = RetentionForecast().merge(RetentionForecast.parts.empty_table(), environment.snapshot()).to_pylist()
        assert [row["pinned_by"] for row in merged] == [None] * len(merged)
        assert [row["deletable"] for row in merged if row["closes_ts"] is not None] == [True] * 3


@pytest.mark.parametrize(("record", "pinned"), [(None, 2), (b"newer", 3)])
def test_cursors_of_other_versions_pin(tmp_path: Path, record: bytes | None, pinned: int) -> None:
    """From their mark on, or everything where that is not known; as their owners trim."""
    with world(tmp_path / "data") as environment:
        known = environment.make("t", roll_entries=1)
        for _ in range(4):
            environment.publish(known, [1, 2])
        if record is None:
            mark = position(known.topic.managed, 2).result(30)
            record = SystemCursorRecord(1, mark, b"").to_bytes()
        metadata = SubscriptionMetadata(token="t", created_us=1, snapshot=record)
        create_subscription(environment.cluster.metadata, "t", "pyreplog.other", metadata)
        merged = RetentionForecast().merge(RetentionForecast.parts.empty_table(), environment.snapshot()).to_pylist()
        closed = [row for row in merged if row["closes_ts"] is not None]
        expected = [None] * (3 - pinned) + ["pyreplog.other"] * pinned
        assert [row["pinned_by"] for row in closed] == expected
        assert [row["deletable"] for row in closed] == [name is None for name in expected]


def test_segments_of_a_log_are_reported_for_retention(tmp_path: Path) -> None:
    """A log has segments, and no subscription. Each was closed after its last record."""
    path = tmp_path / "log"
    samples.make_log(path)
    snapshot = gather(options_of(path), BEGIN_US)
    (fact,) = snapshot.logs
    first: dict[str, int] = {}
    last: dict[str, Row] = {}
    for row in read_table(path, columns="segment,offset,timestamp").to_pylist():
        first.setdefault(row["segment"], row["offset"])
        last[row["segment"]] = row
    assert len(last) >= 3
    assert (fact.topic, fact.partition) == ("log", -1)
    assert [(segment.name, segment.start, segment.end) for segment in fact.segments] == [
        (name, first[name], row["offset"] + 1) for name, row in last.items()
    ]
    newest = fact.segments[-1]
    assert newest.closed_us is None
    closed = [moment(segment.closed_us) for segment in fact.segments[:-1]]
    assert all(time >= last[segment.name]["timestamp"] for segment, time in zip(fact.segments, closed, strict=False))
    assert closed == sorted(closed)
    rows = [
        {
            "topic": "log", "partition": -1, "segment": segment.name, "closes_ts": moment(segment.closed_us),
            "deletable": segment is not newest, "bytes_freed": segment.size, "pinned_by": None,
        }
        for segment in fact.segments
    ]  # fmt: skip
    check(RetentionForecast(), {"path": str(path)}, snapshot, rows, cuts=())
    for report in (DrainEstimate(), DeadSubscriptions()):
        check(report, {"path": str(path)}, snapshot, [], cuts=())


def test_retention_forecast_of_an_empty_source_is_empty() -> None:
    assert_rows(RetentionForecast().merge(RetentionForecast.parts.empty_table(), Snapshot(as_of_us=0)).to_pylist(), [])
