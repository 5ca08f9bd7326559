"""Ledger: what user code appends to."""

from __future__ import annotations

import threading
from asyncio import _get_running_loop
from collections.abc import Callable, Iterable
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from pyreplog._native.ledger.ledger_base import LedgerBase
from pyreplog._native.ledger.staging import Staging
from pyreplog._native.log.batch import RecordBatch
from pyreplog._native.machines.effects import Settle
from pyreplog._native.machines.serial_executor import check_may_wait, in_callback
from pyreplog.arguments import as_int
from pyreplog.clock import Clock
from pyreplog.errors import ClosedError, OutcomeUnknownError, ReplogError, WindowFullError
from pyreplog.future import AppendFuture, as_timeout, settle_all
from pyreplog.handles import Handle, warn_of_leak
from pyreplog.ledger.driver import Driver, Runtime
from pyreplog.ledger.ledgermetadata import LedgerMetadata
from pyreplog.ledger.protocol.effects import Effect
from pyreplog.ledger.protocol.staging import Entry, columns, outcomes
from pyreplog.ledger.protocol.writer import LedgerWriter
from pyreplog.ledger.range_read import RangeRead, check_range
from pyreplog.ledger.readahead import STRETCH_BYTES_MAX
from pyreplog.ledger.tail_cache import TailCache

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

WINDOW_BYTES = 16 << 20
WINDOW_ENTRIES = 1 << 16
CLOSE_S = 30.0
GIVE_UP_S = 5.0
EXPLICIT_LAC_S = 0.1

T = TypeVar("T")


