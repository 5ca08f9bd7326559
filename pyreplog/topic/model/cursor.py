"""A cursor: the acknowledged messages of one subscription, its backlog, and its stored records. No I/O.

The rules are those of Pulsar's managed cursor. All messages below the mark are acknowledged. Acknowledgements beyond
the mark are ranges; the mark advances over those that it reaches. A cumulative acknowledgement may not go back; a seek
may. The stored state may be older than the acknowledgements, never newer: after a crash messages are delivered again,
and none is lost.
"""

from __future__ import annotations

import secrets
from collections import deque
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple

from pyreplog._native.topic.ack_set import AckSet
from pyreplog.cursors.cursor_record import CursorRecord, check_properties, usable
from pyreplog.errors import InvalidArgumentError, OutOfRangeError
from pyreplog.topic.model.positions import ORIGIN, EntryPosition, TopicPosition
from pyreplog.topic.model.trend import Sample

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from pyreplog._native.topic.messages import MessageBatch

ACKS_BYTES_MAX = 60 << 20
"""Most bytes of acknowledgements in one record; the next record has the others."""

SNAPSHOT_AFTER_BYTES = 16 << 10
"""A new snapshot is written when the changes have more bytes than this, and than the last snapshot."""

ERA = "era"
"""Name of the property that holds the era."""

SAMPLES_MAX = 64
SAMPLE_US = 10_000_000


class Backlog(NamedTuple):
    """Messages that are not acknowledged; an entry counts with all its bytes until its last message is acknowledged."""

    messages: int
    entries: int
    size: int


