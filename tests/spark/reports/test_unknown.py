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
def made(tmp_path: Path) -> Iterator[World]:
    """Topics "here" and "away" on one bookie each, and another; of the third bookie nothing but cursors. Each topic has
    a subscription that has acknowledged two messages."""
    with world(tmp_path / "data") as made:
        yield made


def bookie_of(made: World, topic: str) -> str:
    (fact,) = gather(ReadOptions.of({"path": str(made.path), "topics": topic}), 0).topics
    (bookie,) = made.cluster.ledger_metadata(int(fact.segments[-1].name)).bookies()
    return bookie.partition("@")[0]


def fill(made: World) -> tuple[str, str]:
    """Topics until two of them lie on different bookies: the two."""
    names: list[str] = []
    while not names or len({bookie_of(made, name) for name in names}) < 2:
        names.append(f"t{len(names)}")
        known = made.make(names[-1])
        made.publish(known, [10] * COUNT)
        made.subscribe(known, "s")
        made.upto(known, "s", 2)
        made.snapshot()
    return names[0], names[-1]


def take_away(made: World, *bookies: str) -> None:
    for name in bookies:
        (made.path / name / IDENTITY).rename(made.path.parent / name)


def outcomes(
    made: World, snapshot: Snapshot, names: tuple[str, ...] = (), given: dict[str, str] | None = None
) -> list[Outcome]:
    there = {"path": str(made.path), **(given or {})}
    return list(suite.outcomes(suite.chosen(names), there, snapshot, local_engine.run))


def of(found: list[Outcome], name: str) -> Outcome:
    return next(one for one in found if one.report.name == name)


def test_a_topic_whose_bookie_is_away(made: World) -> None:
    """Its rows are missing, and that is said, in what is printed and in the page; those of the others are there."""
    here, away = fill(made)
    others = {name for name in made.topics if bookie_of(made, name) != bookie_of(made, away)}
    take_away(made, bookie_of(made, away))
    for given in ({}, {"topics": f"{here},{away}"}):
        snapshot = gather(ReadOptions.of({"path": str(made.path), **given}), made.clock.now_us())
        known = others if not given else {here}
        assert {one.name for one in snapshot.topics} == known
        assert {one.on for one in snapshot.subscriptions if one.name == "s"} == known
        assert {(one.on, one.subscription) for one in snapshot.unknown} == {(away, None)}
        found = outcomes(made, snapshot, given=given)
        assert {one.report.name: one.error for one in found if one.error} == {}
        for name in (*SUBSCRIPTIONS, "rate_by_minute", "partition_skew"):
            table = of(found, name).table
            assert table is not None
            assert set(table["topic"].to_pylist()) == known
            (warning,) = of(found, name).warnings
            assert warning.startswith(f"could not ask: topic {away}: ")
            assert warning in _news(of(found, name))
            assert _summary(of(found, name))["warnings"] == [warning]
        assert of(found, "under_replicated").warnings == (), "it knows of each ledger what it does not know"
        page = html(*found)
        answer = page.split("Which subscription lags")[1].split("<h3>")[0]
        assert answer.count(f"Could not ask: topic {away}: ") == 1, "once, not for each report"
        part = page.split('<section id="rate_by_minute"')[1].split("</section>")[0]
        assert f"<strong>Unknown.</strong> could not ask: topic {away}: " in part


def test_no_topic_can_be_asked(made: World) -> None:
    """That is no report without rows."""
    here, away = fill(made)
    take_away(made, *{bookie_of(made, name) for name in made.topics})
    snapshot = gather(ReadOptions.of({"path": str(made.path), "topics": f"{here},{away}"}), made.clock.now_us())
    assert (snapshot.topics, snapshot.subscriptions) == ((), ())
    for one in outcomes(made, snapshot, (*SUBSCRIPTIONS, "log_gaps"), {"topics": f"{here},{away}"}):
        assert one.table is None
        assert one.error == "the bookies of no topic answered"
        assert len(one.warnings) == 2
    assert suite.of_subscriptions(snapshot, ["s"]).subscriptions == (), "whether there is one is not known"


def test_a_subscription_whose_cursor_ledger_cannot_be_read(made: World) -> None:
    """What it keeps is not known; that its topic's ledgers can be removed is not either."""
    here, _ = fill(made)
    made.topics[here].topic.managed.roll().result(30)
    stays = bookie_of(made, here)
    take_away(made, *{"bookie-0", "bookie-1", "bookie-2"} - {stays})
    given = {"topics": here}
    snapshot = gather(ReadOptions.of({"path": str(made.path), **given}), made.clock.now_us())
    assert [one.name for one in snapshot.topics] == [here]
    assert {(one.on, one.subscription) for one in snapshot.unknown} == {(here, "s")}
    found = outcomes(made, snapshot, given=given)
    assert len(of(found, "backlog_by_subscription").warnings) == 1
    assert of(found, "log_gaps").warnings == (), "of records all is known"
    retention = of(found, "retention_forecast").table
    assert retention is not None
    assert retention["deletable"].to_pylist() == [None]
    page = html(*found)
    assert "There are no subscriptions." not in page
    assert f"Could not ask: subscription s of topic {here}: " in page
    narrowed = suite.of_subscriptions(snapshot, ["s"])
    assert narrowed.unknown == snapshot.unknown


def test_a_subscription_that_is_deleted_meanwhile(made: World, spark: SparkSession) -> None:
    """Between the facts and the reading: the others are counted, in both engines, and it is said."""
    one, other = made.make("one"), made.make("other")
    for known in (one, other):
        made.publish(known, [10] * COUNT)
        for name in ("gone", "stays"):
            made.subscribe(known, name)
    snapshot = made.snapshot()
    one.topic.delete_subscription("gone")
    (found,) = outcomes(made, snapshot, ("backlog_age_histogram",))
    assert found.error == ""
    assert found.table is not None
    rows = [(row["topic"], row["subscription"], row["entries"]) for row in found.table.to_pylist()]
    assert rows == [("one", "stays", COUNT), ("other", "gone", COUNT), ("other", "stays", COUNT)]
    assert found.warnings == ("subscription gone of topic one was deleted meanwhile",)
    frame = reports.run("backlog_age_histogram", str(made.path), "spark", spark=spark, snapshot=snapshot)
    assert frame.toArrow() == found.table
    other.topic.delete_subscription("gone")  # now it is in no topic
    (found,) = outcomes(made, snapshot, ("backlog_age_histogram",))
    assert found.table is not None
    assert set(found.table["subscription"].to_pylist()) == {"stays"}
    assert spark_engine.table(spark, found.report(), {"path": str(made.path)}, snapshot) == found.table
