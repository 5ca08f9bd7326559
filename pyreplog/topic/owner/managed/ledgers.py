"""Creates, closes and deletes ledgers of a topic; runs the blocking jobs of a topic one at a time."""

from __future__ import annotations

import logging
import random
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from pyreplog.errors import (
    InvalidMetadataError,
    LedgerFencedError,
    NoSuchLedgerError,
    NotEnoughBookiesError,
    ReplogError,
)
from pyreplog.event_queue import EventQueue
from pyreplog.future import AppendFuture, set_exception
from pyreplog.handles import make_part_of
from pyreplog.ledger.cluster import LedgerCluster
from pyreplog.ledger.driver import Runtime
from pyreplog.ledger.ledger_handle import Ledger
from pyreplog.ledger.ledger_metadata import LedgerMetadata, State, ledger_key
from pyreplog.ledger.ledger_store import load_ledger
from pyreplog.ledger.reader import LedgerReader
from pyreplog.net.backoff import BACKOFF_MOST_S, Backoff
from pyreplog.topic.model.chain import LedgerChain, LedgerTotals
from pyreplog.topic.model.positions import TopicPosition
from pyreplog.topic.owner.managed.chain_store import ChainStore, find_chain

logger = logging.getLogger(__name__)

RETRY_FIRST_S = 0.1


class Jobs:
    """The blocking jobs of a topic, run by the workers of the cluster. Their outcomes are events of `events`."""

    def __init__(self, name: str, events: EventQueue, runtime: Runtime) -> None:
        self._name, self._events, self._runtime = name, events, runtime
        self._backoff = Backoff(RETRY_FIRST_S, BACKOFF_MOST_S, random.random)
        self._is_over = False
        self.waits_for = ""
        """Error of a job that is tried again; "": there is none."""
        self.is_busy = False
        """A job is running."""
        self.is_paused = False
        """A job failed a moment ago, and is tried again later."""

    def work(
        self, job: Callable[[], Any], then: Callable[[Any], object], failed: Callable[[Exception], object]
    ) -> None:
        """Run a job in a worker; then call `then` with its result, or `failed` with its error."""
        self.is_busy = True

        def work() -> None:
            try:
                result = job()
            except Exception as error:
                failure = error
                self._events.post(lambda: done(failed, failure))
            else:
                self._events.post(lambda: done(then, result))

        def done(call: Callable[[Any], object], outcome: Any) -> None:
            self.is_busy = False
            if call is then:
                self.waits_for = ""
            call(outcome)

        self._runtime.work(work)

    def succeeded(self) -> None:
        """Reset the delay of retries."""
        self._backoff.reset()
        self.waits_for = ""

    def pause(self, seconds: float, then: Callable[[], object]) -> None:
        """Start nothing for some seconds; then call `then`."""
        self.is_paused = True

        def resume() -> None:
            self.is_paused = False
            if not self._is_over:
                then()

        self._runtime.wake_after(seconds, lambda: self._events.post(resume))

    def end(self) -> None:
        """Call nothing after a pause any more."""
        self._is_over = True

    def retry_later(self, error: BaseException, then: Callable[[], object]) -> None:
        """Call `then` after a delay, a longer one after each failure.

        The same error is logged as a warning only once.
        """
        level = logging.DEBUG if self.waits_for == str(error) else logging.WARNING
        logger.log(level, "topic %s: publishers may wait, another attempt follows: %s", self._name, error)
        self.waits_for = str(error)
        self.pause(self._backoff.next_s(), then)


PASSWORD = b""
TOPIC, TOKEN, EPOCH = "topic", "topic-token", "topic-epoch"
"""Custom metadata of the ledgers of topics, by which orphans are found."""

END_S = 5.0
"""A ledger that is replaced is closed after this time even if its last entries lack copies."""

AT_A_TIME = 32
"""Ledgers that one job deletes before other topics have their turn."""

DELETE_RETRY_FIRST_S = 1.0
"""Delay of the first retry of a deletion."""


