"""Acknowledgements in C against counting one by one; the entries that are known; bytes and what is no such bytes."""

from __future__ import annotations

import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pyreplog._native.topic.ack_set import AckSet
from pyreplog.errors import InvalidArgumentError, InvalidRecordsError, OutOfRangeError, WrongTypeError
from pyreplog.topic.model.positions import ORIGIN, EntryPosition, TopicPosition
from tests.topic.acking import Topic, int64s

END = 1 << 40


def of(topic: Topic, mark: int = 0) -> AckSet:
    """All of whose entries are out."""
    acks = AckSet(topic.total(mark))
    acks.deliver(topic.columns(0, len(topic.counts)))
    return acks


def state(acks: AckSet) -> tuple[object, ...]:
    starts, ends = acks.acked()
    counts = acks.acked_messages, acks.acked_entries, acks.acked_bytes
    return acks.mark, counts, acks.ranges, starts.tolist(), ends.tolist()


# ---- counting ------------------------------------------------------------------------------------------------------


def test_an_entry_counts_with_its_last_message() -> None:
    acks = of(Topic([4, 4, 4]))
    for done, (offsets, wanted) in enumerate([([5], 0), ([4, 6], 0), ([6], 0), ([7], 1)]):
        assert not len(acks.acknowledge(int64s(offsets), 12)), done
        assert (acks.acked_entries, acks.acked_bytes) == (wanted, 40 * wanted)
    assert (acks.mark, acks.acked_messages, acks.ranges) == ((0, 0, 0), 4, 1)


def test_counts_of_ranges_that_merge_add_up() -> None:
    acks = of(Topic([1] * 9))
    acks.acknowledge(int64s([2, 4, 6]), 9)
    assert (acks.acked_entries, acks.ranges) == (3, 3)
    acks.acknowledge(int64s([3, 5]), 9)
    assert (acks.acked_entries, acks.acked_bytes, acks.ranges) == (5, 50, 1)
    acks.acknowledge(int64s([1, 0]), 9)
    assert (acks.mark, acks.acked_entries, acks.acked_bytes) == ((7, 7, 70), 0, 0)


def test_an_entry_around_the_mark_counts_once_it_is_complete() -> None:
    topic = Topic([2, 6, 2])
    acks = of(topic)
    acks.cumulative(topic.place(1), 5)
    assert acks.mark == (5, 1, 20)
    acks.acknowledge(int64s([7]), 10)
    assert (acks.mark, acks.acked_messages, acks.acked_entries) == ((5, 1, 20), 1, 0)
    acks.acknowledge(int64s([6, 5]), 10)
    assert (acks.mark, acks.acked_messages, acks.acked_entries) == ((8, 2, 80), 0, 0)


def test_cumulative_up_to_a_range_completes_the_entry_it_begins_in() -> None:
    topic = Topic([4, 4])
    acks = of(topic)
    acks.acknowledge_range(2, 6, 8)
    assert acks.cumulative_start(5) == 2
    acks.cumulative(topic.place(0), 5)
    assert (acks.mark, acks.acked_messages, acks.acked_entries, acks.ranges) == ((6, 1, 40), 0, 0, 0)


def test_cumulative_does_not_count_what_the_ranges_below_hold_again() -> None:
    topic = Topic([2] * 10)
    acks = of(topic)
    acks.acknowledge(int64s([2, 3, 6, 7, 9, 14, 15]), 20)
    assert acks.acked_entries == 3
    acks.cumulative(topic.place(4), 9)
    assert (acks.mark, acks.acked_messages, acks.acked_entries) == ((10, 5, 100), 2, 1)
    assert acks.entries_out == 4


def test_places_that_do_not_fit_a_cumulative_one() -> None:
    topic = Topic([2] * 10)
    acks = of(topic)
    acks.acknowledge_range(8, 12, 20)
    for entry in (0, 2, 5, 6):
        with pytest.raises(InvalidArgumentError, match="in or next to"):
            acks.cumulative(topic.place(entry), 10)
    with pytest.raises(InvalidArgumentError, match="expected one behind"):
        acks.cumulative(EntryPosition(0, 0, 6, 2, 20, 9, 60), 7)
    assert (acks.mark, acks.acked_messages) == ((0, 0, 0), 4)


