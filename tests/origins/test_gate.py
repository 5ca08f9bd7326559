"""The gate of an origin: any calls and outcomes against sets of offsets, and the cases that others got wrong."""

from __future__ import annotations

from collections import deque
from itertools import pairwise
from typing import Any, NamedTuple

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from pyreplog._native.system.checksum import crc32c
from pyreplog.errors import (
    InvalidArgumentError,
    InvalidEntryError,
    NotEnoughBookiesError,
    OriginGapError,
    OriginHistoryError,
    OriginSessionError,
    OutcomeUnknownError,
)
from pyreplog.future import AppendFuture, settle_all
from pyreplog.origins.attribute import OriginAttribute
from pyreplog.origins.gate import (
    ORIGINS_MAX,
    Admission,
    GateState,
    OriginGate,
    OriginGates,
    check_entries,
    joined,
)
from pyreplog.origins.origin import GAPS_MAX, Gap, GapCause, LastEntry, Origin, OriginEntry, OriginState

ORIGIN = Origin(bytes(range(16)), "token")
NEW = GateState(ORIGIN, 0, 0, None, ())
FAILED = NotEnoughBookiesError(1, "too few")
SIZES = [1, 3, 2, 1, 1, 4, 2, 2, 1, 3, 1, 2, 2, 3, 1, 1, 2, 4, 1, 1, 3, 2, 1, 2]
"""Messages of each entry that the origin has."""


def entry(first: int, messages: int, *gaps: Gap, value: bytes | None = None, time_us: int = 7) -> OriginEntry:
    return OriginEntry(b"%d" % first if value is None else value, messages, first, time_us, gaps)


HISTORY = [entry(sum(SIZES[:at]), size) for at, size in enumerate(SIZES)]


class Stored(NamedTuple):
    """An entry of the target's log."""

    attribute: OriginAttribute
    messages: int
    value: bytes


class InFlight(NamedTuple):
    admission: Admission
    future: AppendFuture[int]
    end: int


def make(state: GateState = NEW, session: int = 1) -> OriginGate:
    gate = OriginGate("t", state)
    opened: AppendFuture[OriginState] = AppendFuture()
    gate.open(session, opened)
    persist(gate)
    assert opened.result(0) == gate.state
    return gate


def persist(gate: OriginGate) -> GateState:
    state = gate.snapshot()
    gate.persisted(state)
    settle_all(gate.take_outcomes())
    return state


def push(gate: OriginGate, *entries: OriginEntry, gaps: tuple[Gap, ...] = (), session: int = 1) -> Admission:
    admission = gate.admit(session, entries, gaps)
    assert admission is not None
    gate.push(admission)
    return admission


def replicate(gate: OriginGate, *entries: OriginEntry, session: int = 1) -> None:
    admission = push(gate, *entries, session=session)
    gate.settled(admission.entries)


# ---- everything, against sets ----------------------------------------------------------------------------------


