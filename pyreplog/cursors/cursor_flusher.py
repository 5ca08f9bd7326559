"""CursorFlusher: stores changes of cursors in their common ledger, or in their metadata."""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

from pyreplog.cursors.cursor_ledgers import CursorLedgers, CursorLogConfig
from pyreplog.cursors.cursor_pages import Pages
from pyreplog.cursors.cursor_persister import CursorLedger, CursorPersister
from pyreplog.cursors.metadata_updates import MetadataUpdate, MetadataUpdates
from pyreplog.cursors.subscription_metadata import SNAPSHOT_BYTES_MAX
from pyreplog.errors import ClosedError, InvalidMetadataError, NoSuchSubscriptionError, ReplogError
from pyreplog.future import AppendFuture, set_exception, set_result, settle_all
from pyreplog.ledger.cluster import LedgerCluster
from pyreplog.ledger.driver import TimerLike
from pyreplog.ledger.ledger_handle import Ledger
from pyreplog.ledger.thread_pool import ThreadPool

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
        persister: its persister.
        sequence: sequence of its last record.
        snapshot: its snapshot, if that is small.
        page: entry of the flush in which its first record begins.
    """

    persister: CursorPersister
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
        self._dirty: deque[CursorPersister] = deque()
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

    # ---- calls of persisters -------------------------------------------------------------------------------------

    def queue(self, persister: CursorPersister) -> None:
        """Queue a persister for the next flush.

        A flusher that goes idle checks the queue once more afterwards, so no persister is missed.
        """
        self._dirty.append(persister)
        if not self._is_awake:
            self._wake_in(self._flush_s)

    def _wake_in(self, seconds: float) -> None:
        with self._lock:
            if self._is_awake:
                return
            self._is_awake = True
        self._timer = self._runtime.wake_after(seconds, partial(self.post, self._due))

    def wait_for(self, persister: CursorPersister, into_metadata: bool) -> AppendFuture[None]:
        """Return the future of `CursorPersister.flush` or `store_clean`."""
        future: AppendFuture[None] = AppendFuture()
        if persister.error is None and not into_metadata and not persister.is_dirty and not persister.is_busy:
            set_result(future)
            return future
        self._runtime.expect(future)
        self._expected.add(future)
        future.add_done_callback(self._expected.discard)
        if self._error is not None:  # either this is seen here, or `end` fails the future
            set_exception(future, self._error)
        else:
            self.post(partial(self._wait_for, persister, future, into_metadata))
        return future

    def _wait_for(self, persister: CursorPersister, future: AppendFuture[None], into_metadata: bool) -> None:
        if persister.error is not None:
            set_exception(future, persister.error)
            return
        persister.waiting.append(future)
        if into_metadata and persister.is_busy:
            persister.into_metadata = True
        elif into_metadata and self._store(persister):
            return
        persister.dirty()
        self._flush_now()

    @property
    def open_ledger(self) -> Ledger | None:
        """The cursor ledger that is being written, if there is one."""
        cursor_ledger = self.cursor_ledgers.current
        return None if cursor_ledger is None else cursor_ledger.handle

    def adopt(self, persister: CursorPersister, ledger: int) -> None:
        """Note the ledger that holds the state of a cursor that was just opened."""
        self.post(partial(self.cursor_ledgers.adopt, persister, ledger))

    def release(self, persister: CursorPersister, deleted: bool) -> None:
        """End a persister, see `CursorPersister.close`."""
        topic, name = persister.key
        error = ClosedError(f"subscription {name} of topic {topic} was closed")
        self.post(partial(self._end, persister, error, named=not deleted))

    def _end(self, persister: CursorPersister, error: ReplogError, *, named: bool) -> None:
        if persister.error is not None:
            return
        persister.error = error
        waiting, persister.served, persister.waiting = [*persister.served, *persister.waiting], [], []
        self.cursor_ledgers.leave(persister, named=named)
        settle_all([(future, error) for future in waiting])

    # ---- flushing -------------------------------------------------------------------------------------------

    def _due(self) -> None:
        if not self._under_way:
            self._begin()

    def _flush_now(self) -> None:
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
            set_exception(ids, error)
        ids.add_done_callback(lambda ids: self.post(partial(self._flushed, cursor_ledger, taken, ids)))

    def _take(self, persister: CursorPersister, cursor_ledger: CursorLedger, pages: Pages, taken: list[_Taken]) -> None:
        """Add the records of a cursor's changes, if there are any, to the pages."""
        if not self._may_take(persister):
            return
        if persister.into_metadata:
            persister.into_metadata = False
            if self._store(persister) or persister.error is not None:
                return
        whole = persister.is_whole or persister.cursor_ledger is not cursor_ledger
        records = self._ask(persister, whole)
        if records:
            at = [pages.add(persister.key, record, whole=whole and not i) for i, (_, record) in enumerate(records)]
            snapshot = records[0][1] if len(records[0][1]) <= METADATA_COPY_BYTES else b""
            taken.append(_Taken(persister, records[-1][0], snapshot, at[0]))
            self.records += len(records)
        elif persister.error is None:
            self._settle(persister, None)

    def _may_take(self, persister: CursorPersister) -> bool:
        """Return whether a queued persister is still dirty and not busy.

        A clean cursor whose state is in the metadata stays there.
        """
        if persister.error is not None or persister.is_busy or not persister.is_dirty:
            persister.is_parked = persister.is_busy
            return False
        return True

    def _ask(self, persister: CursorPersister, whole: bool) -> list[tuple[int, bytes]]:
        """Return (sequence, record) of all changes of a cursor; they are in flight from now on."""
        persister.is_busy = True  # set first: a persister never appears to be idle and clean
        persister.is_dirty = False
        persister.served, persister.waiting = persister.waiting, []
        persister.is_whole = persister.is_whole and not whole
        records = []
        try:
            more = persister.source.snapshot_record() if whole else persister.source.take_changes()
            while more is not None:
                records.append(more)
                more = persister.source.take_changes() if len(more[1]) >= LARGE_BYTES else None
        except Exception as error:
            logger.exception("the cursor of subscription %s of topic %s raised", persister.key[1], persister.key[0])
            self._fail(persister, error)
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
            persister = item.persister
            if persister.error is not None:
                persister.is_busy = False
            elif error is not None:
                self._requeue(persister)
            elif persister.cursor_ledger is cursor_ledger:
                self._settle(persister, item.sequence)
            else:
                self._update_metadata(
                    MetadataUpdate(
                        persister, item.sequence, cursor_ledger, ids.result().start + item.page, item.snapshot
                    )
                )
        cursor_ledger.naming -= 1
        self.cursor_ledgers.drop_if_free(cursor_ledger)
        self._go_idle(self._flush_s)

    def _requeue(self, persister: CursorPersister) -> None:
        """Queue a persister again, because its records may be lost."""
        persister.is_whole = persister.is_dirty = True
        persister.waiting, persister.served = [*persister.served, *persister.waiting], []
        persister.is_busy = persister.is_parked = False
        self._urgent = self._urgent or bool(persister.waiting)
        self.queue(persister)

    def _settle(self, persister: CursorPersister, sequence: int | None) -> None:
        """Note that the records of a persister are durable. sequence: of the last record; None: nothing had changed."""
        if sequence is not None:
            self._call_source(persister, partial(persister.source.persisted, sequence))
        served, persister.served = persister.served, []
        persister.is_busy = False
        if persister.is_parked:
            persister.is_parked = False
            self.queue(persister)
            if persister.waiting:
                self._flush_now()
        settle_all([(future, None) for future in served])

    def _call_source(self, persister: CursorPersister, call: Callable[[], None]) -> None:
        try:
            call()
        except Exception:
            logger.exception("the cursor of subscription %s of topic %s raised", persister.key[1], persister.key[0])

    def _fail(self, persister: CursorPersister, error: Exception) -> None:
        """End a persister whose subscription is lost."""
        reported = (
            error
            if isinstance(error, ReplogError)
            else InvalidMetadataError(f"subscription {persister.key[1]}: {error}")
        )
        self._end(persister, reported, named=not isinstance(error, NoSuchSubscriptionError))
        persister.is_busy = False
        self._call_source(persister, partial(persister.source.lost, reported))

    # ---- metadata -------------------------------------------------------------------------------------------

    def _fall_back(self) -> None:
        """Store snapshots that are small enough in the metadata, because no ledger can be opened."""
        for _ in range(len(self._dirty)):
            persister = self._dirty.popleft()
            if self._may_take(persister):
                self._store(persister)

    def _store(self, persister: CursorPersister) -> bool:
        """Store a snapshot in the metadata.

        Returns False if it is too large, and queues the persister again, or if the cursor raised an error.
        """
        records = self._ask(persister, whole=True)
        if not records:
            return False
        sequence, record = records[0]
        if len(record) > SNAPSHOT_BYTES_MAX:
            persister.is_whole = persister.is_dirty = True  # set before it is idle, see `_ask`
            persister.waiting, persister.served, persister.is_busy = persister.served, [], False
            self.queue(persister)
            return False
        self._update_metadata(MetadataUpdate(persister, sequence, None, 0, record))
        return True

    def _update_metadata(self, update: MetadataUpdate) -> None:
        if update.cursor_ledger is not None:
            update.cursor_ledger.naming += 1
        self._metadata_updates.add(update)

    def _metadata_updated(self, update: MetadataUpdate, error: Exception | None) -> None:
        persister, cursor_ledger = update.persister, update.cursor_ledger
        if error is not None:
            if persister.error is None:
                self._fail(persister, error)
        elif persister.error is None:
            self.cursor_ledgers.leave(persister, named=False)
            if cursor_ledger is not None:
                self.cursor_ledgers.join(persister, cursor_ledger)
            self._settle(persister, update.sequence)
            if cursor_ledger is not None and cursor_ledger.is_retired:
                persister.dirty()
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
        self._flush_now()

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
