"""Writes a topic: appends entries in order, from ledger to ledger, also after failures.

Everything is an event of an `EventQueue`; blocking calls are made by the cluster's workers, one job at a time. A ledger
is replaced when it is full, too old, or has failed: first its end is determined (its writer closes it, or it is
recovered), then one compare-and-set of the chain stores its counts and adds the next ledger.
"""

from __future__ import annotations

import logging
import random
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from pyreplog.clock import Clock
from pyreplog.errors import (
    ClosedError,
    EntryRefusedError,
    InvalidMetadataError,
    LedgerFencedError,
    NoSuchTopicError,
    NotEnoughBookiesError,
    OutcomeUnknownError,
    ReplogError,
    TopicFencedError,
    TopicFullError,
)
from pyreplog.event_queue import EventQueue
from pyreplog.future import AppendFuture, set_exception, settle_all
from pyreplog.ledger.driver import Runtime
from pyreplog.ledger.ledger_handle import Ledger
from pyreplog.ledger.ledger_metadata import LedgerMetadata
from pyreplog.net.backoff import BACKOFF_MOST_S, Backoff
from pyreplog.topic.client.publishing.publish_batch import PublishBatch
from pyreplog.topic.model.chain import LedgerChain, LedgerTotals
from pyreplog.topic.model.positions import TopicPosition
from pyreplog.topic.owner.managed.append_pipeline import AppendPipeline, together
from pyreplog.topic.owner.managed.chain_store import ChainStore
from pyreplog.topic.owner.managed.ledgers import (
    RETRY_FIRST_S,
    Jobs,
    LedgerEnd,
    LedgerMaker,
    PreallocatedLedger,
    abandon,
    counts_between,
    counts_of,
)

logger = logging.getLogger(__name__)

STUCK_S = 30.0
"""Seconds that publishers wait while too few bookies answer for a ledger; then their messages fail as not stored.

They fail at once if the cluster does not have enough bookies, and after CLOSING_STUCK_S when the topic is closed."""

CLOSING_STUCK_S = 5.0

YOUNG_S = 10.0
"""A ledger that fails at a lower age is followed by the next one after a pause, a longer one each time."""

LOG_INTERVAL_S = 60.0
"""Shortest interval between warnings about ledgers that fail one after the other."""