class Replication(RuleBasedStateMachine):
    """A source that sends any part of its history, with gaps in place of entries, to a target that fails and crashes.

    The naive side knows which offsets are stored, on their way, or gaps, as sets.
    """

    def __init__(self) -> None:
        super().__init__()
        self.session = 1
        self.gate = make()
        self.saved = self.gate.snapshot()
        self.log: list[Stored] = []
        self.flying: deque[InFlight] = deque()
        self.stored: set[int] = set()
        self.noted: set[int] = set()  # gaps that are in a snapshot
        self.pushed: set[int] = set()
        self.told = 0
        self.is_broken = False

    # -- what a call must give

    def verdict(self, entries: list[OriginEntry], gaps: list[Gap]) -> type[Exception] | str:
        """Return the error; "done": nothing is new; "wait"; or "push"."""
        known, left = self.pushed, [entry for entry in entries if not self.holds(self.stored, entry)]
        if left and left[0].first in self.stored:
            return OriginHistoryError
        if left and (self.holds(known, left[0]) or self.is_broken):
            return "wait"
        if not left and self.is_broken and gaps and gaps[-1].end - 1 not in self.stored:
            return "wait"
        if left and left[0].first in known:
            return OriginHistoryError
        covered = set(known)
        for item in left:
            for gap in item.gaps:
                if not self.joins(covered, gap.start, gap.end):
                    return OriginGapError
                covered |= {*range(gap.start, gap.end)}
            if not self.joins(covered, item.first, item.end):
                return OriginGapError
            covered |= {*range(item.first, item.end)}
        for gap in gaps:
            if not self.joins(covered, gap.start, gap.end):
                return OriginGapError
            covered |= {*range(gap.start, gap.end)}
        return "push" if covered != known else "done"

    def holds(self, offsets: set[int], item: OriginEntry) -> bool:
        return item.end - 1 in offsets

    def joins(self, covered: set[int], start: int, end: int) -> bool:
        """Whether nothing below a range is left out."""
        return start <= len(covered) or end <= len(covered)

    # -- rules

    @rule(
        start=st.integers(-3, 8), count=st.integers(0, 4), filtered=st.sets(st.integers(0, 5)), trailing=st.booleans(),
        cause=st.sampled_from(GapCause),
    )  # fmt: skip
    def replicate(self, start: int, count: int, filtered: set[int], trailing: bool, cause: GapCause) -> None:
        base = sum(entry.end <= len(self.pushed) for entry in HISTORY)
        begin = max(base + start if start < 5 else base, 0)
        entries: list[OriginEntry] = []
        gaps: list[Gap] = []
        for at, item in enumerate(HISTORY[begin : begin + count]):
            if at in filtered:
                gaps = joined(gaps, Gap(item.first, item.end, cause))
            else:
                entries.append(item._replace(gaps=tuple(gaps)))
                gaps = []
        gaps = gaps if trailing else []
        if not entries and not gaps:
            return
        check_entries(entries, gaps)
        expected = self.verdict(entries, gaps)
        try:
            admission = self.gate.admit(self.session, entries, gaps)
        except (OriginGapError, OriginHistoryError) as error:
            assert expected is type(error)
            return
        if admission is None:
            assert expected == "wait"
            return
        assert expected in ("push", "done")
        self.gate.push(admission)
        future: AppendFuture[int] = AppendFuture()
        end = gaps[-1].end if gaps else entries[-1].end
        self.pushed |= {*range(max(end, len(self.pushed)))}
        if admission.entries:
            self.flying.append(InFlight(admission, future, end))
        else:
            self.gate.notify(end, future)
        assert expected == "push" or not admission.entries

    @precondition(lambda self: self.flying and not self.is_broken)
    @rule()
    def confirm(self) -> None:
        admission, future, end = self.flying.popleft()
        self.append(admission, len(admission.entries))
        self.gate.settled(admission.entries)
        self.gate.notify(end, future)
        self.settle()

    @precondition(lambda self: self.flying)
    @rule(share=st.integers(0, 2))
    def fail(self, share: int) -> None:
        admission = self.flying.popleft().admission
        kept = 0 if self.is_broken else min(share, len(admission.entries) - 1)
        self.append(admission, kept)
        self.is_broken = True
        self.gate.failed(admission.entries[:kept], FAILED)
        if not self.flying:
            self.is_broken = False
            self.pushed = self.stored | self.noted
        self.settle()

    def append(self, admission: Admission, count: int) -> None:
        for item, attribute in list(zip(admission.entries, admission.attributes, strict=True))[:count]:
            self.log.append(Stored(attribute, item.messages, item.value))
            self.stored = {*range(item.end)}

    @rule(survives=st.booleans())
    def store(self, survives: bool) -> None:
        state = self.gate.snapshot()
        if not self.flying:
            self.noted = {*range(len(self.pushed))}
        if survives:
            self.saved = state
            self.gate.persisted(state)
            self.stored |= {*range(state.stored)}
            self.settle()

    @rule(kept=st.integers(0, 9), again=st.booleans())
    def crash(self, kept: int, again: bool) -> None:
        """The next owner has the last snapshot that was stored, and the log, with any part of what was on its way."""
        for admission, _, _ in list(self.flying) if not self.is_broken else []:
            count = min(kept, len(admission.entries))
            self.append(admission, count)
            kept -= count
            if count < len(admission.entries):
                break
        self.flying.clear()
        gate = OriginGate("t", self.saved)
        for stored in self.log:
            gate.replay(stored.attribute, stored.messages, crc32c(stored.value))
        self.stored = {*range(max([self.saved.stored, *(self.end_of(stored) for stored in self.log)]))}
        self.noted, self.pushed, self.is_broken = set(), set(self.stored), False
        if again:
            self.session += 1
        self.gate = gate
        opened: AppendFuture[OriginState] = AppendFuture()
        gate.open(self.session, opened)
        self.saved = persist(gate)
        assert opened.result(0).stored == len(self.stored)

    def settle(self) -> None:
        outcomes = self.gate.take_outcomes()
        settle_all(outcomes)
        for future, error in outcomes:
            if error is None:
                assert future.result(0) <= len(self.stored)
        self.gate.take_waiting()

    def end_of(self, stored: Stored) -> int:
        return stored.attribute.first + stored.messages

    # -- what always holds

    @invariant()
    def gate_agrees(self) -> None:
        assert self.gate.stored == len(self.stored)
        assert self.gate.pushed == len(self.pushed)
        last = self.log[-1] if self.log else None
        if last is not None:
            expected = LastEntry(last.attribute.first, self.end_of(last), crc32c(last.value), 7)
            assert self.gate.last == expected

    @invariant()
    def stored_never_falls(self) -> None:
        assert self.gate.stored >= self.told
        self.told = self.gate.stored

    @invariant()
    def each_message_is_there_once_or_has_a_cause(self) -> None:
        at = 0
        for stored in self.log:
            for gap in stored.attribute.gaps:
                assert gap.start == at
                at = gap.end
            assert stored.attribute.first == at
            at = self.end_of(stored)
        assert at <= self.gate.stored


