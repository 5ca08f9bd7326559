"""CursorFlusher: stores changes of cursors in the ledger that they share, or in their metadata."""

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
"""Bytes of records that one flush takes; the next one takes the rest."""

BESIDE_BYTES = 4 << 10
"""Snapshots up to this size are kept in the metadata too, for when the ledger cannot be read."""


LARGE_BYTES = 1 << 20
"""A cursor whose record has so many bytes may have more changes: its snapshot alone would be too old."""


class _Taken(NamedTuple):
    """sequence: of its last record. snapshot: if it is small. page: in which entry of the flush the first begins."""

    slot: CursorSlot
    sequence: int
    snapshot: bytes
    page: int


class CursorFlusher:
    """Any thread calls `queue`, `wait_for`, `let_go` and `quiet`; one thread does all that follows.

    incarnation: of this process, see `Sweep`.
    """

    def __init__(self, cluster: LedgerCluster, config: CursorLogConfig, incarnation: str) -> None:
        self._runtime = cluster.runtime
        self._flush_s = config.flush_ms / 1000
        self._dirty: deque[CursorSlot] = deque()
        self._lock = threading.Lock()
        self._is_awake = False  # a flush to come will look at `_dirty`
        self._timer: TimerLike | None = None
        self._under_way = self._urgent = self._wants_ledger = False
        self._quiet: list[AppendFuture[None]] = []  # they wait until there is nothing to do
        self._expected: set[AppendFuture[None]] = set()  # all that `wait_for` gave and have no outcome
        self._thread = ThreadPool(1, "pyreplog-cursors")
        retry_s, retry_max_s = config.retry_ms / 1000, config.retry_max_ms / 1000
        self._metadata_updates = MetadataUpdates(
            self._runtime, self.post, self._moved, retry_s=retry_s, retry_max_s=retry_max_s
        )
        self.cursor_ledgers = CursorLedgers(cluster, config, incarnation, self.post, self._look)
        self._error: ReplogError | None = None  # why nothing is taken any more
        self.flushes = self.records = 0

    def post(self, job: Callable[[], object]) -> None:
        """Have it done by the thread."""
        self._thread.submit(job)

    # ---- what slots say -------------------------------------------------------------------------------------

    def queue(self, slot: CursorSlot) -> None:
        """It is to be flushed. Whoever goes to sleep looks at the queue once more afterwards."""
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
        """See `CursorSlot.flush`, `store_clean`."""
        future: AppendFuture[None] = AppendFuture()
        if slot.error is None and not into_metadata and not slot.is_dirty and not slot.is_busy:
            future.complete()
            return future
        self._runtime.expect(future)
        self._expected.add(future)
        future.add_done_callback(self._expected.discard)
        if self._error is not None:  # seen here, or `end` sees the AppendFuture
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
        """The cursor ledger that is written now, if there is one."""
        home = self.cursor_ledgers.current
        return None if home is None else home.handle

    def settle_in(self, slot: CursorSlot, ledger: int) -> None:
        """The state of a cursor that was just opened is in that ledger."""
        self.post(partial(self.cursor_ledgers.settle_in, slot, ledger))

    def let_go(self, slot: CursorSlot, deleted: bool) -> None:
        """See `CursorSlot.close`."""
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
            self._rest(self._flush_s)
            return
        self.cursor_ledgers.look()
        home = self.cursor_ledgers.current
        if home is not None:
            self._flush(home)
        elif self.cursor_ledgers.is_opening:
            self._wants_ledger = True
        else:
            if self.cursor_ledgers.lacks_bookies:
                self._fall_back()
            self._rest(max(self.cursor_ledgers.wait_s, self._flush_s))

    def _look(self) -> None:
        """There may be a ledger now, or none can be had."""
        if self._wants_ledger and not self.cursor_ledgers.is_opening:
            self._begin()
        self._look_quiet()

    def _rest(self, seconds: float) -> None:
        """Until somebody waits, or so long if something is dirty."""
        self._under_way = False
        if self._urgent:
            self._begin()
            return
        self._is_awake = False
        if self._dirty:
            self._wake_in(seconds)
        self._look_quiet()

    def _flush(self, home: CursorLedger) -> None:
        pages = Pages()
        taken: list[_Taken] = []
        for _ in range(len(self._dirty)):
            if pages.size >= FLUSH_BYTES:
                self._urgent = True
                break
            self._take(self._dirty.popleft(), home, pages, taken)
        if not taken or home.handle is None:
            self._rest(self._flush_s)
            return
        home.nbytes += pages.size
        home.naming += 1  # for the time being
        try:
            ids = home.handle.submit_batch(pages.finish())
        except Exception as error:
            ids = AppendFuture()
            ids.fail(error)
        ids.add_done_callback(lambda ids: self.post(partial(self._landed, home, taken, ids)))

    def _take(self, slot: CursorSlot, home: CursorLedger, pages: Pages, taken: list[_Taken]) -> None:
        """Add the records of its changes to the pages, if there are any."""
        if not self._may_take(slot):
            return
        if slot.into_metadata:
            slot.into_metadata = False
            if self._store(slot) or slot.error is not None:
                return
        whole = slot.is_whole or slot.home is not home
        records = self._ask(slot, whole)
        if records:
            at = [pages.add(slot.key, record, whole=whole and not i) for i, (_, record) in enumerate(records)]
            snapshot = records[0][1] if len(records[0][1]) <= BESIDE_BYTES else b""
            taken.append(_Taken(slot, records[-1][0], snapshot, at[0]))
            self.records += len(records)
        elif slot.error is None:
            self._settle(slot, None)

    def _may_take(self, slot: CursorSlot) -> bool:
        """Not if it was taken since it was queued: a clean one that is in the metadata stays there."""
        if slot.error is not None or slot.is_busy or not slot.is_dirty:
            slot.is_parked = slot.is_busy
            return False
        return True

    def _ask(self, slot: CursorSlot, whole: bool) -> list[tuple[int, bytes]]:
        """(sequence, record) of all that is to be stored; it is on its way from now on."""
        slot.is_busy = True  # before it is clean: it never seems to be both idle and clean
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
            self._lose(slot, error)
            return []
        return records

    def _landed(self, home: CursorLedger, taken: list[_Taken], ids: AppendFuture[range]) -> None:
        error = ids.exception()
        if error is not None:
            self.cursor_ledgers.failed(home, error)
        else:
            self.cursor_ledgers.worked()
            self.flushes += 1
        for item in taken:
            slot = item.slot
            if slot.error is not None:
                slot.is_busy = False
            elif error is not None:
                self._again(slot)
            elif slot.home is home:
                self._settle(slot, item.sequence)
            else:
                self._move(MetadataUpdate(slot, item.sequence, home, ids.result().start + item.page, item.snapshot))
        home.naming -= 1
        self.cursor_ledgers.drop_if_free(home)
        self._rest(self._flush_s)

    def _again(self, slot: CursorSlot) -> None:
        """What was taken of it may be lost."""
        slot.is_whole = slot.is_dirty = True
        slot.waiting, slot.served = [*slot.served, *slot.waiting], []
        slot.is_busy = slot.is_parked = False
        self._urgent = self._urgent or bool(slot.waiting)
        self.queue(slot)

    def _settle(self, slot: CursorSlot, sequence: int | None) -> None:
        """What was taken of it is durable. sequence: of the last record; None: there were no changes."""
        if sequence is not None:
            self._tell(slot, partial(slot.source.persisted, sequence))
        served, slot.served = slot.served, []
        slot.is_busy = False
        if slot.is_parked:
            slot.is_parked = False
            self.queue(slot)
            if slot.waiting:
                self._hurry()
        settle_all([(future, None) for future in served])

    def _tell(self, slot: CursorSlot, call: Callable[[], None]) -> None:
        try:
            call()
        except Exception:
            logger.exception("the cursor of subscription %s of topic %s raised", slot.key[1], slot.key[0])

    def _lose(self, slot: CursorSlot, error: Exception) -> None:
        """It is not ours any more."""
        told = error if isinstance(error, ReplogError) else InvalidMetadataError(f"subscription {slot.key[1]}: {error}")
        self._end(slot, told, named=not isinstance(error, NoSuchSubscriptionError))
        slot.is_busy = False
        self._tell(slot, partial(slot.source.lost, told))

    # ---- metadata -------------------------------------------------------------------------------------------

    def _fall_back(self) -> None:
        """No ledger can be had: snapshots go into the metadata, as far as they are small enough."""
        for _ in range(len(self._dirty)):
            slot = self._dirty.popleft()
            if self._may_take(slot):
                self._store(slot)

    def _store(self, slot: CursorSlot) -> bool:
        """Have its snapshot stored in its metadata. False: it is too large, and queued again, or its cursor raised."""
        records = self._ask(slot, whole=True)
        if not records:
            return False
        sequence, record = records[0]
        if len(record) > SNAPSHOT_BYTES_MAX:
            slot.is_whole = slot.is_dirty = True  # before it is idle, see `_ask`
            slot.waiting, slot.served, slot.is_busy = slot.served, [], False
            self.queue(slot)
            return False
        self._move(MetadataUpdate(slot, sequence, None, 0, record))
        return True

    def _move(self, move: MetadataUpdate) -> None:
        if move.home is not None:
            move.home.naming += 1
        self._metadata_updates.add(move)

    def _moved(self, move: MetadataUpdate, error: Exception | None) -> None:
        slot, home = move.slot, move.home
        if error is not None:
            if slot.error is None:
                self._lose(slot, error)
        elif slot.error is None:
            self.cursor_ledgers.leave(slot, named=False)
            if home is not None:
                self.cursor_ledgers.join(slot, home)
            self._settle(slot, move.sequence)
            if home is not None and home.is_retired:
                slot.dirty()
        elif home is not None:
            home.is_abandoned = True
        if home is not None:
            home.naming -= 1
            self.cursor_ledgers.drop_if_free(home)
        self._look_quiet()

    # ---- the end --------------------------------------------------------------------------------------------

    def begin_end(self, error: ReplogError | None) -> AppendFuture[None]:
        """Take nothing any more, for this reason; as `quiet`."""
        quiet = self.quiet()
        self._error = error
        return quiet

    def quiet(self) -> AppendFuture[None]:
        """Done when nothing is left to do; flushes at once."""
        future: AppendFuture[None] = AppendFuture()
        self._runtime.expect(future)
        self.post(partial(self._wait_quiet, future))
        return future

    def _wait_quiet(self, future: AppendFuture[None]) -> None:
        self._quiet.append(future)
        self._hurry()

    def _look_quiet(self) -> None:
        if self._quiet and not (
            self._dirty or self._under_way or self._metadata_updates.pending or self.cursor_ledgers.pending
        ):
            quiet, self._quiet = self._quiet, []
            settle_all([(future, None) for future in quiet])

    def end(self, timeout: float) -> None:
        """Do nothing any more: fail all futures, end the thread, then the ledger, within `timeout` seconds. Not by that
        thread."""
        deadline = time.monotonic() + timeout
        has_ended = self._thread.close(timeout)
        settle_all([(future, self._error) for future in list(self._expected)])
        timer, self._timer = self._timer, None
        if timer is not None:
            timer.cancel()
        if has_ended:  # else the ledger is closed with its cluster
            self.cursor_ledgers.end(max(deadline - time.monotonic(), 0.0))