class LedgerMaker:
    """Creates, deletes and opens the ledgers of one topic."""

    def __init__(self, cluster: LedgerCluster, store: ChainStore) -> None:
        self._cluster, self._store = cluster, store
        self.needs_more_bookies = False
        """The last ledger could not be created because the cluster has too few bookies, so waiting does not help."""

    def make(self) -> Ledger:
        """Create a ledger that no chain refers to yet.

        Some of its bookies may be unavailable, as long as every entry can be confirmed. Raises TopicFullError, and the
        errors of `create_ledger`.
        """
        chain = self._store.chain
        chain.check_room()
        config = chain.config
        self.needs_more_bookies = False
        try:
            return self._cluster.create_ledger(
                config.ensemble, config.copies, config.acks, durability=config.durability, password=PASSWORD,
                properties={TOPIC: chain.topic, TOKEN: chain.token, EPOCH: str(chain.epoch)}, allow_degraded=True,
            )  # fmt: skip
        except NotEnoughBookiesError as error:
            has = self._cluster.bookie_count()
            self.needs_more_bookies = config.ensemble > has
            if not self.needs_more_bookies:
                raise
            raise NotEnoughBookiesError(
                f"topic {chain.topic}: its ensemble is {config.ensemble} bookies, and the cluster has {has}: add "
                f"bookies, or configure(ensemble={max(has, 1)})"
            ) from error

    def discard(self, ledger: int) -> None:
        """Delete a ledger that was created, unless a chain refers to it. Raises errors of the store."""
        if not self._store.has(ledger):
            self.delete(ledger)

    def delete(self, ledger: int) -> None:
        """Delete a ledger that the chain does not need, if it exists. Raises errors of the store."""
        try:
            self._cluster.delete_ledger(ledger)
        except NoSuchLedgerError:
            logger.debug("ledger %d was deleted already", ledger)

    def begin_recovery(self, ledger: int) -> AppendFuture[LedgerMetadata]:
        """Determine the end of a ledger, and fence its writer.

        Raises NoSuchLedgerError, and errors of the store; the future fails with the errors of `open_ledger`.
        """
        metadata, version = load_ledger(self._cluster.metadata, ledger)
        return self._cluster.begin_recovery(metadata, version, ledger_key(PASSWORD))

    def reader(self, metadata: LedgerMetadata) -> LedgerReader:
        """Return a reader, which the caller closes."""
        reader = LedgerReader(metadata, ledger_key(PASSWORD), self._cluster.runtime)
        make_part_of(reader, self._cluster)
        return reader

    def open_reader(self, ledger: int) -> LedgerReader:
        """Return a reader of a closed ledger. Raises NoSuchLedgerError, and errors of the store."""
        return self.reader(self._cluster.ledger_metadata(ledger))


def counts_of(metadata: LedgerMetadata, now_us: int, last_us: int) -> LedgerTotals:
    """Return the counts of a closed ledger. last_us: no entry was appended later."""
    return LedgerTotals(metadata.ledger, metadata.last_entry + 1, metadata.messages, metadata.length, now_us, last_us)


def counts_between(ledger: int, start: TopicPosition, end: TopicPosition, now_us: int, last_us: int) -> LedgerTotals:
    """Return the counts of a ledger between two positions of a topic. last_us: no entry was appended later."""
    return LedgerTotals(
        ledger, end.entries - start.entries, end.offset - start.offset, end.size - start.size, now_us, last_us
    )


class PreallocatedLedger:
    """A ledger that was created ahead of its need. is_offered: a write that adds it to the chain may be in flight."""

    def __init__(self, ledger: Ledger, maker: LedgerMaker, runtime: Runtime) -> None:
        self.ledger, self._maker, self._runtime = ledger, maker, runtime
        self.is_offered = False

    def discard(self, *, certain: bool) -> None:
        """Delete the ledger, which is not needed.

        certain: no write of this owner can reach the chain any more. Otherwise a ledger that was offered is left: it
        may be in the chain, or it is an orphan.
        """
        abandon(self.ledger)
        if certain or not self.is_offered:
            self._runtime.work(self._delete)

    def _delete(self) -> None:
        try:
            self._maker.discard(self.ledger.id)
        except ReplogError as error:
            logger.warning("ledger %d is not needed and could not be deleted: %s", self.ledger.id, error)


def abandon(ledger: Ledger) -> None:
    """Close the handle of a ledger that has ended, or that another process ends; does not wait."""
    ledger.on_progress = None
    try:
        ledger.end_close()
    except ReplogError as error:
        logger.debug("%s", error)