Replication.TestCase.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)
TestReplication = Replication.TestCase


# ---- single cases ----------------------------------------------------------------------------------------------


def test_a_refused_head_is_no_duplicate_when_it_comes_again() -> None:
    """Pulsar #26113: what failed was taken for a duplicate, because something behind it had been sent."""
    gate = make()
    first, second = push(gate, entry(0, 2)), push(gate, entry(2, 2))
    gate.failed([], FAILED)
    assert gate.admit(1, [entry(0, 2)], ()) is None  # what follows it is still on its way
    assert gate.admit(1, [entry(4, 2)], ()) is None
    gate.failed([], FAILED)
    assert (gate.stored, gate.pushed) == (0, 0)
    again = push(gate, entry(0, 2))
    assert again.run is not first.run and second.run is first.run
    gate.settled(again.entries)
    assert gate.stored == 2


def test_a_waiting_call_is_judged_again_after_each_outcome() -> None:
    gate = make()
    push(gate, entry(0, 2))
    assert gate.admit(1, [entry(0, 2)], ()) is None
    gate.wait("w")
    assert gate.take_waiting() == []
    gate.settled([entry(0, 2)])
    assert gate.take_waiting() == ["w"]
    admission = gate.admit(1, [entry(0, 2)], ())
    assert admission is not None and admission.duplicates == 1 and not admission.entries


def test_an_unknown_outcome_keeps_what_was_pushed() -> None:
    gate = make()
    push(gate, entry(0, 2))
    future: AppendFuture[int] = AppendFuture()
    gate.notify(9, future)
    opened: AppendFuture[OriginState] = AppendFuture()
    gate.open(2, opened)
    gate.lost(OutcomeUnknownError("closed"))
    assert gate.pushed == 2
    settle_all(gate.take_outcomes())
    for unknown in (future, opened):
        with pytest.raises(OutcomeUnknownError):
            unknown.result(0)
    with pytest.raises(OutcomeUnknownError):
        gate.admit(2, [entry(0, 2)], ())
    with pytest.raises(OutcomeUnknownError):
        gate.open(3, AppendFuture())