class Cursor:
    """The cursor `name` of a topic, with all messages before `mark` acknowledged. Not for several threads at once.

    The argument `end` of its methods is the offset behind the topic's last confirmed message.

    Args:
        name: name of the cursor.
        mark: position up to which all messages are acknowledged.
        durable: its records are stored.
    """

    def __init__(self, name: str, mark: TopicPosition, *, durable: bool = True) -> None:
        self.name, self.durable = name, durable
        self.acks = AckSet(mark)
        self.samples: deque[Sample] = deque(maxlen=SAMPLES_MAX)
        self.last_acked_us: int | None = None
        """When messages were last acknowledged, or the position was set."""
        self.records_lost = 0
        """Number of records that `restore` could not use, because an earlier one is missing."""
        self._sequence = 0  # of the last record
        self._properties: dict[str, int] = {}
        self._properties_version = 0
        self._written_state = (-1, -1)  # of the last record
        self._stored_mark = mark
        # (sequence, mark) of records whose outcome is not known
        self._unconfirmed: deque[tuple[int, TopicPosition]] = deque()
        self._begins = True  # the next record is a snapshot
        self._is_partial = False  # the last record had no space for all changes
        self._snapshot_bytes = self._change_bytes = 0  # of the last snapshot, and of the changes since

    # ---- state ------------------------------------------------------------------------------------

    @property
    def mark(self) -> TopicPosition:
        """All messages below its offset are acknowledged; the message at it is not."""
        return TopicPosition(*self.acks.mark)

    @property
    def durable_mark(self) -> TopicPosition:
        """The lowest mark to which a crash now would set the cursor back; it needs no message below this mark."""
        if not self.durable:
            return self.mark
        return min(self.mark, self._stored_mark, *(mark for _, mark in self._unconfirmed))

    @property
    def properties(self) -> Mapping[str, int]:
        return MappingProxyType(self._properties)

    def set_properties(self, properties: Mapping[str, int]) -> None:
        """Add properties, or change their values; they are stored with the mark.

        Raises InvalidArgumentError if there are too many, or one cannot be stored.
        """
        merged = {**self._properties, **properties}
        check_properties(merged)
        self._properties = merged
        self._properties_version += 1

    @property
    def era(self) -> int:
        """A random number, 1 or more, that changes with each seek; 0: there was no seek yet."""
        return self._properties.get(ERA, 0)

    def begin_era(self) -> int:
        """Begin a new era, because earlier acknowledgements no longer hold; return it. It is stored with the mark."""
        era = 1 + secrets.randbits(61)
        self.set_properties({ERA: era})
        return era

    def backlog(self, end: TopicPosition) -> Backlog:
        """Return the backlog up to the end of the topic. Raises InvalidArgumentError if the mark is beyond it."""
        acks, mark = self.acks, self.mark
        if end.offset < mark.offset:
            raise InvalidArgumentError(f"cursor {self.name}: end {end.offset} is below its mark {mark.offset}")
        return Backlog(
            end.offset - mark.offset - acks.acked_messages,
            end.entries - mark.entries - acks.acked_entries,
            end.size - mark.size - acks.acked_bytes,
        )

    def sample(self, now_us: int, end: TopicPosition, first: int | None = None) -> None:
        """Take a sample for trends, at most once in 10 s. end: of the topic. first: see `Sample`."""
        if self.samples and 0 <= now_us - self.samples[-1].at_us < SAMPLE_US:
            return
        self.samples.append(Sample(now_us, end.offset, self.acks.mark_offset, self.backlog(end).messages, first))

    def mask(self, offsets: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Return bool[n]: which of the messages are acknowledged."""
        return self.acks.mask(offsets)

    def next_unacked(self, at: int) -> int:
        """Return the lowest offset from `at` on that is not acknowledged."""
        return self.acks.next_unacked(at)

    def offset_behind(self, messages: int, end: int) -> int:
        """Return the offset up to which to acknowledge, to skip `count` unacknowledged messages, or all of them."""
        return min(self.acks.behind(messages), end)

    # ---- acknowledging --------------------------------------------------------------------------------------

    def deliver(self, batch: MessageBatch) -> None:
        """Note the entries of a batch, so that their messages can be acknowledged by offset.

        One call suffices for all slices of a batch.
        """
        self.acks.deliver(batch)

    def note(self, place: EntryPosition) -> None:
        """Note an entry that was located, as `deliver` does."""
        self.acks.note(place)

    def note_entries(self, columns: tuple[NDArray[np.int64], ...]) -> None:
        """Note entries, as `deliver` does. columns: first offsets, counts, sizes, entries and bytes before."""
        first, count, size, entries_before, bytes_before = columns
        self.acks.note_entries(first, count, size, entries_before, bytes_before)

    def find(self, offset: int) -> EntryPosition | None:
        """Return the noted entry that holds a message, or ends before it; None: not noted, or acknowledged.

        Its ids are -1.
        """
        entry = self.acks.find(offset) or self.acks.find(offset - 1)
        return None if entry is None else EntryPosition(-1, -1, *entry)

    def acknowledge(self, offsets: NDArray[np.int64], end: int, now_us: int) -> NDArray[np.int64]:
        """Acknowledge messages; acknowledging them again is no error.

        Returns the offsets whose entries are not known. They are not acknowledged: locate and `note` each entry, and
        call this again. Raises OutOfRangeError, and acknowledges no message, if an offset is not below `end`.
        """
        unknown = self.acks.acknowledge(offsets, end)
        self.last_acked_us = now_us
        return unknown

    def acknowledge_range(self, start: int, stop: int, end: int, now_us: int) -> list[tuple[int, int]]:
        """Acknowledge all messages of [start, stop), as `acknowledge` does; returns ranges."""
        unknown = self.acks.acknowledge_range(start, stop, end)
        self.last_acked_us = now_us
        return unknown

    def cumulative_start(self, to: int) -> int:
        """Return the offset whose entry, or the entry before it, `cumulative` needs: `to`, or the start of its acked
        range.
        """
        return self.acks.cumulative_start(to)

    def cumulative(self, place: EntryPosition, to: int, end: int, now_us: int) -> None:
        """Acknowledge all messages below `to`. place: the entry that contains `cumulative_start(to)`, or ends there.

        No message is acknowledged if an error is raised: InvalidArgumentError if `to` is below the mark, or `place` is
        another entry; OutOfRangeError if `to` is beyond `end`.
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
        """Move the mark to `total`, the position of an entry, because all entries before it were removed.

        If that entry and the one before it are acknowledged, the acknowledgements beyond are forgotten, unless the
        start of their range is known.
        """
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
        """Set the mark to `total`, which may lie below the mark; no message behind it is acknowledged then."""
        self.acks.reset(total)
        self._begins = True
        self.last_acked_us = now_us

    # ---- records ------------------------------------------------------------------------------

    @property
    def has_changes(self) -> bool:
        """Whether there are changes that no record holds."""
        return self.durable and (self._is_partial or self._state != self._written_state)

    @property
    def _state(self) -> tuple[int, int]:
        return self.acks.version, self._properties_version

    def take_changes(self) -> tuple[int, bytes] | None:
        """Return (sequence, record) of the changes since the last record, or of the whole state; None: there are no
        changes.

        Sequences ascend by one. After a record that was lost, or may be, the next one must be a `snapshot_record`.
        """
        if not self.has_changes:
            return None
        outgrown = self._change_bytes > max(self._snapshot_bytes, SNAPSHOT_AFTER_BYTES) and not self._is_partial
        if self._begins or outgrown:
            return self.snapshot_record()
        properties = self._properties if self._properties_version != self._written_state[1] else None
        sequence, record = self._record(False, properties, self.acks.changes(ACKS_BYTES_MAX))
        self._change_bytes += len(record)
        return sequence, record

    def snapshot_record(self) -> tuple[int, bytes]:
        """Return (sequence, record) of the whole state."""
        sequence, record = self._record(True, self._properties, self.acks.snapshot(ACKS_BYTES_MAX))
        self._snapshot_bytes, self._change_bytes, self._begins = len(record), 0, False
        return sequence, record

    def _record(self, is_snapshot: bool, properties: Mapping[str, int] | None, acks: bytes) -> tuple[int, bytes]:
        self._written_state, self._is_partial = self._state, self.acks.has_changes
        self._sequence += 1
        self._unconfirmed.append((self._sequence, self.mark))
        return self._sequence, CursorRecord(self._sequence, is_snapshot, properties, acks).to_bytes()

    def persisted(self, sequence: int) -> None:
        """Note that a record is stored, and all records that it depends on."""
        while self._unconfirmed and self._unconfirmed[0][0] <= sequence:
            self._stored_mark = self._unconfirmed.popleft()[1]

    @classmethod
    def restore(cls, name: str, records: Iterable[bytes]) -> Cursor:
        """Return the durable cursor of these records, in any order: the last snapshot and the records that follow it
        without a gap.

        Raises InvalidRecordsError if a record is malformed or does not fit the others, or there is no snapshot.
        """
        consecutive, unusable = usable(records)
        cursor = cls(name, ORIGIN)
        for record in consecutive:
            cursor.acks.apply(record.acks)
            if record.properties is not None:
                cursor._properties = dict(record.properties)
        cursor._sequence, cursor.records_lost = [*consecutive, *unusable][-1].sequence, len(unusable)
        cursor._stored_mark, cursor._written_state = cursor.mark, cursor._state
        return cursor
