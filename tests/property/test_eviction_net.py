"""Tables of connections that have a bound, beside lists that are searched from end to end."""

from __future__ import annotations

from collections import Counter
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from pyreplog.net.pending_connections import PendingConnections
from pyreplog.net.server_connection import Budget

PLACES = ("10.0.0.1", "10.0.0.2", "10.0.0.3")
coming = st.one_of(st.tuples(st.just("add"), st.sampled_from(PLACES)), st.tuples(st.just("over"), st.integers(0, 6)))


@given(limit=st.integers(1, 5), of_one=st.integers(1, 4), steps=st.lists(coming, max_size=40))
def test_oldest_pending_connection_of_the_most_frequent_address_is_evicted(
    limit: int, of_one: int, steps: list[tuple[str, Any]]
) -> None:
    pending = PendingConnections(limit, of_one)
    waiting: list[tuple[Any, str]] = []  # the oldest first
    for number, (step, actual_step) in enumerate(steps):
        if step == "over":
            if actual_step < len(waiting):
                pending.discard(waiting.pop(actual_step)[0])
            continue
        greeting: Any = number
        counts = Counter(place for _, place in waiting)
        former = pending.add(greeting, actual_step)
        if counts[actual_step] >= of_one:
            assert former == next(waiter for waiter, place in waiting if place == actual_step)
        elif len(waiting) >= limit:
            place = dict(waiting)[former]
            assert counts[place] == max(counts.values())
            assert former == next(waiter for waiter, where in waiting if where == place)
        else:
            assert former is None
        waiting = [(waiter, place) for waiter, place in waiting if waiter != former] + [(greeting, actual_step)]
        assert list(pending) == [waiter for waiter, _ in waiting]
        assert len(waiting) <= limit and max(Counter(place for _, place in waiting).values()) <= of_one


@given(limit=st.integers(0, 4), amounts=st.lists(st.integers(0, 5), max_size=30), data=st.data())
def test_budget_calls_back_each_time_it_becomes_full_or_free(
    limit: int, amounts: list[int], data: st.DataObject
) -> None:
    told: list[bool] = []
    budget = Budget(limit, lambda: told.append(budget.full))
    out: list[int] = []
    was_full = False
    for amount in amounts:
        if out and data.draw(st.booleans()):
            budget.add(-out.pop(data.draw(st.integers(0, len(out) - 1))))
        else:
            budget.add(amount)
            out.append(amount)
        is_full = sum(out) > limit
        assert (budget.used_bytes, budget.full) == (sum(out), is_full)
        assert told == ([is_full] if is_full != was_full else [])
        told.clear()
        was_full = is_full
