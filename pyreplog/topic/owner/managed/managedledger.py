"""ManagedLedger: the messages of a topic, in a chain of ledgers that one owner at a time appends to."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import NamedTuple, Self, TypeVar

from pyreplog._native.machines.serial_executor import check_may_wait, in_callback
from pyreplog._native.topic.messages import MessageBatch
from pyreplog.clock import Clock, SystemClock
from pyreplog.errors import (
    ClosedError,
    NoSuchLedgerError,
    NoSuchTopicError,
    OutcomeUnknownError,
    ReplogError,
    TopicFencedError,
)
from pyreplog.future import AppendFuture, as_timeout
from pyreplog.handles import Handle, make_part_of, warn_of_leak
from pyreplog.ledger.cluster import LedgerCluster
from pyreplog.ledger.ledger_handle import CLOSE_S, GIVE_UP_S
from pyreplog.ledger.ledgermetadata import LedgerMetadata
from pyreplog.ledger.readahead import STRETCH_BYTES_MAX
from pyreplog.net.fair_executor import wait_wanted
from pyreplog.net.sockets import weak_callback
from pyreplog.topic.model.chain import ANY_US, LedgerChain, LedgerTotals
from pyreplog.topic.model.config import TopicConfig
from pyreplog.topic.model.positions import EntryPosition, TopicPosition
from pyreplog.topic.model.retention import ClosedLedger, trimmable
from pyreplog.topic.model.stats import Stats
from pyreplog.topic.owner.managed.chainreader import ChainReader, EntryReader, View
from pyreplog.topic.owner.managed.chainstore import ChainStore, Change
from pyreplog.topic.owner.managed.chainwriter import ChainWriter
from pyreplog.topic.owner.managed.ledgers import LedgerDeleter, LedgerMaker, counts_of


@dataclass(frozen=True, kw_only=True)
class ManagedLedgerStats(Stats):
    """state: "idle", no ledger is open; "open"; "rolling", one is being replaced; "fenced"; "closed". ledgers: how many
    the chain has; doomed: ledgers it gave up, to be deleted yet. last_add_*: of the open ledger, -1: none. readers: of
    closed ledgers. failures: ledgers that were replaced because they failed. waits_for: why no ledger can be made or
    ended now; "": nothing is known to be in the way."""

    name: str
    epoch: int
    owner: str
    state: str
    start: TopicPosition
    end: TopicPosition
    ledgers: int
    doomed: int
    last_add_pushed: int
    last_add_confirmed: int
    pending_bytes: int
    pending_entries: int
    readers: int
    failures: int
    waits_for: str


logger = logging.getLogger(__name__)


class TakeoverResult(NamedTuple):
    """Of a topic whose ledgers all have their ends."""

    store: ChainStore
    maker: LedgerMaker


def take_over(
    cluster: LedgerCluster, name: str, config: TopicConfig | None, owner: str, clock: Clock, *, create: bool
) -> TakeoverResult:
    """See `ManagedLedger.open`. Blocks."""
    while True:
        store = ChainStore(cluster.metadata, name, owner)
        maker = LedgerMaker(cluster, store)
        if not store.take(config, clock.now_us(), create=create).deleted:
            _finish_last(cluster, store, maker, clock)
            return TakeoverResult(store, maker)
        remove(store, maker)


def _finish_last(cluster: LedgerCluster, store: ChainStore, maker: LedgerMaker, clock: Clock) -> None:
    """The owner before left its last ledger open: find its end."""
    last = store.chain.open_ledger
    if last is None:
        return
    try:
        found = wait_wanted(cluster.runtime.wait, maker.begin_recovery(last.ledger))
        counts = counts_of(found, clock.now_us(), _last_append_us(maker, found))
    except NoSuchLedgerError:
        logger.error("topic %s: its last ledger, %d, is not there any more", store.chain.topic, last.ledger)
        counts = LedgerTotals(last.ledger, 0, 0, 0, clock.now_us(), 0)
    store.update(lambda chain: chain.closed(counts))


def _last_append_us(maker: LedgerMaker, metadata: LedgerMetadata) -> int:
    """Of a closed ledger's last entry, as that says; 0: it has none."""
    if metadata.last_entry < 0:
        return 0
    try:
        with maker.reader(metadata) as reader:
            return int(next(reader.read(metadata.last_entry)).timestamp[0])
    except ReplogError as error:
        logger.warning("ledger %d: its last entry: %s", metadata.ledger, error)
        return ANY_US


