"""Ledgers of a topic: made ahead of their need, ended, and deleted; and the jobs of a topic that block, run one at a
time by the workers of the cluster.
"""

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
from pyreplog.future import AppendFuture
from pyreplog.ledger.cluster import LedgerCluster
from pyreplog.ledger.driver import Runtime
from pyreplog.ledger.ledger_handle import Ledger
from pyreplog.ledger.ledger_store import load_ledger
from pyreplog.ledger.ledgermetadata import LedgerMetadata, State, ledger_key
from pyreplog.ledger.reader import LedgerReader
from pyreplog.net.backoff import BACKOFF_MOST_S, Backoff
from pyreplog.topic.model.chain import LedgerChain, LedgerTotals
from pyreplog.topic.model.event_queue import EventQueue
from pyreplog.topic.model.positions import TopicPosition
from pyreplog.topic.owner.managed.chainstore import ChainStore, find_chain

logger = logging.getLogger(__name__)

RETRY_FIRST_S = 0.1


class Jobs:
    """Outcomes are events of `events`."""

    def __init__(self, name: str, events: EventQueue, runtime: Runtime) -> None:
        self._name, self._events, self._runtime = name, events, runtime
        self._backoff = Backoff(RETRY_FIRST_S, BACKOFF_MOST_S, random.random)
        self._is_over = False
        self.waits_for = ""
        """Why something failed, that is tried again; "": nothing did."""
        self.is_busy = False
        """A job is under way."""
        self.is_resting = False
        """Something failed a moment ago, and is tried again later."""

    def work(
        self, job: Callable[[], Any], then: Callable[[Any], object], failed: Callable[[Exception], object]
    ) -> None:
        """Have a worker do `job`; `then` is told what it gave, or `failed` what it raised."""
        self.is_busy = True

        def work() -> None:
            try:
                result = job()
            except Exception as error:
                failure = error
                self._events.post(lambda: done(failed, failure))
            else:
                self._events.post(lambda: done(then, result))

        def done(tell: Callable[[Any], object], what: Any) -> None:
            self.is_busy = False
            if tell is then:
                self.waits_for = ""
            tell(what)

        self._runtime.work(work)

    def succeeded(self) -> None:
        """The next failure is a first one."""
        self._backoff.reset()
        self.waits_for = ""

    def pause(self, seconds: float, then: Callable[[], object]) -> None:
        """Do nothing for a while; then call `then`."""
        self.is_resting = True

        def rested() -> None:
            self.is_resting = False
            if not self._is_over:
                then()

        self._runtime.wake_after(seconds, lambda: self._events.post(rested))

    def end(self) -> None:
        """Nothing is tried again."""
        self._is_over = True

    def rest(self, error: BaseException, then: Callable[[], object]) -> None:
        """Something failed: call `then` after a while, a longer one each time. Told once for as long as that lasts."""
        level = logging.DEBUG if self.waits_for == str(error) else logging.WARNING
        logger.log(level, "topic %s: publishers wait, if no ledger is open; tried again: %s", self._name, error)
        self.waits_for = str(error)
        self.pause(self._backoff.next_s(), then)


PASSWORD = b""
TOPIC, TOKEN, EPOCH = "topic", "topic-token", "topic-epoch"
"""What ledgers of topics say of themselves, so that those which no chain came to name can be found."""

END_S = 5.0
"""A ledger that is replaced gets all copies of its last entries within this time, or is closed without."""

AT_A_TIME = 32
"""Ledgers that one job deletes; then other topics have their turn."""

DELETE_RETRY_FIRST_S = 1.0
"""Before deleting is tried again, the first time."""