def test_half_of_a_batch_is_stored() -> None:
    gate = make()
    push(gate, entry(0, 2), entry(2, 3))
    gate.failed([entry(0, 2)], FAILED)
    assert (gate.stored, gate.pushed) == (2, 2)
    assert gate.last == LastEntry(0, 2, crc32c(b"0"), 7)


def test_a_batch_may_begin_with_duplicates() -> None:
    gate = make()
    replicate(gate, entry(0, 2), entry(2, 3))
    admission = push(gate, entry(2, 3), entry(5, 1))
    assert [item.first for item in admission.entries] == [5] and admission.duplicates == 1


def test_entries_across_what_is_stored_or_on_its_way_are_another_history() -> None:
    gate = make()
    replicate(gate, entry(0, 4))
    with pytest.raises(OriginHistoryError, match="stored"):
        gate.admit(1, [entry(2, 4)], ())
    push(gate, entry(4, 4))
    with pytest.raises(OriginHistoryError, match="pushed"):
        gate.admit(1, [entry(6, 4)], ())


@pytest.mark.parametrize(
    "other",
    [entry(2, 3, value=b"x"), entry(2, 3, time_us=8), entry(2, 1), entry(3, 2), entry(1, 4)],
    ids=["value", "time", "shorter", "later", "longer"],
)
def test_other_data_at_the_last_entry_are_another_history(other: OriginEntry) -> None:
    gate = make()
    replicate(gate, entry(0, 2), entry(2, 3))
    assert gate.admit(1, [entry(2, 3)], ()) is not None
    with pytest.raises(OriginHistoryError, match="rolled back"):
        gate.admit(1, [other], ())


def test_gaps_are_clipped_to_what_is_stored() -> None:
    gate = make()
    replicate(gate, entry(0, 5))
    gaps = (Gap(1, 3, GapCause.EXPIRED), Gap(4, 7, GapCause.FILTERED), Gap(7, 9, GapCause.FOREIGN))
    admission = push(gate, entry(9, 1, *gaps))
    assert admission.attributes[0].gaps == (Gap(5, 7, GapCause.FILTERED), Gap(7, 9, GapCause.FOREIGN))


@pytest.mark.parametrize(
    "gaps", [(), (Gap(5, 8, GapCause.FILTERED),), (Gap(6, 9, GapCause.FILTERED),),
             (Gap(5, 6, GapCause.FOREIGN), Gap(7, 9, GapCause.FOREIGN))]
)  # fmt: skip
def test_a_hole_without_a_cause_is_refused(gaps: tuple[Gap, ...]) -> None:
    gate = make()
    replicate(gate, entry(0, 5))
    with pytest.raises(OriginGapError, match=r"expected \d, found \d: open the origin again"):
        gate.admit(1, [entry(9, 1, *gaps)], ())
    with pytest.raises(OriginGapError, match="expected 5, found 7"):
        gate.admit(1, [], (Gap(7, 9, GapCause.FOREIGN),))


def test_trailing_gaps_count_once_a_snapshot_is_stored() -> None:
    gate = make()
    replicate(gate, entry(0, 5))
    push(gate, gaps=(Gap(5, 8, GapCause.FILTERED),))
    future: AppendFuture[int] = AppendFuture()
    gate.notify(8, future)
    assert (gate.stored, gate.pushed, gate.has_news) == (5, 8, True)
    assert persist(gate).gaps == (Gap(5, 8, GapCause.FILTERED),)
    assert (gate.stored, future.result(0), gate.has_news) == (8, 8, False)
    assert gate.last == LastEntry(0, 5, crc32c(b"0"), 7)