class Ledger(Handle, LedgerBase):
    """A ledger open for appending; made by `Cluster.create_ledger`.

    Any thread may call anything; asyncio code awaits what `submit` and `submit_batch` give. They wait while entries of
    `window_bytes`, encoded, or WINDOW_ENTRIES entries do not have all their copies. In a coroutine, or a callback of an
    AppendFuture, they never wait: await `room()` before. There they go on up to twice the window, and raise
    WindowFullError beyond. Close it, or use `with`; a ledger that was forgotten stays open, as that of a dead process.
    """

    _writer: LedgerWriter
    _driver: Driver
    _runtime: Runtime
    _clock: Clock

    def __init__(
        self, writer: LedgerWriter, runtime: Runtime, clock: Clock, *, window_bytes: int = WINDOW_BYTES
    ) -> None:
        self.id = writer.metadata.ledger
        self._writer, self._runtime, self._clock = writer, runtime, clock
        self._window_bytes, self._window_entries = window_bytes, WINDOW_ENTRIES
        self._driver = Driver(self.id, writer, runtime, after=self._progressed)
        self._staging = Staging(self._send_staged)
        self._tail_cache = TailCache(self.id)
        self._room_lock = threading.Lock()
        self._close_s: float | None = CLOSE_S
        self._give_up_s = GIVE_UP_S
        super().__init__(f"ledger {self.id}")

    # ---- where it stands ------------------------------------------------------------------------------------

    @property
    def metadata(self) -> LedgerMetadata:
        """Quorums, fragments and state, as of now."""
        return self._writer.metadata

    @property
    def last_add_pushed(self) -> int:
        """Highest entry id handed out; -1: none."""
        return self._writer.last_add_pushed

    @property
    def last_add_confirmed(self) -> int:
        """Highest entry id such that it, and all below, have Qa copies; -1: none."""
        return self._writer.last_add_confirmed

    @property
    def last_append_us(self) -> int:
        """Append time of the last entry handed out, since 1970; 0: none. Clocks may go back, these times never do."""
        return self._writer.time_us

    @property
    def pending_bytes(self) -> int:
        """Of entries that do not have all their copies, as encoded: what `window_bytes` bounds."""
        return self._writer.pending_bytes

    @property
    def pending_entries(self) -> int:
        """How many these are."""
        return self._writer.pending_entries

    @property
    def pending(self) -> tuple[int, int]:
        """(pending_bytes, pending_entries)."""
        return self._writer.pending_bytes, self._writer.pending_entries

    @property
    def error(self) -> ReplogError | None:
        """Why nothing can be appended any more; None: it can."""
        return self._writer.error

    @property
    def ended(self) -> AppendFuture[LedgerMetadata]:
        """Done when nothing more will be done to the ledger here: with its metadata, when it was closed in order."""
        return self._driver.done

    @property
    def degraded(self) -> tuple[str, ...]:
        """Bookies without which it goes on: they failed, no other can replace them, and every entry has its ack quorum
        without them. What they lack is noted for repair."""
        return self._writer.degraded

    def reconsider(self) -> None:
        """Look at once for bookies to take the places of those that failed."""
        self._driver.post(self._writer.reconsider)

    # ---- appending ------------------------------------------------------------------------------------------

    def append_batch(
        self,
        values: Iterable[ReadableBuffer],
        keys: Iterable[ReadableBuffer | None] | None = None,
        event_times: Iterable[int | None] | None = None,
        *,
        messages: Iterable[int] | None = None,
    ) -> range:
        """Append several; returns their ids, which are consecutive, once all are confirmed. Errors as append.

        messages: how many messages each value holds, 1 or more, for entries that are batches; None: they are none.
        """
        return self._wait(lambda: self.submit_batch(values, keys, event_times, messages=messages))

    def submit(
        self, value: ReadableBuffer, key: ReadableBuffer | None = None, *, event_time: int | None = None
    ) -> AppendFuture[int]:
        """As append, without waiting: the AppendFuture gives the id.

        Entries submitted while others are on their way are sent together, as soon as those are confirmed. Errors of the
        arguments, and WindowFullError, are raised here; the others are the AppendFuture's.
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
        event_times: Iterable[int | None] | None = None,
        *,
        messages: Iterable[int] | None = None,
    ) -> AppendFuture[range]:
        """As append_batch, without waiting: the AppendFuture gives the ids. They follow those of what was submitted
        before.

        Errors: as append; all that are known now are raised here.
        """
        self._check_open()
        self._make_room()
        if self._staging:
            self._driver.call(self._append_staged)
        return self._driver.call(lambda: self._append(values, keys, event_times, messages))

    def push_batch(
        self, values: Iterable[ReadableBuffer], *, messages: Iterable[int] | None = None
    ) -> AppendFuture[range]:
        """As submit_batch, for one who keeps a window of its own: waits for no room, and is never refused for want of
        it. Who reads it as soon as it is confirmed has it from here: see `told`."""
        self._check_open()
        if self._staging:
            self._driver.call(self._append_staged)
        return self._driver.call(lambda: self._push(values, messages))

    def _append(
        self,
        values: Iterable[ReadableBuffer],
        keys: Iterable[ReadableBuffer | None] | None,
        event_times: Iterable[int | None] | None,
        messages: Iterable[int] | None = None,
    ) -> tuple[AppendFuture[range], list[Effect]]:
        return self._writer.append(values, keys, event_times, time_us=self._clock.now_us(), messages=messages)

    def _push(
        self, values: Iterable[ReadableBuffer], messages: Iterable[int] | None
    ) -> tuple[AppendFuture[range], list[Effect]]:
        made = self._append(values, None, None, messages)
        if self._writer.last_batch is not None:
            self._tail_cache.keep(self._writer.last_batch)
        return made

    def _send_staged(self) -> None:
        self._driver.post(lambda: self._append_staged()[1])

    def _append_staged(self) -> tuple[None, list[Effect]]:
        """Taking what waits and giving it ids is one step: what is appended later comes later."""
        refused: list[Effect] = []
        while entries := self._staging.take():
            try:
                ids, effects = self._append(*columns(entries))
            except Exception as error:
                refused.append(Settle([(entry.future, error) for entry in entries]))
                self._staging.landed()  # those that came meanwhile wait for it: they are next
                continue
            ids.add_done_callback(partial(self._landed, entries))
            return None, [*refused, *effects]
        return None, refused

    def _landed(self, entries: list[Entry], ids: AppendFuture[range]) -> None:
        """A batch is confirmed, or failed: those that waited for it go next; its callers are told."""
        self._staging(ids)
        settle_all(outcomes(entries, ids))

    def _wait(self, submit: Callable[[], AppendFuture[T]]) -> T:
        check_may_wait()
        return self._runtime.wait(submit())

    # ---- reading --------------------------------------------------------------------------------------------

    def read_range(self, start: int, end: int, *, bytes_max: int = STRETCH_BYTES_MAX) -> AppendFuture[RecordBatch]:
        """Read confirmed entries [start, end), as `LedgerReader.read_range`.

        Raises: OutOfRangeError, not all of them are confirmed, or there are none.
        """
        self._check_open()
        start, end, bytes_max = as_int("start", start), as_int("end", end), as_int("bytes_max", bytes_max)
        check_range(self.id, start, end, self.last_add_confirmed)  # first: what is just written may not be confirmed
        here = self._tail_cache.read(start, end, bytes_max)
        if here is not None:
            found = AppendFuture(here)
            found.complete()
            return found
        return RangeRead(self.metadata, self._writer.key, self._runtime, start, end, bytes_max=bytes_max).start()

    def told(self) -> None:
        """Those who read what `push_batch` appends were told, by this thread, how far it is confirmed: once they had
        their turn it is not kept for them any more."""
        self._tail_cache.told()

    # ---- back-pressure --------------------------------------------------------------------------------------

    def room(self) -> AppendFuture[None]:
        """An AppendFuture that is done as soon as there is room in the window, or the ledger takes nothing any more."""
        self._check_open()
        future: AppendFuture[None] = AppendFuture()
        if self._has_room():
            future.complete(None)
            return future
        with self._room_lock:
            self._waiting_for_room.append(future)
        self._driver.post(self._writer.hurry)  # what is kept for a bookie that failed takes the room
        self._give_room()
        return future

    def _has_room(self, windows: float = 1.0) -> bool:
        return self._writer.has_room(windows * self._window_bytes, windows * self._window_entries)

    def _make_room(self) -> None:
        """Wait until there is some, if this caller can."""
        while not self._has_room():
            if not in_callback() and _get_running_loop() is None:
                self._runtime.wait(self.room())
            elif self._has_room(windows=2):
                return
            else:
                raise WindowFullError(f"ledger {self.id}: twice its window is on its way: await room() before")

    def _give_room(self) -> None:
        """Half a window, once there was none: else every answer wakes somebody for the room of one batch."""
        if self._waiting_for_room and self._has_room(0.5):
            with self._room_lock:
                waiting, self._waiting_for_room = self._waiting_for_room, []
            settle_all([(future, None) for future in waiting])

    def _tell_later(self) -> None:
        self._telling = True
        self._runtime.wake_after(EXPLICIT_LAC_S, self._tell_lac)

    def _tell_lac(self) -> None:
        self._telling = False
        self._driver.post(self._writer.tell_lac)

    # ---- closing --------------------------------------------------------------------------------------------

    def close(self, timeout: float | None = CLOSE_S) -> None:
        """Wait until every entry has all its copies, and close the ledger: it then has an end for ever.

        After `timeout` seconds (None: never) the ledger is closed at the last confirmed entry; OutcomeUnknownError when
        there were others, or when the metadata store does not answer. Errors: what ended the writer before, if anything
        did. Closing twice is fine. In a callback it does not wait for the end.
        """
        self._close_s = as_timeout(timeout)
        super().close()

    def begin_close(self) -> AppendFuture[LedgerMetadata]:
        """The first step of `close`, for who closes several; the AppendFuture says how it ends. Nothing may be appended
        then."""
        self._driver.call(self._append_staged)
        self._driver.post(self._writer.close)
        return self._driver.done

    def end_close(self) -> None:
        """The last step, whatever has come of it: nothing is waited for any more. Errors as close."""
        self._close_s = self._give_up_s = 0.0
        super().close()

    def _let_go(self) -> None:
        timeout, done = self._close_s, self.begin_close()
        if in_callback():
            done.add_done_callback(lambda _: self.abandon())
            if timeout is not None:
                self._runtime.wake_after(timeout, self.give_up)
            return
        try:
            self._runtime.wait(done, timeout)
        except OutcomeUnknownError:
            if not done.done():
                self.give_up()
            self._runtime.wait(done, self._give_up_s)
        finally:
            self.abandon()

    def give_up(self) -> None:
        """Close at the last confirmed entry, whatever is on its way."""
        why: ReplogError = OutcomeUnknownError(
            f"ledger {self.id} was closed after {self._close_s} s without an answer for its last entries"
        )
        self._driver.post(lambda: self._writer.give_up(why))

    def abandon(self) -> None:
        """Let go of the ledger and leave it open, as the end of the process does; whoever opens it next recovers it.

        For tests, and for owners that were told that another one has taken over. What is on its way fails with
        ClosedError. Does not wait.
        """
        self._driver.post(lambda: self._writer.abandon(ClosedError(f"the {self._what} was closed")))
        self._driver.end()

    def __del__(self) -> None:
        """May run anywhere: nothing is waited for, nobody else's ledger is closed."""
        if self._is_forgotten():
            self._error = ClosedError(f"the {self._what} was forgotten")
            warn_of_leak(self._what, self, self._opened_at)
            self.abandon()
