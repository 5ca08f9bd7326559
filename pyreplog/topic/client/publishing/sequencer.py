"""The order of what is published to one topic: what is admitted, what waits for company, what is sent, and outcomes."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

from pyreplog._native.machines.serial_executor import in_callback
from pyreplog.clock import Clock, ahead_us
from pyreplog.defer_sigint import defer_sigint
from pyreplog.errors import (
    BacklogFullError,
    EntryRefusedError,
    NotEnoughBookiesError,
    RecordTooLargeError,
    SequenceError,
    TopicFullError,
)
from pyreplog.future import AppendFuture, Outcome, settle_all
from pyreplog.topic.client.publishing.batcher import Batcher, SingleMessage
from pyreplog.topic.client.publishing.publish_batch import (
    STAGE_BYTES,
    BatchEntrant,
    Encoder,
    Gathered,
    PublishBatch,
    stored_of,
)
from pyreplog.topic.client.publishing.window import Window
from pyreplog.topic.model.backlog import Publishing
from pyreplog.topic.model.dedup import DedupVerdict, Producers, check_sequence
from pyreplog.topic.model.event_queue import EventQueue

DUPLICATE = -1
"""Instead of an offset: the message was published before."""

NOT_STORED = (RecordTooLargeError, EntryRefusedError, NotEnoughBookiesError, TopicFullError)
"""Errors that say that nothing of a batch is stored, or will be."""

T = TypeVar("T")


class Sink(Protocol):
    """What entries are published to: the writer of a topic's ledgers, or a connection to its owner. on_room: for the
    publisher to set; called when `pending` has become less."""

    on_room: Callable[[], object]

    def check_open(self) -> None:
        """Errors: ClosedError, ForkedError."""
        ...

    def submit_all(self, batches: Sequence[PublishBatch]) -> None:
        """Store the entries of batches, in the order of the batches and calls, and `settle` each batch, in any order.

        It does not wait in a callback, which this is called in. Nothing of a batch is stored, or will be, when an error
        is raised, or the batch is settled with one of NOT_STORED; with others it may be.
        """
        ...

    @property
    def pending(self) -> Callable[[], tuple[int, int]] | None:
        """Gives (bytes, entries) that it holds, also those that have an outcome, but not all their copies. None: it
        holds no more than what has no outcome."""
        ...


class PublisherRuntime(Protocol):
    """Waits, and timers: see `ledger.driver.Runtime`."""

    def wait(self, future: AppendFuture[T], timeout: float | None = None) -> T: ...
    def wake_after(self, seconds: float, call: Callable[[], None]) -> object: ...


@dataclass
class PublishCounters:
    """What has become of messages. entries, bytes: as stored. errors: messages that failed."""

    messages: int = 0
    entries: int = 0
    bytes: int = 0
    errors: int = 0
    duplicates: int = 0


Entrant = SingleMessage | BatchEntrant
"""What a producer wants published."""


class _Work:
    """What follows from steps that were taken with the lock held."""

    __slots__ = ("again", "batches", "outcomes")

    def __init__(self) -> None:
        self.batches: list[PublishBatch] = []
        self.outcomes: list[Outcome] = []
        self.again: list[Entrant] = []  # that are in doubt no longer


class Sequencer:
    """Gives messages their order: admits them, gathers them, sends them to the sink, and learns their outcomes. Any
    thread; none waits.

    window: of what has no outcome yet. producers: those of the topic up to offset `end`.

    Where a sink confirms at once, as with bookies of this process, nothing is ever on its way that others could wait
    for, and go together. There, what nobody waits for yet is sent by another thread, or when there is much of it.
    """

    def __init__(
        self,
        topic: str,
        sink: Sink,
        runtime: PublisherRuntime,
        clock: Clock,
        encoder: Encoder,
        *,
        linger_us: int,
        window: Window,
        producers: Producers | None,
        end: int,
    ) -> None:
        self.counts, self.window = PublishCounters(), window
        self.quota: Publishing = "open"
        """What a backlog quota says: see `set_quota`."""
        self._quota_reason, self._is_quota_lifted = "", False
        self._topic = topic
        self._sink, self._runtime, self._clock = sink, runtime, clock
        self._encoder, self._producers = encoder, producers
        self._batcher = Batcher(linger_us=linger_us, messages_max=encoder.messages_max, bytes_max=encoder.bytes_max)
        self._lock = threading.Lock()  # of the batcher, the producers, the order and what follows
        self._end = end  # what is stored before is known to the producers
        self._error: BaseException | None = None
        self._flushing: list[AppendFuture[None]] = []
        self._telling = 0  # threads that are about to settle outcomes, which the window counts no more
        self._is_timed = False  # a timer is set to send what lingers
        self._events = EventQueue()  # sends and landings
        self._unsent: deque[PublishBatch] = deque()  # in their order, ready or not
        self._sent: deque[PublishBatch] = deque()  # behind them, until their outcome is known and it is their turn
        self._staged_bytes = 0  # about, of what is ready, and waits for company or its turn
        self._confirms_at_once = self._is_soon = self._is_landing = False

    def last_sequence(self, producer: bytes) -> int:
        """The highest number of a producer that is stored; -1: none is known."""
        with self._lock:
            return -1 if self._producers is None else self._producers.last_sequence(producer)

    def last_given(self, producer: bytes) -> int:
        """As last_sequence, with those on their way."""
        with self._lock:
            return -1 if self._producers is None else self._producers.next_sequence(producer) - 1

    def snapshot(self) -> tuple[int, bytes] | None:
        """Of the producers, see `Producers.snapshot`, and the offset it reaches to; None: none are known."""
        with self._lock:
            return None if self._producers is None else (self._end, self._producers.snapshot(ahead_us(self._clock)))

    @property
    def has_new_failures(self) -> bool:
        """See `Producers`."""
        return self._producers is not None and self._producers.has_new_failures

    def purge(self, before_us: int) -> int:
        """See `Producers`."""
        with self._lock:
            return 0 if self._producers is None else self._producers.purge(before_us)

    # ---- admission ------------------------------------------------------------------------------------------

    def set_quota(self, state: Publishing, reason: str) -> None:
        """What a backlog quota says from now on. held: callers wait for room. refused: what comes fails with
        BacklogFullError. What was admitted before goes on."""
        with self._lock:
            if not self._is_quota_lifted:
                self._set_quota(state, reason)
        self.window.give_room()

    def lift_quota(self) -> None:
        """No quota holds or refuses anything any more."""
        with self._lock:
            self._is_quota_lifted = True
            self._set_quota("open", "")
        self.window.give_room()

    def _set_quota(self, state: Publishing, reason: str) -> None:
        self.quota, self._quota_reason = state, reason
        self.window.is_held = state == "held"

    def held(self) -> BacklogFullError | None:
        """For who does not wait until a quota has room again; None: none holds publishers."""
        return BacklogFullError(self._topic, self._quota_reason) if self.quota == "held" else None

    def enter(self, entrant: Entrant, *, is_awaited: bool = False) -> None:
        """Its AppendFuture says what becomes of it; is_awaited: it is waited for now. Errors: that of `stop`."""
        with defer_sigint:
            work = _Work()
            with self._lock:
                if self._error is not None:
                    raise self._error
                self._admit(entrant, work)
                self.window.enter(entrant.size, entrant.messages_given)
                if work.again:
                    self._admit_again(work)
                self._telling += bool(work.outcomes)
            if work.batches or work.outcomes:
                self._carry_out(work, is_awaited=is_awaited)

    def _admit(self, entrant: Entrant, work: _Work) -> None:
        """Give it its place among all others, unless it is a duplicate, or in doubt, or a quota refuses it."""
        if isinstance(entrant, SingleMessage):
            self._admit_single(entrant, work)
        else:
            self._admit_batch(entrant, work)

    def _admit_single(self, single: SingleMessage, work: _Work) -> None:
        name, producers = single.producer, self._producers
        if producers is not None and name:
            sequence = single.sequence if single.sequence >= 0 else check_sequence(producers.next_sequence(name))
            verdict = producers.judge(name, sequence)
            if verdict is DedupVerdict.IN_DOUBT:
                producers.wait(name, single)
                return
            if verdict is DedupVerdict.DUPLICATE:
                single.future.expect(DUPLICATE)
                self._drop(single, 1, work)
                return
            producers.push(name, (sequence,))
            single = single._replace(sequence=sequence)
        if self.quota == "refused":
            self._refuse(single, work)
        elif self._batcher.add(name, single, self._clock.monotonic_us()):
            self._take(work)
        elif self._batcher.due_us is not None and not self._is_timed:
            self._wake_at(self._batcher.due_us)

    def _admit_batch(self, batch: BatchEntrant, work: _Work) -> None:
        producers = self._producers
        if producers is not None:
            try:
                doubtful = batch.sift(producers)
            except SequenceError as error:
                self.window.leave(batch.size, batch.messages_given)
                work.outcomes.append((batch.future, error))
                return
            if doubtful is not None:
                producers.wait(doubtful, batch)
                return
            if not batch.messages:
                batch.future.expect(range(0))
                self._drop(batch, batch.messages_given, work)
                return
            self.counts.duplicates += batch.messages_given - batch.messages
            for name, numbers in batch.shares():
                producers.push(name, numbers)
        if self.quota == "refused":
            self._refuse(batch, work)
            return
        self._take(work)  # what was published before comes before
        self._enqueue(batch, work)

    def _admit_again(self, work: _Work) -> None:
        """What was in doubt."""
        while work.again:
            self._admit(work.again.pop(0), work)

    def _refuse(self, entrant: Entrant, work: _Work) -> None:
        """A quota does: its messages have failed, and are new when they come again."""
        self.counts.errors += entrant.messages
        self.window.leave(entrant.size, entrant.messages_given)
        work.outcomes.append((entrant.future, BacklogFullError(self._topic, self._quota_reason)))
        if self._producers is not None:
            for name, numbers in entrant.shares():
                work.again += self._producers.failed(name, numbers)

    def _drop(self, entrant: Entrant, duplicates: int, work: _Work) -> None:
        self.counts.duplicates += duplicates
        self.window.leave(entrant.size, entrant.messages_given)
        work.outcomes.append((entrant.future, None))

    def _take(self, work: _Work) -> None:
        if self._batcher.groups:
            self._enqueue(Gathered(self._batcher.take()), work)

    def _enqueue(self, batch: PublishBatch, work: _Work) -> None:
        """Its place is here, though it is not encoded yet."""
        batch.on_settled = self._settled
        self._unsent.append(batch)
        work.batches.append(batch)

    def _carry_out(self, work: _Work, *, is_awaited: bool = True) -> None:
        """Without the lock: encode what has its place now, send it, tell those who wait."""
        for batch in work.batches:
            try:
                batch.encode(self._encoder)
                batch.entry_bytes = sum(map(len, batch.entries))
            except Exception as error:
                batch.failure = batch.error = error
                batch.is_unstored = batch.is_settled = True
            self._ready(batch, is_awaited=is_awaited)
        if work.outcomes:
            try:
                settle_all(work.outcomes)
            finally:
                with self._lock:
                    self._telling -= 1
            self.window.give_room()
        if self._error is not None:
            self.window.end()
            self._push()
        if self._flushing:
            self._tell_flushed()

    # ---- sending --------------------------------------------------------------------------------------------

    def _ready(self, batch: PublishBatch, *, is_awaited: bool) -> None:
        """It is encoded, or has failed to be. is_awaited: its outcome is, or company has come."""
        batch.is_ready = True
        self._staged_bytes += batch.size
        if is_awaited or not self._confirms_at_once or self._staged_bytes >= STAGE_BYTES:
            self._go()
        elif not self._is_soon:
            self._is_soon = True
            if self._runtime.wake_after(0.0, self._send_soon) is None:  # nobody calls it
                self._send_soon()

    def _push(self) -> None:
        """Send all that is ready."""
        if self._unsent:
            self._go()

    def _send_soon(self) -> None:
        self._is_soon = False
        self._go()

    def _go(self) -> None:
        self._events.post(self._send)
        if not in_callback():  # else it is sent later
            self._confirms_at_once = not self._sent

    def _send(self) -> None:
        """All that is ready, many together."""
        self._staged_bytes = size = 0
        unsent = self._unsent
        together: list[PublishBatch] = []
        while unsent and unsent[0].is_ready:
            batch = unsent.popleft()
            self._sent.append(batch)
            if batch.failure is not None:
                self._settled(batch)
                continue
            if size >= STAGE_BYTES:
                self._submit(together)
                together, size = [], 0
            together.append(batch)
            size += batch.size
        if together:
            self._submit(together)

    def _submit(self, batches: Sequence[PublishBatch]) -> None:
        try:
            self._sink.submit_all(batches)
        except Exception as error:
            for batch in batches:
                batch.is_unstored = True
                batch.settle(error)

    # ---- outcomes -------------------------------------------------------------------------------------------

    def _settled(self, _: PublishBatch) -> None:
        """Its outcome is known."""
        if not self._is_landing:
            self._is_landing = True
            self._events.post(self._land)

    def _land(self) -> None:
        """Learn the outcomes that are known, in the order of the batches: what waited for them goes next; their callers
        are told."""
        self._is_landing = False
        sent = self._sent
        landed: list[PublishBatch] = []
        while sent and sent[0].is_settled:
            landed.append(sent.popleft())
        if not landed:
            return
        with defer_sigint:
            work = _Work()
            with self._lock:
                for batch in landed:
                    self._learn(batch, work)
                self._telling += bool(work.outcomes)
            self._carry_out(work)

    def _learn(self, batch: PublishBatch, work: _Work) -> None:
        error, producers = batch.error, self._producers
        work.outcomes += batch.outcomes()
        self.window.leave(batch.size, batch.messages_given)
        if error is None:
            self._count(batch)
        else:
            self.counts.errors += batch.messages
        is_over = False
        if producers is not None:
            is_known = error is None or batch.is_unstored or isinstance(error, NOT_STORED)
            is_over = producers.is_last_word and not is_known  # only what is stored can tell what is new
            if not is_over:
                self._note(producers, batch, work)
        if batch.is_gathered and self._batcher.landed() and not is_over:
            self._take(work)
        self._admit_again(work)
        if error is not None and is_over:
            self._stop(error, work)

    def _note(self, producers: Producers, batch: PublishBatch, work: _Work) -> None:
        """What was in doubt for it is so no longer."""
        for name, numbers in batch.shares():
            if batch.error is None:
                work.again += producers.persisted(name, numbers, self._clock.monotonic_us())
            else:
                work.again += producers.failed(name, numbers)

    def _count(self, batch: PublishBatch) -> None:
        counts, offsets = self.counts, batch.offsets
        stored = stored_of(offsets)
        self._end = stored.stop
        counts.messages += len(stored)
        counts.duplicates += len(offsets) - len(stored)
        counts.entries += batch.cut_entries + len(batch.entries)
        counts.bytes += batch.cut_bytes + batch.entry_bytes

    # ---- time and the end -----------------------------------------------------------------------------

    def _wake_at(self, due_us: int) -> None:
        self._is_timed = True
        self._runtime.wake_after(max(due_us - self._clock.monotonic_us(), 0) / 1e6, self._lingered)

    def _lingered(self) -> None:
        with defer_sigint:
            work = _Work()
            with self._lock:
                self._is_timed = False
                due = self._batcher.due_us
                if due is not None and due <= self._clock.monotonic_us():
                    self._take(work)
                elif due is not None:  # what was there when the timer was set has gone
                    self._wake_at(due)
            self._carry_out(work)

    def flush(self) -> AppendFuture[None]:
        """Send what lingers; the AppendFuture is done once nothing that was submitted is without an outcome."""
        future: AppendFuture[None] = AppendFuture()
        with defer_sigint:
            work = _Work()
            with self._lock:
                self._take(work)
                self._flushing.append(future)
            self._carry_out(work)
            self._push()
        return future

    def _tell_flushed(self) -> None:
        with self._lock:
            if self.window.messages or self._telling:
                return
            flushed, self._flushing = self._flushing, []
        settle_all([(future, None) for future in flushed])

    def stop(self, error: BaseException) -> None:
        """Nothing is taken any more: calls raise `error`, and what was not sent yet fails with it."""
        with defer_sigint:
            work = _Work()
            with self._lock:
                self._stop(error, work)
                self._telling += bool(work.outcomes)
            self._carry_out(work)

    def _stop(self, error: BaseException, work: _Work) -> None:
        self._error = self._error or error
        waiting: Iterable[Entrant] = [] if self._producers is None else self._producers.drop_waiting()
        left = Gathered(self._batcher.take())
        left.error = error
        work.outcomes += left.outcomes()
        self.window.leave(left.size, left.messages)
        for one in waiting:
            work.outcomes.append((one.future, error))
            self.window.leave(one.size, one.messages_given)
