"""Backlogs of subscriptions: how much, how old, since when; as the owner of a topic tells it, and as brute force."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from pyreplog.reports.snapshot import Snapshot
from pyreplog.reports.subscriptions.ages import BUCKETS, BacklogAgeHistogram
from pyreplog.reports.subscriptions.backlog_report import BacklogBySubscription
from tests.spark.reports.both import check
from tests.spark.reports.subscribed import SECOND, Row, World, fill, moment, world

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

UNTIL_S = (60, 300, 900, 3600, 21_600, 86_400, 604_800)


@pytest.fixture(scope="module")
def sample(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    with world(tmp_path_factory.mktemp("backlog") / "data") as environment:
        fill(environment, random.Random(3))
        yield environment


def expected_backlogs(sample: World) -> list[Row]:
    rows = []
    for row, known, name, sub in sample.rows():
        left = known.left(name)
        oldest, newest = (left[0], left[-1]) if left else (None, None)
        rows.append({
            **row, "backlog_entries": len(left), "backlog_bytes": sample.stored_bytes(known.topic.name, left),
            "oldest_offset": oldest, "oldest_ts": moment(None if oldest is None else known.times[oldest]),
            "age_s": None if oldest is None else (sample.clock.now_us() - known.times[oldest]) / SECOND,
            "newest_ts": moment(None if newest is None else known.times[newest]), "log_end_offset": known.end,
            "lag_offsets": known.end - sub.mark,
        })  # fmt: skip
    return rows


def expected_ages(sample: World, rows: list[Row] | None = None) -> list[Row]:
    now_us, items = sample.clock.now_us(), list[Row]()
    for row, known, name, _ in sample.rows():
        entries, size = Counter[str](), Counter[str]()
        for offset in known.left(name):
            age_us = now_us - known.times[offset]
            bucket = next(
                (word for word, s in zip(BUCKETS, UNTIL_S, strict=False) if age_us <= s * SECOND), BUCKETS[-1]
            )
            entries[bucket] += 1
            size[bucket] += known.sizes[offset]
        items += [{**row, "bucket": word, "entries": entries[word], "bytes": size[word]} for word in entries]
    return items


def test_backlogs_by_subscription_are_those_of_plain_python(sample: World, spark: SparkSession) -> None:
    options = {"path": str(sample.path)}
    rows = expected_backlogs(sample)
    assert len(rows) == 15
    assert {0} < {row["backlog_entries"] for row in rows}
    assert any(row["lag_offsets"] > row["backlog_entries"] > 0 for row in rows)
    check(BacklogBySubscription(), options, sample.snapshot(), rows, spark=spark, cuts=({"minPartitions": "5"},))


def test_the_histogram_of_backlog_ages_is_that_of_plain_python(sample: World, spark: SparkSession) -> None:
    rows = expected_ages(sample)
    assert len({row["bucket"] for row in rows}) >= 4
    check(BacklogAgeHistogram(), {"path": str(sample.path)}, sample.snapshot(), rows)
    some = {"topics": '["a, b", "trimmed"]'}
    rows = [row for row in rows if row["topic"] in ("a, b", "trimmed")]
    options = {"path": str(sample.path), **some}
    check(
        BacklogAgeHistogram(), options, sample.snapshot(**some), rows, spark=spark, cuts=({"maxPartitionBytes": "300"},)
    )


def test_backlogs_equal_those_of_the_topic_owner(sample: World) -> None:
    actual = {(subscription.on, subscription.name): subscription for subscription in sample.snapshot().subscriptions}
    checked = 0
    for known in sample.topics.values():
        for stats in known.topic.stats().subscriptions:
            item = actual[known.topic.name, stats.name]
            assert (item.backlog_messages, item.backlog_bytes) == (stats.backlog_messages, stats.backlog_bytes)
            assert (item.mark, len(item.acked)) == (stats.mark, stats.ack_ranges)
            assert item.oldest == (stats.mark.offset if stats.backlog_messages else None)
            checked += 1
    assert checked == len(actual) == 15


def test_backlog_report_of_selected_topics(sample: World) -> None:
    """Ranges of records, and what else excludes the options of these reports, do not matter to them."""
    rows = [row for row in expected_backlogs(sample) if row["topic"] == "orders"]
    options = {"path": str(sample.path), "topicsPattern": "ord.*", "startingOffsets": "3"}
    check(BacklogBySubscription(), options, sample.snapshot(topicsPattern="ord.*"), rows, cuts=())
    options = {"path": str(sample.path), "topics": "orders", "startingTimestamp": "0", "endingOffsets": "1"}
    check(BacklogBySubscription(), options, sample.snapshot(topics="orders"), rows, cuts=())


def test_backlog_reports_count_entries_up_to_the_snapshot(tmp_path: Path) -> None:
    """The end is that of the facts; an acknowledgement that comes later is not backlog any more where it is read."""
    with world(tmp_path / "data") as environment:
        known = environment.make("t", roll_entries=3)
        for _ in range(4):
            environment.publish(known, [5, 6])
            environment.clock.advance(SECOND)
        environment.subscribe(known, "s")
        environment.subscribe(known, "u")
        snapshot, rows, ages = environment.snapshot(), expected_backlogs(environment), expected_ages(environment)
        environment.publish(known, [100])
        check(BacklogBySubscription(), {"path": str(environment.path)}, snapshot, rows, cuts=())
        check(BacklogAgeHistogram(), {"path": str(environment.path)}, snapshot, ages, cuts=())
        environment.acknowledge(known, "s", [2, 7])
        ages = [{**row, "entries": 6, "bytes": 33} if row["subscription"] == "s" else row for row in ages]
        check(BacklogAgeHistogram(), {"path": str(environment.path)}, snapshot, ages, cuts=())


def test_an_oldest_message_that_is_lost(tmp_path: Path) -> None:
    """Since when a subscription lags is not known then, and how much is."""
    with world(tmp_path / "data") as environment:
        known = environment.make("t", roll_entries=2)
        environment.subscribe(known, "s")
        for _ in range(4):
            environment.publish(known, [1])
        snapshot, (row,) = environment.snapshot(), expected_backlogs(environment)
        environment.cluster.delete_ledger(int(snapshot.topics[0].segments[0].name))
        rows = [{**row, "oldest_ts": None, "age_s": None}]
        check(BacklogBySubscription(), {"path": str(environment.path)}, environment.snapshot(), rows, cuts=())


def test_empty_sources_give_empty_backlog_reports(tmp_path: Path) -> None:
    with world(tmp_path / "data") as environment:
        options = {"path": str(environment.path)}
        for snapshot in (environment.snapshot(), Snapshot(as_of_us=0)):
            check(BacklogBySubscription(), options, snapshot, [], cuts=())
            check(BacklogAgeHistogram(), options, snapshot, [], cuts=())
        environment.subscribe(environment.make("t"), "s")
        (row,) = expected_backlogs(environment)
        assert row["oldest_ts"] is None
        check(BacklogBySubscription(), options, environment.snapshot(), [row], cuts=())
        check(BacklogAgeHistogram(), options, environment.snapshot(), [], cuts=())
