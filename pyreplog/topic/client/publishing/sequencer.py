"""The order of the messages that are published to one topic: admission, collection, sending, and outcomes."""

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
    ReplogError,
    SequenceError,
    TopicFullError,
)
from pyreplog.event_queue import EventQueue
from pyreplog.future import AppendFuture, Outcome, set_expected, settle_all
from pyreplog.origins.gate import OriginGate, OriginGates
from pyreplog.topic.client.publishing.batcher import Batcher, SingleMessage
from pyreplog.topic.client.publishing.publish_batch import (
    STAGE_BYTES,
    BatchEntrant,
    CollectedBatch,
    Encoder,
    PublishBatch,
    stored_of,
)
from pyreplog.topic.client.publishing.replicated_batch import ReplicatedBatch
from pyreplog.topic.client.publishing.window import Window
from pyreplog.topic.model.backlog import Publishing
from pyreplog.topic.model.dedup import DedupVerdict, GlobalProducers, Producers, check_sequence

DUPLICATE = -1
"""Takes the place of an offset: the message was published before."""

NOT_STORED = (RecordTooLargeError, EntryRefusedError, NotEnoughBookiesError, TopicFullError)
"""Errors after which no message of a batch is or will be stored."""

T = TypeVar("T")


class Sink(Protocol):
    """Stores entries: the writer of a topic's ledgers, or a connection to its owner.

    on_room: set by the publisher; called when `pending` has decreased.
    """

    on_room: Callable[[], object]

    def check_open(self) -> None:
        """Raise ClosedError or ForkedError if it was closed."""
        ...

    def submit_all(self, batches: Sequence[PublishBatch]) -> None:
        """Store the entries of batches, in the order of batches and calls, and `settle` each batch, in any order.

        It is called in a callback, and must not wait. If it raises an error, or settles a batch with one of NOT_STORED,
        no message of it is or will be stored; after other errors messages may be stored.
        """
        ...

    @property
    def pending(self) -> Callable[[], tuple[int, int]] | None:
        """Return (bytes, entries) that it holds, including entries with an outcome that lack copies.

        None: it holds only entries without an outcome.
        """
        ...


class PublisherRuntime(Protocol):
    """Waits and timers, see `ledger.driver.Runtime`."""

    def wait(self, future: AppendFuture[T], timeout: float | None = None) -> T: ...
    def wake_after(self, seconds: float, call: Callable[[], None]) -> object: ...


@dataclass
class PublishCounters:
    """Counters of outcomes. entries, bytes: as stored. errors: messages that failed."""

    messages: int = 0
    entries: int = 0
    bytes: int = 0
    errors: int = 0
    duplicates: int = 0


Entrant = SingleMessage | BatchEntrant
"""A message, or a batch, to be published."""


class _Work:
    """The work that follows from steps under the lock, and is done without it."""

    __slots__ = ("batches", "has_news", "outcomes", "readmitted")

    def __init__(self) -> None:
        self.has_news = False  # gates have to be stored
        self.batches: list[PublishBatch] = []
        self.outcomes: list[Outcome] = []
        self.readmitted: list[Entrant] = []  # entrants that are not in doubt any more


