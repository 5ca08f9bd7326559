"""ManagedLedger: the messages of a topic, in a chain of ledgers to which one owner at a time appends."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import NamedTuple, Self, TypeVar

from pyreplog._native.machines.named_tuples import make_named
from pyreplog._native.machines.serial_executor import check_may_wait, in_callback
from pyreplog._native.topic.messages import MessageBatch
from pyreplog.clock import Clock, SystemClock
from pyreplog.cursors.subscription_metadata import TopicEpoch
from pyreplog.errors import (
    ClosedError,
    NoSuchLedgerError,
    NoSuchTopicError,
    OutcomeUnknownError,
    ReplogError,
    TopicFencedError,
)
from pyreplog.future import AppendFuture, as_timeout, set_exception, set_result, transform
from pyreplog.handles import Handle, make_part_of, warn_of_leak
from pyreplog.ledger.cluster import LedgerCluster
from pyreplog.ledger.ledger_handle import CLOSE_S, GIVE_UP_S
from pyreplog.ledger.ledger_metadata import LedgerMetadata
from pyreplog.ledger.readahead import RANGE_BYTES_MAX
from pyreplog.net.fair_executor import wait_while_connected
from pyreplog.net.sockets import weak_callback
from pyreplog.topic.model.chain import ANY_US, LedgerChain, LedgerTotals
from pyreplog.topic.model.config import TopicConfig
from pyreplog.topic.model.positions import EntryPosition, TopicPosition
from pyreplog.topic.model.retention import ClosedLedger, trimmable
from pyreplog.topic.model.stats import Stats
from pyreplog.topic.owner.managed.chain_reader import ChainReader, ChainView
from pyreplog.topic.owner.managed.chain_store import ChainStore, Change
from pyreplog.topic.owner.managed.chain_writer import ChainWriter
from pyreplog.topic.owner.managed.closed_ledger_readers import ClosedLedgerReaders
from pyreplog.topic.owner.managed.entry_reader import EntryReader
from pyreplog.topic.owner.managed.ledgers import LedgerDeleter, LedgerMaker, counts_of

logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class ManagedLedgerStats(Stats):
    """Statistics of a managed ledger.

    Attributes:
        name: name of the topic.
        epoch: epoch of the owner.
        owner: the owner.
        state: "idle": no ledger is open; "open"; "rolling": a ledger is being replaced; "fenced"; "closed".
        start: position of the first message that is kept.
        end: position behind the last confirmed message.
        ledgers: number of ledgers of the chain.
        pending_deletion: number of ledgers that are still to be deleted.
        last_add_pushed: of the open ledger; -1: none.
        last_add_confirmed: of the open ledger; -1: none.
        pending_bytes: bytes without an outcome.
        pending_entries: entries without an outcome.
        readers: readers of closed ledgers.
        failures: ledgers that were replaced because they failed.
        waits_for: why no ledger can be created or closed now; "": no reason is known.
    """

    name: str
    epoch: int
    owner: str
    state: str
    start: TopicPosition
    end: TopicPosition
    ledgers: int
    pending_deletion: int
    last_add_pushed: int
    last_add_confirmed: int
    pending_bytes: int
    pending_entries: int
    readers: int
    failures: int
    waits_for: str


class TakeoverResult(NamedTuple):
    """A topic that was taken over, and whose ledgers are all closed."""

    store: ChainStore
    maker: LedgerMaker


def take_over(
    cluster: LedgerCluster, name: str, config: TopicConfig | None, owner: str, clock: Clock, *, create: bool
) -> TakeoverResult:
    """Take a topic over, see `ManagedLedger.open`. Blocks."""
    while True:
        store = ChainStore(cluster.metadata, name, owner)
        maker = LedgerMaker(cluster, store)
        if not store.take(config, clock.now_us(), create=create).deleted:
            _finish_last(cluster, store, maker, clock)
            return TakeoverResult(store, maker)
        remove(store, maker)


def _finish_last(cluster: LedgerCluster, store: ChainStore, maker: LedgerMaker, clock: Clock) -> None:
    """Close the ledger that the former owner left open."""
    last = store.chain.open_ledger
    if last is None:
        return
    try:
        metadata = wait_while_connected(cluster.runtime.wait, maker.begin_recovery(last.ledger))
        counts = counts_of(metadata, clock.now_us(), _last_append_us(maker, metadata))
    except NoSuchLedgerError:
        logger.error("topic %s: its last ledger, %d, does not exist", store.chain.topic, last.ledger)
        counts = LedgerTotals(last.ledger, 0, 0, 0, clock.now_us(), 0)
    store.update(lambda chain: chain.closed(counts))


def _last_append_us(maker: LedgerMaker, metadata: LedgerMetadata) -> int:
    """Return the append time of a closed ledger's last entry; 0: it has none."""
    if metadata.last_entry < 0:
        return 0
    try:
        with maker.reader(metadata) as reader:
            return int(next(reader.read(metadata.last_entry)).timestamp[0])
    except ReplogError as error:
        logger.warning("the append time of the last entry of ledger %d cannot be read: %s", metadata.ledger, error)
        return ANY_US