def test_trailing_gaps_stand_before_the_next_entry_in_the_log() -> None:
    """So that a scan of the log tells the cause of each gap, without the snapshots of the past."""
    gate = make()
    push(gate, gaps=(Gap(0, 2, GapCause.FILTERED),))
    persist(gate)
    admission = push(gate, entry(5, 1, Gap(2, 4, GapCause.FILTERED), Gap(4, 5, GapCause.FOREIGN)))
    assert admission.attributes[0].gaps == (Gap(0, 4, GapCause.FILTERED), Gap(4, 5, GapCause.FOREIGN))


def test_trailing_gaps_behind_an_entry_wait_for_it() -> None:
    gate = make()
    admission = push(gate, entry(0, 2), gaps=(Gap(2, 4, GapCause.FOREIGN),))
    future: AppendFuture[int] = AppendFuture()
    gate.notify(4, future)
    assert gate.snapshot().stored == 0 and not gate.has_news
    gate.settled(admission.entries)
    assert gate.stored == 2 and not future.done() and gate.has_news
    persist(gate)
    assert future.result(0) == 4


def test_trailing_gaps_behind_an_entry_that_failed_fail() -> None:
    gate = make()
    push(gate, entry(0, 2), gaps=(Gap(2, 4, GapCause.FOREIGN),))
    future: AppendFuture[int] = AppendFuture()
    gate.notify(4, future)
    gate.failed([], FAILED)
    settle_all(gate.take_outcomes())
    with pytest.raises(NotEnoughBookiesError):
        future.result(0)
    assert gate.pushed == 0


def test_gaps_in_a_snapshot_that_is_being_stored_are_not_taken_back() -> None:
    """Otherwise the same offsets could be a gap in the snapshot, and data in the log."""
    gate = make()
    push(gate, gaps=(Gap(0, 3, GapCause.FILTERED),))
    state = gate.snapshot()
    push(gate, entry(3, 1))
    gate.failed([], FAILED)
    assert gate.pushed == 3
    gate.persisted(state)
    assert gate.stored == gate.pushed == 3


def test_a_new_session_fences_older_ones() -> None:
    gate = make()
    push(gate, entry(0, 2))
    gate.wait("w")
    opened: AppendFuture[OriginState] = AppendFuture()
    gate.open(3, opened)
    assert gate.take_waiting() == ["w"]
    with pytest.raises(OriginSessionError, match="session 1 is fenced by session 3"):
        gate.admit(1, [entry(2, 2)], ())
    with pytest.raises(OriginSessionError, match="session 3 is not open yet"):
        gate.admit(3, [entry(2, 2)], ())
    with pytest.raises(OriginSessionError):
        gate.open(2, AppendFuture())
    persist(gate)
    assert not opened.done()  # what was pushed has no outcome yet
    gate.settled([entry(0, 2)])
    settle_all(gate.take_outcomes())
    assert opened.result(0) == OriginState(2, LastEntry(0, 2, crc32c(b"0"), 7))
    replicate(gate, entry(2, 2), session=3)


def test_a_session_that_is_fenced_while_it_opens_learns_it() -> None:
    gate = make()
    push(gate, entry(0, 2))
    opened: AppendFuture[OriginState] = AppendFuture()
    gate.open(2, opened)
    gate.open(3, AppendFuture())
    settle_all(gate.take_outcomes())
    with pytest.raises(OriginSessionError, match="session 2 is fenced by session 3"):
        opened.result(0)


def test_a_session_is_open_once_it_is_stored() -> None:
    gate = OriginGate("t", NEW)
    opened: AppendFuture[OriginState] = AppendFuture()
    gate.open(4, opened)
    settle_all(gate.take_outcomes())
    assert not opened.done() and gate.has_news
    gate.persisted(NEW)
    settle_all(gate.take_outcomes())
    assert not opened.done()
    assert persist(gate).session == 4
    assert opened.done() and not gate.has_news


