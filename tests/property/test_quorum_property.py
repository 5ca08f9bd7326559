"""Striping, acks, coverage and commit points against brute force: sets of entries and the definitions themselves."""

from __future__ import annotations

from itertools import combinations
from typing import Any, TypeAlias

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from pyreplog._native.quorum.ack_tracker import AckTracker
from pyreplog._native.quorum.quorum import coverage, covers_cohort, kth_largest, write_set
from pyreplog._native.quorum.stripe import gather, member_count, members
from pyreplog.errors import InvalidArgumentError, OutOfRangeError

LARGEST = 7
Quorums: TypeAlias = tuple[int, int, int]

firsts = st.sampled_from([0, 1, 5, 2**40 + 3])


@st.composite
def quorums(draw: st.DrawFn) -> Quorums:
    ensemble = draw(st.integers(1, LARGEST))
    write = draw(st.integers(1, ensemble))
    return ensemble, write, draw(st.integers(1, write))


# ---- striping ------------------------------------------------------------------------------------------------------


def stored(entry: int, ensemble: int, write: int) -> set[int]:
    return {(entry + k) % ensemble for k in range(write)}


@given(quorums(), firsts, st.integers(0, 30))
def test_members_are_the_entries_whose_write_set_has_the_bookie(q: Quorums, start: int, count: int) -> None:
    ensemble, write, _ = q
    entries = range(start, start + count)
    for entry in entries:
        assert write_set(entry, ensemble, write) == tuple((entry + k) % ensemble for k in range(write))
    for index in range(ensemble):
        expected = [entry for entry in entries if index in stored(entry, ensemble, write)]
        assert members(index, start, start + count, ensemble, write).tolist() == expected
        assert member_count(index, start, start + count, ensemble, write) == len(expected)


@given(quorums(), firsts, st.lists(st.binary(max_size=5), max_size=20), st.binary(max_size=3), st.booleans())
def test_gather_is_the_records_of_the_members(
    q: Quorums, first: int, records: list[bytes], before: bytes, wide: bool
) -> None:
    ensemble, write, _ = q
    buffer = before + b"".join(records) + b"behind"
    ends = np.cumsum([len(before), *map(len, records)])
    offsets = ends.astype(np.int64 if wide else np.uint32)
    for index in range(ensemble):
        mine = [record for k, record in enumerate(records) if index in stored(first + k, ensemble, write)]
        assert bytes(gather(buffer, offsets, first, index, ensemble, write)) == b"".join(mine)


# ---- acks ----------------------------------------------------------------------------------------------------------


class Bookies:
    """What each bookie acked, entry by entry. Those of its entries count that it holds with all sent before."""

    def __init__(self, q: Quorums, first: int) -> None:
        self.ensemble, self.write, self.ack = q
        self.first = first
        self.lap = first - 1
        self.acked: list[set[int]] = [set() for _ in range(self.ensemble)]

    def sent(self, index: int) -> list[int]:
        pushed = range(self.first, self.lap + 1)
        return [entry for entry in pushed if index in stored(entry, self.ensemble, self.write)]

    def prefix(self, index: int) -> list[int]:
        sent = self.sent(index)
        count = next((k for k, entry in enumerate(sent) if entry not in self.acked[index]), len(sent))
        return sent[:count]

    def awaited(self, index: int) -> int:
        after = range(self.first, self.lap + 1 + LARGEST + 1)
        held = set(self.prefix(index))
        return next(e for e in after if index in stored(e, self.ensemble, self.write) and e not in held)

    def up_to(self, copies: int, holdings: list[set[int]]) -> int:
        """The highest entry that, with all below, has so many copies: in order, as the definition says."""
        entry = self.first
        while entry <= self.lap:
            if sum(entry in holdings[index] for index in stored(entry, self.ensemble, self.write)) < copies:
                break
            entry += 1
        return entry - 1

    def prefixes(self) -> list[set[int]]:
        return [set(self.prefix(index)) for index in range(self.ensemble)]


