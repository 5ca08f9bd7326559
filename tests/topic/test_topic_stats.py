"""Stats: derived values, JSON, and rates."""

from __future__ import annotations

import dataclasses
import itertools
import json
import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyreplog.topic.model.positions import TopicPosition
from pyreplog.topic.model.stats import (
    CursorStats,
    InternalStats,
    LedgerStats,
    RateMeter,
    SubscriptionStats,
    TopicStats,
)
from tests.switching import race
from tests.topic.stats_samples import NOW, S, orders


def test_lag_is_the_age_of_the_oldest_message_with_or_without_consumers() -> None:
    used, left, _ = orders().subscriptions
    assert (used.lag_s, used.backlog_no_delayed) == (2.0, 5)
    assert left.consumers == () and left.lag_s == 3600.0
    assert dataclasses.replace(left, backlog_messages=0).lag_s == 0.0
    assert dataclasses.replace(left, oldest_us=None).lag_s is None, "not 0: nobody knows"
    assert dataclasses.replace(left, oldest_us=NOW + S).lag_s == 0.0, "the clock went back"
    assert dataclasses.replace(left, delayed=99).backlog_no_delayed == 0


def test_a_topic_speaks_of_its_slowest_durable_subscription() -> None:
    topic = orders()
    assert topic.backlog_bytes == 500 and topic.oldest == ("left", 3600.0)
    alone = TopicStats(name="t", at_us=NOW, end=TopicPosition(9, 9, 9), subscriptions=(topic.subscriptions[2],))
    assert alone.backlog_bytes == 0 and alone.oldest is None
    done = SubscriptionStats(name="done", at_us=NOW, mark=TopicPosition(9, 9, 9))
    assert TopicStats(name="t", at_us=NOW, end=TopicPosition(9, 9, 9), subscriptions=(done,)).oldest is None


def test_stats_of_a_topic_are_json() -> None:
    topic = orders()
    report = topic.to_dict()
    assert json.loads(json.dumps(report)) == report
    assert {item.name for item in dataclasses.fields(topic)} < set(report)
    assert report["end"] == {"offset": 100, "entries": 10, "size": 1000} and report["quota_exceeded"] == ["bytes"]
    assert (report["oldest_subscription"], report["oldest_s"], report["backlog_bytes"]) == ("left", 3600.0, 500)
    used = report["subscriptions"]["used"]
    assert (used["lag_s"], used["backlog_no_delayed"], used["consumers"][1]["permits"]) == (2.0, 5, 5)
    assert used["properties"] == {"team": "a"}


def test_internal_stats_of_a_topic_are_json() -> None:
    ledgers = (
        LedgerStats(ledger=7, start=TopicPosition(0, 0, 0), entries=3, messages=5, size=50, created_us=1, closed_us=2),
        LedgerStats(ledger=9, start=TopicPosition(5, 3, 50), entries=1, messages=1, size=9, created_us=3),
    )
    cursors = (CursorStats(name="s", mark=TopicPosition(2, 1, 20), read=6, properties={"p": 1}),)
    inside = InternalStats(
        name="t", state="open", epoch=2, start=TopicPosition(0, 0, 0), end=TopicPosition(6, 4, 59), last_entry=(9, 0), ledgers=ledgers,
        cursors=cursors,
    )  # fmt: skip
    report = inside.to_dict()
    assert json.loads(json.dumps(report)) == report
    assert (report["entries"], report["size"], report["last_entry"]) == (4, 59, [9, 0])
    assert [(ledger["ledger"], ledger["closed_us"]) for ledger in report["ledgers"]] == [(7, 2), (9, None)]
    assert report["cursors"]["s"]["mark"]["offset"] == 2 and report["cursors"]["s"]["properties"] == {"p": 1}


# ---- rates -----------------------------------------------------------------------------------------------------


def test_rates_are_of_the_last_minute() -> None:
    meter = RateMeter()
    rates = [meter.measure(t * S, {"n": 10 * t if t <= 60 else 600})["n"] for t in range(0, 301, 10)]
    assert rates[0] == 0.0 and rates[1:7] == [10.0] * 6
    assert rates[9] == pytest.approx(5.0) and rates[12:] == [0.0] * 19


def test_rare_looks_get_the_rate_between_them() -> None:
    meter = RateMeter()
    meter.measure(0, {"n": 0})
    assert meter.measure(600 * S, {"n": 6000})["n"] == 10.0
    assert meter.measure(1200 * S, {"n": 6600})["n"] == 1.0


def test_frequent_looks_keep_few_samples() -> None:
    meter = RateMeter()
    rates = [meter.measure(t * S // 100, {"n": t})["n"] for t in range(1, 20_000)]
    assert rates[1:] == [pytest.approx(100.0)] * 19_998 and len(meter._samples) <= 8


def test_rates_survive_counters_that_begin_anew() -> None:
    meter = RateMeter()
    meter.measure(0, {"n": 1000, "m": 5})
    assert meter.measure(10 * S, {"n": 3, "m": 6}) == {"n": 0.0, "m": 0.0}
    assert meter.measure(20 * S, {"n": 13, "m": 6, "new": 20}) == {"n": 1.0, "m": 0.0, "new": 2.0}
    assert meter.measure(20 * S, {"n": 13, "m": 6, "new": 20})["n"] == 1.0
    assert meter.measure(30 * S, {"m": 6}) == {"m": 0.0}, "a counter that is gone begins anew"


class Counters(dict[str, int]):
    """Counters that are compared with earlier ones by one thread at a time; another one may run meanwhile."""

    comparing = False

    def get(self, name: str, default: Any = None, /) -> Any:
        assert not Counters.comparing, "two threads compare counters at once"
        Counters.comparing = True
        time.sleep(0)  # lets the other thread run
        Counters.comparing = False
        return super().get(name, default)


def test_several_threads_measure_at_once() -> None:
    """A scrape of metrics and `stats` do, of one topic."""
    meter, looks = RateMeter(), itertools.count()

    def look() -> None:
        at = next(looks)
        assert meter.measure(at * S, Counters(n=at))["n"] >= 0.0

    race(2000, look, look)


@given(st.lists(st.tuples(st.integers(0, 50_000_000), st.integers(0, 1000)), min_size=1))
def test_rates_are_never_absurd(steps: list[tuple[int, int]]) -> None:
    """A rate is at most the highest rate between two looks."""
    meter, at, n, highest = RateMeter(), 0, 0, 0.0
    meter.measure(at, {"n": n})
    pending = 0
    for us, more in steps:
        at, n, pending = at + us, n + more, pending + more
        if us:
            highest, pending = max(highest, pending / us * 1e6), 0
        rate = meter.measure(at, {"n": n})["n"]
        assert rate >= 0.0
        assert us == 0 or rate <= highest * (1 + 1e-9)