class LedgerMaker:
    """For one topic."""

    def __init__(self, cluster: LedgerCluster, store: ChainStore) -> None:
        self._cluster, self._store = cluster, store
        self.is_hopeless = False
        """The last ledger could not be made because the cluster has fewer bookies than it needs: waiting is in vain."""

    def make(self) -> Ledger:
        """A ledger that no chain names yet. Some of its bookies may be away, as long as every entry can be confirmed.

        Errors: TopicFullError; those of `create_ledger`.
        """
        chain = self._store.chain
        chain.check_room()
        config = chain.config
        self.is_hopeless = False
        try:
            return self._cluster.create_ledger(
                config.ensemble, config.copies, config.acks, durability=config.durability, password=PASSWORD,
                metadata={TOPIC: chain.topic, TOKEN: chain.token, EPOCH: str(chain.epoch)}, allow_degraded=True,
            )  # fmt: skip
        except NotEnoughBookiesError as error:
            has = self._cluster.bookie_count()
            self.is_hopeless = config.ensemble > has
            if not self.is_hopeless:
                raise
            raise NotEnoughBookiesError(
                f"topic {chain.topic}: its ensemble is {config.ensemble} bookies, and the cluster has {has}: add "
                f"bookies, or configure(ensemble={max(has, 1)})"
            ) from error

    def discard(self, ledger: int) -> None:
        """Delete one that was made, unless a chain names it. Errors: those of the store."""
        if not self._store.has(ledger):
            self.delete(ledger)

    def delete(self, ledger: int) -> None:
        """Delete one that the chain does not need. One that is gone is fine. Errors: those of the store."""
        try:
            self._cluster.delete_ledger(ledger)
        except NoSuchLedgerError:
            logger.debug("ledger %d is gone already", ledger)

    def begin_recovery(self, ledger: int) -> AppendFuture[LedgerMetadata]:
        """Find the end of a ledger, and fence its writer. Errors: NoSuchLedgerError; those of the store; the
        AppendFuture's are those of `open_ledger`."""
        metadata, version = load_ledger(self._cluster.metadata, ledger)
        return self._cluster.begin_recovery(metadata, version, ledger_key(PASSWORD))

    def reader(self, metadata: LedgerMetadata) -> LedgerReader:
        """To be closed by the caller."""
        return LedgerReader(metadata, ledger_key(PASSWORD), self._cluster.runtime)

    def open_reader(self, ledger: int) -> LedgerReader:
        """Of a closed ledger. Errors: NoSuchLedgerError; those of the store."""
        return self.reader(self._cluster.ledger_metadata(ledger))


def counts_of(metadata: LedgerMetadata, now_us: int, last_us: int) -> LedgerTotals:
    """What a closed ledger holds; last_us: none of it was appended later."""
    return LedgerTotals(metadata.ledger, metadata.last_entry + 1, metadata.messages, metadata.length, now_us, last_us)


def counts_between(ledger: int, start: TopicPosition, end: TopicPosition, now_us: int, last_us: int) -> LedgerTotals:
    """What a ledger holds that lies between these points of a topic; last_us: none of it was appended later."""
    return LedgerTotals(
        ledger, end.entries - start.entries, end.offset - start.offset, end.size - start.size, now_us, last_us
    )


class PreallocatedLedger:
    """is_offered: a write that adds it to the chain may be on its way."""

    def __init__(self, ledger: Ledger, maker: LedgerMaker, runtime: Runtime) -> None:
        self.ledger, self._maker, self._runtime = ledger, maker, runtime
        self.is_offered = False

    def discard(self, *, certain: bool) -> None:
        """It is not needed. certain: no write of this owner can reach the chain any more; without that, one that was
        offered is left: it may be in the chain yet, and if not, it is a stray."""
        let_go(self.ledger)
        if certain or not self.is_offered:
            self._runtime.work(self._delete)

    def _delete(self) -> None:
        try:
            self._maker.discard(self.ledger.id)
        except ReplogError as error:
            logger.warning("ledger %d is left behind: %s", self.ledger.id, error)


def let_go(ledger: Ledger) -> None:
    """Of a ledger that has ended, or is somebody else's to end; nothing is waited for, in a callback."""
    ledger.on_progress = None
    try:
        ledger.end_close()
    except ReplogError as error:
        logger.debug("%s", error)


