"""Writes a topic: from ledger to ledger, in order, whatever becomes of them.

All that happens is an event (see `topic.event_queue`); what blocks is done by the cluster's workers, one job at a time.
A ledger is replaced when it is full, old, or has failed: its end is found first (its writer closed it, or it is
recovered), then one compare-and-set of the chain tells its counts and names the next one.
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
from pyreplog.future import AppendFuture, settle_all
from pyreplog.ledger.driver import Runtime
from pyreplog.ledger.ledger_handle import Ledger
from pyreplog.ledger.ledgermetadata import LedgerMetadata
from pyreplog.net.backoff import BACKOFF_MOST_S, Backoff
from pyreplog.topic.client.publishing.publish_batch import PublishBatch
from pyreplog.topic.model.chain import LedgerChain, LedgerTotals
from pyreplog.topic.model.event_queue import EventQueue
from pyreplog.topic.model.positions import TopicPosition
from pyreplog.topic.owner.managed.append_pipeline import AppendPipeline, together
from pyreplog.topic.owner.managed.chainstore import ChainStore
from pyreplog.topic.owner.managed.ledgers import (
    RETRY_FIRST_S,
    Jobs,
    LedgerEnd,
    LedgerMaker,
    PreallocatedLedger,
    counts_between,
    counts_of,
    let_go,
)

logger = logging.getLogger(__name__)

STUCK_S = 30.0
"""So long publishers wait while too few bookies answer for a ledger; then they are told that nothing was stored. When
the cluster does not have as many bookies they are told at once, when the topic is closed after CLOSING_STUCK_S."""

CLOSING_STUCK_S = 5.0

YOUNG_S = 10.0
"""A ledger that fails earlier is followed by another one after a pause, a longer one each time."""

TOLD_S = 60.0
"""Between warnings about ledgers that fail one after the other."""


class ChainWriter:
    """Of one owner of a topic: a Sink. Methods are events, or may be called by any thread where they say so.

    check_open: raises ClosedError or ForkedError when nothing may be submitted any more. on_end: called when a ledger
    has its end, with its metadata. on_change: when the chain or the confirmed end moved. on_fenced: once, when somebody
    else owns the topic.
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
        self._ledger: Ledger | None = None  # that takes entries, or is being ended
        self._is_ending = False
        self._counts: LedgerTotals | None = None  # of the ledger before, not in the chain yet
        self._preallocated: PreallocatedLedger | None = None
        self.jobs = Jobs(name, self._events, runtime)
        self._rolls: list[AppendFuture[None]] = []  # wait until no ledger is open
        self._is_closing = self._is_landing = False
        self.check_open = check_open
        self.on_room: Callable[[], object] = lambda: None
        """Set by a publisher before it submits anything; called when `pending` has become less."""
        self.error: ReplogError | None = None
        """Why nothing can be published any more."""
        self.done: AppendFuture[None] = AppendFuture()
        """The writer has ended."""
        self.failures = 0
        """Ledgers that failed."""
        self._pauses = Backoff(RETRY_FIRST_S, BACKOFF_MOST_S, random.random)  # behind ledgers that failed young
        self._began_us = self._told_us = 0  # the open ledger; the last warning
        self._stuck: tuple[int, ReplogError] | None = None  # since when too few bookies answer, and what was last said

    # ---- where it stands, for any thread --------------------------------------------------------------------

    @property
    def chain(self) -> LedgerChain:
        return self._store.chain

    @property
    def end(self) -> TopicPosition:
        """Of the topic, as confirmed."""
        return self._pipeline.end

    @property
    def ledger(self) -> Ledger | None:
        """The one that is open."""
        return self._ledger

    @property
    def state(self) -> str:
        """In a word."""
        if self.error is not None:
            return "fenced" if isinstance(self.error, TopicFencedError) else "closed"
        if self._is_ending or self._counts is not None:
            return "rolling"
        return "open" if self._ledger is not None else "idle"

    def pending(self) -> tuple[int, int]:
        """Bytes and entries that have no outcome, or whose ledger has not all its copies; the more of each."""
        size, entries = self._pipeline.pending
        ledger = self._ledger
        if ledger is None:
            return size, entries
        held, held_entries = ledger.pending
        return max(size, held), max(entries, held_entries)

    @property
    def pending_entries(self) -> int:
        """Those that have no outcome."""
        return self._pipeline.pending[1]

    # ---- requests, from any thread --------------------------------------------------------------------------

    def submit_all(self, batches: Sequence[PublishBatch]) -> None:
        """Append the entries of batches, in the order of the batches and calls; each is settled. It does not wait.

        Errors, raised here: ClosedError, ForkedError, TopicFencedError. Of a batch: TopicFencedError and
        OutcomeUnknownError (closed before there was an outcome), the entries may be there or not; RecordTooLargeError,
        TopicFullError, NotEnoughBookiesError (too few bookies for half a minute, or for good), they are not. Failing
        ledgers and bookies are no errors before: it takes longer.
        """
        self.check_open()
        if self.error is not None:
            raise self.error
        self._incoming.extend(batches)
        self._events.post(self._take)

    def roll(self) -> AppendFuture[None]:
        """End the open ledger, once the metadata store answers; the next publish makes another one."""
        future: AppendFuture[None] = AppendFuture()
        self._events.post(lambda: self._roll(future))
        return future

    def look(self, now_us: int) -> None:
        """A ledger that is too old ends."""
        if self._ledger is not None and not self._is_ending and self._pipeline.is_old(self.chain.config, now_us):
            self.roll()

    def begin_close(self) -> AppendFuture[None]:
        """Publish what is queued, end the ledger, and that is it."""
        self._events.post(self._begin_close)
        return self.done

    def give_up(self, error: ReplogError) -> None:
        """End now; what has no outcome fails with `error`."""
        self._events.post(lambda: self._end(error))

    def refresh(self, then: Callable[[], object]) -> None:
        """The chain was changed."""
        self._events.post(self._on_change)
        self._events.post(then)

    def fence(self, error: TopicFencedError) -> None:
        """Somebody else owns the topic."""
        self._events.post(lambda: self._fence(error))

    # ---- publishing -----------------------------------------------------------------------------------------

    def _take(self) -> None:
        """All that have come: they go together."""
        came = [self._incoming.popleft() for _ in range(len(self._incoming))]
        if self.error is not None:
            self._settle(came, self.error)
            return
        self._pipeline.add(came)
        if self._pipeline.is_due:  # else it is seen to when something lands
            self._flow()

    def _flow(self) -> None:
        """Hand what is queued to the open ledger; and see what else there is to do."""
        pipeline = self._pipeline
        while pipeline.is_due and self._ledger is not None and not self._is_ending:
            config = self._store.chain.config
            if pipeline.is_full(config, self._clock.now_us()) and not self.jobs.is_resting:
                break
            self._send(self._ledger, pipeline.take(max(config.roll_entries - pipeline.entries, 1)))
        self._step()

    def _send(self, ledger: Ledger, batches: list[PublishBatch]) -> None:
        entries, counts = together(batches)
        try:
            future = ledger.push_batch(entries, messages=counts)
        except Exception as error:
            if ledger.error is not None:
                self._pipeline.put_back(batches)
                self._failed(ledger.error)
            elif len(batches) > 1:  # one of them cannot be encoded
                self._send_each(ledger, batches)
            else:
                self._pipeline.refuse(batches)
                self._settle(batches, error)
            return
        self._pipeline.flew(batches, future)
        future.add_done_callback(self._came)

    def _send_each(self, ledger: Ledger, batches: list[PublishBatch]) -> None:
        for at, batch in enumerate(batches):
            if self._is_ending or self._ledger is not ledger:
                self._pipeline.put_back(batches[at:])
                return
            self._send(ledger, [batch])

    def _is_full(self) -> bool:
        return self._pipeline.is_full(self.chain.config, self._clock.now_us())

    # ---- outcomes -------------------------------------------------------------------------------------------

    def _came(self, _: AppendFuture[Any]) -> None:
        if not self._is_landing:
            self._is_landing = True
            self._events.post(self._land)

    def _land(self) -> None:
        self._is_landing = False
        landed, error = self._pipeline.land()
        if landed:
            self._stuck = None
            self._on_change()  # first: whoever is told that a message is there can read it
            self._settle(landed)
        if error is not None and not self._is_ending:
            self._failed(error)
        self._flow()

    def _settle(self, batches: list[PublishBatch], error: BaseException | None = None) -> None:
        for batch in batches:
            batch.settle(error)

    def _settle_unstored(self, batches: list[PublishBatch], error: BaseException) -> None:
        """No ledger has them, or will: `error` says that, which is not true of those that are stored in part."""
        in_part = [batch for batch in batches if batch.first_offset >= 0]
        self._settle(in_part, OutcomeUnknownError(f"topic {self._name}: a part is stored, the rest is not: {error}"))
        self._settle([batch for batch in batches if batch.first_offset < 0], error)

    def _failed(self, error: BaseException) -> None:
        """The ledger takes nothing any more: find out what it kept."""
        ledger = self._ledger
        if ledger is None or self.error is not None:
            return
        if isinstance(error, LedgerFencedError):
            self._lose(error)
            return
        self.failures += 1
        self._tell_failed(error)
        self._end_ledger(ledger, close=False)

    def _tell_failed(self, error: BaseException) -> None:
        """Of several in a row, some."""
        now_us, level = self._clock.monotonic_us(), logging.DEBUG
        if not self._told_us or now_us - self._told_us >= TOLD_S * 1e6:
            self._told_us, level = now_us, logging.WARNING
        logger.log(
            level, "topic %s: its ledger failed, another one is begun (%d so far): %s", self._name, self.failures, error
        )

    # ---- the end of a ledger --------------------------------------------------------------------------------

    def _end_ledger(self, ledger: Ledger, *, close: bool = True) -> None:
        self._is_ending = True
        end = LedgerEnd(
            ledger, self._maker, self._runtime, self._events, self.jobs, known=self._know_end, fenced=self._lose
        )
        end.begin(close=close)

    def _lose(self, error: BaseException) -> None:
        self._fence(TopicFencedError(self._name, f"somebody else recovers its last ledger: {error}"))

    def _know_end(self, metadata: LedgerMetadata | None) -> None:
        ledger = self._ledger
        if ledger is None or self.error is not None:
            return
        now_us = self._clock.now_us()
        if metadata is None:  # the chain keeps the offsets
            start, end = self.chain.end, self._pipeline.end
            self._replace(ledger, counts_between(ledger.id, start, end, now_us, ledger.last_append_us))
        else:
            self._on_end(metadata)
            self._replace(ledger, counts_of(metadata, now_us, ledger.last_append_us))

    def _replace(self, ledger: Ledger, counts: LedgerTotals) -> None:
        failed = ledger.ended.exception()
        self._counts, self._ledger, self._is_ending = counts, None, False  # in this order: it does not seem idle
        let_go(ledger)
        kept = self._pipeline.end_ledger(counts.entries)
        self._on_change()
        self._settle(kept)
        self.on_room()
        if isinstance(failed, EntryRefusedError):
            self._settle_unstored(self._pipeline.refuse_first(), failed)
        if failed is not None:
            self._rest_behind(failed)
        self._flow()

    def _rest_behind(self, failed: BaseException) -> None:
        """A ledger failed. If it was young, so may the next one: it is not made at once."""
        if self._clock.monotonic_us() - self._began_us >= YOUNG_S * 1e6:
            self._pauses.reset()
        else:
            self.jobs.pause(self._pauses.next_s(), self._flow)
        if isinstance(failed, NotEnoughBookiesError):
            self._lack_bookies(failed)

    # ---- the next ledger ------------------------------------------------------------------------------------

    def _step(self) -> None:
        """What is to be done by a worker, if anything is."""
        if self.error is not None or self.jobs.is_busy or self._is_ending:
            return
        ledger, pipeline = self._ledger, self._pipeline
        if ledger is not None:
            if self._is_closing and not (pipeline.is_queued or pipeline.is_flying):
                self._end_ledger(ledger)
            elif pipeline.is_queued and not self.jobs.is_resting and self._is_full():
                if self._preallocated is None:
                    self._work(self._maker.make, self._made)
                else:
                    self._end_ledger(ledger)
            elif self._rolls and not self.jobs.is_resting:
                self._work(self._store.check, self._checked)
        elif self.jobs.is_resting and (pipeline.is_queued or self._counts is not None):
            return
        elif pipeline.is_queued and self._preallocated is None:
            self._work(self._maker.make, self._made)
        elif self._counts is not None or pipeline.is_queued:
            self._store_chain()
        else:
            self._come_to_rest()

    def _made(self, ledger: Ledger) -> None:
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

    def _come_to_rest(self) -> None:
        """No ledger is open, and none is needed."""
        self._rolled()
        self._discard_spare()
        if self._is_closing:
            self._end(ClosedError(f"topic {self._name} was closed"))

    def _roll(self, future: AppendFuture[None]) -> None:
        """Only while the store answers: without it a ledger is better than none."""
        if self.error is not None:
            future.fail(self.error)
            return
        self._rolls.append(future)
        self._step()

    def _rolled(self, error: BaseException | None = None) -> None:
        rolls, self._rolls = self._rolls, []
        settle_all([(future, error) for future in rolls])

    def _checked(self, _: LedgerChain) -> None:
        if self._ledger is not None and not self._is_ending:
            self._end_ledger(self._ledger)

    # ---- jobs -----------------------------------------------------------------------------------------------

    def _work(self, job: Callable[[], Any], then: Callable[[Any], object]) -> None:
        self.jobs.work(job, lambda result: self._worked(then, result), self._worked_in_vain)

    def _worked(self, then: Callable[[Any], object], result: Any) -> None:
        if self.error is not None:  # it ended meanwhile
            if isinstance(result, Ledger):
                PreallocatedLedger(result, self._maker, self._runtime).discard(certain=True)
            return
        then(result)
        self._flow()

    def _worked_in_vain(self, error: Exception) -> None:
        if self.error is not None:
            return
        if isinstance(error, TopicFencedError):
            self._fence(error)
        elif isinstance(error, ClosedError | InvalidMetadataError | NoSuchTopicError):
            self._end(error)
        elif isinstance(error, TopicFullError) and self._ledger is None:
            self._fail_queue(error)
        elif isinstance(error, NotEnoughBookiesError) and self._ledger is None and self._maker.is_hopeless:
            self._lack_bookies(error)
        else:
            if isinstance(error, NotEnoughBookiesError) and self._ledger is None:
                self._lack_bookies(error)
            self.jobs.rest(error, self._flow)
            self._flow()  # a full ledger takes more, rather than none

    def _lack_bookies(self, error: ReplogError) -> None:
        """Too few bookies answer for a ledger. If that lasts, or cannot change, those who wait are told."""
        since_us = self._clock.monotonic_us() if self._stuck is None else self._stuck[0]
        self._stuck = since_us, error
        patience_s = CLOSING_STUCK_S if self._is_closing else STUCK_S
        if self._maker.is_hopeless or self._clock.monotonic_us() - since_us >= patience_s * 1e6:
            self._fail_queue(error)

    def _fail_queue(self, error: ReplogError) -> None:
        """Nothing of what waits is stored, but for what a ledger kept of it that failed."""
        self._settle_unstored(self._pipeline.drop_queued(), error)
        self._discard_spare()
        self._step()

    # ---- the end --------------------------------------------------------------------------------------------

    def _begin_close(self) -> None:
        self._is_closing = True
        if self._stuck is not None and self._ledger is None and not self.jobs.is_busy:
            self._lack_bookies(self._stuck[1])
        self._step()

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
            let_go(self._ledger)
            self._ledger = None
        self._discard_spare()
        self._settle(left := self._pipeline.drop(), error)
        self.on_room()
        self._rolled(error)
        lost = bool(left) and isinstance(error, OutcomeUnknownError)
        settle_all([(self.done, error if lost else None)])

    def _discard_spare(self) -> None:
        if self._preallocated is not None:
            self._preallocated.discard(certain=isinstance(self.error, TopicFencedError))
            self._preallocated = None