def remove(store: ChainStore, maker: LedgerMaker) -> None:
    """Remove the ledgers and keys of a topic that is marked as deleted.

    Raises TopicFencedError, and errors of the store.
    """
    for ledger in store.chain.pending_deletion:
        maker.delete(ledger)
    store.remove()


T = TypeVar("T")


class ManagedLedger(Handle):
    """The messages of a topic by offset: dense, from 0, whatever ledgers contain them.

    It has one owner at a time; the next owner fences it for good. Any thread may use it; asyncio code awaits the
    futures of reads. Publishers submit to its `writer`.

    Attributes:
        name: name of the topic.
        entries: reads entries undecoded.
        on_grow: called when the confirmed end moved.
        on_fenced: called once with the TopicFencedError. Like `on_grow` without a lock, from any thread; the calls must
            not wait.
    """

    def __init__(self, cluster: LedgerCluster, store: ChainStore, maker: LedgerMaker, clock: Clock) -> None:
        """Create the managed ledger of a chain that was taken over and whose ledgers are closed; for `open`."""
        self.name = store.chain.topic
        self._store, self._maker, self._runtime = store, maker, cluster.runtime
        self.on_grow: list[Callable[[], object]] = []
        self.on_fenced: list[Callable[[TopicFencedError], object]] = []
        self._deleter = LedgerDeleter(self.name, store, maker, self._runtime)
        self._entries = ClosedLedgerReaders(maker, self._runtime)
        self._writer = ChainWriter(
            self.name, store, maker, self._runtime, clock,
            check_open=self._check_open, on_end=self._entries.ended, on_change=self._changed, on_fenced=self._fenced,
        )  # fmt: skip
        self._view = ChainView(store.chain, self._writer.end)
        self._reader = ChainReader(self.name, self._entries, lambda: self._view, lambda: self._writer.ledger)
        self.entries = EntryReader(self._reader, self._check)
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
        """Take a topic over from its owner, which can publish nothing from now on. Blocks.

        No ledger is created before a message is published.

        Args:
            cluster: the cluster.
            name: name of the topic.
            config: settings of a topic that is created here; an existing topic keeps its own.
            create: create the topic if it does not exist.
            owner: description of the owner, for people.
            clock: source of time; None: the clock of the machine.

        Raises:
            NoSuchTopicError: it does not exist, and `create` is False.
            TopicFencedError: another process has just taken it over.
            WrongTypeError: the name is no text.
            InvalidArgumentError: the name is invalid.
            InvalidMetadataError: the metadata are damaged.
            UnreadableError: the last ledger cannot be recovered now; other errors of `open_ledger` say the same.
            MetadataUnavailableError: the metadata store cannot be reached.
        """
        check_may_wait()
        clock = clock or SystemClock()
        return cls(cluster, *take_over(cluster, name, config, owner, clock, create=create), clock)

    # ---- state ------------------------------------------------------------------------------------

    @property
    def chain(self) -> LedgerChain:
        """The chain as it is stored."""
        return self._view.chain

    @property
    def config(self) -> TopicConfig:
        return self._store.chain.config

    @property
    def epoch(self) -> int:
        """Epoch of the owner; every owner raises it."""
        return self._store.chain.epoch

    @property
    def topic_epoch(self) -> TopicEpoch:
        """The epoch, for the subscriptions of the topic."""
        chain = self._store.chain
        return TopicEpoch(chain.token, chain.epoch)

    @property
    def start(self) -> TopicPosition:
        """Position of the first message that is kept."""
        return self._view.chain.start

    @property
    def end(self) -> TopicPosition:
        """Position behind the last confirmed entry."""
        return self._view.end

    @property
    def writer(self) -> ChainWriter:
        """The writer, to which publishers submit."""
        return self._writer

    @property
    def fenced(self) -> bool:
        """Whether another process owns the topic, as far as this owner knows."""
        return isinstance(self._writer.error, TopicFencedError)

    @property
    def pending_bytes(self) -> int:
        """Bytes without an outcome, or whose ledger lacks copies."""
        return self._writer.pending()[0]

    def stats(self) -> ManagedLedgerStats:
        chain, end = self._store.chain, self._view.end
        ledger = self._writer.ledger
        return ManagedLedgerStats(
            name=self.name, epoch=chain.epoch, owner=chain.owner, state=self._writer.state, start=chain.start, end=end,
            ledgers=len(chain.ledgers), pending_deletion=len(chain.pending_deletion),
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
        self, offset: int, *, bytes_max: int = RANGE_BYTES_MAX, end: int | None = None
    ) -> AppendFuture[MessageBatch]:
        """Read verified entries of one ledger, from the one that holds `offset` on: at least one, about `bytes_max`
        bytes.

        None begins at `end`, or at the confirmed end; at the confirmed end the batch is empty. The first entry may
        begin before `offset`, and the last one reach beyond `end`. A read from the end of the last batch needs no
        search.

        The future fails with TrimmedError, OutOfRangeError (an offset below 0), InvalidEntryError, MissingExtraError,
        or with UnreadableError and errors of the metadata store, which go away. Raises ClosedError or TopicFencedError.
        """
        self._check()
        return self._reader.read(offset, bytes_max, end)

    def locate(self, offset: int) -> AppendFuture[EntryPosition]:
        """Find the entry that holds a message.

        Errors as for `read`, and OutOfRangeError at the confirmed end or beyond.
        """
        self._check()
        return self._reader.locate(offset)

    def offset_at_time(self, time_us: int) -> AppendFuture[int]:
        """Find the first message that was appended at `time_us` (since 1970) or later; otherwise the confirmed end.

        If a clock was set back, some messages behind it are older. Errors as for `read`.
        """
        self._check()
        return self._reader.offset_at_time(time_us)

    def offset_at_size(self, size: int) -> AppendFuture[int]:
        """Find the first message of the first entry with at least `size` bytes of the topic before it; otherwise the
        end.

        Errors as for `read`.
        """
        self._check()
        return self._reader.offset_at_size(size)

    # ---- housekeeping ---------------------------------------------------------------------------------------

    def roll_if_old(self, now_us: int) -> None:
        """Close the open ledger if it is too old; to be called periodically."""
        self._writer.roll_if_old(now_us)

    def roll(self) -> AppendFuture[None]:
        """Close the open ledger; the next publish opens another one. Waits while the metadata store is unavailable."""
        self._check()
        return self._writer.roll()

    def trim(self, below: int, now_us: int) -> AppendFuture[int]:
        """Drop the closed ledgers whose messages all have offsets below `below`, and which retention does not keep.

        The future gives their number; they are deleted in the background. It fails with TopicFencedError, and with
        errors of the metadata store.
        """
        offset = self.trim_end(below, now_us)
        if offset is not None:
            return self._trim(offset)
        self._check()
        nothing = AppendFuture(0)
        set_result(nothing)
        return nothing

    def trim_end(self, below: int, now_us: int) -> int | None:
        """Return the offset of the first message that `trim` would keep; None: it would drop nothing."""
        chain, end = self._view
        closed = [ClosedLedger(item.end, item.closed_us, item.size) for item in chain.ledgers if item.is_closed]
        count = trimmable(
            closed, TopicPosition(below, 0, 0), kept_bytes=end.size - chain.start.size,
            retention_bytes=chain.config.retention_bytes, retention_ms=chain.config.retention_ms, now_us=now_us,
        )  # fmt: skip
        return closed[count - 1].end.offset if count else None

    def clear(self) -> AppendFuture[int]:
        """Drop all ledgers that were written before, whatever retention says; the future gives their number."""
        return transform(self.roll(), lambda _: self._trim(self._view.chain.end.offset))

    def _trim(self, offset: int) -> AppendFuture[int]:
        self._check()
        dropped = 0

        def change(chain: LedgerChain) -> LedgerChain:
            nonlocal dropped
            after = chain.trimmed(offset)
            dropped = max(dropped, len(chain.ledgers) - len(after.ledgers))  # repeated, it may drop nothing
            return after

        return self._change(change, lambda: dropped)

    def set_config(self, config: TopicConfig) -> AppendFuture[None]:
        """Replace the settings; those of ledgers apply to the next one. The future fails as that of `trim`."""
        return self._change(lambda chain: dataclasses.replace(chain, config=config), lambda: None)

    def set_properties(self, properties: Mapping[str, str]) -> AppendFuture[None]:
        """Replace the properties that are stored with the topic. The future fails as that of `trim`."""
        kept = dict(properties)
        return self._change(lambda chain: dataclasses.replace(chain, properties=kept), lambda: None)

    def renew_identity(self, token: str, offset: int) -> AppendFuture[None]:
        """Give the messages from an offset on another identity. The future fails as that of `trim`, and with
        TopicFullError.
        """
        return self._change(lambda chain: chain.renewed(token, offset), lambda: None)

    def verify(self) -> None:
        """Ask the metadata store whether this is still the owner. Blocks. Raises the errors of the future of `trim`."""
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
                set_exception(done, error)
            else:
                self._deleter.begin()
                self._writer.refresh(lambda: set_result(done, result()))

        self._runtime.work(work)
        return done

    # ---- events ---------------------------------------------------------------------------------------------

    def _changed(self) -> None:
        before, chain = self._view.end, self._store.chain
        self._view = make_named(ChainView, chain, self._writer.end)
        if self._view.end != before:
            for call in list(self.on_grow):
                call()
            if (ledger := self._writer.ledger) is not None:
                ledger.release_tail()
        if chain.pending_deletion:
            self._deleter.begin()

    def _fenced(self, error: TopicFencedError) -> None:
        for call in list(self.on_fenced):
            call(error)

    def _cut_off(self, lifeline: AppendFuture[None]) -> None:
        self._writer.give_up(ClosedError(f"the {self._label} was closed with its cluster"))

    # ---- the end --------------------------------------------------------------------------------------------

    def begin_close(self) -> AppendFuture[None]:
        """Begin what `close` waits for, and return its future; `close` has to follow.

        Nothing may be appended any more.
        """
        return self._writer.begin_close()

    def close(self, timeout: float | None = CLOSE_S) -> None:
        """Publish what was submitted, close the open ledger, and end. Closing twice has no effect.

        After `timeout` seconds (None: never) messages without an outcome fail with OutcomeUnknownError, which is raised
        here, too. In a callback it does not wait. The topic stays as it is for the next owner.
        """
        self._close_s = as_timeout(timeout)
        super().close()

    def _do_close(self) -> None:
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
        self._writer.give_up(
            OutcomeUnknownError(f"{self._label} was closed after {self._close_s} s without an outcome")
        )

    def _release(self) -> None:
        set_result(self._lifeline, None)
        self._deleter.end()
        self._entries.close()

    def delete(self) -> None:
        """Delete the topic with its ledgers, and close this. Blocks. Pending messages fail.

        Raises TopicFencedError, and errors of the metadata store; the next process that opens the topic completes the
        deletion.
        """
        self._check()
        check_may_wait()
        try:
            self._store.update(LedgerChain.marked_deleted)
        except TopicFencedError as error:
            self._writer.fence(error)
            raise
        self._writer.give_up(NoSuchTopicError(self.name, "it was deleted"))
        self.close()
        remove(self._store, self._maker)

    def __del__(self) -> None:
        """Release everything without waiting, because a finalizer may run anywhere."""
        if self._is_forgotten():
            self._error = ClosedError(f"the {self._label} was garbage-collected before it was closed")
            warn_of_leak(self._label, self, self._opened_at)
            self._writer.give_up(OutcomeUnknownError(f"the {self._label} was garbage-collected before it was closed"))
            self._release()