class ChainWriter:
    """The writer of one owner of a topic: a Sink. Methods are events, unless they say that any thread may call them.

    Args:
        name: name of the topic.
        store: the chain in the metadata store.
        maker: creates ledgers.
        runtime: waits, timers and threads of the cluster.
        clock: source of time.
        check_open: raises ClosedError or ForkedError if nothing may be submitted any more.
        on_end: called with the metadata of a ledger that was closed.
        on_change: called when the chain or the confirmed end moved.
        on_fenced: called once, when another process owns the topic.
    """

    def __init__(
        self,
        name: str,
        store: ChainStore,
        maker: LedgerMaker,
        runtime: Runtime,
        clock: Clock,
        *,
        check_open: Callable[[], None],
        on_end: Callable[[LedgerMetadata], object],
        on_change: Callable[[], object],
        on_fenced: Callable[[TopicFencedError], object],
    ) -> None:
        self._name, self._store, self._maker, self._runtime, self._clock = name, store, maker, runtime, clock
        self._on_end, self._on_change, self._on_fenced = on_end, on_change, on_fenced
        self._events = EventQueue()
        self._pipeline, self._incoming = AppendPipeline(store.chain.end), deque[PublishBatch]()
        self._ledger: Ledger | None = None  # takes entries, or is being closed
        self._is_ending = False
        self._counts: LedgerTotals | None = None  # of the former ledger, not in the chain yet
        self._preallocated: PreallocatedLedger | None = None
        self.jobs = Jobs(name, self._events, runtime)
        self._rolls: list[AppendFuture[None]] = []  # done when no ledger is open
        self._is_closing = self._confirm_posted = False
        self._has_broken_runs = False  # a batch of a run failed, see `PublishBatch.run`
        self.check_open = check_open
        self.on_room: Callable[[], object] = lambda: None
        """Set by a publisher before it submits anything; called when `pending` has decreased."""
        self.error: ReplogError | None = None
        """Why nothing can be published any more."""
        self.done: AppendFuture[None] = AppendFuture()
        """Done when the writer has ended."""
        self.failures = 0
        """Number of ledgers that failed."""
        self._pauses = Backoff(RETRY_FIRST_S, BACKOFF_MOST_S, random.random)  # after ledgers that failed young
        self._began_us = self._logged_us = 0  # when the open ledger was begun; when the last warning was logged
        self._stuck: tuple[int, ReplogError] | None = None  # since when too few bookies answer, and the last error

    # ---- state, for any thread --------------------------------------------------------------------

    @property
    def chain(self) -> LedgerChain:
        return self._store.chain

    @property
    def end(self) -> TopicPosition:
        """Confirmed end of the topic."""
        return self._pipeline.end

    @property
    def ledger(self) -> Ledger | None:
        """The open ledger."""
        return self._ledger

    @property
    def state(self) -> str:
        """State of the writer in a word."""
        if self.error is not None:
            return "fenced" if isinstance(self.error, TopicFencedError) else "closed"
        if self._is_ending or self._counts is not None:
            return "rolling"
        return "open" if self._ledger is not None else "idle"

    def pending(self) -> tuple[int, int]:
        """Return the bytes and entries without an outcome, or whose ledger lacks copies; the larger number of each."""
        size, entries = self._pipeline.pending
        ledger = self._ledger
        if ledger is None:
            return size, entries
        held, held_entries = ledger.pending
        return max(size, held), max(entries, held_entries)

    @property
    def pending_entries(self) -> int:
        """Entries without an outcome."""
        return self._pipeline.pending[1]

    # ---- requests, from any thread --------------------------------------------------------------------------

    def submit_all(self, batches: Sequence[PublishBatch]) -> None:
        """Append the entries of batches, in the order of batches and calls, and settle each batch. Does not wait.

        A batch may fail with TopicFencedError, or OutcomeUnknownError if the writer ended first: its entries may be
        stored. It may fail with RecordTooLargeError, TopicFullError, or NotEnoughBookiesError (too few bookies for half
        a minute, or for good): its entries are not stored. Failing ledgers and bookies only delay batches before that.

        Raises:
            ClosedError: the topic was closed.
            ForkedError: this process was forked.
            TopicFencedError: another process owns the topic.
        """
        self.check_open()
        if self.error is not None:
            raise self.error
        self._incoming.extend(batches)
        self._events.post(self._take_incoming)

    def roll(self) -> AppendFuture[None]:
        """Close the open ledger once the metadata store answers; the next publish opens another one."""
        future: AppendFuture[None] = AppendFuture()
        self._events.post(lambda: self._roll(future))
        return future

    def roll_if_old(self, now_us: int) -> None:
        """Close the open ledger if it is too old."""
        if self._ledger is not None and not self._is_ending and self._pipeline.is_old(self.chain.config, now_us):
            self.roll()

    def begin_close(self) -> AppendFuture[None]:
        """Publish what is queued, close the ledger, and end."""
        self._events.post(self._begin_close)
        return self.done

    def give_up(self, error: ReplogError) -> None:
        """End now; batches without an outcome fail with `error`."""
        self._events.post(lambda: self._end(error))

    def refresh(self, then: Callable[[], object]) -> None:
        """Note that the chain was changed by another caller."""
        self._events.post(self._on_change)
        self._events.post(then)

    def fence(self, error: TopicFencedError) -> None:
        """Note that another process owns the topic."""
        self._events.post(lambda: self._fence(error))

    # ---- publishing -----------------------------------------------------------------------------------------

    def _take_incoming(self) -> None:
        """Queue all submitted batches together."""
        batches = [self._incoming.popleft() for _ in range(len(self._incoming))]
        if self.error is not None:
            self._settle(batches, self.error)
            return
        self._pipeline.add(batches)
        if self._pipeline.is_due:  # otherwise they are sent after the next confirmation
            self._send_queued()

    def _send_queued(self) -> None:
        """Hand queued batches to the open ledger, then do the next step."""
        pipeline = self._pipeline
        while pipeline.is_due and self._ledger is not None and not self._is_ending:
            config = self._store.chain.config
            if pipeline.is_full(config, self._clock.now_us()) and not self.jobs.is_paused:
                break
            self._send(self._ledger, pipeline.take(max(config.roll_entries - pipeline.entries, 1)))
        if self._ledger is None or self._is_closing or self._rolls or pipeline.is_queued:
            self._begin_next_job()  # otherwise the open ledger needs none

    def _send(self, ledger: Ledger, batches: list[PublishBatch]) -> None:
        if self._has_broken_runs:
            batches = self._without_followers(batches)
            if not batches:
                return
        entries, counts, attributes = together(batches)
        try:
            future = ledger.push_batch(entries, messages=counts, attributes=attributes)
        except Exception as error:
            if ledger.error is not None:
                self._pipeline.put_back(batches)
                self._failed(ledger.error)
            elif len(batches) > 1:  # one of them cannot be encoded
                self._send_each(ledger, batches)
            else:
                self._pipeline.refuse(batches)
                self._break_runs(batches, error)
                self._settle(batches, error)
            return
        self._pipeline.sent(batches, future)
        future.add_done_callback(self._on_confirmed)

    def _send_each(self, ledger: Ledger, batches: list[PublishBatch]) -> None:
        for at, batch in enumerate(batches):
            if self._is_ending or self._ledger is not ledger:
                self._pipeline.put_back(batches[at:])
                return
            self._send(ledger, [batch])

    def _is_full(self) -> bool:
        return self._pipeline.is_full(self.chain.config, self._clock.now_us())

    # ---- outcomes -------------------------------------------------------------------------------------------

    def _on_confirmed(self, _: AppendFuture[Any]) -> None:
        if not self._confirm_posted:
            self._confirm_posted = True
            self._events.post(self._confirm)

    def _confirm(self) -> None:
        self._confirm_posted = False
        confirmed, error = self._pipeline.take_confirmed()
        if confirmed:
            self._stuck = None
            self._on_change()  # first: a publisher that learns of a message can read it
            self._settle(confirmed)
        if error is not None and not self._is_ending:
            self._failed(error)
        self._send_queued()

    def _settle(self, batches: list[PublishBatch], error: BaseException | None = None) -> None:
        for batch in batches:
            batch.settle(error)

    def _settle_unstored(self, batches: list[PublishBatch], error: BaseException) -> None:
        """Fail batches that no ledger stores; a batch that is stored in part fails with OutcomeUnknownError instead."""
        self._break_runs(batches, error)
        in_part = [batch for batch in batches if batch.first_offset >= 0]
        text = f"topic {self._name}: a part of the messages is stored, the others are not: {error}"
        self._settle(in_part, OutcomeUnknownError(text))
        self._settle([batch for batch in batches if batch.first_offset < 0], error)

    def _break_runs(self, batches: list[PublishBatch], error: BaseException) -> None:
        """Note that batches fail and no more of them will be stored, so that none of their runs is stored either."""
        for batch in batches:
            batch.is_end_known = True
            if batch.run is not None:
                self._has_broken_runs = True
                batch.run.error = batch.run.error or error

    def _without_followers(self, batches: list[PublishBatch]) -> list[PublishBatch]:
        """Fail the batches that follow a batch of their run that failed; return the others."""
        kept: list[PublishBatch] = []
        for batch in batches:
            error = None if batch.run is None else batch.run.error
            if error is None:
                kept.append(batch)
            else:
                self._pipeline.refuse([batch])
                batch.is_end_known = True
                batch.settle(error)
        return kept

    def _failed(self, error: BaseException) -> None:
        """Determine what the failed ledger kept."""
        ledger = self._ledger
        if ledger is None or self.error is not None:
            return
        if isinstance(error, LedgerFencedError):
            self._fenced_by_recovery(error)
            return
        self.failures += 1
        self._log_failure(error)
        self._end_ledger(ledger, close=False)

    def _log_failure(self, error: BaseException) -> None:
        """Log a failure; of several in a row only some as warnings."""
        now_us, level = self._clock.monotonic_us(), logging.DEBUG
        if not self._logged_us or now_us - self._logged_us >= LOG_INTERVAL_S * 1e6:
            self._logged_us, level = now_us, logging.WARNING
        logger.log(
            level,
            "topic %s: its ledger failed, the next one is opened (%d failures so far): %s",
            self._name,
            self.failures,
            error,
        )

    # ---- the end of a ledger --------------------------------------------------------------------------------

    def _end_ledger(self, ledger: Ledger, *, close: bool = True) -> None:
        self._is_ending = True
        end = LedgerEnd(
            ledger, self._maker, self._runtime, self._events, self.jobs,
            known=self._end_known, fenced=self._fenced_by_recovery,
        )  # fmt: skip
        end.begin(close=close)

    def _fenced_by_recovery(self, error: BaseException) -> None:
        self._fence(TopicFencedError(self._name, f"another process recovers its last ledger: {error}"))

    def _end_known(self, metadata: LedgerMetadata | None) -> None:
        ledger = self._ledger
        if ledger is None or self.error is not None:
            return
        now_us = self._clock.now_us()
        if metadata is None:  # the ledger was deleted; the chain keeps the offsets
            start, end = self.chain.end, self._pipeline.end
            self._replace(ledger, counts_between(ledger.id, start, end, now_us, ledger.last_append_us))
        else:
            self._on_end(metadata)
            self._replace(ledger, counts_of(metadata, now_us, ledger.last_append_us))

    def _replace(self, ledger: Ledger, counts: LedgerTotals) -> None:
        failed = ledger.ended.exception()
        self._counts, self._ledger, self._is_ending = counts, None, False  # in this order: `state` is never idle
        abandon(ledger)
        kept = self._pipeline.end_ledger(counts.entries)
        self._on_change()
        self._settle(kept)
        self.on_room()
        if isinstance(failed, EntryRefusedError):
            self._settle_unstored(self._pipeline.note_refusal(), failed)
        if failed is not None:
            self._pause_after(failed)
        self._send_queued()

    def _pause_after(self, failed: BaseException) -> None:
        """Pause before the next ledger if the failed one was young, because the next one may fail, too."""
        if self._clock.monotonic_us() - self._began_us >= YOUNG_S * 1e6:
            self._pauses.reset()
        else:
            self.jobs.pause(self._pauses.next_s(), self._send_queued)
        if isinstance(failed, NotEnoughBookiesError):
            self._note_missing_bookies(failed)

    # ---- the next ledger ------------------------------------------------------------------------------------

    def _begin_next_job(self) -> None:
        """Start the next job of a worker, if one is needed."""
        if self.error is not None or self.jobs.is_busy or self._is_ending:
            return
        ledger, pipeline = self._ledger, self._pipeline
        if ledger is not None:
            if self._is_closing and not (pipeline.is_queued or pipeline.has_pending):
                self._end_ledger(ledger)
            elif pipeline.is_queued and not self.jobs.is_paused and self._is_full():
                if self._preallocated is None:
                    self._work(self._maker.make, self._ledger_made)
                else:
                    self._end_ledger(ledger)
            elif self._rolls and not self.jobs.is_paused:
                self._work(self._store.check, self._checked)
        elif self.jobs.is_paused and (pipeline.is_queued or self._counts is not None):
            return
        elif pipeline.is_queued and self._preallocated is None:
            self._work(self._maker.make, self._ledger_made)
        elif self._counts is not None or pipeline.is_queued:
            self._store_chain()
        else:
            self._become_idle()

    def _ledger_made(self, ledger: Ledger) -> None:
        self._preallocated = PreallocatedLedger(ledger, self._maker, self._runtime)
        self.jobs.succeeded()

    def _store_chain(self) -> None:
        counts, preallocated = self._counts, self._preallocated if self._pipeline.is_queued else None
        now_us = self._clock.now_us()
        if preallocated is not None:
            preallocated.is_offered = True

        def change(chain: LedgerChain) -> LedgerChain:
            chain = chain if counts is None else chain.closed(counts)
            return chain if preallocated is None else chain.added(preallocated.ledger.id, now_us)

        self._work(lambda: self._store.update(change), lambda _: self._stored(preallocated))

    def _stored(self, preallocated: PreallocatedLedger | None) -> None:
        self.jobs.succeeded()
        if preallocated is not None:
            self._preallocated, self._ledger = None, preallocated.ledger
            self._began_us = self._clock.monotonic_us()
            preallocated.ledger.on_progress = self.on_room
            self._pipeline.begin_ledger(preallocated.ledger.metadata.created_us)
        self._counts = None
        self._on_change()
        self._rolled()

    def _become_idle(self) -> None:
        """Note that no ledger is open, and none is needed."""
        self._rolled()
        self._discard_preallocated()
        if self._is_closing:
            self._end(ClosedError(f"topic {self._name} was closed"))

    def _roll(self, future: AppendFuture[None]) -> None:
        """Roll only while the store answers: without it an old ledger is better than none."""
        if self.error is not None:
            set_exception(future, self.error)
            return
        self._rolls.append(future)
        self._begin_next_job()

    def _rolled(self, error: BaseException | None = None) -> None:
        rolls, self._rolls = self._rolls, []
        settle_all([(future, error) for future in rolls])

    def _checked(self, _: LedgerChain) -> None:
        if self._ledger is not None and not self._is_ending:
            self._end_ledger(self._ledger)

    # ---- jobs -----------------------------------------------------------------------------------------------

    def _work(self, job: Callable[[], Any], then: Callable[[Any], object]) -> None:
        self.jobs.work(job, lambda result: self._job_done(then, result), self._job_failed)

    def _job_done(self, then: Callable[[Any], object], result: Any) -> None:
        if self.error is not None:  # the writer ended meanwhile
            if isinstance(result, Ledger):
                PreallocatedLedger(result, self._maker, self._runtime).discard(certain=True)
            return
        then(result)
        self._send_queued()

    def _job_failed(self, error: Exception) -> None:
        if self.error is not None:
            return
        if isinstance(error, TopicFencedError):
            self._fence(error)
        elif isinstance(error, ClosedError | InvalidMetadataError | NoSuchTopicError):
            self._end(error)
        elif isinstance(error, TopicFullError) and self._ledger is None:
            self._fail_queue(error)
        elif isinstance(error, NotEnoughBookiesError) and self._ledger is None and self._maker.needs_more_bookies:
            self._note_missing_bookies(error)
        else:
            if isinstance(error, NotEnoughBookiesError) and self._ledger is None:
                self._note_missing_bookies(error)
            self.jobs.retry_later(error, self._send_queued)
            self._send_queued()  # a full ledger takes more entries rather than none

    def _note_missing_bookies(self, error: ReplogError) -> None:
        """Note that too few bookies answer for a ledger. If that lasts, or cannot change, the queued batches fail."""
        since_us = self._clock.monotonic_us() if self._stuck is None else self._stuck[0]
        self._stuck = since_us, error
        patience_s = CLOSING_STUCK_S if self._is_closing else STUCK_S
        if self._maker.needs_more_bookies or self._clock.monotonic_us() - since_us >= patience_s * 1e6:
            self._fail_queue(error)

    def _fail_queue(self, error: ReplogError) -> None:
        """Fail all queued batches as not stored, except those that a failed ledger stored in part."""
        self._settle_unstored(self._pipeline.drop_queued(), error)
        self._discard_preallocated()
        self._begin_next_job()

    # ---- the end --------------------------------------------------------------------------------------------

    def _begin_close(self) -> None:
        self._is_closing = True
        if self._stuck is not None and self._ledger is None and not self.jobs.is_busy:
            self._note_missing_bookies(self._stuck[1])
        self._begin_next_job()

    def _fence(self, error: TopicFencedError) -> None:
        if self.error is None:
            self._end(error)
            self._on_fenced(error)

    def _end(self, error: ReplogError) -> None:
        if self.error is not None:
            return
        self.error = error
        self.jobs.end()
        if self._ledger is not None:
            abandon(self._ledger)
            self._ledger = None
        self._discard_preallocated()
        self._settle(unsettled := self._pipeline.drop(), error)
        self.on_room()
        self._rolled(error)
        lost = bool(unsettled) and isinstance(error, OutcomeUnknownError)
        settle_all([(self.done, error if lost else None)])

    def _discard_preallocated(self) -> None:
        if self._preallocated is not None:
            self._preallocated.discard(certain=isinstance(self.error, TopicFencedError))
            self._preallocated = None