# ---- entries -------------------------------------------------------------------------------------------------------


def test_acknowledge_returns_unknown_messages() -> None:
    topic = Topic([3] * 6)
    acks = AckSet(ORIGIN)
    acks.deliver(topic.columns(2, 3))
    assert acks.acknowledge(int64s([1, 2, 6, 7, 8, 16]), 18).tolist() == [1, 2, 16]
    assert (acks.acked_messages, acks.acked_entries) == (3, 1)
    assert acks.acknowledge_range(0, 18, 18) == [(0, 6), (9, 18)]
    acks.note(topic.place(0))
    assert acks.acknowledge(int64s([1, 2, 16]), 18).tolist() == [16]
    assert acks.acknowledge_range(0, 9, 18) == [(3, 6)]
    assert acks.mark == (3, 1, 30)


def test_entries_are_forgotten_when_they_are_done() -> None:
    topic = Topic([2, 2, 2])
    acks = of(topic)
    assert acks.find(3) == (2, 2, 20, 1, 20)
    acks.acknowledge(int64s([2, 3]), 6)
    assert (acks.find(3), acks.entries_out) == (None, 2)
    acks.deliver(topic.columns(0, 3))  # replayed
    assert acks.entries_out == 2
    assert not len(acks.acknowledge(int64s([2, 3]), 6)), "what is acknowledged is known"
    acks.acknowledge_range(0, 6, 6)
    assert (acks.entries_out, acks.nbytes, acks.mark) == (0, 0, topic.end)
    acks.deliver(topic.columns(0, 3))
    assert acks.entries_out == 0


@pytest.mark.parametrize("first, count", [(3, 2), (2, 1), (4, 8), (0, 3), (2, 3), (0, 5)])
def test_overlapping_entries_of_an_ack_set_are_refused(first: int, count: int) -> None:
    acks = AckSet(ORIGIN)
    acks.note(EntryPosition(0, 0, 2, 2, 5, 1, 1))
    acks.note(EntryPosition(0, 0, 2, 2, 5, 1, 1))
    acks.note(EntryPosition(0, 0, 8, 2, 5, 3, 3))
    with pytest.raises(InvalidArgumentError, match="another one has"):
        acks.note(EntryPosition(0, 0, first, count, 5, 1, 1))
    assert acks.entries_out == 2


@pytest.mark.parametrize("first, count, size", [(-1, 2, 0), (0, 0, 0), (0, 1, -1), (2, 1 << 62, 0)])
def test_impossible_entries_of_an_ack_set_are_refused(first: int, count: int, size: int) -> None:
    acks = AckSet(ORIGIN)
    with pytest.raises(InvalidArgumentError, match="impossible"):
        acks.note(EntryPosition(0, 0, first, count, size, 0, 0))


def test_an_ack_set_refuses_malformed_columns() -> None:
    acks = AckSet(ORIGIN)
    first, two = int64s([1]), int64s([1, 2])
    with pytest.raises(InvalidArgumentError, match="as many of each"):
        acks.note_entries(two, first, two, two, two)
    with pytest.raises(WrongTypeError, match="int64"):
        acks.acknowledge(np.array([0.5]), END)  # type: ignore[arg-type]


def test_acknowledgements_outside_the_topic_are_refused() -> None:
    acks = of(Topic([2, 2]))
    for bad in (-1, 4):
        with pytest.raises(OutOfRangeError):
            acks.acknowledge(int64s([0, bad]), 4)
    for start, stop in [(-1, 2), (3, 2), (0, 5)]:
        with pytest.raises(OutOfRangeError):
            acks.acknowledge_range(start, stop, 4)
    assert (acks.mark, acks.acked_messages) == ((0, 0, 0), 0)