def test_a_session_may_open_again() -> None:
    gate = make()
    replicate(gate, entry(0, 2))
    opened: AppendFuture[OriginState] = AppendFuture()
    gate.open(1, opened)
    settle_all(gate.take_outcomes())
    assert not opened.done() and gate.has_news, "an owner that was replaced, and does not know, must not answer"
    replicate(gate, entry(2, 1))
    persist(gate)
    assert opened.result(0).stored == 3


def test_replay_refuses_entries_that_leave_something_out() -> None:
    gate = OriginGate("t", NEW)
    gate.replay(OriginAttribute(gate.key, 0, 7), 3, 0)
    gate.replay(OriginAttribute(gate.key, 0, 7), 3, 0)  # from before the mark
    for attribute in (
        OriginAttribute(gate.key, 4, 7),
        OriginAttribute(gate.key, 2, 7),
        OriginAttribute(gate.key, 9, 7, (Gap(5, 9, GapCause.LOST),)),
    ):
        with pytest.raises(InvalidEntryError, match="expected offset 3"):
            gate.replay(attribute, 3, 0)
    gate.replay(OriginAttribute(gate.key, 9, 7, (Gap(3, 9, GapCause.LOST),)), 3, 5)
    assert gate.state == OriginState(12, LastEntry(9, 12, 5, 7))


def test_gaps_that_touch_are_joined_and_bounded() -> None:
    gaps: list[Gap] = []
    at = 0
    for number in range(3 * GAPS_MAX):
        cause = GapCause.FOREIGN if number % 2 else GapCause.FILTERED
        gaps = joined(gaps, Gap(at, at + 1 + 2 * (number % 2), cause))
        at = gaps[-1].end
    assert len(gaps) == GAPS_MAX and gaps[0].start == 0 and gaps[0].cause is GapCause.FOREIGN
    assert all(first.end == second.start for first, second in pairwise(gaps))
    assert joined([Gap(0, 1, GapCause.LOST)], Gap(1, 2, GapCause.LOST)) == [Gap(0, 2, GapCause.LOST)]


@pytest.mark.parametrize(
    ("entries", "gaps"),
    [
        ([entry(0, 0)], ()),
        ([entry(-1, 2)], ()),
        ([entry(1 << 62, 1)], ()),
        ([entry(3, 2), entry(4, 2)], ()),
        ([entry(3, 2, Gap(2, 4, GapCause.LOST))], ()),
        ([entry(3, 2, Gap(2, 2, GapCause.LOST))], ()),
        ([entry(3, 2, Gap(-1, 2, GapCause.LOST))], ()),
        ([entry(9, 2, Gap(3, 5, GapCause.LOST), Gap(4, 6, GapCause.LOST))], ()),
        ([entry(3, 2)], (Gap(4, 6, GapCause.LOST),)),
        ([], (Gap(4, (1 << 62) + 1, GapCause.LOST),)),
        ([], tuple(Gap(at, at + 1, GapCause.LOST) for at in range(GAPS_MAX + 1))),
        ([], (Gap(0, 1, 9),)),  # type: ignore[arg-type]
    ],
)
def test_calls_that_make_no_sense_are_refused(entries: list[OriginEntry], gaps: tuple[Gap, ...]) -> None:
    with pytest.raises(InvalidEntryError, match="expected"):
        check_entries(entries, gaps)


def test_a_topic_has_a_bounded_number_of_origins() -> None:
    gates = OriginGates("t")
    for number in range(ORIGINS_MAX):
        gates.add(NEW._replace(origin=Origin(bytes(16), f"{number}")))
    assert len(gates) == ORIGINS_MAX
    with pytest.raises(InvalidArgumentError, match="at most"):
        gates.add(NEW)


def test_origin_with_the_key_of_another_one_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    gates = OriginGates("t")
    key: Any = property(lambda _: 5)
    monkeypatch.setattr(Origin, "key", key)
    gate = gates.add(NEW)
    assert gates.by_key(5) is gate and gates.get(ORIGIN) is gate
    with pytest.raises(InvalidArgumentError, match="same key"):
        gates.add(NEW._replace(origin=Origin(bytes(16), "other")))
