"""What nobody can be asked is unknown, and said to be: the rest is reported."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from pyreplog import reports
from pyreplog.bookie.identity import IDENTITY
from pyreplog.cli.report import _news, _summary
from pyreplog.reports import local_engine, spark_engine, suite
from pyreplog.reports.gathering import gather
from pyreplog.reports.outcome import Outcome
from pyreplog.reports.snapshot import Snapshot
from pyreplog.tables.options import ReadOptions
from tests.spark.reports.pages import html
from tests.spark.reports.subscribed import World, world

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

COUNT = 6
SUBSCRIPTIONS = ("backlog_by_subscription", "backlog_age_histogram", "drain_estimate", "retention_forecast")


@pytest.fixture
def sample(tmp_path: Path) -> Iterator[World]:
    """Topics "here" and "away" on one bookie each, and another; of the third bookie nothing but cursors. Each topic has
    a subscription that has acknowledged two messages."""
    with world(tmp_path / "data") as environment:
        yield environment


def bookie_of(sample: World, topic: str) -> str:
    (fact,) = gather(ReadOptions.of({"path": str(sample.path), "topics": topic}), 0).topics
    (bookie,) = sample.cluster.ledger_metadata(int(fact.segments[-1].name)).bookies()
    return bookie.partition("@")[0]


def fill(sample: World) -> tuple[str, str]:
    """Topics until two of them lie on different bookies: the two."""
    names: list[str] = []
    while not names or len({bookie_of(sample, name) for name in names}) < 2:
        names.append(f"t{len(names)}")
        known = sample.make(names[-1])
        sample.publish(known, [10] * COUNT)
        sample.subscribe(known, "s")
        sample.upto(known, "s", 2)
        sample.snapshot()
    return names[0], names[-1]


def take_away(sample: World, *bookies: str) -> None:
    for name in bookies:
        (sample.path / name / IDENTITY).rename(sample.path.parent / name)


def outcomes(
    sample: World, snapshot: Snapshot, names: tuple[str, ...] = (), given: dict[str, str] | None = None
) -> list[Outcome]:
    present = {"path": str(sample.path), **(given or {})}
    return list(suite.outcomes(suite.chosen(names), present, snapshot, local_engine.run))


def of(outcomes: list[Outcome], name: str) -> Outcome:
    return next(item for item in outcomes if item.report.name == name)


def test_a_topic_whose_bookie_is_away(sample: World) -> None:
    """Its rows are missing, and that is said, in what is printed and in the page; those of the others are there."""
    here, away = fill(sample)
    others = {name for name in sample.topics if bookie_of(sample, name) != bookie_of(sample, away)}
    take_away(sample, bookie_of(sample, away))
    for given in ({}, {"topics": f"{here},{away}"}):
        snapshot = gather(ReadOptions.of({"path": str(sample.path), **given}), sample.clock.now_us())
        known = others if not given else {here}
        assert {topic.name for topic in snapshot.topics} == known
        assert {subscription.on for subscription in snapshot.subscriptions if subscription.name == "s"} == known
        assert {(item.on, item.subscription) for item in snapshot.unknown} == {(away, None)}
        actual_outcomes = outcomes(sample, snapshot, given=given)
        assert {item.report.name: item.error for item in actual_outcomes if item.error} == {}
        for name in (*SUBSCRIPTIONS, "rate_by_minute", "partition_skew"):
            table = of(actual_outcomes, name).table
            assert table is not None
            assert set(table["topic"].to_pylist()) == known
            (warning,) = of(actual_outcomes, name).warnings
            assert warning.startswith(f"could not ask: topic {away}: ")
            assert warning in _news(of(actual_outcomes, name))
            assert _summary(of(actual_outcomes, name))["warnings"] == [warning]
        assert of(actual_outcomes, "under_replicated").warnings == (), "it knows of each ledger what it does not know"
        page = html(*actual_outcomes)
        answer = page.split("Which subscription or consumer group lags")[1].split("<h3>")[0]
        assert answer.count(f"Could not ask: topic {away}: ") == 1, "once, not for each report"
        part = page.split('<section id="rate_by_minute"')[1].split("</section>")[0]
        assert f"<strong>Unknown.</strong> could not ask: topic {away}: " in part


def test_no_topic_can_be_asked(sample: World) -> None:
    """That is no report without rows."""
    here, away = fill(sample)
    take_away(sample, *{bookie_of(sample, name) for name in sample.topics})
    snapshot = gather(ReadOptions.of({"path": str(sample.path), "topics": f"{here},{away}"}), sample.clock.now_us())
    assert (snapshot.topics, snapshot.subscriptions) == ((), ())
    for outcome in outcomes(sample, snapshot, (*SUBSCRIPTIONS, "log_gaps"), {"topics": f"{here},{away}"}):
        assert outcome.table is None
        assert outcome.error == "the bookies of no topic answered"
        assert len(outcome.warnings) == 2
    assert suite.of_subscriptions(snapshot, ["s"]).subscriptions == (), "whether there is one is not known"


def test_a_subscription_whose_cursor_ledger_cannot_be_read(sample: World) -> None:
    """What it keeps is not known; that its topic's ledgers can be removed is not either."""
    here, _ = fill(sample)
    sample.topics[here].topic.managed.roll().result(30)
    stays = bookie_of(sample, here)
    take_away(sample, *{"bookie-0", "bookie-1", "bookie-2"} - {stays})
    given = {"topics": here}
    snapshot = gather(ReadOptions.of({"path": str(sample.path), **given}), sample.clock.now_us())
    assert [topic.name for topic in snapshot.topics] == [here]
    assert {(item.on, item.subscription) for item in snapshot.unknown} == {(here, "s")}
    actual_outcomes = outcomes(sample, snapshot, given=given)
    assert len(of(actual_outcomes, "backlog_by_subscription").warnings) == 1
    assert of(actual_outcomes, "log_gaps").warnings == (), "of records all is known"
    retention = of(actual_outcomes, "retention_forecast").table
    assert retention is not None
    assert retention["deletable"].to_pylist() == [None]
    page = html(*actual_outcomes)
    assert "There are no subscriptions." not in page
    assert f"Could not ask: subscription s of topic {here}: " in page
    narrowed = suite.of_subscriptions(snapshot, ["s"])
    assert narrowed.unknown == snapshot.unknown


