"""Quorum arithmetic: examples, limits and refusals. Against brute force: test_quorum_property.py."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from pyreplog._native.quorum import quorum
from pyreplog._native.quorum.ack_tracker import MAX_WAITING, AckTracker
from pyreplog._native.quorum.quorum import MAX_ENSEMBLE, MAX_ENTRY, check_quorums
from pyreplog._native.quorum.stripe import gather, member_count, members
from pyreplog.errors import InvalidArgumentError, OutOfRangeError


def tracker_of(ensemble: int, write: int, ack: int, *, lap: int, first: int = 0) -> AckTracker:
    tracker = AckTracker(ensemble, write, ack, first)
    tracker.pushed(lap)
    return tracker


def state(tracker: AckTracker) -> tuple[object, ...]:
    every = range(tracker.ensemble_size)
    return tracker.lap, tracker.lac, tracker.confirmed, [(tracker.held(i), tracker.awaited(i)) for i in every]


# ---- quorums -------------------------------------------------------------------------------------------------------

WRONG_QUORUMS = [
    (0, 0, 0),
    (3, 0, 0),
    (3, 2, 0),
    (3, 4, 2),
    (3, 2, 3),
    (-1, -1, -1),
    (MAX_ENSEMBLE + 1, 3, 2),
    (2**31, 3, 2),
    (2**40 + 3, 3, 2),
    (2**70, 3, 2),
]


@pytest.mark.parametrize("wrong", WRONG_QUORUMS)
def test_quorums_out_of_order_are_refused(wrong: tuple[int, int, int]) -> None:
    for call in (check_quorums, AckTracker, lambda e, w, a: quorum.coverage(e, w, a, ())):
        with pytest.raises(InvalidArgumentError, match=r"ensemble_size|write_quorum|ack_quorum"):
            call(*wrong)


@pytest.mark.parametrize("wrong", [(0, 0), (3, 0), (3, 4), (MAX_ENSEMBLE + 1, 3)])
def test_stripes_out_of_order_are_refused(wrong: tuple[int, int]) -> None:
    calls: list[Callable[[int, int], object]] = [
        lambda e, w: quorum.write_set(0, e, w),
        lambda e, w: members(0, 0, 9, e, w),
        lambda e, w: member_count(0, 0, 9, e, w),
        lambda e, w: gather(b"", np.zeros(1, np.int64), 0, 0, e, w),
    ]
    for call in calls:
        with pytest.raises(InvalidArgumentError, match=r"ensemble_size|write_quorum"):
            call(*wrong)


def test_the_smallest_and_the_largest_ensemble() -> None:
    check_quorums(1, 1, 1)
    check_quorums(MAX_ENSEMBLE, MAX_ENSEMBLE, MAX_ENSEMBLE)
    tracker = tracker_of(MAX_ENSEMBLE, MAX_ENSEMBLE, MAX_ENSEMBLE, lap=9)
    for index in range(MAX_ENSEMBLE):
        assert tracker.lac == -1
        tracker.ack_up_to(index, 9)
    assert tracker.lac == 9


# ---- striping ------------------------------------------------------------------------------------------------------


def test_write_sets_are_striped_over_the_ensemble() -> None:
    assert [quorum.write_set(entry, 5, 3) for entry in (0, 3, 4, 5)] == [(0, 1, 2), (3, 4, 0), (4, 0, 1), (0, 1, 2)]
    assert quorum.write_set(MAX_ENTRY, 3, 1) == (MAX_ENTRY % 3,)


def test_entries_of_a_member_are_those_of_its_stripes() -> None:
    assert members(0, 0, 11, 5, 3).tolist() == [0, 3, 4, 5, 8, 9, 10]
    assert members(2, 1, 6, 5, 3).tolist() == [1, 2, 5]
    assert members(1, 4, 4, 3, 2).tolist() == []
    assert (members(0, 0, 5, 5, 3).dtype, members(0, 0, 5, 5, 3).flags.writeable) == (np.int64, False)
    assert member_count(0, 0, MAX_ENTRY, 5, 3) == MAX_ENTRY // 5 * 3 + len(members(0, 0, MAX_ENTRY % 5, 5, 3))


@pytest.mark.parametrize(("start", "stop"), [(-1, 3), (3, 2), (0, MAX_ENTRY + 1), (0, 2**64)])
def test_spans_that_are_none_are_refused(start: int, stop: int) -> None:
    for call in (members, member_count):
        with pytest.raises(InvalidArgumentError):
            call(0, start, stop, 3, 2)


@pytest.mark.parametrize("entry", [-1, MAX_ENTRY + 1, 2**63, -(2**64)])
def test_entries_that_are_none_are_refused(entry: int) -> None:
    calls: list[Callable[[int], object]] = [
        lambda e: quorum.write_set(e, 3, 2),
        lambda e: AckTracker(3, 2, 2, e),
        AckTracker(3, 2, 2).pushed,
        lambda e: AckTracker(3, 2, 2).withdraw([0], e),
        lambda e: gather(b"", np.zeros(1, np.int64), e, 0, 3, 2),
    ]
    for call in calls:
        with pytest.raises(InvalidArgumentError, match=r"expected (an entry id|a signed)"):
            call(entry)


@pytest.mark.parametrize("index", [-1, 3, 2**32, 2**64])
def test_indexes_outside_the_ensemble_are_refused(index: int) -> None:
    tracker = tracker_of(3, 2, 2, lap=5)
    calls: list[Callable[[int], object]] = [
        lambda i: members(i, 0, 9, 3, 2),
        lambda i: member_count(i, 0, 9, 3, 2),
        lambda i: gather(b"", np.zeros(1, np.int64), 0, i, 3, 2),
        lambda i: quorum.coverage(3, 2, 2, [0, i]),
        lambda i: tracker.ack(i, 0),
        lambda i: tracker.ack_range(i, 0, 1),
        lambda i: tracker.ack_up_to(i, 0),
        lambda i: tracker.withdraw([i], 0),
        tracker.awaited,
        tracker.held,
        tracker.lag,
    ]
    for call in calls:
        with pytest.raises(InvalidArgumentError, match=r"0 to 2|64-bit"):
            call(index)
    assert state(tracker) == state(tracker_of(3, 2, 2, lap=5))


@pytest.mark.parametrize("wrong", [1.0, "1", None, b"1"])
def test_numbers_that_are_none_are_refused(wrong: Any) -> None:
    tracker = tracker_of(3, 2, 2, lap=5)
    calls: list[Callable[[], object]] = [
        lambda: check_quorums(wrong, 1, 1),
        lambda: quorum.write_set(wrong, 3, 2),
        lambda: members(0, 0, wrong, 3, 2),
        lambda: gather(b"", np.zeros(1, np.int64), wrong, 0, 3, 2),
        lambda: AckTracker(3, 2, wrong),
        lambda: tracker.ack(0, wrong),
        lambda: tracker.ack(wrong, 0),
        lambda: tracker.ack_range(0, 0, wrong),
        lambda: tracker.ack_up_to(0, wrong),
        lambda: tracker.pushed(wrong),
        lambda: tracker.withdraw([0], wrong),
        lambda: tracker.withdraw([wrong], 0),
        lambda: tracker.complete_up_to(wrong),
        lambda: quorum.kth_largest([wrong], 1),
        lambda: quorum.coverage(3, 2, 2, [wrong]),
        lambda: quorum.covers_cohort([wrong], 1, []),
    ]
    for call in calls:
        with pytest.raises(TypeError):
            call()


def test_numbers_of_numpy_are_numbers() -> None:
    tracker = tracker_of(3, 2, 2, lap=5)
    assert tracker.ack_up_to(int(np.int64(0)), np.int64(5))
    assert quorum.kth_largest(np.array([3, 9, 5]), 2) == 5


# ---- gathering -----------------------------------------------------------------------------------------------------

RECORDS = [bytes([65 + k]) * (k + 1) for k in range(8)]
BUFFER = b"".join(RECORDS)
OFFSETS = np.cumsum([0, *map(len, RECORDS)])


def test_gather_cuts_out_what_a_bookie_stores() -> None:
    assert gather(BUFFER, OFFSETS, 10, 0, 5, 3) == b"".join(RECORDS[k] for k in (0, 3, 4, 5))
    assert gather(BUFFER, OFFSETS.astype(np.uint32), 11, 0, 5, 3) == b"".join(RECORDS[k] for k in (2, 3, 4, 7))
    assert gather(BUFFER, OFFSETS[:3], 11, 0, 5, 3) == b""
    assert gather(b"", OFFSETS[:1], 0, 0, 5, 3) == b""


def test_gather_copies_only_what_it_must() -> None:
    def shares(part: bytes | memoryview) -> bool:
        return np.shares_memory(np.frombuffer(part, np.uint8), np.frombuffer(BUFFER, np.uint8))

    for index in range(3):
        whole = gather(BUFFER, OFFSETS, 7, index, 3, 3)
        assert whole == BUFFER
        assert shares(whole)
    one_run = gather(BUFFER, OFFSETS[:6], 0, 3, 5, 3)
    assert one_run == b"".join(RECORDS[1:4])
    assert shares(one_run)
    assert not shares(gather(BUFFER, OFFSETS, 0, 0, 5, 3))


def test_gather_copies_many_entries_of_a_member() -> None:
    """The copy that releases the GIL."""
    size, count = 1000, 2000
    rows = np.random.default_rng(1).integers(0, 256, (count, size), np.uint8)
    mine = members(1, 3, 3 + count, 4, 2) - 3
    part = gather(rows.reshape(-1), np.arange(count + 1) * size, 3, 1, 4, 2)
    assert part == rows[mine].tobytes()


@pytest.mark.parametrize("offsets", [[-1, 9], [0, 37], [5, 4], [0, -(2**63)], [37, 37]], ids=str)
def test_a_view_elsewhere_is_refused(offsets: list[int]) -> None:
    assert len(BUFFER) == 36
    with pytest.raises(InvalidArgumentError, match="ascending ones of at most 36 bytes"):
        gather(BUFFER, np.array(offsets), 0, 0, 1, 1)


@pytest.mark.parametrize(
    "offsets",
    [[-1, 3, 5, 9], [0, 3, 2, 9], [0, 5, 3, 9], [0, 3, 5, 37], [0, 3, 5, 4], [4, 3, 5, 9], [0, 2**62, 2**62, 2**62]],
    ids=str,
)
def test_a_copy_from_elsewhere_is_refused(offsets: list[int]) -> None:
    """Records 0 and 2 are put together, so that every offset is used."""
    assert gather(BUFFER, np.array([0, 3, 5, 36]), 0, 0, 2, 1) == BUFFER[:3] + BUFFER[5:]
    with pytest.raises(InvalidArgumentError, match="ascending ones of at most 36 bytes"):
        gather(BUFFER, np.array(offsets), 0, 0, 2, 1)


@pytest.mark.parametrize(
    "offsets",
    [
        np.zeros(0, np.int64),
        np.zeros((2, 2), np.int64),
        np.zeros(3),
        np.zeros(3, np.int32),
        np.zeros(3, np.uint64),
        b"abcd",
    ],
    ids=lambda offsets: str(getattr(offsets, "dtype", "bytes")) + str(getattr(offsets, "shape", "")),
)
def test_offsets_of_another_shape_are_refused(offsets: Any) -> None:
    with pytest.raises(InvalidArgumentError, match="offsets"):
        gather(BUFFER, offsets, 0, 0, 3, 2)


def test_buffers_that_are_not_contiguous_are_refused() -> None:
    with pytest.raises((BufferError, ValueError)):
        gather(np.frombuffer(BUFFER, np.uint8)[::2], OFFSETS, 0, 0, 3, 2)
    with pytest.raises((BufferError, ValueError)):
        gather(BUFFER, OFFSETS[::2], 0, 0, 3, 2)
    with pytest.raises(InvalidArgumentError, match="up to entry"):
        gather(BUFFER, OFFSETS, MAX_ENTRY - 3, 0, 3, 2)


# ---- acks ----------------------------------------------------------------------------------------------------------


def test_the_lac_moves_in_order() -> None:
    tracker = tracker_of(3, 3, 2, lap=4)
    assert tracker.lac == tracker.confirm() == -1
    assert tracker.ack_up_to(0, 4)
    assert tracker.lac == -1
    assert tracker.ack(1, 0)
    assert (tracker.lac, tracker.below_write_quorum()) == (0, 0)
    assert not tracker.ack_range(2, 2, 4)
    assert tracker.lac == 0
    assert tracker.ack_range(2, 0, 1)
    assert (tracker.lac, tracker.below_write_quorum()) == (4, 1)
    assert [tracker.complete_up_to(copies) for copies in (1, 2, 3)] == [4, 4, 0]
    assert [tracker.lag(index) for index in range(3)] == [0, 4, 0]


def test_lac_of_a_striped_ledger_is_that_of_its_slowest_stripe() -> None:
    tracker = tracker_of(5, 3, 2, lap=9)
    for index, entry in [(0, 9), (1, 9), (2, 7), (3, 8)]:
        tracker.ack_up_to(index, entry)
    assert [tracker.held(index) for index in range(5)] == [9, 9, 7, 8, -1]
    assert tracker.lac == 9
    tracker.withdraw([0], 3)
    assert (tracker.lac, tracker.held(0), tracker.awaited(0)) == (2, 0, 3)


def test_an_ack_again_changes_nothing() -> None:
    tracker = tracker_of(3, 2, 2, lap=8)
    tracker.ack_up_to(0, 5)
    tracker.ack(0, 8)
    before = state(tracker)
    assert not any((tracker.ack(0, 3), tracker.ack_range(0, 0, 5), tracker.ack_up_to(0, 2), tracker.ack(0, 8)))
    assert state(tracker) == before


@pytest.mark.parametrize("entry", [-1, 4, 11, 2**62, -(2**63)])
def test_acks_of_what_was_not_sent_are_refused(entry: int) -> None:
    tracker = tracker_of(3, 2, 2, first=5, lap=10)
    before = state(tracker)
    for call in (tracker.ack, tracker.ack_up_to, lambda i, e: tracker.ack_range(i, 6, e)):
        with pytest.raises(OutOfRangeError, match="entries from 5 to 10"):
            call(0, entry)
    assert state(tracker) == before


def test_acks_of_another_bookies_entries_are_refused() -> None:
    tracker = tracker_of(3, 2, 2, lap=10)
    for call in (tracker.ack, tracker.ack_up_to, lambda i, e: tracker.ack_range(i, 0, e)):
        with pytest.raises(OutOfRangeError, match="striped to it, 2 of 3; found"):
            call(0, 4)
    with pytest.raises(OutOfRangeError, match="striped to it"):
        tracker.ack_range(0, 4, 5)
    with pytest.raises(OutOfRangeError, match="does not end before it begins"):
        tracker.ack_range(0, 5, 3)
    assert state(tracker) == state(tracker_of(3, 2, 2, lap=10))


def test_out_of_order_acks_are_bounded() -> None:
    """One run per gap, and no more than so many gaps. A gap that is filled makes room; filling in joins everything."""
    last = 2 * MAX_WAITING + 1
    tracker = tracker_of(1, 1, 1, lap=last + 2)
    for entry in range(1, last, 2):
        assert not tracker.ack(0, entry)
    with pytest.raises(OutOfRangeError, match=f"at most {MAX_WAITING} runs"):
        tracker.ack(0, last)
    assert not tracker.ack(0, 6)
    assert not tracker.ack(0, last)
    with pytest.raises(OutOfRangeError, match=f"at most {MAX_WAITING} runs"):
        tracker.ack(0, last + 2)
    assert not tracker.ack(0, last + 1)
    assert not tracker.ack_range(0, 2, last - 1)
    assert tracker.lac == -1
    assert tracker.ack(0, 0)
    assert tracker.lac == last + 1


def test_nothing_is_kept_per_entry() -> None:
    tracker = tracker_of(5, 3, 2, lap=MAX_ENTRY)
    for index in range(5):
        tracker.ack_up_to(index, int(members(index, MAX_ENTRY - 10, MAX_ENTRY, 5, 3)[-1]))
    assert MAX_ENTRY - 5 <= tracker.lac < MAX_ENTRY
    last = quorum.write_set(MAX_ENTRY, 5, 3)
    for index in last:
        tracker.ack(index, MAX_ENTRY)
    assert tracker.lac == MAX_ENTRY
    assert tracker.awaited(last[0]) > MAX_ENTRY
    assert tracker.lag(last[0]) == 0


def test_lap_never_goes_back() -> None:
    tracker = tracker_of(3, 2, 2, lap=5)
    tracker.pushed(5)
    with pytest.raises(InvalidArgumentError, match="from LAP 5 on, found 4"):
        tracker.pushed(4)
    assert tracker.lap == 5


@pytest.mark.parametrize("copies", [0, 3, -1, 2**40])
def test_more_copies_than_are_written_are_refused(copies: int) -> None:
    with pytest.raises(InvalidArgumentError, match="copies"):
        AckTracker(3, 2, 2).complete_up_to(copies)


# ---- ensemble changes ----------------------------------------------------------------------------------------------


def test_withdraw_does_not_lower_the_confirmed_entry() -> None:
    tracker = tracker_of(3, 3, 2, lap=9)
    tracker.ack_up_to(0, 9)
    tracker.ack_up_to(1, 6)
    assert tracker.confirmed == -1
    assert tracker.confirm() == 6
    tracker.withdraw([0, 1], 2)
    assert (tracker.lac, tracker.confirmed, tracker.confirm()) == (1, 6, 6)
    tracker.ack_up_to(0, 9)
    tracker.ack_up_to(2, 8)
    assert (tracker.confirmed, tracker.confirm()) == (6, 8)


def test_a_replaced_bookies_waiting_acks_are_forgotten() -> None:
    tracker = tracker_of(3, 3, 2, lap=9)
    tracker.ack_up_to(0, 9)
    tracker.ack_range(1, 5, 9)
    tracker.withdraw([1], 0)
    tracker.ack_range(1, 0, 4)
    assert (tracker.held(1), tracker.lac) == (4, 4)


def test_an_ensemble_change_where_a_bookie_is_awaited_takes_nothing_back() -> None:
    tracker = tracker_of(5, 3, 2, lap=20)
    for index in range(5):
        tracker.ack_up_to(index, int(members(index, 0, 7 + 2 * index, 5, 3)[-1]))
    before = state(tracker)
    for index in range(5):
        tracker.withdraw([index], tracker.awaited(index))
    assert state(tracker) == before


def test_an_ensemble_change_leaves_no_entry_short_of_its_copies() -> None:
    """All indexes or none: a fragment behind what one of them awaits is refused."""
    tracker = tracker_of(3, 3, 2, lap=9)
    tracker.ack_up_to(0, 9)
    tracker.ack_up_to(1, 9)
    tracker.ack_up_to(2, 3)
    before = state(tracker)
    with pytest.raises(InvalidArgumentError, match=r"awaited \{1: 10, 2: 4\}, found 5"):
        tracker.withdraw([1, 2], 5)
    assert state(tracker) == before
    tracker.withdraw([1, 2], 4)
    assert [tracker.held(index) for index in range(3)] == [9, 3, 3]


def test_an_ensemble_change_before_the_first_entry_is_refused() -> None:
    tracker = tracker_of(3, 2, 2, first=5, lap=9)
    with pytest.raises(InvalidArgumentError, match="from 5 on"):
        tracker.withdraw([0], 4)
    with pytest.raises(InvalidArgumentError, match="from 5 on"):
        tracker.withdraw([], 4)


# ---- coverage and order statistics ---------------------------------------------------------------------------------


def test_coverage_by_write_set_needs_fewer_answers_than_by_ensemble() -> None:
    """E = 6, Qw = 3, Qa = 2: four answers can do, where (E - Qa) + 1 would be five."""
    assert quorum.coverage(6, 3, 2, {0, 3})
    assert not quorum.covers_cohort(range(6), 2, {1, 2, 4, 5})
    assert not quorum.coverage(6, 3, 2, {0, 2})
    assert not quorum.coverage(6, 3, 2, {5, 0})
    assert quorum.coverage(3, 3, 2, [1, 1, 1])
    assert not quorum.coverage(MAX_ENSEMBLE, 2, 2, [0, MAX_ENSEMBLE - 1])


def test_coverage_of_a_cohort_needs_enough_members() -> None:
    assert quorum.covers_cohort((4, 0, 1), 2, (4, 1))
    assert not quorum.covers_cohort((4, 0, 1), 2, (4, 4, 7, 8))


@pytest.mark.parametrize(("cohort", "ack"), [((), 1), ((1, 2), 0), ((1, 2), 3), ((1, 1), 2), ((64,), 1), ((-1,), 1)])
def test_cohorts_that_are_none_are_refused(cohort: tuple[int, ...], ack: int) -> None:
    with pytest.raises(InvalidArgumentError, match="cohort"):
        quorum.covers_cohort(cohort, ack, ())


def test_kth_largest_counts_equal_values() -> None:
    assert [quorum.kth_largest((5, 3, 9, 3), k) for k in (1, 2, 3, 4)] == [9, 5, 3, 3]
    assert quorum.kth_largest(iter([-(2**63), 2**63 - 1]), 2) == -(2**63)


@pytest.mark.parametrize(
    ("values", "k"), [((), 1), ((1, 2), 0), ((1, 2), 3), ((2**63,), 1), (range(65), 1), ((1,), 2**64)], ids=str
)
def test_orders_that_are_none_are_refused(values: Any, k: int) -> None:
    with pytest.raises(InvalidArgumentError):
        quorum.kth_largest(values, k)


# ---- objects -------------------------------------------------------------------------------------------------------


def test_a_tracker_is_not_copied() -> None:
    for call in (copy.copy, copy.deepcopy, pickle.dumps):
        with pytest.raises(TypeError):
            call(AckTracker(3, 2, 2))
