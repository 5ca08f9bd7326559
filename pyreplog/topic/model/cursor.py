"""A cursor: what one subscription has acknowledged, what is left for it, and what is to be written of that. Pure.

Rules and their sources (Pulsar's managed cursor): everything below the mark is acknowledged; acknowledgements beyond it
are ranges, and the mark jumps over those it reaches; a cumulative acknowledgement may not go back; a seek may. What is
written may be older than what was acknowledged, never newer: after a crash messages come again, none is lost.
"""

from __future__ import annotations

import secrets
from collections import deque
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple

from pyreplog._native.topic.ackset import AckSet
from pyreplog.errors import InvalidArgumentError, OutOfRangeError
from pyreplog.topic.model.cursor_record import CursorRecord, check_properties, usable
from pyreplog.topic.model.positions import ORIGIN, EntryPosition, TopicPosition
from pyreplog.topic.model.trend import Sample

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from pyreplog._native.topic.messages import MessageBatch

ACKS_BYTES_MAX = 60 << 20
"""Acknowledgements in one record; those beyond are in the next."""

SNAPSHOT_AFTER_BYTES = 16 << 10
"""So many bytes of changes may follow a snapshot, or as many as it has, before the next one."""

ERA = "era"
"""The property that holds it."""

SAMPLES_MAX = 64
SAMPLE_US = 10_000_000


class Backlog(NamedTuple):
    """What is not acknowledged; an entry counts with all its bytes until its last message is."""

    messages: int
    entries: int
    size: int


