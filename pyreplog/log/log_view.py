"""LogView: the base class of CommitLog and LogReader, with reads, followers, and lookups by position and time."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

from pyreplog._native.log.batch import RecordBatch
from pyreplog._native.log.log_follower_base import SLICE_US, LogFollowerBase
from pyreplog._native.log.log_view_base import LogViewBase
from pyreplog._native.log.record import Record
from pyreplog._native.log.segment import HEADER_BYTES, SIZE_MAX, Segment
from pyreplog.arguments import as_int, as_microseconds
from pyreplog.errors import (
    CorruptionError,
    ForkedError,
    InvalidArgumentError,
    OutOfRangeError,
    TruncatedError,
    WrongTypeError,
)
from pyreplog.future import as_timeout
from pyreplog.handles import Closeable
from pyreplog.log import checkpoint as checkpoints
from pyreplog.log.files import Files
from pyreplog.log.hole_punch import is_hole_punched
from pyreplog.log.log_cursor import CursorStart, LogCursor, cursor_places
from pyreplog.times import Time

SCAN_BYTES = 1 << 22
_NUMBER_MAX = (1 << 63) - 1


class LogView(LogViewBase, Closeable):
    """The base class of CommitLog and LogReader. Lookups of single entries are in its native base class."""

    path: Path
    _files: Files
    _parents: ForkedError | None = None
    """The error of all calls in a forked child; None in the process that opened the log."""

    def _check_process(self) -> None:
        """Raise ForkedError in a child of the process that opened the log, where the state of the handle is stale."""
        if self._parents is not None:
            raise self._parents

    # ---- methods that a subclass implements -----------------------------------------------------------------

    @property
    def end(self) -> int:
        """Number of the first entry that may not be read: one more than that of the last visible entry."""
        raise NotImplementedError

    def _visible(self) -> int:
        """Return the position up to which records are visible to readers."""
        raise NotImplementedError

    def _readable(self) -> int:
        """Return the position of the end of the log: behind the last record, committed or not."""
        return self.tail.end

    def check_open(self) -> None:
        raise NotImplementedError

    def close(self) -> None:
        """Release the files of the log."""
        raise NotImplementedError

    async def _wait_for_entry(self, entry: int, timeout: float | None) -> bool:
        """Return whether `entry` becomes visible within `timeout` seconds."""
        raise NotImplementedError

    def _extent(self, segment: Segment, visible: int) -> int:
        """Return the offset up to which the records of a segment may be read: its size, if it is sealed."""
        if visible >= segment.base + segment.size:
            return segment.size
        return max(visible - segment.base, HEADER_BYTES)

    def _refresh(self) -> bool:
        """Look for a segment behind the last known one; return whether there was one."""
        return False

    @property
    def start(self) -> int:
        """Number of the first entry in the log."""
        self._check_process()
        table = self._segment_table()
        return max(table[0][1], 0) if table else 0

    @property
    def start_position(self) -> int:
        """Position of the first segment, bytes from the beginning of the log."""
        self._check_process()
        table = self._segment_table()
        return table[0][0] if table else 0

    @property
    def end_position(self) -> int:
        """Position behind the last visible record, bytes from the beginning of the log."""
        self._check_process()
        return self._visible()

    def __len__(self) -> int:
        return self.end - self.start

    @property
    def unreplicated(self) -> bool:
        """Whether a promotion may cut entries that readers see.

        True while the master of the log's group goes on without enough replicas (fallback), and until they have caught
        up. Read it after the entries.
        """
        self._check_process()
        return self.tail.unreplicated

    # ---- cursors --------------------------------------------------------------------------------------------

    def cursor(self, name: str, start: CursorStart = "earliest") -> LogCursor:
        """Open a cursor: a named, durable place in the log from which on retention keeps entries.

        A cursor that does not exist is created.

        Args:
            name: 1 to 100 letters, digits, '.', '_' and '-'.
            start: where a new cursor begins: an entry's number, "earliest" (the first that is kept), or "latest".

        Raises:
            LockedError: another handle has the cursor.
            TrimmedError, OutOfRangeError: the log does not hold the entry `start`.
            ReadOnlyError: this user may not write into the log's directory.
            CorruptionError: the cursor's file is damaged.
        """
        self.check_open()
        self._check_numbered()
        return LogCursor(self, self._files, name, start)

    def cursors(self) -> dict[str, int]:
        """Return the cursors of the log: by name, the number of the first entry that is not acknowledged.

        Raises:
            CorruptionError: a cursor's file is damaged.
        """
        self.check_open()
        checkpoint = checkpoints.load(self.path)
        places = {} if checkpoint is None else cursor_places(self.path, checkpoint.uuid)
        return {name: place.entry for name, place in places.items()}

    # ---- lookups --------------------------------------------------------------------------------------------

    def position_of(self, entry: int) -> int:
        """Return the position of an entry's record, bytes from the beginning of the log.

        Args:
            entry: number of the entry; `end` gives the visible end of the log.

        Raises:
            OutOfRangeError: the entry is not written yet, or not visible yet.
            TrimmedError: retention or `trim` has removed the entry.
            ClosedError: the log was closed.
        """
        self.check_open()
        self._check_numbered()
        if entry == self.end:
            return self._visible()
        return self._position_of(entry)

    def entry_at_time(self, time: Time) -> int:
        """Find the first entry that was appended at or after a time.

        Args:
            time: a datetime with a time zone, or microseconds since 1970-01-01 UTC.

        Returns:
            The number of the entry; `end` if all entries are older.

        Raises:
            WrongTypeError: `time` is neither a datetime nor an int.
            InvalidArgumentError: the datetime has no time zone.
            ClosedError: the log was closed.
        """
        self.check_open()
        self._check_numbered()
        time_us = as_microseconds("time", time)
        low, high = self.start, self.end
        while low < high:
            middle = (low + high) // 2
            if self.get(middle).timestamp < time_us:
                low = middle + 1
            else:
                high = middle
        return low

    def _values(self, item: slice) -> list[bytes]:
        self._check_numbered()
        try:
            start, stop, step = item.indices(self.end)
        except TypeError as error:
            raise WrongTypeError(f"log[a:b]: expected integers or None, found {item!r}") from error
        except ValueError as error:
            raise InvalidArgumentError(
                f"log[a:b]: expected a slice with a step other than 0, found {item!r} ({error})"
            ) from error
        if step != 1:
            return [self.get(n).value for n in range(start, stop, step)]
        values: list[bytes] = []
        for batch in self.read(start, stop):
            values.extend(batch.values())
        return values

    # ---- batches ----------------------------------------------------------------------------------------------

    def read(
        self, start: int | None = None, end: int | None = None, *, batch_bytes: int = SCAN_BYTES
    ) -> Iterator[RecordBatch]:
        """Iterate over verified batches of entries, from one entry to before another.

        Any thread may read, and several reads may run at once. A read holds no lock, and keeps only the segment of the
        current batch mapped.

        Args:
            start: number of the first entry; None: the first entry of the log.
            end: number of the entry to stop before; None: the visible end at the moment when it is reached.
            batch_bytes: size of a batch, bytes of log.

        Returns:
            An iterator of `RecordBatch`. A record that takes several numbers is given as a whole, if one of them is in
                the range.

        Raises:
            OutOfRangeError: `start` lies behind the end.
            TrimmedError: retention or `trim` has removed the entry.
            CorruptionError: a record is damaged.
            TruncatedError: the log was cut before the place of the read.
            ClosedError: the log was closed.
        """
        self.check_open()
        self._check_numbered()
        first = self.start if start is None else as_int("start", start)
        if end is not None:
            end = min(as_int("end", end), _NUMBER_MAX)
        if not 0 <= first <= self.end:
            raise OutOfRangeError(f"entry {first}: the log has {self.start} to {self.end}")
        return self._read(first, end, _as_batch_bytes(batch_bytes))

    def _read(self, entry: int, end: int | None, batch_bytes: int) -> Iterator[RecordBatch]:
        if entry >= self.end or (end is not None and entry >= end):
            return
        truncations, (position, entry) = self.truncation_count, self._place_of(entry)
        while end is None or entry < end:
            if self.truncation_count != truncations:  # the next records may have been cut and replaced by others
                if entry == self.end:
                    return
                if entry > self.end:
                    raise TruncatedError(
                        f"entries from {self.end} on were cut, and this read was at {entry}; read again"
                    )
                truncations, (position, entry) = self.truncation_count, self._place_of(entry)
            try:
                batch = self._batch_at(position, batch_bytes, entry=entry, below=-1 if end is None else end)
            except CorruptionError:
                if self.truncation_count == truncations:
                    raise
                continue  # the log was truncated during the scan: look the position up again
            if batch is None:
                return
            position = batch.next_position
            if len(batch):
                entry = batch[-1].entry + 1
                yield batch

    def read_event_times(self, low: Time, high: Time) -> Iterator[RecordBatch]:
        """Iterate over batches of the entries whose event time lies in a range, in the order of their numbers.

        Event times are those of the producers and need not ascend. Parts of the log without an event time in the range
        are skipped with the index.

        Args:
            low: first event time, a datetime with a time zone or microseconds since 1970-01-01 UTC.
            high: event time to stop before, likewise.

        Returns:
            An iterator of `RecordBatch`.

        Raises:
            InvalidArgumentError: a time does not fit into 64 bits, or a datetime has no time zone.
            CorruptionError: a record or an index is damaged.
            ClosedError: the log was closed.
        """
        self.check_open()
        self._check_numbered()
        return self._read_event_times(_as_event_time("low", low), _as_event_time("high", high))

    def _read_event_times(self, low: int, high: int) -> Iterator[RecordBatch]:
        while self._refresh():  # a reader does not learn of new segments by itself
            continue
        table = self._segment_table()
        ends = [first for _, first, _ in table[1:]] + [self.end]
        for (base, first, _), end in zip(table, ends, strict=True):
            if first < end:
                held, segment = self.hold_segment(base)
                yield from self._read_event_times_of(segment, end, low, high)
                del held

    def _read_event_times_of(self, segment: Segment, end: int, low: int, high: int) -> Iterator[RecordBatch]:
        """Skip the blocks of a segment whose range of event times lies outside [low, high)."""
        index = segment.index
        if index is None or index.entries < end - segment.first_entry:
            self._load_index(segment, end - 1)
            index = segment.index
        assert index is not None, "_load_index gives a segment its index"
        extent = self._extent(segment, self._visible())
        for start, stop in index.event_time_blocks(low, high):
            stop = min(stop, extent)
            offset = index.before(max(start, HEADER_BYTES))
            while offset < stop:
                batch = segment.scan(offset, extent, until=stop)
                offset = batch.next_position - segment.base
                times = batch.event_time
                wanted = (times >= low) & (times < high) & (batch.position >= segment.base + start)
                chosen = batch.select(wanted.nonzero()[0])
                if len(chosen):
                    yield chosen

    def read_positions(
        self, start: int, end: int | None = None, *, batch_bytes: int = SCAN_BYTES, all_kinds: bool = False,
        committed: bool = True,
    ) -> Iterator[RecordBatch]:  # fmt: skip
        """Iterate over batches of records, from one position to before another.

        Args:
            start: position where a record begins, bytes from the beginning of the log.
            end: position to stop before; None: the visible end.
            batch_bytes: size of a batch, bytes of log.
            all_kinds: give control records as well.
            committed: stop at the commit point of a replicated log. False: give uncommitted records as well, which may
                be cut later.

        Returns:
            An iterator of `RecordBatch`.

        Raises:
            InvalidArgumentError: no record can begin at `start` or `end`.
            OutOfRangeError: a position does not fit into 64 bits.
            CorruptionError: a record is damaged.
            ClosedError: the log was closed.
        """
        self.check_open()
        until = None if end is None else _as_position("end", end)
        size = _as_batch_bytes(batch_bytes)
        return self._read_positions(_as_position("start", start), until, size, all_kinds, committed)

    def _read_positions(
        self, position: int, stop: int | None, batch_bytes: int, all_kinds: bool, committed: bool
    ) -> Iterator[RecordBatch]:
        while stop is None or position < stop:
            batch = self._batch_at(position, batch_bytes, all_kinds=all_kinds, stop=stop, committed=committed)
            if batch is None:
                return
            position = batch.next_position
            if len(batch):
                yield batch

    def _batch_at(
        self, position: int, batch_bytes: int, *, all_kinds: bool = False, stop: int | None = None,
        committed: bool = True, entry: int = -1, below: int = -1,
    ) -> RecordBatch | None:  # fmt: skip
        """Return one batch from `position` on; None at the visible end.

        entry: number of the first entry to give; -1: any. below: number of the entry to stop before; -1: none. The
        other arguments are those of `read_positions`.
        """
        self.check_open()
        visible = self._visible() if committed else self._readable()
        if position >= visible:
            return None
        held, segment = self.hold_segment(position)
        if position >= segment.base + segment.size:
            del held
            if not self._refresh():
                return None
            return self._batch_at(
                position, batch_bytes, all_kinds=all_kinds, stop=stop, committed=committed, entry=entry, below=below
            )
        offset = max(position - segment.base, HEADER_BYTES)
        if offset > HEADER_BYTES and is_hole_punched(segment):  # since the caller has looked its position up
            offset = HEADER_BYTES
        extent = self._extent(segment, visible)
        until = min(extent, offset + batch_bytes)
        if stop is not None:
            until = min(until, max(stop - segment.base, offset))
        batch = segment.scan(offset, extent, until=until, all_kinds=all_kinds, entry=entry, below=below)
        if batch.next_position == position and not len(batch):
            raise CorruptionError(segment.path, position, "a record", f"nothing before offset {extent}")
        return batch

    def control_records(self, start: int = 0) -> Iterator[Record]:
        """Iterate over the control records from a position on.

        Args:
            start: position where a record begins, bytes from the beginning of the log; 0: the start of the log.

        Returns:
            An iterator of `Record`.

        Raises:
            InvalidArgumentError: no record can begin at `start`.
            CorruptionError: a record is damaged.
            ClosedError: the log was closed.
        """
        batches = self.read_positions(max(_as_position("start", start), self.start_position), all_kinds=True)
        return (batch[i] for batch in batches for i in (batch.kind > 2).nonzero()[0].tolist())

    # ---- followers ------------------------------------------------------------------------------------------

    def follow_batches(
        self, start: int | None = None, *, timeout: float | None = None, batch_bytes: int = SCAN_BYTES
    ) -> Iterator[RecordBatch]:
        """Iterate over verified batches of entries, and wait for more at the end of the log.

        The wait releases the GIL and sleeps on the log's tail page. Ctrl-C and `close` end it.

        Args:
            start: number of the first entry; None: the entries that are appended from now on.
            timeout: seconds without a new entry after which the iteration ends; None: it never ends.
            batch_bytes: size of a batch, bytes of log.

        Returns:
            An iterator of `RecordBatch`.

        Raises:
            OutOfRangeError: `start` is negative.
            TrimmedError: retention or `trim` has removed the entry.
            TruncatedError: entries that the iterator has given have been cut.
            CorruptionError: a record is damaged.
            ClosedError: the log was closed.
        """
        return self._follow_batches(self._follower(start, timeout, _as_batch_bytes(batch_bytes)))

    def _follow_batches(self, follower: LogFollower) -> Iterator[RecordBatch]:
        while (batch := follower.next_batch()) is not None:
            yield batch

    def follow(self, start: int | None = None, *, timeout: float | None = None) -> LogFollower:
        """Iterate over the entries, and wait for more at the end of the log.

        Iterate in a thread with `for`, in a coroutine with `async for`.

        Args:
            start: number of the first entry; None: the entries that are appended from now on.
            timeout: seconds without a new entry after which the iteration ends; None: it never ends.

        Returns:
            A `LogFollower`, which gives `Record`s.

        Raises:
            OutOfRangeError: `start` is negative.
            TrimmedError: retention or `trim` has removed the entry.
            TruncatedError: entries that the follower has given have been cut.
            CorruptionError: a record is damaged.
            ClosedError: the log was closed.
        """
        return self._follower(start, timeout, SCAN_BYTES)

    def _follower(self, start: int | None, timeout: float | None, batch_bytes: int) -> LogFollower:
        self.check_open()
        self._check_numbered()
        first = self.end if start is None else as_int("start", start)
        if not 0 <= first <= _NUMBER_MAX:
            raise OutOfRangeError(f"start: expected an entry number of 0 or more that fits into 64 bits, found {first}")
        timeout = as_timeout(timeout)
        return LogFollower(self, first, -1 if timeout is None else int(timeout * 1e6), batch_bytes)

    def _wait_for(self, follower: LogFollower, deadline: float | None) -> bool:
        """Wait in this thread until a follower is due; return False if `deadline` (of time.monotonic) passes first."""
        while True:
            self.check_open()
            visible = self._visible()
            if follower.is_due():
                return True
            left = SLICE_US
            if deadline is not None:
                left = min(left, int((deadline - time.monotonic()) * 1e6))
                if left <= 0:
                    return False
            self._sleep(visible, left)

    def _sleep(self, visible: int, timeout_us: int) -> None:
        self.tail.wait_for(visible, timeout_us)

    def wait_growth(self, position: int, timeout_us: int) -> None:
        """Wait while the visible end is at a position. The wait may end early; the caller then checks and waits again.

        Args:
            position: the value of `end_position` that the caller has just read.
            timeout_us: microseconds to wait at most.
        """
        self._sleep(position, timeout_us)

    def wake(self) -> None:
        """Wake the threads and processes that wait for the log to grow, if this process may write the tail page."""
        self.tail.wake()


class LogFollower(LogFollowerBase):
    """Iterator and asynchronous iterator over the records of a log; made by `follow`. Use one of the two at a time."""

    def __init__(self, log: LogView, entry: int, timeout_us: int, batch_bytes: int) -> None:
        self._log, self._timeout_us, self._batch_bytes = log, timeout_us, batch_bytes

    async def __aiter__(self) -> AsyncIterator[Record]:
        timeout = None if self._timeout_us < 0 else self._timeout_us / 1e6
        while await self._log._wait_for_entry(self.entry, timeout) or self.is_due():
            for record in self._load_batch(self._batch_bytes) or ():
                yield record

    def is_due(self) -> bool:
        """Return whether the log holds a new entry for the follower, or was truncated."""
        return self._log.end > self.entry or self._log.truncation_count != self.truncations

    def _load_batch(self, batch_bytes: int) -> RecordBatch | None:
        """Return the visible entries from the follower's place on, about `batch_bytes`; None if there are none.

        Raises the errors of `read`, and TruncatedError if entries that the follower has given have been cut.
        """
        log = self._log
        if log.truncation_count != self.truncations:
            self.truncations, self.position, self.held = log.truncation_count, -1, None
            self._check_not_cut()
        if self.entry >= log.end:
            return None
        if self.position < 0:
            self.position, self.entry = log._place_of(self.entry)
        try:
            batch = log._batch_at(self.position, batch_bytes, entry=self.entry)
        except CorruptionError:
            if log.truncation_count == self.truncations:
                raise
            return None  # the log was truncated during the scan
        if batch is None:
            return None
        if len(batch):
            self.held, _ = log.hold_segment(batch[-1].position)
        return self.give(batch)

    def _check_not_cut(self) -> None:
        """Check, after a truncation, that the last record which the follower has given is still in the log.

        Raises TruncatedError if it was cut.
        """
        last = self.last_header
        if last is None:
            return
        end = self._log.end
        if end >= self.entry and self.entry - 1 < self._log.start:
            return  # the record was trimmed: there is nothing left to compare
        if end < self.entry or self._log.get(self.entry - 1).raw[: len(last)] != last:
            raise TruncatedError(
                f"entries before {self.entry}, where this follower was, have been cut: discard the records that it "
                "returned of them, and follow again"
            )


def _as_position(what: str, value: int) -> int:
    """Check a position in the log and return it. Records begin at multiples of 8.

    Raises InvalidArgumentError for another number, OutOfRangeError for one that does not fit into 64 bits.
    """
    if as_int(what, value) % 8:
        raise InvalidArgumentError(f"{what}: expected a position where a record begins, found {value}")
    if abs(value) > _NUMBER_MAX:
        raise OutOfRangeError(f"{what}: expected a position that fits into 64 bits, found {value}")
    return value


def _as_batch_bytes(value: int) -> int:
    """Check the size of a batch and return it, limited to that of a segment, since a batch lies in one segment."""
    if as_int("batch_bytes", value) < 1:
        raise InvalidArgumentError(f"batch_bytes: expected at least 1, found {value}")
    return min(value, SIZE_MAX)


def _as_event_time(what: str, time: Time) -> int:
    """Check a bound of event times; return microseconds. The lowest 64-bit number is excluded: it means "no time"."""
    value = as_microseconds(what, time)
    if not -_NUMBER_MAX - 1 <= value <= _NUMBER_MAX:
        raise InvalidArgumentError(f"{what}: expected microseconds that fit into 64 bits, found {value}")
    return max(value, -_NUMBER_MAX)