@pytest.mark.parametrize("mark", [(-1, 0, 0), (1, 2, 0), (1, 1, -1), ((1 << 62) + 1, 0, 0)])
def test_impossible_marks_of_an_ack_set_are_refused(mark: tuple[int, int, int]) -> None:
    with pytest.raises(InvalidArgumentError, match="mark"):
        AckSet(mark)


# ---- questions -----------------------------------------------------------------------------------------------------


@given(st.sets(st.integers(0, 90)), st.integers(0, 100), st.integers(0, 60))
@settings(deadline=None)
def test_an_ack_set_answers_as_a_set_of_offsets(acked: set[int], at: int, length: int) -> None:
    acks = of(Topic([5] * 20))
    acks.acknowledge(int64s(sorted(acked)), 100)
    left = [offset for offset in range(at, 500) if offset not in acked]
    assert acks.is_acked(at) == (at in acked)
    assert acks.next_unacked(at) == left[0]
    assert acks.missing(at, at + length) == sum(offset < at + length for offset in left)
    behind = acks.behind(length)
    assert sum(offset not in acked for offset in range(behind)) == length
    assert behind == acks.mark_offset or behind - 1 not in acked


# ---- bytes ---------------------------------------------------------------------------------------------------------


def change(acks: AckSet, topic: Topic, rng: random.Random) -> None:
    """Acknowledge something."""
    end = topic.end.offset
    match rng.randrange(4):
        case 0:
            acks.acknowledge(int64s(sorted(rng.sample(range(end), 40))), end)
        case 1:
            start = rng.randrange(end)
            acks.acknowledge(int64s(range(start, end, 2))[: rng.randrange(600)], end)
        case 2:
            start = rng.randrange(end)
            acks.acknowledge_range(start, min(start + 60, end), end)
        case _:
            to = min(acks.mark_offset + rng.randrange(30), end)
            acks.cumulative(topic.locate(acks.cumulative_start(to)), to)


@pytest.mark.parametrize("seed", range(6))
def test_changes_make_the_same_set(seed: int) -> None:
    """Whatever is taken when, in records of any size; each twice."""
    rng = random.Random(seed)
    topic = Topic.random(seed, 1500, 3)
    acks, copy = of(topic), AckSet(ORIGIN)
    for _ in range(60):
        change(acks, topic, rng)
        if rng.random() < 0.3:
            most = rng.choice([128, 300, 1 << 20])
            while acks.has_changes:
                record = acks.changes(most)
                assert len(record) <= most
                copy.apply(record)
                copy.apply(record)
            assert state(copy) == state(acks)
    whole = AckSet(ORIGIN)
    whole.apply(acks.snapshot())
    assert state(whole) == state(acks)


@pytest.mark.parametrize("seed", range(6))
def test_take_acked_ranges_add_up_to_the_acknowledged_offsets(seed: int) -> None:
    rng = random.Random(seed)
    topic = Topic.random(seed, 1500, 3)
    acks, taken = of(topic), set[int]()
    for _ in range(60):
        change(acks, topic, rng)
        if rng.random() < 0.1:
            acks.reset(topic.total(rng.randrange(topic.end.offset)))
            acks.deliver(topic.columns(0, len(topic.counts)))
            taken.clear()
        if rng.random() < 0.1:
            acks.forget_taken()
            taken.clear()
        if rng.random() < 0.5:
            taken.update(*map(range, *(column.tolist() for column in acks.take_acked())))
            assert taken == {offset for offset in range(topic.end.offset) if acks.is_acked(offset)}


def test_taking_costs_what_was_acknowledged() -> None:
    acks = of(Topic([1] * 40_000))
    acks.acknowledge(np.arange(1, 40_000, 2), 40_000)
    assert len(acks.take_acked()[0]) == 20_000
    assert len(acks.take_acked()[0]) == 0
    acks.acknowledge(int64s([1000, 30_000, 30_002]), 40_000)
    assert [column.tolist() for column in acks.take_acked()] == [[999, 29_999], [1002, 30_004]]
    acks.acknowledge(int64s([0]), 40_000)
    assert [column.tolist() for column in acks.take_acked()] == [[0], [2]]


