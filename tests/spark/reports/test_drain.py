"""Whether backlogs are worked off: rates of a window, from what was appended in it and where marks stood."""

from __future__ import annotations

import random
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from pyreplog.errors import InvalidArgumentError
from pyreplog.reports.snapshot import Snapshot
from pyreplog.reports.subscriptions.drain import DrainEstimate
from tests.spark.reports.both import check
from tests.spark.reports.subscribed import SECOND, Row, Sub, World, world

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def mark_at(sub: Sub, time_us: int) -> int | None:
    return next((mark for since_us, mark in reversed(sub.marks) if since_us <= time_us), None)


def expected(world: World, window_s: float) -> list[Row]:
    rows, now_us = [], world.clock.now_us()
    since_us = now_us - round(window_s * SECOND)
    for row, known, name, sub in world.rows():
        left, before = len(known.left(name)), mark_at(sub, since_us)
        in_rate = sum(since_us <= time_us < now_us for time_us in known.times) / window_s
        out_rate = None if before is None else (sub.mark - before) / window_s
        drain_s, status = None, None
        if not left:
            drain_s, status = 0.0, "done"
        elif out_rate == 0:
            status = "stalled"
        elif out_rate is not None and out_rate <= in_rate:
            status = "growing"
        elif out_rate is not None:
            drain_s, status = left / (out_rate - in_rate), "draining"
        rows.append({
            **row, "backlog_entries": left, "in_rate": in_rate, "out_rate": out_rate, "drain_s": drain_s,
            "status": status,
        })  # fmt: skip
    return rows


def live(world: World, rng: random.Random) -> None:
    """Some minutes of publishing and acknowledging, at several speeds."""
    topics = [world.make(name, roll_entries=9) for name in ("slow", "orders-partition-0", "orders-partition-1")]
    for known in topics:
        for name in ("keen", "lazy", "idle"):
            world.subscribe(known, name)
    for turn in range(9):
        for n, known in enumerate(topics):
            world.publish(known, [1] * rng.randrange(1, 3 + 4 * n))
            world.clock.advance(rng.randrange(SECOND, 5 * SECOND))
            for name, share in (("keen", 0.9), ("lazy", 0.2 if turn < 6 else 0.5)):
                left = known.left(name)
                if left and rng.random() < 0.9:
                    world.upto(known, name, left[round((len(left) - 1) * share * rng.random())])
        world.clock.advance(10 * SECOND)
    world.upto(topics[0], "keen", topics[0].end)


def test_drain_rates_are_those_of_plain_python(tmp_path: Path, spark: SparkSession) -> None:
    with world(tmp_path / "data") as environment:
        live(environment, random.Random(7))
        seen = set()
        for window_s in (25.0, 60.0, 90.5, 300.0):
            rows = expected(environment, window_s)
            seen |= {row["status"] for row in rows}
            snapshot, in_spark = environment.snapshot(window_s), spark if window_s == 60 else None
            check(
                DrainEstimate(),
                {"path": str(environment.path)},
                snapshot,
                rows,
                spark=in_spark,
                cuts=({"minPartitions": "5"},),
            )
        assert seen == {None, "done", "stalled", "growing", "draining"}


def test_the_drain_of_a_closed_topic_is_estimated(tmp_path: Path) -> None:
    """What is known then is when the mark last moved: if that was before the window, it stood still."""
    with world(tmp_path / "data") as environment:
        known = environment.make("t")
        environment.publish(known, [1] * 10)
        environment.subscribe(known, "s")
        environment.clock.advance(100 * SECOND)
        environment.upto(known, "s", 4)
        environment.clock.advance(100 * SECOND)
        known.topic.close()
        (row,) = expected(environment, 50)
        assert row["status"] == "stalled"
        check(DrainEstimate(), {"path": str(environment.path)}, environment.snapshot(50), [row], cuts=())
        (row,) = expected(environment, 150)
        assert row["status"] == "draining"
        rows = [{**row, "out_rate": None, "drain_s": None, "status": None}]
        check(DrainEstimate(), {"path": str(environment.path)}, environment.snapshot(150), rows, cuts=())


def test_a_seek_back_is_not_counted_as_draining(tmp_path: Path) -> None:
    with world(tmp_path / "data") as environment:
        known = environment.make("t")
        environment.publish(known, [1] * 10)
        environment.subscribe(known, "s")
        environment.clock.advance(SECOND)
        environment.upto(known, "s", 8)
        environment.clock.advance(100 * SECOND)
        known.topic.subscription("s").seek("earliest").result(30)
        known.subs["s"].acked.clear()
        known.subs["s"].marks.append((environment.clock.now_us(), 0))
        environment.clock.advance(SECOND)
        (row,) = expected(environment, 10)
        assert (row["out_rate"], row["status"]) == (-0.8, "growing")
        check(DrainEstimate(), {"path": str(environment.path)}, environment.snapshot(10), [row], cuts=())


@pytest.mark.parametrize("window_ms", [0, -1, 10**15])
def test_impossible_windows_of_a_snapshot_are_refused(window_ms: int) -> None:
    with pytest.raises(InvalidArgumentError, match="window_ms: expected 1 to"):
        Snapshot(as_of_us=0, window_ms=window_ms)
