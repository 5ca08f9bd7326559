"""A long backlog with many holes: what it costs to ask for it, and to write what changed."""

from __future__ import annotations

import time
from typing import Literal

import numpy as np

from benchmarks.plan import Plan
from benchmarks.result import Comparison, Figure, Goal, Section
from benchmarks.sampling import interleave
from pyreplog.topic.model.cursor import Cursor
from pyreplog.topic.model.positions import ORIGIN, TopicPosition

_EVERY = 100
"""One message of so many is acknowledged: a hole each."""
_PER_ENTRY = 1000
_ENTRY_BYTES = 100 * _PER_ENTRY
_HOLES, _FEW_HOLES = 1 << 20, 1 << 10
_ASKED = 1000
_CHANGED = 256


def backlog(plan: Plan) -> Section:
    """A cursor of a topic of 10**8 messages with 10**6 holes, beside one with a thousandth of that."""
    section = Section("topics-backlog", "A backlog of 100 messages per hole, a cursor's state")
    many = _Backlog(plan.scaled(_HOLES, _FEW_HOLES * 4))
    few = _Backlog(_FEW_HOLES)
    part = plan.shared(2)
    asked = interleave(part, {"many": many.ask, "few": few.ask})
    changed = interleave(part, {"many": many.change, "few": few.change})
    section.comparisons += [
        _compare("backlog(), time", asked["many"], asked["few"], many, few, "s", 2.0),
        _compare(f"{_CHANGED} acknowledgements and their record, time", *changed.values(), many, few, "s", 10.0),
        _compare("bytes of that record", many.record_bytes, few.record_bytes, many, few, "B", 2.0),
    ]
    section.notes.append(f"The cursor with {many.holes:,} holes holds {many.cursor.acks.nbytes:,} B of them.")
    return section


def _compare(
    work: str, ours: float, other: float, many: _Backlog, few: _Backlog, unit: Literal["s", "B"], limit: float
) -> Comparison:
    return Comparison(
        work,
        Figure(f"{many.messages:,} messages, {many.holes:,} holes", ours, unit, "appended"),
        Figure(f"{few.messages:,} messages, {few.holes:,} holes", other, unit, "appended"),
        Goal("at most", limit),
        f"{many.verified()} and {few.verified()} holes restored",
    )


class _Backlog:
    """A cursor whose entries all went out, and every hundredth of their messages was acknowledged."""

    def __init__(self, holes: int) -> None:
        entries = holes * _EVERY // _PER_ENTRY
        self.holes, self.messages = holes, entries * _PER_ENTRY
        self.end = TopicPosition(self.messages, entries, entries * _ENTRY_BYTES)
        self.cursor = Cursor("bench", ORIGIN)
        number = np.arange(entries, dtype=np.int64)
        self.cursor.acks.note_entries(
            number * _PER_ENTRY, np.full(entries, _PER_ENTRY), np.full(entries, _ENTRY_BYTES), number,
            number * _ENTRY_BYTES,
        )  # fmt: skip
        self._acked = np.arange(_EVERY // 2, self.messages, _EVERY, dtype=np.int64)
        self.cursor.acknowledge(self._acked, self.messages, 0)
        self._records = [self._taken()]
        self._rounds = 0
        self.record_bytes = 0.0

    def _taken(self) -> bytes:
        taken = self.cursor.take_changes()
        assert taken is not None
        self.cursor.persisted(taken[0])
        return taken[1]

    def ask(self) -> float:
        """Seconds of one question for the backlog."""
        begin = time.perf_counter()
        for _ in range(_ASKED):
            found = self.cursor.backlog(self.end)
        took = (time.perf_counter() - begin) / _ASKED
        if found.messages != self.messages - len(self._acked):
            raise ValueError(f"{found} of {self.messages} messages, {len(self._acked)} are acknowledged")
        return took

    def change(self) -> float:
        """Seconds of acknowledging a few more, and taking the record of it."""
        self._rounds += 1
        step = max(self.holes // _CHANGED, 1) * _EVERY
        more = np.arange(_EVERY // 2 + self._rounds, self.messages, step, dtype=np.int64)[:_CHANGED]
        begin = time.perf_counter()
        self.cursor.acknowledge(more, self.messages, 0)
        record = self._taken()
        took = time.perf_counter() - begin
        self._acked = np.union1d(self._acked, more)
        self._records.append(record)
        if len(record) < len(self._records[0]):  # no snapshot
            self.record_bytes = float(len(record))
        return took

    def verified(self) -> str:
        """What the records say is what was acknowledged."""
        restored = Cursor.restore("bench", self._records)
        starts, ends = restored.acks.acked()
        offsets = np.concatenate([np.arange(low, high) for low, high in zip(starts, ends, strict=True)])
        if not np.array_equal(offsets, self._acked) or restored.backlog(self.end) != self.cursor.backlog(self.end):
            raise ValueError("the records restore another state")
        return f"{len(starts):,}"
