"""Ledger: the handle with which user code appends to a ledger."""

from __future__ import annotations

import threading
from asyncio import _get_running_loop
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from pyreplog._native.ledger.ledger_base import LedgerBase
from pyreplog._native.ledger.staging import Staging
from pyreplog._native.log.batch import RecordBatch
from pyreplog._native.machines.effects import Settle
from pyreplog._native.machines.serial_executor import in_callback
from pyreplog.arguments import as_int
from pyreplog.clock import Clock
from pyreplog.coroutines import check_may_block, refuse_to_block
from pyreplog.errors import ClosedError, OutcomeUnknownError, ReplogError, WindowFullError
from pyreplog.future import AppendFuture, as_timeout, set_result, settle_all
from pyreplog.handles import Handle, warn_of_leak
from pyreplog.ledger.driver import Driver, Runtime
from pyreplog.ledger.ledger_metadata import LedgerMetadata
from pyreplog.ledger.protocol.effects import Effect
from pyreplog.ledger.protocol.staging import Entry, columns, outcomes
from pyreplog.ledger.protocol.writer import LedgerWriter
from pyreplog.ledger.range_read import RangeRead, check_range
from pyreplog.ledger.readahead import RANGE_BYTES_MAX
from pyreplog.ledger.tail_cache import TailCache
from pyreplog.times import Time

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

WINDOW_BYTES = 16 << 20
WINDOW_ENTRIES = 1 << 16
CLOSE_S = 30.0
GIVE_UP_S = 5.0
EXPLICIT_LAC_S = 0.1

T = TypeVar("T")


