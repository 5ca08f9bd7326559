"""The timing wheel: what is due when, and what it keeps in memory."""

from __future__ import annotations

import pytest

from pyreplog.errors import InvalidArgumentError
from pyreplog.timing_wheel import TimingWheel


def test_an_item_is_never_early_and_less_than_a_tick_late() -> None:
    wheel: TimingWheel[str] = TimingWheel(tick_us=10)
    wheel.add("a", 21)
    assert wheel.expire(21) == []
    assert wheel.expire(29) == []
    assert wheel.expire(30) == ["a"]
    assert wheel.expire(1000) == []


def test_a_deadline_on_a_tick_is_due_on_it() -> None:
    wheel: TimingWheel[str] = TimingWheel(tick_us=10)
    wheel.add("a", 20)
    assert wheel.expire(19) == []
    assert wheel.expire(20) == ["a"]


def test_items_come_by_tick_and_within_a_tick_in_order_of_arrival() -> None:
    wheel: TimingWheel[str] = TimingWheel(tick_us=10)
    for item, deadline in [("late", 95), ("c", 39), ("a", 12), ("d", 31), ("b", 11)]:
        wheel.add(item, deadline)
    assert wheel.expire(50) == ["a", "b", "c", "d"]
    assert wheel.expire(100) == ["late"]


def test_a_deadline_in_the_past_is_due_at_once() -> None:
    wheel: TimingWheel[str] = TimingWheel(tick_us=10)
    assert wheel.expire(1_000_000) == []
    wheel.add("a", 5)
    assert wheel.next_deadline_us() == 10
    assert wheel.expire(1_000_000) == ["a"]


def test_deadlines_far_apart_cost_no_turns_of_the_wheel() -> None:
    wheel: TimingWheel[str] = TimingWheel(tick_us=1)
    wheel.add("a", 10**15)
    assert wheel.next_deadline_us() == 10**15
    assert wheel.expire(10**15 - 1) == []
    assert wheel.expire(10**15) == ["a"]


def test_a_cancelled_item_is_not_handed_out() -> None:
    wheel: TimingWheel[str] = TimingWheel(tick_us=10)
    wheel.add("a", 11)
    wheel.add("b", 12)
    assert wheel.cancel("a", 11)
    assert not wheel.cancel("a", 11)
    assert not wheel.cancel("b", 500)
    assert wheel.expire(20) == ["b"]
    assert not wheel.cancel("b", 12)


def test_the_next_deadline_is_exact_after_expire() -> None:
    wheel: TimingWheel[str] = TimingWheel(tick_us=10)
    assert wheel.next_deadline_us() is None
    for item, deadline in [("a", 10), ("b", 20), ("c", 30), ("d", 40)]:
        wheel.add(item, deadline)
    assert wheel.next_deadline_us() == 10
    wheel.cancel("b", 20)
    assert wheel.expire(10) == ["a"]
    assert wheel.next_deadline_us() == 30
    assert wheel.expire(40) == ["c", "d"]
    assert wheel.next_deadline_us() is None


def test_an_item_added_twice_is_there_once() -> None:
    wheel: TimingWheel[str] = TimingWheel(tick_us=10)
    wheel.add("a", 11)
    wheel.add("a", 11)
    assert len(wheel) == 1
    assert wheel.expire(20) == ["a"]


def test_a_wheel_whose_items_are_cancelled_holds_nothing() -> None:
    wheel: TimingWheel[int] = TimingWheel(tick_us=1)
    for item in range(1000):
        wheel.add(item, item)
    assert len(wheel) == 1000
    for item in range(1000):
        wheel.cancel(item, item)
    assert len(wheel) == 0
    assert wheel.next_deadline_us() is None  # not even the ticks are left


def test_cancelling_while_one_waits_keeps_few_stale_ticks() -> None:
    wheel: TimingWheel[int] = TimingWheel(tick_us=1)
    wheel.add(-1, 10**9)
    for item in range(1000):
        wheel.add(item, item)
        wheel.cancel(item, item)
    assert len(wheel._ticks) <= 2
    assert wheel.expire(10**9) == [-1]


def test_a_tick_takes_time() -> None:
    with pytest.raises(InvalidArgumentError, match="not 0"):
        TimingWheel(tick_us=0)
