"""Cursors compared with sets of offsets, after random calls, and after crashes that keep any prefix of the records."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from pyreplog.errors import InvalidArgumentError
from pyreplog.topic.model.cursor import Cursor
from pyreplog.topic.model.positions import ORIGIN
from tests.topic.acking import NOW, Topic, acknowledge, acknowledge_range, check, count, cumulative

fractions = st.floats(0, 1, exclude_max=True)


class CursorModel(RuleBasedStateMachine):
    """`acked` is the expected state; `past` is the state at each record, by its number."""

    @initialize(seed=st.integers(0, 99), entries=st.sampled_from([1, 7, 40, 300]), most=st.sampled_from([1, 2, 9]))
    def begin(self, seed: int, entries: int, most: int) -> None:
        self.topic = Topic.random(seed, entries, most)
        self.end = self.topic.end.offset
        self.cursor, self.acked = Cursor("sub", ORIGIN), set[int]()
        self.records: list[tuple[int, bytes]] = []
        self.past: dict[int, tuple[frozenset[int], dict[str, int]]] = {}
        self.stored = -1  # the number of the last record that is known to be stored

    def at(self, fraction: float) -> int:
        return int(fraction * (self.end + 1))

    @rule(start=fractions, entries=st.integers(0, 400))
    def deliver(self, start: float, entries: int) -> None:
        first = int(start * len(self.topic.counts))
        self.cursor.deliver(self.topic.columns(first, min(first + entries, len(self.topic.counts))))  # type: ignore[arg-type]

    @rule(start=fractions, step=st.integers(1, 5), length=st.integers(0, 200), back=st.booleans())
    def acknowledge(self, start: float, step: int, length: int, back: bool) -> None:
        offsets = range(self.at(start), min(self.at(start) + step * length, self.end), step)
        acknowledge(self.cursor, self.topic, reversed(offsets) if back else offsets)
        self.acked |= set(offsets)

    @rule(start=fractions, length=st.integers(0, 60))
    def acknowledge_range(self, start: float, length: int) -> None:
        stop = min(self.at(start) + length, self.end)
        acknowledge_range(self.cursor, self.topic, self.at(start), stop)
        self.acked |= set(range(self.at(start), stop))

    @rule(ahead=st.integers(-3, 40), before=st.booleans())
    def cumulative(self, ahead: int, before: bool) -> None:
        to = max(min(self.cursor.mark.offset + ahead, self.end), 0)
        if to < self.cursor.mark.offset:
            with pytest.raises(InvalidArgumentError):
                cumulative(self.cursor, self.topic, to)
            return
        cumulative(self.cursor, self.topic, to, before=before)
        self.acked |= set(range(to))

    @rule(to=fractions)
    def seek(self, to: float) -> None:
        self.cursor.seek(self.topic.total(self.at(to)), NOW)
        self.acked = set(range(self.at(to)))

    @rule(ahead=st.integers(0, 4))
    def trim(self, ahead: int) -> None:
        entry = min(self.topic.entry_of(self.cursor.mark.offset) + ahead, len(self.topic.counts))
        to = self.topic.firsts[entry]
        inside = to > self.cursor.mark.offset and to in self.acked and self.cursor.cumulative_start(to) < to
        known = inside and self.cursor.find(self.cursor.cumulative_start(to)) is not None
        self.cursor.advance(self.topic.total(to), NOW)
        self.acked = set(range(to)) if inside and not known else self.acked | set(range(to))

    @rule(value=st.integers(0, 9))
    def set_property(self, value: int) -> None:
        self.cursor.set_properties({f"p{value % 3}": value})

    @rule(whole=st.booleans())
    def write(self, whole: bool) -> None:
        changes = self.cursor.snapshot_record() if whole else self.cursor.take_changes()
        if changes is not None:
            self.records.append(changes)
            self.past[changes[0]] = frozenset(self.acked), dict(self.cursor.properties)

    @precondition(lambda self: self.records)
    @rule(fraction=fractions)
    def confirm(self, fraction: float) -> None:
        sequence = self.records[int(fraction * len(self.records))][0]
        self.cursor.persisted(sequence)
        self.stored = max(self.stored, sequence)

    @precondition(lambda self: self.records)
    @rule(cut=fractions, missing=st.one_of(st.none(), fractions))
    def crash(self, cut: float, missing: float | None) -> None:
        """Of the records that are not known to be stored, a crash keeps only the first ones, and may lose one of the
        others."""
        known = sum(sequence <= self.stored for sequence, _ in self.records)
        left = self.records[: max(known, 1, int(cut * (len(self.records) + 1)))]
        gap = None if missing is None else self.records[int(missing * len(left))][0]
        if gap is not None and gap > max(self.stored, self.records[0][0]):
            left = [item for item in left if item[0] != gap]
        durable = self.cursor.durable_mark
        self.cursor = Cursor.restore("sub", [record for _, record in left])
        states = [(frozenset(acked), properties) for acked, properties in self.past.values()]
        restored = frozenset(offset for offset in range(self.end) if self.cursor.acks.is_acked(offset))
        assert (restored, dict(self.cursor.properties)) in states
        assert restored == self.newest(left)
        assert self.cursor.mark >= durable, "what a crash left needs more than it was said to"
        self.acked = set(restored)
        self.records, self.past, self.stored = [], {}, -1
        self.write(whole=True)

    def newest(self, left: list[tuple[int, bytes]]) -> frozenset[int]:
        """Return the state at the last record before the first missing one after the last snapshot."""
        sequences = [sequence for sequence, _ in left]
        last_snapshot = max(sequence for sequence, record in left if record[1] == 1)
        while last_snapshot + 1 in sequences:
            last_snapshot += 1
        return self.past[last_snapshot][0]

    @invariant()
    def agrees(self) -> None:
        if self.end <= 400:
            check(self.cursor, self.topic, self.acked)
        else:
            acks, by_hand = self.cursor.acks, count(self.topic, self.acked)
            marks = (self.cursor.mark, acks.acked_messages, acks.acked_entries, acks.acked_bytes, acks.ranges)
            assert marks == by_hand

    @invariant()
    def knows_what_is_not_written(self) -> None:
        if self.past and not self.cursor.has_changes:
            assert self.past[max(self.past)] == (frozenset(self.acked), dict(self.cursor.properties))


TestCursorModel = CursorModel.TestCase
TestCursorModel.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