class Acks(RuleBasedStateMachine):
    """The tracker against the sets, whatever comes in whatever order."""

    @initialize(q=quorums(), first=firsts)
    def start(self, q: Quorums, first: int) -> None:
        self.bookies = Bookies(q, first)
        self.tracker = AckTracker(*q, first)
        self.reported = first - 1

    def bookie(self, data: st.DataObject) -> int:
        return data.draw(st.integers(0, self.bookies.ensemble - 1), "index")

    def note(self, index: int, entries: list[int], moved: bool) -> None:
        before = len(self.bookies.prefix(index))
        self.bookies.acked[index].update(entries)
        assert moved == (len(self.bookies.prefix(index)) > before)

    @rule(count=st.integers(0, 12))
    def push(self, count: int) -> None:
        if self.bookies.lap + count >= 0:
            self.bookies.lap += count
            self.tracker.pushed(self.bookies.lap)

    @rule(data=st.data(), count=st.integers(1, 6))
    def ack_in_order(self, data: st.DataObject, count: int) -> None:
        index = self.bookie(data)
        sent, held = self.bookies.sent(index), len(self.bookies.prefix(index))
        for entry in sent[held : held + count]:
            self.note(index, [entry], self.tracker.ack(index, entry))

    @rule(data=st.data())
    def ack_any(self, data: st.DataObject) -> None:
        index = self.bookie(data)
        if sent := self.bookies.sent(index):
            entry = data.draw(st.sampled_from(sent), "entry")
            self.note(index, [entry], self.tracker.ack(index, entry))

    @rule(data=st.data())
    def ack_range(self, data: st.DataObject) -> None:
        index = self.bookie(data)
        if sent := self.bookies.sent(index):
            low = data.draw(st.integers(0, len(sent) - 1), "low")
            high = data.draw(st.integers(low, min(low + 4, len(sent) - 1)), "high")
            moved = self.tracker.ack_range(index, sent[low], sent[high])
            self.note(index, sent[low : high + 1], moved)

    @rule(data=st.data())
    def ack_up_to(self, data: st.DataObject) -> None:
        index = self.bookie(data)
        if sent := self.bookies.sent(index):
            high = data.draw(st.integers(0, len(sent) - 1), "high")
            moved = self.tracker.ack_up_to(index, sent[high])
            self.note(index, sent[: high + 1], moved)

    @rule(data=st.data())
    def withdraw(self, data: st.DataObject) -> None:
        every = range(self.bookies.ensemble)
        indexes = data.draw(st.sets(st.sampled_from(every), min_size=1), "indexes")
        lowest = min(self.bookies.awaited(index) for index in indexes)
        start = data.draw(st.integers(self.bookies.first, lowest), "from")
        self.tracker.withdraw(indexes, start)
        for index in indexes:
            self.bookies.acked[index] = {entry for entry in self.bookies.acked[index] if entry < start}

    @rule(data=st.data())
    def withdraw_leaving_a_gap(self, data: st.DataObject) -> None:
        index = self.bookie(data)
        gap = data.draw(st.integers(1, 9), "gap")
        with pytest.raises(InvalidArgumentError, match="awaited"):
            self.tracker.withdraw([index], self.bookies.awaited(index) + gap)

    @precondition(lambda self: self.bookies.lap >= 0)
    @rule(data=st.data())
    def ack_of_what_was_not_asked(self, data: st.DataObject) -> None:
        index = self.bookie(data)
        low, high = self.bookies.first - 3, self.bookies.lap + 4
        sent = self.bookies.sent(index)
        entry = data.draw(st.sampled_from([e for e in range(low, high + 1) if e not in sent]), "entry")
        calls: list[Any] = [self.tracker.ack, self.tracker.ack_up_to]
        for call in calls:
            with pytest.raises(OutOfRangeError):
                call(index, entry)
        for first, last in [(entry, entry), *((entry, e) for e in sent[:1]), *((e, entry) for e in sent[:1])]:
            with pytest.raises(OutOfRangeError):
                self.tracker.ack_range(index, first, last)

    @rule()
    def confirm(self) -> None:
        self.reported = max(self.reported, self.tracker.lac)
        assert self.tracker.confirm() == self.reported

    @invariant()
    def commit_points_are_those_of_the_definition(self) -> None:
        bookies, tracker = self.bookies, self.tracker
        prefixes = bookies.prefixes()
        assert tracker.lac == bookies.up_to(bookies.ack, prefixes)
        for copies in range(1, bookies.write + 1):
            assert tracker.complete_up_to(copies) == bookies.up_to(copies, prefixes)
        assert tracker.below_write_quorum() == bookies.up_to(bookies.write, prefixes) + 1
        assert tracker.outstanding == bookies.lap - bookies.up_to(bookies.write, prefixes)

    @invariant()
    def nothing_is_confirmed_that_too_few_acked(self) -> None:
        assert self.tracker.lac <= self.bookies.up_to(self.bookies.ack, self.bookies.acked)
        assert self.bookies.first - 1 <= self.tracker.lac <= self.tracker.lap == self.bookies.lap
        assert self.tracker.confirmed == self.reported

    @invariant()
    def progress_of_each_bookie(self) -> None:
        for index in range(self.bookies.ensemble):
            held, sent = self.bookies.prefix(index), self.bookies.sent(index)
            assert self.tracker.held(index) == (held[-1] if held else self.bookies.first - 1)
            assert self.tracker.awaited(index) == self.bookies.awaited(index)
            assert self.tracker.lag(index) == len(sent) - len(held)


