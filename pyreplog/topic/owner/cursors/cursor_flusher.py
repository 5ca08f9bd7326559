"""CursorFlusher: stores changes of cursors in their common ledger, or in their metadata."""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

from pyreplog.errors import ClosedError, InvalidMetadataError, NoSuchSubscriptionError, ReplogError
from pyreplog.future import AppendFuture, settle_all
from pyreplog.ledger.cluster import LedgerCluster
from pyreplog.ledger.driver import TimerLike
from pyreplog.ledger.ledger_handle import Ledger
from pyreplog.ledger.thread_pool import ThreadPool
from pyreplog.topic.model.cursor_pages import Pages
from pyreplog.topic.model.subscription_metadata import SNAPSHOT_BYTES_MAX
from pyreplog.topic.owner.cursors.cursor_ledgers import CursorLedgers, CursorLogConfig
from pyreplog.topic.owner.cursors.metadata_updates import MetadataUpdate, MetadataUpdates
from pyreplog.topic.owner.cursors.slot import CursorLedger, CursorSlot

logger = logging.getLogger(__name__)

FLUSH_BYTES = 4 << 20
"""Bytes of records in one flush; the next one takes the others."""

METADATA_COPY_BYTES = 4 << 10
"""Snapshots up to this size are also stored in the metadata, in case the ledger cannot be read."""


LARGE_BYTES = 1 << 20
"""A cursor whose record has so many bytes may have more changes, which are asked for at once."""


class _Taken(NamedTuple):
    """The records of one cursor in a flush.

    Attributes:
        slot: its slot.
        sequence: sequence of its last record.
        snapshot: its snapshot, if that is small.
        page: entry of the flush in which its first record begins.
    """

    slot: CursorSlot
    sequence: int
    snapshot: bytes
    page: int