def remove(store: ChainStore, maker: LedgerMaker) -> None:
    """What is left of a topic that was condemned. Errors: TopicFencedError; those of the metadata store."""
    for ledger in store.chain.doomed:
        maker.delete(ledger)
    store.remove()


T = TypeVar("T")


class ManagedLedger(Handle):
    """Messages by their offsets: dense, from 0, whatever ledgers they lie in. It has one owner at a time; the next one
    fences it for good.

    Any thread may call anything; asyncio code awaits what the reads give. It is published to through its `writer`.
    on_grow: called when the confirmed end moved; on_fenced: called once with the TopicFencedError. Both with no lock
    held, from any thread; what they call must not wait.
    """

    def __init__(self, cluster: LedgerCluster, store: ChainStore, maker: LedgerMaker, clock: Clock) -> None:
        """For `open`: the chain is taken, and all its ledgers are closed."""
        self.name = store.chain.topic
        self._store, self._maker, self._runtime = store, maker, cluster.runtime
        self.on_grow: list[Callable[[], object]] = []
        self.on_fenced: list[Callable[[TopicFencedError], object]] = []
        self._deleter = LedgerDeleter(self.name, store, maker, self._runtime)
        self._entries = EntryReader(maker, self._runtime)
        self._writer = ChainWriter(
            self.name, store, maker, self._runtime, clock,
            check_open=self._check_open, on_end=self._entries.ended, on_change=self._changed, on_fenced=self._fenced,
        )  # fmt: skip
        self._view = View(store.chain, self._writer.end)
        self._reader = ChainReader(self.name, self._entries, lambda: self._view, lambda: self._writer.ledger)
        self._close_s: float | None = CLOSE_S
        self._lifeline: AppendFuture[None] = AppendFuture()  # fails when the cluster is closed
        self._runtime.expect(self._lifeline)
        self._lifeline.add_done_callback(weak_callback(self._cut_off))
        super().__init__(f"topic {self.name}")
        make_part_of(self, cluster)
        self._deleter.begin()

    @classmethod
    def open(
        cls,
        cluster: LedgerCluster,
        name: str,
        *,
        config: TopicConfig | None = None,
        create: bool = True,
        owner: str = "",
        clock: Clock | None = None,
    ) -> Self:
        """Take the topic over from whoever had it: from now on that one can publish nothing any more. Blocks.

        config: of a topic that is made here; one that exists keeps its own. owner: in a word, for people. No ledger is
        made before something is published.
        Errors: NoSuchTopicError; TopicFencedError, somebody took it over in this moment; WrongTypeError and
        InvalidArgumentError, the name; InvalidMetadataError; those of `open_ledger`, the last
        ledger cannot be recovered now; those of the metadata store.
        """
        check_may_wait()
        clock = clock or SystemClock()
        return cls(cluster, *take_over(cluster, name, config, owner, clock, create=create), clock)

    # ---- where it stands ------------------------------------------------------------------------------------

    @property
    def chain(self) -> LedgerChain:
        """As it is stored."""
        return self._view.chain

    @property
    def config(self) -> TopicConfig:
        return self._store.chain.config

    @property
    def epoch(self) -> int:
        """Raised by every owner."""
        return self._store.chain.epoch

    @property
    def start(self) -> TopicPosition:
        """Before the first message that is kept."""
        return self._view.chain.start

    @property
    def end(self) -> TopicPosition:
        """Behind the last confirmed entry."""
        return self._view.end

    @property
    def writer(self) -> ChainWriter:
        """What a publisher submits to."""
        return self._writer

    @property
    def fenced(self) -> bool:
        """Whether somebody else owns the topic, as far as this owner has heard."""
        return isinstance(self._writer.error, TopicFencedError)

    @property
    def pending_bytes(self) -> int:
        """Of what was submitted and has no outcome, or whose ledger has not all its copies."""
        return self._writer.pending()[0]

    def stats(self) -> ManagedLedgerStats:
        chain, end = self._store.chain, self._view.end
        ledger = self._writer.ledger
        return ManagedLedgerStats(
            name=self.name, epoch=chain.epoch, owner=chain.owner, state=self._writer.state, start=chain.start, end=end,
            ledgers=len(chain.ledgers), doomed=len(chain.doomed),
            last_add_pushed=-1 if ledger is None else ledger.last_add_pushed,
            last_add_confirmed=-1 if ledger is None else ledger.last_add_confirmed,
            pending_bytes=self.pending_bytes, pending_entries=self._writer.pending_entries,
            readers=len(self._entries), failures=self._writer.failures, waits_for=self._writer.jobs.waits_for,
        )  # fmt: skip

    def _check(self) -> None:
        self._check_open()
        if self._writer.error is not None:
            raise self._writer.error

    # ---- reading --------------------------------------------------------------------------------------------

    def read(
        self, offset: int, *, bytes_max: int = STRETCH_BYTES_MAX, end: int | None = None
    ) -> AppendFuture[MessageBatch]:
        """Entries from the one that holds `offset` on, verified: at least one, about `bytes_max` bytes, of one ledger,
        none that begins at `end` or at the confirmed end. Nothing is there: an empty batch.

        The first entry may begin before `offset`, the last one reach over `end`. Who goes on at the batch's `end`
        needs no search. Errors of the AppendFuture: TrimmedError, OutOfRangeError (below 0); UnreadableError and those
        of the metadata store: try again; InvalidEntryError, MissingExtraError. Raised here: ClosedError,
        TopicFencedError.
        """
        self._check()
        return self._reader.read(offset, bytes_max, end)

    def locate(self, offset: int) -> AppendFuture[EntryPosition]:
        """The entry that holds a message. Errors as read; OutOfRangeError, at the confirmed end or beyond."""
        self._check()
        return self._reader.locate(offset)

    def offset_at_time(self, time_us: int) -> AppendFuture[int]:
        """Offset of the first message that was appended at `time_us` (since 1970) or later, as it says; the confirmed
        end if there is none. Where a clock was set back some behind it are older, too. Errors as read."""
        self._check()
        return self._reader.offset_at_time(time_us)

    def offset_at_size(self, size: int) -> AppendFuture[int]:
        """Offset of the first message of the first entry that `size` bytes of the topic (see `TopicPosition`), or more,
        lie before; the confirmed end if there is none. Errors as read."""
        self._check()
        return self._reader.offset_at_size(size)

    # ---- housekeeping ---------------------------------------------------------------------------------------

    def look(self, now_us: int) -> None:
        """To be called now and then: ends a ledger that is too old."""
        self._writer.look(now_us)

    def roll(self) -> AppendFuture[None]:
        """End the open ledger; the next publish makes another one. Waits while the metadata store is away."""
        self._check()
        return self._writer.roll()

    def trim(self, below: int, now_us: int) -> AppendFuture[int]:
        """Drop the closed ledgers whose messages all have offsets under `below` and that retention does not keep.

        The AppendFuture gives how many; they are deleted in the background. Errors of the AppendFuture:
        TopicFencedError, and those of the metadata store.
        """
        chain, end = self._view
        closed = [ClosedLedger(item.end, item.closed_us, item.size) for item in chain.ledgers if item.is_closed]
        count = trimmable(
            closed, TopicPosition(below, 0, 0), kept_bytes=end.size - chain.start.size,
            retention_bytes=chain.config.retention_bytes, retention_ms=chain.config.retention_ms, now_us=now_us,
        )  # fmt: skip
        if count:
            return self._trim(closed[count - 1].end.offset)
        self._check()
        nothing = AppendFuture(0)
        nothing.complete()
        return nothing

    def clear(self) -> AppendFuture[int]:
        """Drop all that was published before, whatever retention says; gives how many ledgers."""
        done: AppendFuture[int] = AppendFuture()

        def rolled(roll: AppendFuture[None]) -> None:
            error = roll.exception()
            if error is not None:
                done.fail(error)
            else:
                _pass_on(self._trim(self._view.chain.end.offset), done)

        self.roll().add_done_callback(rolled)
        return done

    def _trim(self, offset: int) -> AppendFuture[int]:
        self._check()
        dropped = 0

        def change(chain: LedgerChain) -> LedgerChain:
            nonlocal dropped
            after = chain.trimmed(offset)
            dropped = max(dropped, len(chain.ledgers) - len(after.ledgers))  # made again, it may find nothing to do
            return after

        return self._change(change, lambda: dropped)

    def set_config(self, config: TopicConfig) -> AppendFuture[None]:
        """Replace the settings; those of ledgers hold from the next one on. Errors of the AppendFuture: as trim."""
        return self._change(lambda chain: dataclasses.replace(chain, config=config), lambda: None)

    def set_properties(self, properties: Mapping[str, str]) -> AppendFuture[None]:
        """Replace the properties that are kept with the topic. Errors of the AppendFuture: as trim."""
        kept = dict(properties)
        return self._change(lambda chain: dataclasses.replace(chain, properties=kept), lambda: None)

    def verify(self) -> None:
        """Ask the metadata store whether this is the owner still. Blocks. Errors: as those of the AppendFuture of
        trim."""
        self._check()
        try:
            self._store.check()
        except TopicFencedError as error:
            self._writer.fence(error)
            raise

    def _change(self, change: Change, result: Callable[[], T]) -> AppendFuture[T]:
        self._check()
        done: AppendFuture[T] = AppendFuture()
        self._runtime.expect(done)

        def work() -> None:
            try:
                self._store.update(change)
            except Exception as error:
                if isinstance(error, TopicFencedError):
                    self._writer.fence(error)
                done.fail(error)
            else:
                self._deleter.begin()
                self._writer.refresh(lambda: done.complete(result()))

        self._runtime.work(work)
        return done

    # ---- events ---------------------------------------------------------------------------------------------

    def _changed(self) -> None:
        before, chain = self._view.end, self._store.chain
        self._view = View(chain, self._writer.end)
        if self._view.end != before:
            for call in list(self.on_grow):
                call()
            if (ledger := self._writer.ledger) is not None:
                ledger.told()
        if chain.doomed:
            self._deleter.begin()

    def _fenced(self, error: TopicFencedError) -> None:
        for call in list(self.on_fenced):
            call(error)

    def _cut_off(self, lifeline: AppendFuture[None]) -> None:
        self._writer.give_up(ClosedError(f"the {self._what} was closed with its cluster"))

    # ---- the end --------------------------------------------------------------------------------------------

    def begin_close(self) -> AppendFuture[None]:
        """What `close` waits for; `close` comes behind it. Nothing may be appended any more."""
        return self._writer.begin_close()

    def close(self, timeout: float | None = CLOSE_S) -> None:
        """Publish what was submitted, end the open ledger, and let go. Closing twice is fine.

        After `timeout` seconds (None: never) what has no outcome fails with OutcomeUnknownError, which is raised here
        too. In a callback it does not wait for the end. The topic stays as it is for the next owner.
        """
        self._close_s = as_timeout(timeout)
        super().close()

    def _let_go(self) -> None:
        timeout, done = self._close_s, self._writer.begin_close()
        if in_callback():
            done.add_done_callback(lambda _: self._release())
            if timeout is not None:
                self._runtime.wake_after(timeout, self._give_up)
            return
        try:
            self._runtime.wait(done, timeout)
        except OutcomeUnknownError:
            if not done.done():
                self._give_up()
            self._runtime.wait(done, GIVE_UP_S)
        finally:
            self._release()

    def _give_up(self) -> None:
        self._writer.give_up(OutcomeUnknownError(f"{self._what} was closed after {self._close_s} s without an outcome"))

    def _release(self) -> None:
        self._lifeline.complete(None)
        self._deleter.end()
        self._entries.close()

    def delete(self) -> None:
        """Delete the topic with all that it has, and close this. Blocks. What is pending fails.

        Errors: TopicFencedError; those of the metadata store: whoever opens the topic next finishes it.
        """
        self._check()
        check_may_wait()
        try:
            self._store.update(LedgerChain.condemned)
        except TopicFencedError as error:
            self._writer.fence(error)
            raise
        self._writer.give_up(NoSuchTopicError(self.name, "it was deleted"))
        self.close()
        remove(self._store, self._maker)

    def __del__(self) -> None:
        """May run anywhere: nothing is waited for."""
        if self._is_forgotten():
            self._error = ClosedError(f"the {self._what} was forgotten")
            warn_of_leak(self._what, self, self._opened_at)
            self._writer.give_up(OutcomeUnknownError(f"the {self._what} was forgotten"))
            self._release()


def _pass_on(source: AppendFuture[T], target: AppendFuture[T]) -> None:
    def came(_: AppendFuture[T]) -> None:
        error = source.exception()
        if error is not None:
            target.fail(error)
        else:
            target.complete(source.result())

    source.add_done_callback(came)