TestAcks = Acks.TestCase
TestAcks.settings = settings(max_examples=150, stateful_step_count=30, deadline=None)


@settings(max_examples=150, deadline=None)
@given(quorums(), firsts, st.integers(1, 25), st.data())
def test_lac_is_exact_while_bookies_ack_in_order(q: Quorums, first: int, count: int, data: st.DataObject) -> None:
    """A bookie's log is in order, so its acks are; then the prefixes miss nothing."""
    bookies, tracker = Bookies(q, first), AckTracker(*q, first)
    bookies.lap = first + count - 1
    tracker.pushed(bookies.lap)
    queues = {index: bookies.sent(index) for index in range(q[0])}
    while queues := {index: queue for index, queue in queues.items() if queue}:
        index = data.draw(st.sampled_from(sorted(queues)), "index")
        entry = queues[index].pop(0)
        bookies.acked[index].add(entry)
        tracker.ack(index, entry)
        assert tracker.lac == bookies.up_to(q[2], bookies.acked)
    assert tracker.below_write_quorum() == bookies.lap + 1


@settings(max_examples=100, deadline=None)
@given(quorums(), firsts, st.integers(1, 40), st.data())
def test_acks_in_any_order_end_at_the_same(q: Quorums, first: int, count: int, data: st.DataObject) -> None:
    bookies, tracker = Bookies(q, first), AckTracker(*q, first)
    bookies.lap = first + count - 1
    tracker.pushed(bookies.lap)
    acks = [(index, entry) for index in range(q[0]) for entry in bookies.sent(index)]
    for index, entry in data.draw(st.permutations(acks)):
        tracker.ack(index, entry)
    assert (tracker.lac, tracker.below_write_quorum()) == (bookies.lap, bookies.lap + 1)


# ---- coverage and order statistics ---------------------------------------------------------------------------------


@given(quorums(), st.data())
def test_coverage_is_that_of_every_write_set(q: Quorums, data: st.DataObject) -> None:
    """Covered: no entry's ack quorum can lie within the bookies that did not answer."""
    ensemble, write, ack = q
    unknown = data.draw(st.sets(st.integers(0, ensemble - 1)), "unknown")
    hidden = any(
        set(acked) <= unknown
        for entry in range(ensemble)
        for acked in combinations(sorted(stored(entry, ensemble, write)), ack)
    )
    assert coverage(ensemble, write, ack, unknown) is not hidden
    if write == ensemble:
        assert coverage(ensemble, write, ack, unknown) is covers_cohort(
            range(ensemble), ack, set(range(ensemble)) - unknown
        )


@given(st.sets(st.integers(0, 63), min_size=1, max_size=LARGEST), st.sets(st.integers(0, 63)), st.data())
def test_four_definitions_of_covering_a_cohort(cohort: set[int], others: set[int], data: st.DataObject) -> None:
    having = data.draw(st.sets(st.sampled_from(sorted(cohort))), "having")
    ack = data.draw(st.integers(1, len(cohort)), "ack quorum")
    covered = covers_cohort(cohort, ack, having | (others - cohort))
    subsets = [set(subset) for subset in combinations(sorted(cohort), ack)]
    assert covered is (not any(subset.isdisjoint(having) for subset in subsets))
    assert covered is all(subset & having for subset in subsets)
    assert covered is (len(cohort) - len(having) < ack)
    assert covered is (len(having) >= (len(cohort) - ack) + 1)


@given(st.lists(st.integers(-(2**63), 2**63 - 1), min_size=1, max_size=64), st.data())
def test_kth_largest_is_that_of_a_sorted_list(values: list[int], data: st.DataObject) -> None:
    k = data.draw(st.integers(1, len(values)), "k")
    largest = kth_largest(values, k)
    assert largest == sorted(values, reverse=True)[k - 1]
    assert sum(value >= largest for value in values) >= k
    assert kth_largest(values, len(values)) == min(values)