class LedgerEnd:
    """Determines the end of a ledger, with retries, and reports it once.

    Args:
        ledger: the ledger.
        maker: recovers it.
        runtime: timers and threads of the cluster.
        events: the queue of events.
        jobs: delays retries.
        known: called with the metadata of the closed ledger, or with None if it was deleted.
        fenced: called with the error if another process recovers the ledger.
    """

    def __init__(
        self,
        ledger: Ledger,
        maker: LedgerMaker,
        runtime: Runtime,
        events: EventQueue,
        jobs: Jobs,
        *,
        known: Callable[[LedgerMetadata | None], object],
        fenced: Callable[[ReplogError], object],
    ) -> None:
        self._ledger, self._maker, self._runtime, self._events, self._jobs = ledger, maker, runtime, events, jobs
        self._known, self._fenced = known, fenced

    def begin(self, *, close: bool) -> None:
        """Begin. close: the ledger works, and is to be closed; otherwise it has failed."""
        ledger = self._ledger
        ledger.ended.add_done_callback(lambda _: self._events.post(self._ended))
        if close:
            ledger.begin_close()
            if not ledger.ended.done():
                self._runtime.wake_after(END_S, ledger.give_up)

    def _ended(self) -> None:
        """Continue after its writer has ended."""
        error = self._ledger.ended.exception()
        if isinstance(error, LedgerFencedError):
            self._fenced(error)
        elif self._ledger.metadata.state is State.CLOSED:
            self._known(self._ledger.metadata)
        else:
            self._runtime.work(self._recover)

    def _recover(self) -> None:
        try:
            recovery = self._maker.begin_recovery(self._ledger.id)
        except Exception as error:
            recovery = AppendFuture()
            set_exception(recovery, error)
        recovery.add_done_callback(lambda _: self._events.post(lambda: self._recovered(recovery)))

    def _recovered(self, recovery: AppendFuture[LedgerMetadata]) -> None:
        error = recovery.exception()
        if error is None:
            self._known(recovery.result())
        elif isinstance(error, NoSuchLedgerError):
            logger.error("ledger %d was deleted while it was written", self._ledger.id)
            self._known(None)
        else:
            self._jobs.retry_later(error, lambda: self._runtime.work(self._recover))


class LedgerDeleter:
    """Deletes the ledgers that the chain does not need any more; for one owner of a topic. Any thread.

    The next owner finds the ledgers that are left in the chain.
    """

    def __init__(self, name: str, store: ChainStore, maker: LedgerMaker, runtime: Runtime) -> None:
        self._name, self._store, self._maker, self._runtime = name, store, maker, runtime
        self._lock = threading.Lock()
        self._is_under_way = self._is_over = False
        self._backoff = Backoff(DELETE_RETRY_FIRST_S, 12 * BACKOFF_MOST_S, random.random)

    def begin(self) -> None:
        """Delete the ledgers of the chain that are pending deletion, unless that is under way."""
        with self._lock:
            if self._is_under_way or self._is_over or not self._store.chain.pending_deletion:
                return
            self._is_under_way = True
        self._runtime.work(self._delete_pending)

    def end(self) -> None:
        """Leave the remaining ledgers to the next owner."""
        self._is_over = True

    def _delete_pending(self) -> None:
        try:
            pending_deletion = self._store.chain.pending_deletion[:AT_A_TIME]
            for ledger in pending_deletion:
                self._maker.delete(ledger)
            self._store.update(lambda chain: chain.without_deleted(pending_deletion))
        except ReplogError as error:
            logger.warning(
                "topic %s: trimmed ledgers are not deleted yet, another attempt follows: %s", self._name, error
            )
            self._runtime.wake_after(self._backoff.next_s(), self._end_deletion)
        else:
            self._backoff.reset()
            self._end_deletion()

    def _end_deletion(self) -> None:
        with self._lock:
            self._is_under_way = False
        self.begin()


def delete_orphans(cluster: LedgerCluster, *, goes_on: Callable[[], bool] = lambda: True) -> list[int]:
    """Delete the ledgers that no topic will ever need, and return their numbers.

    Reads the metadata of all ledgers. `goes_on` is called before each of them. Raises errors of the store.
    """
    deleted: list[int] = []
    for ledger in cluster.ledgers():
        if not goes_on():
            break
        if _is_unneeded(cluster, ledger):
            with suppress(NoSuchLedgerError):
                cluster.delete_ledger(ledger)
                deleted.append(ledger)
    return deleted


def _is_unneeded(cluster: LedgerCluster, ledger: int) -> bool:
    """Return whether the ledger's topic does not exist, or has a later owner and a chain without the ledger.

    The present owner may be about to add a ledger that it created. The ledger is read before the chain.
    """
    try:
        metadata = cluster.ledger_metadata(ledger)
        return TOPIC in metadata.custom and _is_orphan(metadata, _chain(cluster, metadata.custom[TOPIC]))
    except NoSuchLedgerError:
        return False
    except InvalidMetadataError as error:
        logger.warning("ledger %d is kept, because its topic cannot be read: %s", ledger, error)
        return False


def _chain(cluster: LedgerCluster, topic: str) -> LedgerChain | None:
    stored = find_chain(cluster.metadata, topic)
    return None if stored is None else stored.chain


def _is_orphan(metadata: LedgerMetadata, chain: LedgerChain | None) -> bool:
    custom = metadata.custom
    if chain is None or chain.token != custom.get(TOKEN):
        return True
    epoch = custom.get(EPOCH, "")
    named = metadata.ledger in chain.ids or metadata.ledger in chain.pending_deletion
    return epoch.isdecimal() and int(epoch) < chain.epoch and not named