class CursorFlusher:
    """Flushes cursors that have changed. Any thread calls `queue`, `wait_for`, `release` and `quiet`.

    One thread runs all other methods. incarnation: of this process, see `Sweep`.
    """

    def __init__(self, cluster: LedgerCluster, config: CursorLogConfig, incarnation: str) -> None:
        self._runtime = cluster.runtime
        self._flush_s = config.flush_ms / 1000
        self._dirty: deque[CursorSlot] = deque()
        self._lock = threading.Lock()
        self._is_awake = False  # a flush is scheduled or running, which will read `_dirty`
        self._timer: TimerLike | None = None
        self._under_way = self._urgent = self._wants_ledger = False
        self._quiet: list[AppendFuture[None]] = []  # futures of `quiet`
        self._expected: set[AppendFuture[None]] = set()  # futures of `wait_for` without an outcome
        self._thread = ThreadPool(1, "pyreplog-cursors")
        retry_s, retry_max_s = config.retry_ms / 1000, config.retry_max_ms / 1000
        self._metadata_updates = MetadataUpdates(
            self._runtime, self.post, self._metadata_updated, retry_s=retry_s, retry_max_s=retry_max_s
        )
        self.cursor_ledgers = CursorLedgers(cluster, config, incarnation, self.post, self._ledger_changed)
        self._error: ReplogError | None = None  # why no more changes are accepted
        self.flushes = self.records = 0

    def post(self, job: Callable[[], object]) -> None:
        """Run a job in the thread."""
        self._thread.submit(job)

    # ---- calls of slots -------------------------------------------------------------------------------------

    def queue(self, slot: CursorSlot) -> None:
        """Queue a slot for the next flush.

        A flusher that goes idle checks the queue once more afterwards, so no slot is missed.
        """
        self._dirty.append(slot)
        if not self._is_awake:
            self._wake_in(self._flush_s)

    def _wake_in(self, seconds: float) -> None:
        with self._lock:
            if self._is_awake:
                return
            self._is_awake = True
        self._timer = self._runtime.wake_after(seconds, partial(self.post, self._due))

    def wait_for(self, slot: CursorSlot, into_metadata: bool) -> AppendFuture[None]:
        """Return the future of `CursorSlot.flush` or `store_clean`."""
        future: AppendFuture[None] = AppendFuture()
        if slot.error is None and not into_metadata and not slot.is_dirty and not slot.is_busy:
            future.complete()
            return future
        self._runtime.expect(future)
        self._expected.add(future)
        future.add_done_callback(self._expected.discard)
        if self._error is not None:  # either this is seen here, or `end` fails the future
            future.fail(self._error)
        else:
            self.post(partial(self._wait_for, slot, future, into_metadata))
        return future

    def _wait_for(self, slot: CursorSlot, future: AppendFuture[None], into_metadata: bool) -> None:
        if slot.error is not None:
            future.fail(slot.error)
            return
        slot.waiting.append(future)
        if into_metadata and slot.is_busy:
            slot.into_metadata = True
        elif into_metadata and self._store(slot):
            return
        slot.dirty()
        self._hurry()

    @property
    def open_ledger(self) -> Ledger | None:
        """The cursor ledger that is being written, if there is one."""
        cursor_ledger = self.cursor_ledgers.current
        return None if cursor_ledger is None else cursor_ledger.handle

    def adopt(self, slot: CursorSlot, ledger: int) -> None:
        """Note the ledger that holds the state of a cursor that was just opened."""
        self.post(partial(self.cursor_ledgers.adopt, slot, ledger))

    def release(self, slot: CursorSlot, deleted: bool) -> None:
        """End a slot, see `CursorSlot.close`."""
        topic, name = slot.key
        error = ClosedError(f"subscription {name} of topic {topic} was closed")
        self.post(partial(self._end, slot, error, named=not deleted))

    def _end(self, slot: CursorSlot, error: ReplogError, *, named: bool) -> None:
        if slot.error is not None:
            return
        slot.error = error
        waiting, slot.served, slot.waiting = [*slot.served, *slot.waiting], [], []
        self.cursor_ledgers.leave(slot, named=named)
        settle_all([(future, error) for future in waiting])

    # ---- flushing -------------------------------------------------------------------------------------------

    def _due(self) -> None:
        if not self._under_way:
            self._begin()

    def _hurry(self) -> None:
        self._urgent = True
        self._due()

    def _begin(self) -> None:
        self._under_way = self._is_awake = True
        self._urgent = self._wants_ledger = False
        timer, self._timer = self._timer, None
        if timer is not None:
            timer.cancel()
        if not self._dirty:
            self._go_idle(self._flush_s)
            return
        self.cursor_ledgers.open_if_needed()
        cursor_ledger = self.cursor_ledgers.current
        if cursor_ledger is not None:
            self._flush(cursor_ledger)
        elif self.cursor_ledgers.is_opening:
            self._wants_ledger = True
        else:
            if self.cursor_ledgers.lacks_bookies:
                self._fall_back()
            self._go_idle(max(self.cursor_ledgers.wait_s, self._flush_s))

    def _ledger_changed(self) -> None:
        """Go on after a ledger was opened, or could not be opened."""
        if self._wants_ledger and not self.cursor_ledgers.is_opening:
            self._begin()
        self._check_quiet()

    def _go_idle(self, seconds: float) -> None:
        """End a flush. If cursors are dirty, the next one begins after `seconds`, or when a caller waits."""
        self._under_way = False
        if self._urgent:
            self._begin()
            return
        self._is_awake = False
        if self._dirty:
            self._wake_in(seconds)
        self._check_quiet()

    def _flush(self, cursor_ledger: CursorLedger) -> None:
        pages = Pages()
        taken: list[_Taken] = []
        for _ in range(len(self._dirty)):
            if pages.size >= FLUSH_BYTES:
                self._urgent = True
                break
            self._take(self._dirty.popleft(), cursor_ledger, pages, taken)
        if not taken or cursor_ledger.handle is None:
            self._go_idle(self._flush_s)
            return
        cursor_ledger.nbytes += pages.size
        cursor_ledger.naming += 1  # until the outcome is known
        try:
            ids = cursor_ledger.handle.submit_batch(pages.finish())
        except Exception as error:
            ids = AppendFuture()
            ids.fail(error)
        ids.add_done_callback(lambda ids: self.post(partial(self._flushed, cursor_ledger, taken, ids)))

    def _take(self, slot: CursorSlot, cursor_ledger: CursorLedger, pages: Pages, taken: list[_Taken]) -> None:
        """Add the records of a cursor's changes, if there are any, to the pages."""
        if not self._may_take(slot):
            return
        if slot.into_metadata:
            slot.into_metadata = False
            if self._store(slot) or slot.error is not None:
                return
        whole = slot.is_whole or slot.cursor_ledger is not cursor_ledger
        records = self._ask(slot, whole)
        if records:
            at = [pages.add(slot.key, record, whole=whole and not i) for i, (_, record) in enumerate(records)]
            snapshot = records[0][1] if len(records[0][1]) <= METADATA_COPY_BYTES else b""
            taken.append(_Taken(slot, records[-1][0], snapshot, at[0]))
            self.records += len(records)
        elif slot.error is None:
            self._settle(slot, None)

    def _may_take(self, slot: CursorSlot) -> bool:
        """Return whether a queued slot is still dirty and not busy.

        A clean cursor whose state is in the metadata stays there.
        """
        if slot.error is not None or slot.is_busy or not slot.is_dirty:
            slot.is_parked = slot.is_busy
            return False
        return True

    def _ask(self, slot: CursorSlot, whole: bool) -> list[tuple[int, bytes]]:
        """Return (sequence, record) of all changes of a cursor; they are in flight from now on."""
        slot.is_busy = True  # set first: a slot never appears to be idle and clean
        slot.is_dirty = False
        slot.served, slot.waiting = slot.waiting, []
        slot.is_whole = slot.is_whole and not whole
        records = []
        try:
            more = slot.source.snapshot_record() if whole else slot.source.take_changes()
            while more is not None:
                records.append(more)
                more = slot.source.take_changes() if len(more[1]) >= LARGE_BYTES else None
        except Exception as error:
            logger.exception("the cursor of subscription %s of topic %s raised", slot.key[1], slot.key[0])
            self._fail(slot, error)
            return []
        return records

    def _flushed(self, cursor_ledger: CursorLedger, taken: list[_Taken], ids: AppendFuture[range]) -> None:
        error = ids.exception()
        if error is not None:
            self.cursor_ledgers.failed(cursor_ledger, error)
        else:
            self.cursor_ledgers.succeeded()
            self.flushes += 1
        for item in taken:
            slot = item.slot
            if slot.error is not None:
                slot.is_busy = False
            elif error is not None:
                self._requeue(slot)
            elif slot.cursor_ledger is cursor_ledger:
                self._settle(slot, item.sequence)
            else:
                self._update_metadata(
                    MetadataUpdate(slot, item.sequence, cursor_ledger, ids.result().start + item.page, item.snapshot)
                )
        cursor_ledger.naming -= 1
        self.cursor_ledgers.drop_if_free(cursor_ledger)
        self._go_idle(self._flush_s)

    def _requeue(self, slot: CursorSlot) -> None:
        """Queue a slot again, because its records may be lost."""
        slot.is_whole = slot.is_dirty = True
        slot.waiting, slot.served = [*slot.served, *slot.waiting], []
        slot.is_busy = slot.is_parked = False
        self._urgent = self._urgent or bool(slot.waiting)
        self.queue(slot)

    def _settle(self, slot: CursorSlot, sequence: int | None) -> None:
        """Note that the records of a slot are durable. sequence: of the last record; None: there were no changes."""
        if sequence is not None:
            self._call_source(slot, partial(slot.source.persisted, sequence))
        served, slot.served = slot.served, []
        slot.is_busy = False
        if slot.is_parked:
            slot.is_parked = False
            self.queue(slot)
            if slot.waiting:
                self._hurry()
        settle_all([(future, None) for future in served])

    def _call_source(self, slot: CursorSlot, call: Callable[[], None]) -> None:
        try:
            call()
        except Exception:
            logger.exception("the cursor of subscription %s of topic %s raised", slot.key[1], slot.key[0])

    def _fail(self, slot: CursorSlot, error: Exception) -> None:
        """End a slot whose subscription is lost."""
        reported = (
            error if isinstance(error, ReplogError) else InvalidMetadataError(f"subscription {slot.key[1]}: {error}")
        )
        self._end(slot, reported, named=not isinstance(error, NoSuchSubscriptionError))
        slot.is_busy = False
        self._call_source(slot, partial(slot.source.lost, reported))

    # ---- metadata -------------------------------------------------------------------------------------------

    def _fall_back(self) -> None:
        """Store snapshots that are small enough in the metadata, because no ledger can be opened."""
        for _ in range(len(self._dirty)):
            slot = self._dirty.popleft()
            if self._may_take(slot):
                self._store(slot)

    def _store(self, slot: CursorSlot) -> bool:
        """Store a snapshot in the metadata.

        Returns False if it is too large, and queues the slot again, or if the cursor raised an error.
        """
        records = self._ask(slot, whole=True)
        if not records:
            return False
        sequence, record = records[0]
        if len(record) > SNAPSHOT_BYTES_MAX:
            slot.is_whole = slot.is_dirty = True  # set before it is idle, see `_ask`
            slot.waiting, slot.served, slot.is_busy = slot.served, [], False
            self.queue(slot)
            return False
        self._update_metadata(MetadataUpdate(slot, sequence, None, 0, record))
        return True

    def _update_metadata(self, update: MetadataUpdate) -> None:
        if update.cursor_ledger is not None:
            update.cursor_ledger.naming += 1
        self._metadata_updates.add(update)

    def _metadata_updated(self, update: MetadataUpdate, error: Exception | None) -> None:
        slot, cursor_ledger = update.slot, update.cursor_ledger
        if error is not None:
            if slot.error is None:
                self._fail(slot, error)
        elif slot.error is None:
            self.cursor_ledgers.leave(slot, named=False)
            if cursor_ledger is not None:
                self.cursor_ledgers.join(slot, cursor_ledger)
            self._settle(slot, update.sequence)
            if cursor_ledger is not None and cursor_ledger.is_retired:
                slot.dirty()
        elif cursor_ledger is not None:
            cursor_ledger.is_abandoned = True
        if cursor_ledger is not None:
            cursor_ledger.naming -= 1
            self.cursor_ledgers.drop_if_free(cursor_ledger)
        self._check_quiet()

    # ---- the end --------------------------------------------------------------------------------------------

    def begin_end(self, error: ReplogError | None) -> AppendFuture[None]:
        """Accept no more changes, for the reason `error`; return the future of `quiet`."""
        quiet = self.quiet()
        self._error = error
        return quiet

    def quiet(self) -> AppendFuture[None]:
        """Flush at once; return a future that is done when nothing is left to do."""
        future: AppendFuture[None] = AppendFuture()
        self._runtime.expect(future)
        self.post(partial(self._wait_quiet, future))
        return future

    def _wait_quiet(self, future: AppendFuture[None]) -> None:
        self._quiet.append(future)
        self._hurry()

    def _check_quiet(self) -> None:
        if self._quiet and not (
            self._dirty or self._under_way or self._metadata_updates.pending or self.cursor_ledgers.pending
        ):
            quiet, self._quiet = self._quiet, []
            settle_all([(future, None) for future in quiet])

    def end(self, timeout: float) -> None:
        """Fail all futures, end the thread, then the ledger, within `timeout` seconds. Not called by that thread."""
        deadline = time.monotonic() + timeout
        has_ended = self._thread.close(timeout)
        settle_all([(future, self._error) for future in list(self._expected)])
        timer, self._timer = self._timer, None
        if timer is not None:
            timer.cancel()
        if has_ended:  # otherwise the ledger is closed with its cluster
            self.cursor_ledgers.end(max(deadline - time.monotonic(), 0.0))
