"""The parts of a dispatcher, compared with simple models."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyreplog.topic.model.dispatch.key_shared_selector import BlockedMessages
from pyreplog.topic.model.dispatch.offsets import Offsets, ascending, runs, within
from pyreplog.topic.model.dispatch.pending import DEAD_LETTERS, PAGE, Pending, PendingRanges
from pyreplog.topic.model.dispatch.reading import Reading
from pyreplog.topic.model.dispatch.redelivery import (
    NEIGHBOURS,
    DelayedDeliveryTracker,
    Redeliveries,
    RedeliveryCause,
    Replay,
    neighbours,
)
from tests.topic.dispatching import NOW, SECOND, Log

OFFSETS = st.sets(st.integers(0, 5 * PAGE), max_size=60)
HOLDERS = st.sampled_from([DEAD_LETTERS, 2, 3])


def array(offsets: object) -> Offsets:
    return np.array(sorted(offsets), np.int64)  # type: ignore[call-overload]


@given(st.lists(st.integers(0, 50)))
def test_arrays_of_offsets_become_runs(numbers: list[int]) -> None:
    actual_ranges = ascending(np.array(numbers, np.int64))
    assert actual_ranges.tolist() == sorted(set(numbers))
    starts, ends = runs(actual_ranges)
    ranges = list(zip(starts.tolist(), ends.tolist(), strict=True))
    assert [offset for start, end in ranges for offset in range(start, end)] == actual_ranges.tolist()
    assert all(end < start for (_, end), (start, _) in itertools.pairwise(ranges))
    assert within(np.arange(60), starts, ends).tolist() == [offset in numbers for offset in range(60)]


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("hold"), OFFSETS, HOLDERS),
        st.tuples(st.just("release"), OFFSETS, st.one_of(st.none(), HOLDERS)),
        st.tuples(st.just("range"), st.integers(0, 6 * PAGE), st.integers(0, 6 * PAGE)),
        st.tuples(st.just("holder"), HOLDERS, st.none()),
        st.tuples(st.just("consumers"), st.none(), st.none()),
        st.tuples(st.just("since"), st.integers(0, 20), st.none()),
    ),
    max_size=20,
)


@pytest.mark.parametrize("kind", [Pending, PendingRanges])
@given(steps=STEPS)
def test_pending_messages_behave_as_a_table(
    kind: type[Pending] | type[PendingRanges], steps: list[tuple[str, object, object]]
) -> None:
    pending, is_full = kind(), kind is Pending
    model: dict[int, tuple[int, int, int]] = {}  # by offset, holder, slot and time
    for now, (step, each_step, two) in enumerate(steps):
        if step == "hold":
            new = array(each_step - model.keys())  # type: ignore[operator]
            slots = (new % 7 + 1).astype(np.uint16) if now % 2 and is_full else None
            pending.hold(new, two, slots, now)  # type: ignore[arg-type]
            model.update({at: (two, at % 7 + 1 if slots is not None else 0, now) for at in new.tolist()})  # type: ignore[misc]
            continue
        if step == "release":
            gone = pending.release(array(each_step), two)  # type: ignore[arg-type]
            expected = {at for at in each_step if at in model and two in (None, model[at][0])}  # type: ignore[attr-defined]
        elif step == "range":
            gone = pending.release_range(each_step, two)  # type: ignore[arg-type]
            expected = {at for at in model if each_step <= at < two}  # type: ignore[operator]
        elif step == "holder":
            gone = pending.release_holder(each_step)  # type: ignore[arg-type]
            expected = {at for at, row in model.items() if row[0] == each_step}
        elif step == "consumers":
            gone = pending.release_consumers()
            expected = {at for at, row in model.items() if row[0] != DEAD_LETTERS}
        else:
            gone = pending.release_since(each_step)  # type: ignore[arg-type]
            late = {at for at, row in model.items() if row[0] != DEAD_LETTERS and row[2] <= each_step}  # type: ignore[operator]
            expected = late if is_full else set()
        assert gone.offsets.tolist() == sorted(expected)
        assert gone.slots.tolist() == [model[at][1] for at in sorted(expected)]
        model = {at: row for at, row in model.items() if at not in expected}
        assert pending.total == len(model)
        for holder in (DEAD_LETTERS, 2, 3):
            assert pending.count(holder) == sum(row[0] == holder for row in model.values())
        offsets = np.arange(6 * PAGE)
        assert offsets[pending.holds(offsets)].tolist() == sorted(model)


@given(st.lists(st.tuples(OFFSETS, st.integers(0, 100 * SECOND)), max_size=10))
def test_later_is_never_early_and_hardly_late(puts: list[tuple[set[int], int]]) -> None:
    later, due = DelayedDeliveryTracker(), dict[int, int]()
    for offsets, wait in puts:
        new = offsets - due.keys()
        later.add(array(new), NOW + wait, NOW)
        due.update(dict.fromkeys(new, wait))
    assert later.messages == len(due)
    now = 0
    while later.first_us is not None:
        now = later.first_us - NOW
        for bucket in later.pop(NOW + now):
            for start, end in zip(*(column.tolist() for column in bucket.intersect()), strict=True):
                for at in range(start, end):
                    wait = due.pop(at)
                    assert wait <= now <= wait + max(wait // 8, 8192) and now - wait <= SECOND
    assert not due and (later.messages, later.ranges) == (0, 0)


def test_each_with_its_own_time() -> None:
    later = DelayedDeliveryTracker()
    later.add_each(array([1, 2, 3, 9]), np.array([NOW + 5, NOW + 9 * SECOND, NOW + 5, NOW]), NOW)
    soon = [start for bucket in later.pop(NOW + 20_000) for start in bucket.intersect()[0].tolist()]
    assert sorted(soon) == [1, 3, 9]
    assert later.messages == 1


def test_delay_tracker_without_messages_has_no_due_time() -> None:
    """Otherwise a timer would wait for messages that are never taken."""
    later = DelayedDeliveryTracker()
    later.add(array([]), NOW, NOW)
    assert later.first_us is None


@given(OFFSETS, st.integers(1, 50))
def test_replays_come_out_in_order(offsets: set[int], most: int) -> None:
    replay, actual = Replay(), []
    replay.add(array(offsets))
    while (ranges := replay.take(most)) is not None:
        starts, ends = ranges
        assert 0 < int((ends - starts).sum()) <= most
        assert (starts[1:] - ends[:-1] <= NEIGHBOURS).all()
        actual += [at for start, end in zip(starts.tolist(), ends.tolist(), strict=True) for at in range(start, end)]
    assert actual == sorted(offsets) and replay.messages == 0


def test_neighbours_are_cut_to_what_is_wanted() -> None:
    starts, ends = neighbours(array([0, 10, 20, 5000]), array([5, 15, 25, 5005]), 12)
    assert (starts.tolist(), ends.tolist()) == ([0, 10, 20], [5, 15, 22])


@given(st.lists(st.tuples(st.sampled_from(["back", "out", "ack"]), st.sets(st.integers(0, 20)))))
def test_redeliveries_of_each_message_are_counted(steps: list[tuple[str, set[int]]]) -> None:
    redeliveries, again, counts = Redeliveries(), set[int](), dict[int, int]()
    for step, offsets in steps:
        if step == "back":
            redeliveries.returned(array(offsets), RedeliveryCause.NACK)
            again |= offsets
        elif step == "ack":
            redeliveries.forget(array(offsets))
            again -= offsets
            counts = {at: count for at, count in counts.items() if at not in offsets}
        else:
            for most in (0, 1, 2):
                beyond = [at for at in sorted(offsets & again) if counts.get(at, 0) >= most]
                assert redeliveries.beyond(array(offsets), most).tolist() == beyond
            counts.update({at: counts.get(at, 0) + 1 for at in offsets & again})
            assert redeliveries.delivered(array(offsets)) == {at: counts[at] for at in offsets & again}
            again -= offsets
        assert len(redeliveries) == len(counts)
    redeliveries.forget_range(0, 10)
    assert len(redeliveries) == sum(at >= 10 for at in counts)


@pytest.mark.parametrize("has_reasons", [False, True])
def test_the_cause_of_a_redelivery_lasts_until_the_message_is_delivered(has_reasons: bool) -> None:
    redeliveries = Redeliveries()
    redeliveries.returned(array({1, 2}), RedeliveryCause.ACK_TIMEOUT)
    if has_reasons:
        redeliveries.explain(array({1}), "damaged")
    redeliveries.forget(array({1}))
    assert redeliveries.delivered(array({2})) == {2: 1}
    redeliveries.returned(array({2}), RedeliveryCause.NACK)
    assert redeliveries.died(array({2}))[2].cause is RedeliveryCause.NACK


@given(st.sets(st.integers(0, 40)), st.sets(st.integers(0, 40)), st.sets(st.integers(0, 40)))
def test_blocked_messages_precede_later_messages_of_their_slot(
    first: set[int], gone: set[int], batch: set[int]
) -> None:
    blocked = BlockedMessages()
    for some in (first, gone & first, {at for at in first if at % 2}):
        blocked.add(array(some), (array(some) % 5 + 1).astype(np.uint16))
    blocked.remove(array(gone))
    left = first - gone
    assert blocked.offsets.tolist() == sorted(left)
    assert blocked.slots.tolist() == [at % 5 + 1 for at in sorted(left)]
    permitted = blocked.in_turn(array(batch), (array(batch) % 5 + 1).astype(np.uint16))
    waiting = left - batch
    assert permitted.tolist() == [not any(o < at and o % 5 == at % 5 for o in waiting) for at in sorted(batch)]
    blocked.remove_range(10, 20)
    assert blocked.offsets.tolist() == [at for at in sorted(left) if not 10 <= at < 20]


def test_answers_are_put_in_order_and_gaps_are_read() -> None:
    log = Log()
    for _ in range(10):
        log.publish(10)
    reading = Reading(5)
    assert reading.is_idle
    assert ahead(reading, 45) == (1, 5, 45) and ahead(reading, 75) == (2, 45, 75)
    assert ahead(reading, 100, capacity=70) is None, "that many are under way"
    reading.answered(2, log.read(45, 75, 10_000))
    assert reading.ready() == [] and reading.under_way == 1 and reading.starts_at(1) == 5
    reading.answered(1, log.read(5, 15, 10_000))  # a short answer
    (short,) = reading.ready()
    assert short.offset.tolist() == list(range(5, 20)) and reading.under_way == 0
    assert ahead(reading, 100) == (3, 20, 45), "up to the read behind it"
    reading.answered(3, log.read(20, 45, 10_000))  # this read ends with the entry in which the next one begins
    offsets = [offset for batch in reading.ready() for offset in batch.offset.tolist()]
    assert offsets == list(range(20, 80)) and reading.is_idle


def test_pass_over_drops_offsets_of_a_read_in_progress() -> None:
    log = Log()
    for _ in range(10):
        log.publish(10)
    reading = Reading(0)
    assert ahead(reading, 30) == (1, 0, 30) and ahead(reading, 60) == (2, 30, 60)
    reading.answered(2, log.read(30, 60, 10_000))
    assert reading.failed(1, "no bookie", NOW) is None and reading.under_way == 0
    reading.pass_over(42)
    (rest,) = reading.ready()
    assert rest.offset.tolist() == list(range(42, 60)) and ahead(reading, 100) == (3, 60, 100)
    reading.restart(7)
    assert reading.forgotten == 1 and reading.starts_at(3) is None and reading.forgotten == 0
    reading.restart(7)
    assert reading.forgotten == 0 and ahead(reading, 20) == (4, 7, 20)


def ahead(reading: Reading, end: int, *, capacity: int = 1000) -> tuple[int, int, int] | None:
    """Return id and range of the next read, if one is begun."""
    read = reading.begin_ahead(end, capacity)
    return None if read is None else (read.id, read.offset, read.end)