class Cursor:
    """The cursor `name` of a topic, everything before `mark` acknowledged. durable: it is to be written.

    `end`: offset behind the topic's last confirmed message. Not for several threads at once.
    """

    def __init__(self, name: str, mark: TopicPosition, *, durable: bool = True) -> None:
        self.name, self.durable = name, durable
        self.acks = AckSet(mark)
        self.samples: deque[Sample] = deque(maxlen=SAMPLES_MAX)
        self.last_acked_us: int | None = None
        """When anything was last acknowledged, or the position set."""
        self.records_lost = 0
        """Records that `restore` could not use: one before them is missing."""
        self._sequence = 0  # of the last record
        self._properties: dict[str, int] = {}
        self._properties_version = 0
        self._written_state = (-1, -1)  # of the last record
        self._stored_mark = mark
        # (sequence, mark) of records that may be stored or not
        self._unconfirmed: deque[tuple[int, TopicPosition]] = deque()
        self._begins = True  # the next record is a snapshot
        self._has_rest = False  # the last record could not hold all
        self._snapshot_bytes = self._change_bytes = 0  # of the last snapshot, and of what followed

    # ---- where it stands ------------------------------------------------------------------------------------

    @property
    def mark(self) -> TopicPosition:
        """Everything below its offset is acknowledged, the message at it is not."""
        return TopicPosition(*self.acks.mark)

    @property
    def durable_mark(self) -> TopicPosition:
        """The lowest mark that a crash, now, may leave: this cursor needs nothing below it any more."""
        if not self.durable:
            return self.mark
        return min(self.mark, self._stored_mark, *(mark for _, mark in self._unconfirmed))

    @property
    def properties(self) -> Mapping[str, int]:
        return MappingProxyType(self._properties)

    def set_properties(self, properties: Mapping[str, int]) -> None:
        """Add properties, or give them other values; they are stored with the mark. InvalidArgumentError: too many, or
        one cannot be stored."""
        merged = {**self._properties, **properties}
        check_properties(merged)
        self._properties = merged
        self._properties_version += 1

    @property
    def era(self) -> int:
        """A random number, 1 or more, from one seek to the next; 0: there was none yet."""
        return self._properties.get(ERA, 0)

    def begin_era(self) -> int:
        """What was acknowledged before is not any more. Returns the new era, which is stored with the mark."""
        era = 1 + secrets.randbits(61)
        self.set_properties({ERA: era})
        return era

    def backlog(self, end: TopicPosition) -> Backlog:
        """What is not acknowledged of the topic up to its end. InvalidArgumentError: the mark is beyond it."""
        acks, mark = self.acks, self.mark
        if end.offset < mark.offset:
            raise InvalidArgumentError(f"cursor {self.name}: end {end.offset} is below its mark {mark.offset}")
        return Backlog(
            end.offset - mark.offset - acks.acked_messages,
            end.entries - mark.entries - acks.acked_entries,
            end.size - mark.size - acks.acked_bytes,
        )

    def sample(self, now_us: int, end: TopicPosition, first: int | None = None) -> None:
        """Remember how it stands; at most once in 10 s. end: of the topic. first: see `Sample`."""
        if self.samples and 0 <= now_us - self.samples[-1].at_us < SAMPLE_US:
            return
        self.samples.append(Sample(now_us, end.offset, self.acks.mark_offset, self.backlog(end).messages, first))

    def mask(self, offsets: NDArray[np.int64]) -> NDArray[np.bool_]:
        """bool[n]: which of the messages are acknowledged."""
        return self.acks.mask(offsets)

    def next_unacked(self, at: int) -> int:
        """The lowest offset from `at` on that is not acknowledged."""
        return self.acks.next_unacked(at)

    def offset_behind(self, messages: int, end: int) -> int:
        """What to acknowledge up to, to be rid of so many messages that are not yet, or of all."""
        return min(self.acks.behind(messages), end)

    # ---- acknowledging --------------------------------------------------------------------------------------

    def deliver(self, batch: MessageBatch) -> None:
        """Its entries go out: their messages can be acknowledged by offsets alone. Once for all slices of a batch."""
        self.acks.deliver(batch)

    def note(self, place: EntryPosition) -> None:
        """As `deliver`, of an entry that somebody located."""
        self.acks.note(place)

    def find(self, offset: int) -> EntryPosition | None:
        """The entry that holds a message, or that ends before it, if it went out and is not done; its ids are -1."""
        found = self.acks.find(offset) or self.acks.find(offset - 1)
        return None if found is None else EntryPosition(-1, -1, *found)

    def acknowledge(self, offsets: NDArray[np.int64], end: int, now_us: int) -> NDArray[np.int64]:
        """Acknowledge messages; once more is no error. Returns those whose entries are not known, which are not done:
        locate and `note` each entry, then acknowledge them again. OutOfRangeError: one is not below `end`; none is
        done."""
        unknown = self.acks.acknowledge(offsets, end)
        self.last_acked_us = now_us
        return unknown

    def acknowledge_range(self, start: int, stop: int, end: int, now_us: int) -> list[tuple[int, int]]:
        """As `acknowledge`, all of [start, stop); returns ranges."""
        unknown = self.acks.acknowledge_range(start, stop, end)
        self.last_acked_us = now_us
        return unknown

    def cumulative_start(self, to: int) -> int:
        """The message whose entry, or the entry before that, `cumulative` needs: `to`, or where its range begins."""
        return self.acks.cumulative_start(to)

    def cumulative(self, place: EntryPosition, to: int, end: int, now_us: int) -> None:
        """Acknowledge everything below `to`; below the mark already: no error only if that is the mark.

        place: of the entry that `cumulative_start(to)` lies in, or at whose end it does. InvalidArgumentError: `to` is
        below the mark, or the place is another; OutOfRangeError: it is beyond `end`. Nothing is done then.
        """
        if to > end:
            raise OutOfRangeError(f"cursor {self.name}: cannot acknowledge up to {to}: the topic ends at {end}")
        if to < self.acks.mark_offset:
            raise InvalidArgumentError(
                f"cursor {self.name}: everything below {self.acks.mark_offset} is acknowledged, so is all below {to}"
            )
        if to > self.acks.mark_offset:
            self.acks.cumulative(place, to)
        self.last_acked_us = now_us

    def advance(self, total: TopicPosition, now_us: int) -> None:
        """Everything before an entry is gone: so much of the topic, `total`, lies before it. If it is acknowledged and
        the one before it is too, what is acknowledged beyond is forgotten, unless where that range begins is known."""
        if total.offset <= self.acks.mark_offset:
            return
        start = self.acks.cumulative_start(total.offset)
        place = EntryPosition(-1, -1, total.offset, 1, 0, total.entries, total.size)
        known = place if start == total.offset else self.find(start)
        if known is None:
            self.seek(total, now_us)
        else:
            self.acks.cumulative(known, total.offset)
        self.last_acked_us = now_us

    def seek(self, total: TopicPosition, now_us: int) -> None:
        """Everything before `total` is acknowledged and nothing behind it; it may lie below the mark."""
        self.acks.reset(total)
        self._begins = True
        self.last_acked_us = now_us

    # ---- what is to be written ------------------------------------------------------------------------------

    @property
    def has_changes(self) -> bool:
        """Whether there is anything that no record holds."""
        return self.durable and (self._has_rest or self._state != self._written_state)

    @property
    def _state(self) -> tuple[int, int]:
        return self.acks.version, self._properties_version

    def take_changes(self) -> tuple[int, bytes] | None:
        """(sequence, record) of what has changed since the last record, or of all that there is; None: nothing has.

        Sequences ascend by one. If a record is lost, or may be, the next one must be a `snapshot_record`.
        """
        if not self.has_changes:
            return None
        outgrown = self._change_bytes > max(self._snapshot_bytes, SNAPSHOT_AFTER_BYTES) and not self._has_rest
        if self._begins or outgrown:
            return self.snapshot_record()
        properties = self._properties if self._properties_version != self._written_state[1] else None
        sequence, record = self._record(False, properties, self.acks.changes(ACKS_BYTES_MAX))
        self._change_bytes += len(record)
        return sequence, record

    def snapshot_record(self) -> tuple[int, bytes]:
        """(sequence, record) of the whole state."""
        sequence, record = self._record(True, self._properties, self.acks.snapshot(ACKS_BYTES_MAX))
        self._snapshot_bytes, self._change_bytes, self._begins = len(record), 0, False
        return sequence, record

    def _record(self, is_snapshot: bool, properties: Mapping[str, int] | None, acks: bytes) -> tuple[int, bytes]:
        self._written_state, self._has_rest = self._state, self.acks.has_changes
        self._sequence += 1
        self._unconfirmed.append((self._sequence, self.mark))
        return self._sequence, CursorRecord(self._sequence, is_snapshot, properties, acks).to_bytes()

    def persisted(self, sequence: int) -> None:
        """That record is stored, and all that it needs."""
        while self._unconfirmed and self._unconfirmed[0][0] <= sequence:
            self._stored_mark = self._unconfirmed.popleft()[1]

    @classmethod
    def restore(cls, name: str, records: Iterable[bytes]) -> Cursor:
        """The durable cursor of which these records were written, in any order: the last snapshot and what follows it
        without a gap. InvalidRecordsError: one is none, or cannot follow the others, or there is no snapshot."""
        found, behind = usable(records)
        cursor = cls(name, ORIGIN)
        for record in found:
            cursor.acks.apply(record.acks)
            if record.properties is not None:
                cursor._properties = dict(record.properties)
        cursor._sequence, cursor.records_lost = [*found, *behind][-1].sequence, len(behind)
        cursor._stored_mark, cursor._written_state = cursor.mark, cursor._state
        return cursor