class LedgerEnd:
    """Tries until it is known, and tells one of: known(metadata), of a closed ledger; known(None), it was deleted;
    fenced(error), somebody else is recovering it."""

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
        """close: the ledger is well, and is to be closed; else it has failed."""
        ledger = self._ledger
        ledger.ended.add_done_callback(lambda _: self._events.post(self._ended))
        if close:
            ledger.begin_close()
            if not ledger.ended.done():
                self._runtime.wake_after(END_S, ledger.give_up)

    def _ended(self) -> None:
        """Its writer is done with it."""
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
            recovery.fail(error)
        recovery.add_done_callback(lambda _: self._events.post(lambda: self._recovered(recovery)))

    def _recovered(self, recovery: AppendFuture[LedgerMetadata]) -> None:
        error = recovery.exception()
        if error is None:
            self._known(recovery.result())
        elif isinstance(error, NoSuchLedgerError):
            logger.error("ledger %d was deleted while it was written", self._ledger.id)
            self._known(None)
        else:
            self._jobs.rest(error, lambda: self._runtime.work(self._recover))


class LedgerDeleter:
    """Of one owner of a topic. Any thread. The next owner finds in the chain which ledgers are left to delete."""

    def __init__(self, name: str, store: ChainStore, maker: LedgerMaker, runtime: Runtime) -> None:
        self._name, self._store, self._maker, self._runtime = name, store, maker, runtime
        self._lock = threading.Lock()
        self._is_under_way = self._is_over = False
        self._backoff = Backoff(DELETE_RETRY_FIRST_S, 12 * BACKOFF_MOST_S, random.random)

    def begin(self) -> None:
        """Delete what the chain has given up, unless that is under way."""
        with self._lock:
            if self._is_under_way or self._is_over or not self._store.chain.doomed:
                return
            self._is_under_way = True
        self._runtime.work(self._delete_pending)

    def end(self) -> None:
        """Leave the rest to others."""
        self._is_over = True

    def _delete_pending(self) -> None:
        try:
            pending_deletion = self._store.chain.doomed[:AT_A_TIME]
            for ledger in pending_deletion:
                self._maker.delete(ledger)
            self._store.update(lambda chain: chain.without_deleted(pending_deletion))
        except ReplogError as error:
            logger.warning("topic %s: ledgers that it does not need are not deleted yet: %s", self._name, error)
            self._runtime.wake_after(self._backoff.next_s(), self._go_on)
        else:
            self._backoff.reset()
            self._go_on()

    def _go_on(self) -> None:
        with self._lock:
            self._is_under_way = False
        self.begin()


def orphan_ledgers(cluster: LedgerCluster) -> list[int]:
    """Those that nobody will ever need. Reads the metadata of all ledgers. Blocks. Errors: those of the store."""
    return [ledger for ledger in cluster.ledgers() if _nobody_needs(cluster, ledger)]


def delete_orphans(cluster: LedgerCluster, *, goes_on: Callable[[], bool] = lambda: True) -> list[int]:
    """Delete them; which. goes_on: asked before each ledger. Blocks. Errors: as `orphan_ledgers`."""
    deleted: list[int] = []
    for ledger in cluster.ledgers():
        if not goes_on():
            break
        if _nobody_needs(cluster, ledger):
            with suppress(NoSuchLedgerError):
                cluster.delete_ledger(ledger)
                deleted.append(ledger)
    return deleted


def _nobody_needs(cluster: LedgerCluster, ledger: int) -> bool:
    """Whether its topic is gone, or has another owner since, and the chain does not name it. What its present owner
    made may be about to be named. (The ledger is read before the chain.)"""
    try:
        metadata = cluster.ledger_metadata(ledger)
        return TOPIC in metadata.custom and _is_orphan(metadata, _chain(cluster, metadata.custom[TOPIC]))
    except NoSuchLedgerError:
        return False
    except InvalidMetadataError as error:
        logger.warning("ledger %d is left alone: %s", ledger, error)
        return False


def _chain(cluster: LedgerCluster, topic: str) -> LedgerChain | None:
    found = find_chain(cluster.metadata, topic)
    return None if found is None else found.chain


def _is_orphan(metadata: LedgerMetadata, chain: LedgerChain | None) -> bool:
    custom = metadata.custom
    if chain is None or chain.token != custom.get(TOKEN):
        return True
    epoch = custom.get(EPOCH, "")
    named = metadata.ledger in chain.ids or metadata.ledger in chain.doomed
    return epoch.isdecimal() and int(epoch) < chain.epoch and not named