def test_a_subscription_that_is_deleted_meanwhile(sample: World, spark: SparkSession) -> None:
    """Between the facts and the reading: the others are counted, in both engines, and it is said."""
    first, other = sample.make("one"), sample.make("other")
    for known in (first, other):
        sample.publish(known, [10] * COUNT)
        for name in ("gone", "stays"):
            sample.subscribe(known, name)
    snapshot = sample.snapshot()
    first.topic.delete_subscription("gone")
    (actual_outcomes,) = outcomes(sample, snapshot, ("backlog_age_histogram",))
    assert actual_outcomes.error == ""
    assert actual_outcomes.table is not None
    rows = [(row["topic"], row["subscription"], row["entries"]) for row in actual_outcomes.table.to_pylist()]
    assert rows == [("one", "stays", COUNT), ("other", "gone", COUNT), ("other", "stays", COUNT)]
    assert actual_outcomes.warnings == ("subscription gone of topic one was deleted meanwhile",)
    frame = reports.run("backlog_age_histogram", str(sample.path), "spark", spark=spark, snapshot=snapshot)
    assert frame.toArrow() == actual_outcomes.table
    other.topic.delete_subscription("gone")  # now it is in no topic
    (actual_outcomes,) = outcomes(sample, snapshot, ("backlog_age_histogram",))
    assert actual_outcomes.table is not None
    assert set(actual_outcomes.table["subscription"].to_pylist()) == {"stays"}
    assert (
        spark_engine.table(spark, actual_outcomes.report(), {"path": str(sample.path)}, snapshot)
        == actual_outcomes.table
    )