class Ledger(Handle, LedgerBase):
    """A ledger that is open for appending; made by `Cluster.create_ledger`.

    One writer appends, until the ledger is closed. Any thread may use the handle; asyncio code awaits the futures of
    `submit` and `submit_batch`. The window bounds the entries that do not have all their copies: `window_bytes` as
    encoded, and WINDOW_ENTRIES entries. Appends wait while it is full. In a coroutine, and in a callback of an
    AppendFuture, they never wait: they go on up to twice the window and raise WindowFullError beyond it; await `room()`
    before. Close the ledger, or use `with`. A forgotten handle leaves the ledger open, as a process that died does; the
    next `open_ledger` recovers it.

    on_end: called with the number of the ledger once its writer does nothing more, perhaps twice, by any thread or
    finalizer; must not block.

    Attributes:
        id: number of the ledger.
        on_progress: called, with no lock held, when entries were confirmed, got all their copies, or failed; must not
            block. None: nothing is called.

    Example:
        ```python
        with cluster.create_ledger(ensemble=3, write_quorum=3, ack_quorum=2) as ledger:
            entry = ledger.append(b"order 1")  # returns when two bookies have it on disk
            futures = [ledger.submit(b"order %d" % number) for number in range(2, 100)]
            ids = [future.result() for future in futures]
        ```

    See docs/ledgers.md.
    """

    _writer: LedgerWriter
    _driver: Driver
    _runtime: Runtime
    _clock: Clock

    def __init__(
        self,
        writer: LedgerWriter,
        runtime: Runtime,
        clock: Clock,
        *,
        window_bytes: int = WINDOW_BYTES,
        on_end: Callable[[int], object] | None = None,
    ) -> None:
        self.id = writer.metadata.ledger
        self._writer, self._runtime, self._clock = writer, runtime, clock
        self._window_bytes, self._window_entries = window_bytes, WINDOW_ENTRIES
        self._driver = Driver(self.id, writer, runtime, on_step=self._progressed)
        self._staging = Staging(self._send_staged)
        self._tail_cache = TailCache(self.id)
        self._room_lock = threading.Lock()
        self._close_s: float | None = CLOSE_S
        self._give_up_s = GIVE_UP_S
        self._on_end = on_end
        if on_end is not None:
            self._driver.done.add_done_callback(partial(_call_on_end, on_end, self.id))
        super().__init__(f"ledger {self.id}")

    # ---- where it stands ------------------------------------------------------------------------------------

    @property
    def metadata(self) -> LedgerMetadata:
        """Quorums, fragments and state, as of now."""
        return self._writer.metadata

    @property
    def properties(self) -> Mapping[str, str]:
        """Names and values that `create_ledger` was given, a copy."""
        return dict(self.metadata.custom)

    @property
    def last_add_pushed(self) -> int:
        """Highest entry number that was assigned (LAP); -1: none."""
        return self._writer.last_add_pushed

    @property
    def last_add_confirmed(self) -> int:
        """Highest entry number such that this entry, and all before it, have Qa copies (LAC); -1: none."""
        return self._writer.last_add_confirmed

    @property
    def last_append_us(self) -> int:
        """Append time of the last entry that was handed out, microseconds since 1970-01-01 UTC; 0: none.

        Append times never go back, even when the clock does.
        """
        return self._writer.time_us

    @property
    def pending_bytes(self) -> int:
        """Encoded bytes of the entries that do not have all their copies; `window_bytes` bounds them."""
        return self._writer.pending_bytes

    @property
    def pending_entries(self) -> int:
        """Number of entries that do not have all their copies."""
        return self._writer.pending_entries

    @property
    def pending(self) -> tuple[int, int]:
        """The pair (`pending_bytes`, `pending_entries`)."""
        return self._writer.pending_bytes, self._writer.pending_entries

    @property
    def error(self) -> ReplogError | None:
        """The error that ended the writer; None: the ledger takes entries."""
        return self._writer.error

    @property
    def ended(self) -> AppendFuture[LedgerMetadata]:
        """A future that is done when this handle will not change the ledger any more.

        It gives the metadata of the closed ledger, or fails with the error that ended the writer.
        """
        return self._driver.done

    @property
    def degraded(self) -> tuple[str, ...]:
        """Bookies without which the ledger goes on.

        They failed, no other bookie can replace them, and every entry has its ack quorum without them. The copies that
        they lack are noted for repair.
        """
        return self._writer.degraded

    def reconsider(self) -> None:
        """Start to look for bookies that replace failed ones, at once; the writer also retries by itself.

        Never blocks.
        """
        self._driver.post(self._writer.reconsider)

    def replace_members(self, bookies: Sequence[str]) -> None:
        """Start to replace members of the last fragment, whether or not anything is appended. Never blocks.

        A member whose place no bookie can take keeps it. The cluster calls this for bookies that are lost, draining or
        retired.

        Args:
            bookies: ids of the bookies to be replaced, the most urgent first; others than members are ignored.
        """
        self._driver.post(lambda: self._writer.replace_members(bookies))

    @property
    def is_storing(self) -> bool:
        """Whether the writer waits for the metadata store: it changes its ensemble, notes missing copies, or closes."""
        return self._writer.is_storing

    # ---- appending ------------------------------------------------------------------------------------------

    def append_batch(
        self,
        values: Iterable[ReadableBuffer],
        keys: Iterable[ReadableBuffer | None] | None = None,
        event_times: Iterable[Time | None] | None = None,
        *,
        messages: Iterable[int] | None = None,
    ) -> range:
        """Append several entries and wait until all are confirmed.

        Args:
            values: value of each entry.
            keys: key of each entry, or None for an entry without a key; None: no entry has a key.
            event_times: event time of each entry, as `event_time` of `submit`, or None; None: no entry has one.
            messages: number of messages in each value, 1 or more, for entries that are batches; None: the entries are
                no batches.

        Returns:
            The numbers of the entries, which are consecutive.

        Raises:
            ReplogError: as `append`.
        """
        check_may_block("append_batch", "submit_batch")
        return self._runtime.wait(self.submit_batch(values, keys, event_times, messages=messages))

    def submit(
        self, value: ReadableBuffer, key: ReadableBuffer | None = None, *, event_time: Time | None = None
    ) -> AppendFuture[int]:
        """Submit one entry without waiting for its copies.

        Entries that are submitted while a batch is on its way form the next batch. Waits for room in the window; in a
        coroutine, and in a callback, raises WindowFullError instead.

        Args:
            value: value of the entry.
            key: key of the entry; None: none.
            event_time: a datetime with a time zone, or microseconds since 1970-01-01 UTC; None: none.

        Returns:
            An AppendFuture that gives the entry number once the entry is confirmed, or fails as `append` does.

        Raises:
            WindowFullError: twice the window is on its way, in a coroutine or a callback.
            RecordTooLargeError: the entry is too large.
            WrongTypeError: an argument has the wrong type.
            InvalidArgumentError: an argument is out of range.
            LedgerError: the writer was ended by an earlier error.
            ClosedError: the ledger was closed.
        """
        self._check_open()
        entry = Entry.of(value, key, event_time, size_max=self._writer.entry_bytes_max)
        self._make_room()
        if self._staging.add(entry):
            self._driver.call(self._append_staged)
        return entry.future

    def submit_batch(
        self,
        values: Iterable[ReadableBuffer],
        keys: Iterable[ReadableBuffer | None] | None = None,
        event_times: Iterable[Time | None] | None = None,
        *,
        messages: Iterable[int] | None = None,
    ) -> AppendFuture[range]:
        """Submit several entries without waiting for their copies.

        Their numbers follow those of the entries that were submitted before. Waits for room as `submit` does.

        Args:
            values: value of each entry.
            keys: key of each entry, or None for an entry without a key; None: no entry has a key.
            event_times: event time of each entry, as `event_time` of `submit`, or None; None: no entry has one.
            messages: number of messages in each value, 1 or more, for entries that are batches; None: the entries are
                no batches.

        Returns:
            An AppendFuture that gives the numbers of the entries once all are confirmed, or fails as `append` does.

        Raises:
            ReplogError: as `submit`; no entry was appended.
        """
        self._check_open()
        self._make_room()
        if self._staging:
            self._driver.call(self._append_staged)
        return self._driver.call(lambda: self._append(values, keys, event_times, messages))

    def push_batch(
        self,
        values: Iterable[ReadableBuffer],
        *,
        messages: Iterable[int] | None = None,
        attributes: Iterable[bytes | None] | None = None,
    ) -> AppendFuture[range]:
        """Submit several entries without regard to the window; for callers that keep a window of their own.

        A small batch stays in the tail cache, so that readers get it from this handle as soon as it is confirmed, until
        `release_tail` is called.

        Args:
            values: value of each entry.
            messages: number of messages in each value, 1 or more; None: the entries are no batches.
            attributes: encoded attributes of each record, or None for a record without any; None: no record has any.

        Returns:
            An AppendFuture that gives the numbers of the entries once all are confirmed, or fails as `append` does.

        Raises:
            ReplogError: as `submit`, but for WindowFullError; no entry was appended.
        """
        self._check_open()
        if self._staging:
            self._driver.call(self._append_staged)
        return self._driver.call(lambda: self._push(values, messages, attributes))

    def _append(
        self,
        values: Iterable[ReadableBuffer],
        keys: Iterable[ReadableBuffer | None] | None,
        event_times: Iterable[Time | None] | None,
        messages: Iterable[int] | None = None,
        attributes: Iterable[bytes | None] | None = None,
    ) -> tuple[AppendFuture[range], list[Effect]]:
        return self._writer.append(
            values, keys, event_times, time_us=self._clock.now_us(), messages=messages, attributes=attributes
        )

    def _push(
        self,
        values: Iterable[ReadableBuffer],
        messages: Iterable[int] | None,
        attributes: Iterable[bytes | None] | None,
    ) -> tuple[AppendFuture[range], list[Effect]]:
        appended = self._append(values, None, None, messages, attributes)
        if self._writer.last_batch is not None:
            self._tail_cache.keep(self._writer.last_batch)
        return appended

    def _send_staged(self) -> None:
        self._driver.post(lambda: self._append_staged()[1])

    def _append_staged(self) -> tuple[None, list[Effect]]:
        """Number and send the staged entries as one step, so that entries that are appended later get higher
        numbers."""
        refused: list[Effect] = []
        while entries := self._staging.take():
            try:
                ids, effects = self._append(*columns(entries))
            except Exception as error:
                refused.append(Settle([(entry.future, error) for entry in entries]))
                self._staging.landed()  # entries that were staged meanwhile are sent next
                continue
            ids.add_done_callback(partial(self._staged_done, entries))
            return None, [*refused, *effects]
        return None, refused

    def _staged_done(self, entries: list[Entry], ids: AppendFuture[range]) -> None:
        """Handle the outcome of a staged batch: settle its futures, and send the entries that were staged meanwhile."""
        self._staging(ids)
        settle_all(outcomes(entries, ids))

    # ---- reading --------------------------------------------------------------------------------------------

    def read_range(self, start: int, end: int, *, bytes_max: int = RANGE_BYTES_MAX) -> AppendFuture[RecordBatch]:
        """Read a range of confirmed entries without waiting.

        Args:
            start: number of the first entry.
            end: number of the entry to stop before; greater than `start`.
            bytes_max: about the greatest size of the batch, bytes. The batch has at least one entry.

        Returns:
            An AppendFuture that gives the verified entries from `start` on, or fails as `LedgerReader.read` does.

        Raises:
            OutOfRangeError: the range is empty, or not all of its entries are confirmed.
            ClosedError: the ledger was closed.
        """
        self._check_open()
        if not type(start) is type(end) is type(bytes_max) is int:
            start, end, bytes_max = as_int("start", start), as_int("end", end), as_int("bytes_max", bytes_max)
        check_range(self.id, start, end, self.last_add_confirmed)  # the tail cache also has unconfirmed entries
        cached = self._tail_cache.read(start, end, bytes_max)
        if cached is not None:
            settled = AppendFuture(cached)
            set_result(settled)
            return settled
        return RangeRead(self.metadata, self._writer.key, self._runtime, start, end, bytes_max=bytes_max).start()

    def release_tail(self) -> None:
        """Release the batch in the tail cache, after the readers had a chance to read it.

        Call it on the thread that informed the readers how far the entries of `push_batch` are confirmed.
        """
        self._tail_cache.release()

    # ---- back-pressure --------------------------------------------------------------------------------------

    def room(self) -> AppendFuture[None]:
        """Wait for room in the window, with a future: `await ledger.room()` before `submit` in a coroutine.

        Returns:
            An AppendFuture that is done when the window has room, or when the ledger takes no more entries.

        Raises:
            ClosedError: the ledger was closed.
        """
        self._check_open()
        future: AppendFuture[None] = AppendFuture()
        if self._has_room():
            set_result(future, None)
            return future
        with self._room_lock:
            self._waiting_for_room.append(future)
        self._driver.post(self._writer.change_ensemble_now)  # entries that are kept for a failed bookie fill the window
        self._give_room()
        return future

    def flush(self, timeout: float | None = None) -> None:
        """Wait until every entry submitted so far has an outcome, which its own future has.

        Args:
            timeout: seconds; None: without a limit.

        Raises:
            InvalidArgumentError: called in a coroutine or a callback: use `flush_async`.
            OutcomeUnknownError: the time ran out; the entries go on by themselves.
            ClosedError: the ledger was closed.
        """
        check_may_block("flush")
        self._runtime.wait(self.flush_async(), as_timeout(timeout))

    def flush_async(self) -> AppendFuture[None]:
        """Return a future that is done when every entry submitted so far has an outcome; see `flush`.

        Raises:
            ClosedError: the ledger was closed.
        """
        self._check_open()
        if self._staging:
            self._driver.call(self._append_staged)
        future: AppendFuture[None] = AppendFuture()
        last = self._writer.last_append
        if last is None:
            set_result(future, None)
        else:
            last.add_done_callback(lambda _: set_result(future, None))
        return future

    def _refuse_loop(self) -> None:
        refuse_to_block("append", "submit")

    def _has_room(self, windows: float = 1.0) -> bool:
        return self._writer.has_room(windows * self._window_bytes, windows * self._window_entries)

    def _make_room(self) -> None:
        """Wait until the window has room; raise WindowFullError if this caller must not wait."""
        while not self._has_room():
            if not in_callback() and _get_running_loop() is None:
                self._runtime.wait(self.room())
            elif self._has_room(windows=2):
                return
            else:
                raise WindowFullError(f"ledger {self.id}: twice its window is on its way; await room() before submit()")

    def _give_room(self) -> None:
        """Complete the futures of `room` once half the window is free; otherwise each answer would wake a waiter."""
        if self._waiting_for_room and self._has_room(0.5):
            with self._room_lock:
                waiting, self._waiting_for_room = self._waiting_for_room, []
            settle_all([(future, None) for future in waiting])

    def _send_lac_later(self) -> None:
        self._is_lac_due = True
        self._runtime.wake_after(EXPLICIT_LAC_S, self._send_lac)

    def _send_lac(self) -> None:
        self._is_lac_due = False
        self._driver.post(self._writer.send_lac)

    # ---- closing --------------------------------------------------------------------------------------------

    def close(self, timeout: float | None = CLOSE_S) -> None:
        """Wait until every entry has all its copies, and close the ledger.

        A closed ledger has a fixed last entry. When the time is over, the ledger is closed at the last confirmed entry.
        A second call does nothing. In a callback of an AppendFuture the call returns at once, and the ledger is closed
        later.

        Args:
            timeout: seconds; None: as long as it takes.

        Raises:
            OutcomeUnknownError: entries without enough copies were left out when the time was over, or the metadata
                store does not answer.
            ReplogError: the error that had ended the writer before.
        """
        self._close_s = as_timeout(timeout)
        super().close()

    def begin_close(self) -> AppendFuture[LedgerMetadata]:
        """Begin to close the ledger without waiting; for callers that close several ledgers at once.

        Append nothing after this call. `end_close` is the last step.

        Returns:
            An AppendFuture that gives the metadata of the closed ledger, or fails as `close` does.
        """
        self._driver.call(self._append_staged)
        self._driver.post(self._writer.close)
        return self._driver.done

    def end_close(self) -> None:
        """End a close that `begin_close` began, without waiting any longer.

        Raises:
            ReplogError: as `close`.
        """
        self._close_s = self._give_up_s = 0.0
        super().close()

    def _do_close(self) -> None:
        timeout, closing = self._close_s, self.begin_close()
        if in_callback():
            closing.add_done_callback(lambda _: self.abandon())
            if timeout is not None:
                self._runtime.wake_after(timeout, self.give_up)
            return
        try:
            self._runtime.wait(closing, timeout)
        except OutcomeUnknownError:
            if not closing.done():
                self.give_up()
            self._runtime.wait(closing, self._give_up_s)
        finally:
            self.abandon()

    def give_up(self) -> None:
        """Close the ledger at its last confirmed entry; the outcome of all later entries is unknown."""
        error: ReplogError = OutcomeUnknownError(
            f"ledger {self.id}: its last entries had no outcome {self._close_s} s after close() began; it is closed at "
            "its last confirmed entry"
        )
        self._driver.post(lambda: self._writer.give_up(error))

    def abandon(self) -> None:
        """Release the ledger and leave it open, as the end of the process does. The next reader to open it recovers it.

        For tests, and for owners that know that another one has taken over. Pending entries fail with ClosedError. Does
        not wait.
        """
        self._driver.post(lambda: self._writer.abandon(ClosedError(f"the {self._label} was closed")))
        self._driver.end()
        if self._on_end is not None:
            self._on_end(self.id)

    def __del__(self) -> None:
        """Drop the handle without blocking, because a finalizer may run in any thread. The ledger stays open."""
        if self._is_forgotten():
            self._error = ClosedError(f"the {self._label} was garbage-collected before it was closed")
            warn_of_leak(self._label, self, self._opened_at)
            self.abandon()


def _call_on_end(on_end: Callable[[int], object], ledger: int, ended: AppendFuture[LedgerMetadata]) -> None:
    """Done callback of a driver's future; holds the number of the ledger, so that it does not keep the handle alive."""
    on_end(ledger)