class Sequencer:
    """Orders messages: admits them, collects them, sends them to the sink, and handles their outcomes.

    Any thread; none waits.

    window: limits the messages without an outcome. producers: those of the topic up to offset `end`. gates: admit what
    other clusters replicate into the topic; likewise up to `end`.

    If a sink confirms at once, as bookies of this process do, no batch is ever in flight for which others could wait.
    Then messages for which no caller waits yet are sent by another thread, or when there are many bytes of them.
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
        gates: OriginGates | None = None,
    ) -> None:
        self.counts, self.window = PublishCounters(), window
        self.quota: Publishing = "open"
        """State of the backlog quota, see `set_quota`."""
        self._quota_reason, self._is_quota_lifted = "", False
        self._topic = topic
        self._sink, self._runtime, self._clock = sink, runtime, clock
        self._encoder, self._producers = encoder, producers
        self._globals = producers if isinstance(producers, GlobalProducers) else None
        self._gates = OriginGates(topic) if gates is None else gates
        self.on_news: Callable[[], object] = lambda: None
        """Called when the gates have to be stored before a caller gets its result; with no lock."""
        self._batcher = Batcher(linger_us=linger_us, messages_max=encoder.messages_max, bytes_max=encoder.bytes_max)
        self._lock = threading.Lock()  # guards the batcher, the producers, the order and what follows
        self._end = end  # the producers know all messages before it
        self._error: BaseException | None = None
        self._flushing: list[AppendFuture[None]] = []
        self._settling = 0  # threads that settle outcomes, which the window does not count any more
        self._linger_timer_set = False  # a timer will send the lingering messages
        self._events = EventQueue()  # sends and outcomes
        self._unsent: deque[PublishBatch] = deque()  # in order, ready or not
        self._sent: deque[PublishBatch] = deque()  # in order, until their outcomes are handled
        self._staged_bytes = 0  # estimated bytes of batches that are ready and not sent
        self._confirms_at_once = self._send_scheduled = self._outcomes_posted = False

    def last_sequence(self, producer: bytes) -> int:
        """Return the highest number of a producer that is stored; -1: none is known."""
        with self._lock:
            return -1 if self._producers is None else self._producers.last_sequence(producer)

    def last_assigned(self, producer: bytes) -> int:
        """Return the highest number of a producer that is stored or in flight; -1: none is known."""
        with self._lock:
            return -1 if self._producers is None else self._producers.next_sequence(producer) - 1

    def snapshot(self) -> tuple[int, bytes] | None:
        """Return an offset, and the `Producers.snapshot` up to it; None: the topic does not deduplicate."""
        with self._lock:
            return None if self._producers is None else (self._end, self._producers.snapshot(ahead_us(self._clock)))

    @property
    def has_new_failures(self) -> bool:
        """Whether a snapshot should be stored soon, see `Producers`."""
        return self._producers is not None and self._producers.has_new_failures

    def purge(self, before_us: int) -> int:
        """Forget idle producers, see `Producers.purge`."""
        with self._lock:
            return 0 if self._producers is None else self._producers.purge(before_us)

    # ---- admission ------------------------------------------------------------------------------------------

    def set_quota(self, state: Publishing, reason: str) -> None:
        """Set the state of the backlog quota. Messages that were admitted before go on.

        held: callers wait for room. refused: new messages fail with BacklogFullError.
        """
        with self._lock:
            if not self._is_quota_lifted:
                self._set_quota(state, reason)
        self.window.give_room()

    def lift_quota(self) -> None:
        """Ignore quotas from now on."""
        with self._lock:
            self._is_quota_lifted = True
            self._set_quota("open", "")
        self.window.give_room()

    def _set_quota(self, state: Publishing, reason: str) -> None:
        self.quota, self._quota_reason = state, reason
        self.window.is_held = state == "held"

    def quota_error(self) -> BacklogFullError | None:
        """Return the error for a caller that does not wait for a quota; None: no quota holds publishers."""
        return BacklogFullError(self._topic, self._quota_reason) if self.quota == "held" else None

    def enter(self, entrant: Entrant, *, is_awaited: bool = False) -> None:
        """Admit a message or a batch, whose future gets the outcome. is_awaited: the caller waits for it now.

        Raises the error of `stop`.
        """
        with defer_sigint:
            work = _Work()
            with self._lock:
                if self._error is not None:
                    raise self._error
                self._admit(entrant, work)
                self.window.enter(entrant.size, entrant.messages_submitted)
                if work.readmitted:
                    self._admit_again(work)
                self._settling += bool(work.outcomes)
            if work.batches or work.outcomes or work.has_news:
                self._carry_out(work, is_awaited=is_awaited)

    def with_gates(self, call: Callable[[int], T], *, admits: bool = False) -> T:
        """Return the result of a call that uses the gates, with the lock, and settle the outcomes that it leads to.

        call: is passed the offset up to which the gates know the topic. admits: raise the error of `stop` instead, if
        that was called.
        """
        with defer_sigint:
            work = _Work()
            with self._lock:
                if admits and self._error is not None:
                    raise self._error
                result = call(self._end)
                for gate in self._gates:
                    self._follow(gate, work)
                self._admit_again(work)
                self._settling += bool(work.outcomes)
            self._carry_out(work)
        return result

    def _follow(self, gate: OriginGate, work: _Work) -> None:
        """Collect the outcomes and entrants of a gate after an event."""
        work.outcomes += gate.take_outcomes()
        work.readmitted += gate.take_waiting()
        work.has_news = work.has_news or gate.has_news

    def _admit(self, entrant: Entrant, work: _Work) -> None:
        """Order a message or a batch, unless it is a duplicate, or in doubt, or a quota refuses it."""
        if isinstance(entrant, SingleMessage):
            self._admit_single(entrant, work)
        elif type(entrant) is ReplicatedBatch:
            self._admit_replicated(entrant, work)
        else:
            self._admit_batch(entrant, work)

    def _admit_single(self, single: SingleMessage, work: _Work) -> None:
        name, producers = single.producer, self._producers
        if producers is not None and name:
            sequence = single.sequence if single.sequence >= 0 else check_sequence(producers.next_sequence(name))
            verdict = producers.check_sequence(name, sequence)
            if verdict is DedupVerdict.IN_DOUBT:
                producers.wait(name, single)
                return
            if verdict is DedupVerdict.DUPLICATE:
                set_expected(single.future, DUPLICATE)
                self._drop(single, 1, work)
                return
            producers.push(name, (sequence,))
            single = single._replace(sequence=sequence)
        if self.quota == "refused":
            self._refuse(single, work)
        elif self._batcher.add(name, single, self._clock.monotonic_us()):
            self._take(work)
        elif self._batcher.due_us is not None and not self._linger_timer_set:
            self._wake_at(self._batcher.due_us)

    def _admit_batch(self, batch: BatchEntrant, work: _Work) -> None:
        producers = self._producers
        if producers is not None:
            try:
                doubtful = batch.find_new(producers)
            except SequenceError as error:
                self.window.leave(batch.size, batch.messages_submitted)
                work.outcomes.append((batch.future, error))
                return
            if doubtful is not None:
                producers.wait(doubtful, batch)
                return
            if not batch.messages:
                set_expected(batch.future, range(0))
                self._drop(batch, batch.messages_submitted, work)
                return
            self.counts.duplicates += batch.messages_submitted - batch.messages
            for name, numbers in batch.shares():
                producers.push(name, numbers)
        if self.quota == "refused":
            self._refuse(batch, work)
            return
        self._take(work)  # earlier messages come first
        self._enqueue(batch, work)

    def _admit_replicated(self, batch: ReplicatedBatch, work: _Work) -> None:
        gate, producers = batch.gate, self._globals
        if producers is not None and batch.session == gate.session:
            if gate.waits_for_doubt(batch):
                gate.wait(batch)
                return
            doubtful = batch.drop_copies(producers, self._gates.keys_of(gate.origin.cluster))
            if doubtful is not None:
                gate.set_in_doubt(batch)
                producers.wait(doubtful, batch)
                return
            gate.settle_doubt(batch)
            self._follow(gate, work)
        try:
            admission = batch.admit()
        except ReplogError as error:
            self.window.leave(batch.size, batch.messages_submitted)
            work.outcomes.append((batch.future, error))
            return
        if admission is None:
            gate.wait(batch)
        elif admission.entries and self.quota == "refused":
            self._refuse(batch, work)
        else:
            gate.push(admission)
            self.counts.duplicates += batch.messages_submitted - batch.messages
            if admission.entries:
                if producers is not None:
                    for _, (name, numbers) in batch.numbers():
                        producers.push(name, numbers, gate.key)
                self._take(work)  # earlier messages come first
                self._enqueue(batch, work)
                return
            self.window.leave(batch.size, batch.messages_submitted)
            gate.notify(batch.end, batch.future)
            self._follow(gate, work)

    def _admit_again(self, work: _Work) -> None:
        """Admit the submissions whose outcome is no longer in doubt."""
        while work.readmitted:
            self._admit(work.readmitted.pop(0), work)

    def _refuse(self, entrant: Entrant, work: _Work) -> None:
        """Refuse messages because of a quota. They have failed, and are new when they are published again."""
        self.counts.errors += entrant.messages
        self.window.leave(entrant.size, entrant.messages_submitted)
        work.outcomes.append((entrant.future, BacklogFullError(self._topic, self._quota_reason)))
        if self._producers is not None:
            for name, numbers in entrant.shares():
                work.readmitted += self._producers.failed(name, numbers)

    def _drop(self, entrant: Entrant, duplicates: int, work: _Work) -> None:
        self.counts.duplicates += duplicates
        self.window.leave(entrant.size, entrant.messages_submitted)
        work.outcomes.append((entrant.future, None))

    def _take(self, work: _Work) -> None:
        if self._batcher.groups:
            self._enqueue(CollectedBatch(self._batcher.take()), work)

    def _enqueue(self, batch: PublishBatch, work: _Work) -> None:
        """Give a batch its place in the order, before it is encoded."""
        batch.on_settled = self._settled
        self._unsent.append(batch)
        work.batches.append(batch)

    def _carry_out(self, work: _Work, *, is_awaited: bool = True) -> None:
        """Encode and send the new batches, and settle futures, without the lock."""
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
                    self._settling -= 1
            self.window.give_room()
        if work.has_news:
            self.on_news()
        if self._error is not None:
            self.window.end()
            self._push()
        if self._flushing:
            self._complete_flushes()

    # ---- sending --------------------------------------------------------------------------------------------

    def _ready(self, batch: PublishBatch, *, is_awaited: bool) -> None:
        """Note that a batch was encoded, or encoding failed.

        is_awaited: a caller waits for it, or other messages came.
        """
        batch.is_ready = True
        self._staged_bytes += batch.size
        if is_awaited or not self._confirms_at_once or self._staged_bytes >= STAGE_BYTES:
            self._post_send()
        elif not self._send_scheduled:
            self._send_scheduled = True
            if self._runtime.wake_after(0.0, self._send_soon) is None:  # the runtime has ended
                self._send_soon()

    def _push(self) -> None:
        """Send all batches that are ready."""
        if self._unsent:
            self._post_send()

    def _send_soon(self) -> None:
        self._send_scheduled = False
        self._post_send()

    def _post_send(self) -> None:
        self._events.post(self._send)
        if not in_callback():  # in a callback it is sent later
            self._confirms_at_once = not self._sent

    def _send(self) -> None:
        """Send all batches that are ready, many together."""
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
        """Note that a batch has an outcome."""
        if not self._outcomes_posted:
            self._outcomes_posted = True
            self._events.post(self._take_outcomes)

    def _take_outcomes(self) -> None:
        """Handle outcomes in the order of the batches: admit what waited for them, and settle futures of callers."""
        self._outcomes_posted = False
        sent = self._sent
        settled: list[PublishBatch] = []
        while sent and sent[0].is_settled:
            settled.append(sent.popleft())
        if not settled:
            return
        with defer_sigint:
            work = _Work()
            with self._lock:
                for batch in settled:
                    self._take_outcome(batch, work)
                self._settling += bool(work.outcomes)
            self._carry_out(work)

    def _take_outcome(self, batch: PublishBatch, work: _Work) -> None:
        error, producers = batch.error, self._producers
        is_known = error is None or batch.is_unstored or isinstance(error, NOT_STORED)
        if type(batch) is ReplicatedBatch:  # isinstance of an abstract class takes longer
            is_known = is_known or batch.is_end_known
            batch.note_outcome(is_known)
            self._follow(batch.gate, work)
        work.outcomes += batch.outcomes()
        self.window.leave(batch.size, batch.messages_submitted)
        if error is None:
            self._count(batch)
        else:
            self.counts.errors += batch.messages
        is_over = False
        if producers is not None:
            is_over = producers.is_authoritative and not is_known  # only stored messages tell which ones are new
            if not is_over:
                self._note(producers, batch, work)
        if batch.is_collected and self._batcher.note_outcome() and not is_over:
            self._take(work)
        self._admit_again(work)
        if error is not None and is_over:
            self._stop(error, work)

    def _note(self, producers: Producers, batch: PublishBatch, work: _Work) -> None:
        """Note the outcome of numbered messages; those in doubt because of them are admitted again."""
        if type(batch) is ReplicatedBatch:
            self._note_replicated(batch, work)
            return
        for name, numbers in batch.shares():
            if batch.error is None:
                work.readmitted += producers.persisted(name, numbers, self._clock.monotonic_us())
            else:
                work.readmitted += producers.failed(name, numbers)

    def _note_replicated(self, batch: ReplicatedBatch, work: _Work) -> None:
        """Do the same for messages that another cluster sent; its first entries may be stored, and others not."""
        producers = self._globals
        if producers is None:
            return
        for number, (name, numbers) in batch.numbers():
            if batch.error is None or number < batch.cut_entries:
                work.readmitted += producers.persisted(name, numbers, self._clock.monotonic_us(), batch.gate.key)
            else:
                work.readmitted += producers.failed(name, numbers, batch.gate.key)

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
        self._linger_timer_set = True
        self._runtime.wake_after(max(due_us - self._clock.monotonic_us(), 0) / 1e6, self._lingered)

    def _lingered(self) -> None:
        with defer_sigint:
            work = _Work()
            with self._lock:
                self._linger_timer_set = False
                due = self._batcher.due_us
                if due is not None and due <= self._clock.monotonic_us():
                    self._take(work)
                elif due is not None:  # the messages for which the timer was set were sent
                    self._wake_at(due)
            self._carry_out(work)

    def flush(self) -> AppendFuture[None]:
        """Send lingering messages; the future is done once no submitted message is without an outcome."""
        future: AppendFuture[None] = AppendFuture()
        with defer_sigint:
            work = _Work()
            with self._lock:
                self._take(work)
                self._flushing.append(future)
            self._carry_out(work)
            self._push()
        return future

    def _complete_flushes(self) -> None:
        with self._lock:
            if self.window.messages or self._settling:
                return
            flushed, self._flushing = self._flushing, []
        settle_all([(future, None) for future in flushed])

    def stop(self, error: BaseException) -> None:
        """Accept no more messages: calls raise `error`, and messages that were not sent yet fail with it."""
        with defer_sigint:
            work = _Work()
            with self._lock:
                self._stop(error, work)
                self._settling += bool(work.outcomes)
            self._carry_out(work)

    def _stop(self, error: BaseException, work: _Work) -> None:
        self._error = self._error or error
        waiting: Iterable[Entrant] = [] if self._producers is None else self._producers.drop_waiting()
        unsent = CollectedBatch(self._batcher.take())
        unsent.error = error
        work.outcomes += unsent.outcomes()
        self.window.leave(unsent.size, unsent.messages)
        for gate in self._gates:
            gate.stop(error)
            work.outcomes += gate.take_outcomes()
            waiting = [*waiting, *gate.take_waiting()]
        for entrant in waiting:
            work.outcomes.append((entrant.future, error))
            self.window.leave(entrant.size, entrant.messages_submitted)