def test_changes_of_an_ack_set_are_as_large_as_what_changed() -> None:
    """In a set of many ranges, those that nothing happened to are not written again; what merged is written once."""
    acks = of(Topic([1] * 40_000))
    acks.acknowledge(np.arange(1, 40_000, 2), 40_000)
    assert len(acks.changes()) > 60_000
    assert len(acks.changes()) < 12
    acks.acknowledge(int64s(range(1000, 1100, 2)), 40_000)
    acks.acknowledge(int64s([30_000, 20_000]), 40_000)
    assert len(acks.changes()) < 40
    acks.acknowledge(int64s([0]), 40_000)
    assert len(acks.changes()) < 12


def test_version_increases_only_when_acknowledgements_change() -> None:
    topic = Topic([2, 2])
    acks = of(topic)
    before = acks.version
    acks.deliver(topic.columns(0, 2))
    assert acks.version == before
    acks.acknowledge(int64s([1]), 4)
    after = acks.version
    acks.acknowledge(int64s([1]), 4)
    acks.changes()
    acks.snapshot()
    assert before < after == acks.version
    acks.reset(ORIGIN)
    assert acks.version > after


def test_memory_of_an_ack_set_with_many_holes_is_bounded() -> None:
    """32 bytes a range; half as much again when they come in no order."""
    count = 100_000
    ordered = AckSet(ORIGIN)
    ordered.apply(bytes([0, 0, 0]) + bytes([1, 1, 1, 1]) * count)
    assert (ordered.ranges, ordered.acked_entries) == (count, count)
    assert ordered.nbytes < 34 * count


def ack_bytes(*numbers: int) -> bytes:
    return bytes(numbers)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        ack_bytes(1, 1),
        ack_bytes(1, 2, 0),
        ack_bytes(0, 0, 0, 0, 1, 0, 0),
        ack_bytes(0, 0, 0, 1, 0, 0, 0),
        ack_bytes(0, 0, 0, 1, 1, 2, 0),
        ack_bytes(0, 0, 0, 1, 1, 1),
        ack_bytes(0, 0, 0, 1, 128, 0, 0, 0),
        ack_bytes(0, 0, 0) + b"\xff" * 12,
        ack_bytes(0, 0, 0, 1, 1, 0) + b"\xff" * 8 + b"\x41",
    ],
    ids=[
        "none",
        "cut",
        "entries",
        "touches the mark",
        "empty",
        "too many",
        "no bytes",
        "long",
        "no number",
        "too much",
    ],
)
def test_bytes_that_are_no_acknowledgements(data: bytes) -> None:
    with pytest.raises(InvalidRecordsError):
        AckSet(ORIGIN).apply(data)


@pytest.mark.parametrize(
    "data",
    [ack_bytes(0, 0, 0, 4, 1, 0, 0), ack_bytes(6, 0, 0), ack_bytes(5, 0, 0), ack_bytes(0, 0, 0, 6, 9, 0, 0)],
    ids=["touches", "in a range", "before a range", "cuts a range"],
)
def test_changes_of_another_ack_set_are_refused(data: bytes) -> None:
    acks = AckSet(ORIGIN)
    acks.apply(ack_bytes(0, 0, 0, 5, 5, 0, 0))
    with pytest.raises(InvalidRecordsError):
        acks.apply(data)


def test_a_mark_does_not_go_back() -> None:
    acks = AckSet(TopicPosition(5, 2, 9))
    for mark in [(4, 2, 9), (5, 1, 9), (6, 2, 8)]:
        with pytest.raises(InvalidRecordsError, match="that follow"):
            acks.apply(ack_bytes(*mark))


@given(st.binary(max_size=80))
def test_any_bytes_are_acknowledgements_or_an_error(data: bytes) -> None:
    acks = AckSet(ORIGIN)
    try:
        acks.apply(data)
    except InvalidRecordsError:
        return
    copy = AckSet(ORIGIN)
    copy.apply(acks.snapshot())
    assert state(copy) == state(acks)
