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
def made(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    with world(tmp_path_factory.mktemp("backlog") / "data") as made:
        fill(made, random.Random(3))
        yield made


def expected_backlogs(made: World) -> list[Row]:
    rows = []
    for row, known, name, sub in made.rows():
        left = known.left(name)
        oldest, newest = (left[0], left[-1]) if left else (None, None)
        rows.append({
            **row, "backlog_entries": len(left), "backlog_bytes": made.stored_bytes(known.topic.name, left),
            "oldest_offset": oldest, "oldest_ts": moment(None if oldest is None else known.times[oldest]),
            "age_s": None if oldest is None else (made.clock.now_us() - known.times[oldest]) / SECOND,
            "newest_ts": moment(None if newest is None else known.times[newest]), "log_end_offset": known.end,
            "lag_offsets": known.end - sub.mark,
        })  # fmt: skip
    return rows


def expected_ages(made: World, rows: list[Row] | None = None) -> list[Row]:
    now_us, found = made.clock.now_us(), list[Row]()
    for row, known, name, _ in made.rows():
        entries, size = Counter[str](), Counter[str]()
        for offset in known.left(name):
            age_us = now_us - known.times[offset]
            bucket = next(
                (word for word, s in zip(BUCKETS, UNTIL_S, strict=False) if age_us <= s * SECOND), BUCKETS[-1]
            )
            entries[bucket] += 1
            size[bucket] += known.sizes[offset]
        found += [{**row, "bucket": word, "entries": entries[word], "bytes": size[word]} for word in entries]
    return found


def test_backlogs(made: World, spark: SparkSession) -> None:
    options = {"path": str(made.path)}
    rows = expected_backlogs(made)
    assert len(rows) == 15
    assert {0} < {row["backlog_entries"] for row in rows}
    assert any(row["lag_offsets"] > row["backlog_entries"] > 0 for row in rows)
    check(BacklogBySubscription(), options, made.snapshot(), rows, spark=spark, cuts=({"minPartitions": "5"},))


def test_ages(made: World, spark: SparkSession) -> None:
    rows = expected_ages(made)
    assert len({row["bucket"] for row in rows}) >= 4
    check(BacklogAgeHistogram(), {"path": str(made.path)}, made.snapshot(), rows)
    some = {"topics": '["a, b", "trimmed"]'}
    rows = [row for row in rows if row["topic"] in ("a, b", "trimmed")]
    options = {"path": str(made.path), **some}
    check(
        BacklogAgeHistogram(), options, made.snapshot(**some), rows, spark=spark, cuts=({"maxPartitionBytes": "300"},)
    )


def test_as_the_owner_tells(made: World) -> None:
    found = {(one.on, one.name): one for one in made.snapshot().subscriptions}
    checked = 0
    for known in made.topics.values():
        for stats in known.topic.stats().subscriptions:
            one = found[known.topic.name, stats.name]
            assert (one.backlog_messages, one.backlog_bytes) == (stats.backlog_messages, stats.backlog_bytes)
            assert (one.mark, len(one.acked)) == (stats.mark, stats.ack_ranges)
            assert one.oldest == (stats.mark.offset if stats.backlog_messages else None)
            checked += 1
    assert checked == len(found) == 15


def test_some_topics(made: World) -> None:
    """Ranges of records, and what else excludes the options of these reports, do not matter to them."""
    rows = [row for row in expected_backlogs(made) if row["topic"] == "orders"]
    options = {"path": str(made.path), "topicsPattern": "ord.*", "startingOffsets": "3"}
    check(BacklogBySubscription(), options, made.snapshot(topicsPattern="ord.*"), rows, cuts=())
    options = {"path": str(made.path), "topics": "orders", "startingTimestamp": "0", "endingOffsets": "1"}
    check(BacklogBySubscription(), options, made.snapshot(topics="orders"), rows, cuts=())


def test_what_comes_later_does_not_count(tmp_path: Path) -> None:
    """The end is that of the facts; an acknowledgement that comes later is not backlog any more where it is read."""
    with world(tmp_path / "data") as made:
        known = made.make("t", roll_entries=3)
        for _ in range(4):
            made.publish(known, [5, 6])
            made.clock.advance(SECOND)
        made.subscribe(known, "s")
        made.subscribe(known, "u")
        snapshot, rows, ages = made.snapshot(), expected_backlogs(made), expected_ages(made)
        made.publish(known, [100])
        check(BacklogBySubscription(), {"path": str(made.path)}, snapshot, rows, cuts=())
        check(BacklogAgeHistogram(), {"path": str(made.path)}, snapshot, ages, cuts=())
        made.acknowledge(known, "s", [2, 7])
        ages = [{**row, "entries": 6, "bytes": 33} if row["subscription"] == "s" else row for row in ages]
        check(BacklogAgeHistogram(), {"path": str(made.path)}, snapshot, ages, cuts=())


def test_an_oldest_message_that_is_lost(tmp_path: Path) -> None:
    """Since when a subscription lags is not known then, and how much is."""
    with world(tmp_path / "data") as made:
        known = made.make("t", roll_entries=2)
        made.subscribe(known, "s")
        for _ in range(4):
            made.publish(known, [1])
        snapshot, (row,) = made.snapshot(), expected_backlogs(made)
        made.cluster.delete_ledger(int(snapshot.topics[0].segments[0].name))
        rows = [{**row, "oldest_ts": None, "age_s": None}]
        check(BacklogBySubscription(), {"path": str(made.path)}, made.snapshot(), rows, cuts=())


def test_nothing_to_tell(tmp_path: Path) -> None:
    with world(tmp_path / "data") as made:
        options = {"path": str(made.path)}
        for snapshot in (made.snapshot(), Snapshot(as_of_us=0)):
            check(BacklogBySubscription(), options, snapshot, [], cuts=())
            check(BacklogAgeHistogram(), options, snapshot, [], cuts=())
        made.subscribe(made.make("t"), "s")
        (row,) = expected_backlogs(made)
        assert row["oldest_ts"] is None
        check(BacklogBySubscription(), options, made.snapshot(), [row], cuts=())
        check(BacklogAgeHistogram(), options, made.snapshot(), [], cuts=())
