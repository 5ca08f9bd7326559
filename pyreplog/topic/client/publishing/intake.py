"""The order of what is published to one topic: what waits for company, what is in doubt, what goes to the ledgers."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

from pyreplog.clock import Clock, ahead_us
from pyreplog.defer_sigint import defer_sigint
from pyreplog.errors import SequenceError
from pyreplog.future import AppendFuture, Outcome, settle_all
from pyreplog.topic.client.publishing.batcher import Batcher, SingleMessage
from pyreplog.topic.client.publishing.forwarded import Forwarded
from pyreplog.topic.client.publishing.outbox import Landing, Outbox, Sink
from pyreplog.topic.client.publishing.publish_batch import (
    STAGE_BYTES,
    Encoder,
    Gathered,
    PublishBatch,
    Whole,
    stored_of,
)
from pyreplog.topic.client.publishing.window import Window
from pyreplog.topic.model.dedup import DedupVerdict, Producers
from pyreplog.topic.model.sequences import check_sequence

DUPLICATE = -1
"""Instead of an offset: the message was published before."""

T = TypeVar("T")


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


Entrant = SingleMessage | Whole | Forwarded
"""What a producer wants published."""


@dataclass
class _Work:
    """What follows from steps that were taken with the lock held."""

    flights: list[PublishBatch] = field(default_factory=list)
    outcomes: list[Outcome] = field(default_factory=list)


class Intake:
    """Takes messages, settles their order, and has them sent; any thread, none waits.

    window: of what has no outcome yet, in messages as its entries. producers: those of the topic up to offset `end`.
    """

    def __init__(
        self,
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
        self.counts, self._pid = PublishCounters(), os.getpid()
        self.window = window
        self._runtime, self._clock, self._encoder, self._producers = runtime, clock, encoder, producers
        self._batcher = Batcher(linger_us=linger_us, messages_max=encoder.messages_max, bytes_max=encoder.bytes_max)
        self._outbox = Outbox(sink, self._landed, self._soon)
        self._lock = threading.Lock()  # of the batcher, the producers and what follows
        self._end = end  # what is stored before is known to the producers
        self._error: BaseException | None = None
        self._flushing: list[AppendFuture[None]] = []
        self._telling = 0  # threads that are about to settle outcomes, which the window counts no more
        self._is_timed = False  # a timer is set to send what lingers

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
    def is_staged(self) -> bool:
        """Whether something waits for more to go with it; in a forked child nothing does that would ever go."""
        return 0 < self._outbox.staged_bytes < STAGE_BYTES and os.getpid() == self._pid

    @property
    def has_new_failures(self) -> bool:
        """See `Producers`."""
        return self._producers is not None and self._producers.has_new_failures

    def purge(self, before_us: int) -> int:
        """See `Producers`."""
        with self._lock:
            return 0 if self._producers is None else self._producers.purge(before_us)

    # ---- order ----------------------------------------------------------------------------------------------

    def enter(self, entrant: Entrant, *, is_awaited: bool = False) -> None:
        """Its AppendFuture says what becomes of it; is_awaited: it is waited for now. Errors: that of `stop`."""
        with defer_sigint:
            work = _Work()
            with self._lock:
                if self._error is not None:
                    raise self._error
                self._admit(entrant, work)
                self.window.enter(entrant.size, entrant.messages_given)
                self._telling += bool(work.outcomes)
            if work.flights or work.outcomes:
                self._carry_out(work, is_awaited=is_awaited)

    def _admit(self, entrant: Entrant, work: _Work) -> None:
        """Give it its place among all others, unless it is a duplicate or in doubt."""
        if isinstance(entrant, SingleMessage):
            self._admit_single(entrant, work)
        elif isinstance(entrant, Whole):
            self._admit_whole(entrant, work)
        else:
            self._admit_forwarded(entrant, work)

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
        if self._batcher.add(name, single, self._clock.monotonic_us()):
            self._take(work)
        elif self._batcher.due_us is not None and not self._is_timed:
            self._wake_at(self._batcher.due_us)

    def _admit_whole(self, whole: Whole, work: _Work) -> None:
        name, producers = whole.producer, self._producers
        if producers is not None and name:
            if whole.sequences is None:
                first = producers.next_sequence(name)
                check_sequence(first + whole.messages - 1)
                whole.sequences = range(first, first + whole.messages)
            new = producers.sift(name, whole.sequences)
            if new is None:
                producers.wait(name, whole)
                return
            duplicates = len(new) - int(new.sum())
            if duplicates == len(new):
                whole.future.expect(range(0))
                self._drop(whole, duplicates, work)
                return
            if duplicates:
                self.counts.duplicates += duplicates
                whole.keep(new)
            for _, numbers in whole.shares():
                producers.push(name, numbers)
        self._send(whole, work)

    def _admit_forwarded(self, forwarded: Forwarded, work: _Work) -> None:
        producers = self._producers
        if producers is not None:
            masks = []
            for part in forwarded.numbered:
                new = producers.sift(part.producer, part.sequences)
                if new is None:
                    producers.wait(part.producer, forwarded)
                    return
                masks.append(new)
            try:
                forwarded.keep(masks)
            except SequenceError as error:
                self.window.leave(forwarded.size, forwarded.messages_given)
                work.outcomes.append((forwarded.future, error))
                return
            if not forwarded.messages:
                forwarded.future.expect(range(0))
                self._drop(forwarded, forwarded.messages_given, work)
                return
            self.counts.duplicates += forwarded.messages_given - forwarded.messages
            for name, numbers in forwarded.shares():
                producers.push(name, numbers)
        self._send(forwarded, work)

    def _send(self, flight: Whole | Forwarded, work: _Work) -> None:
        self._take(work)  # what was published before comes before
        self._outbox.enter(flight)
        work.flights.append(flight)

    def _drop(self, entrant: Entrant, duplicates: int, work: _Work) -> None:
        self.counts.duplicates += duplicates
        self.window.leave(entrant.size, entrant.messages_given)
        work.outcomes.append((entrant.future, None))

    def _take(self, work: _Work) -> None:
        if self._batcher.groups:
            flight = Gathered(self._batcher.take())
            self._outbox.enter(flight)
            work.flights.append(flight)

    def _soon(self, call: Callable[[], None]) -> bool:
        return self._runtime.wake_after(0.0, call) is not None

    def _carry_out(self, work: _Work, *, is_awaited: bool = True) -> None:
        """Without the lock: encode what has its place now, send it, tell those who wait."""
        for flight in work.flights:
            try:
                flight.encode(self._encoder)
            except Exception as error:
                flight.failure = error
            self._outbox.ready(flight, is_awaited=is_awaited)
        if work.outcomes:
            try:
                settle_all(work.outcomes)
            finally:
                with self._lock:
                    self._telling -= 1
            self.window.give_room()
        if self._error is not None:
            self.window.end()
            self._outbox.push()
        if self._flushing:
            self._tell_flushed()

    # ---- outcomes -------------------------------------------------------------------------------------------

    def _landed(self, landings: list[Landing]) -> None:
        """What waited for them goes next; their callers are told."""
        with defer_sigint:
            work = _Work()
            with self._lock:
                for landing in landings:
                    self._land(landing, work)
                self._telling += bool(work.outcomes)
            self._carry_out(work)

    def _land(self, landing: Landing, work: _Work) -> None:
        flight, offsets, error, is_known = landing
        producers = self._producers
        is_known = is_known or (producers is not None and not producers.is_last_word)
        is_over = producers is not None and not is_known  # only what is stored can tell what is new
        work.outcomes += flight.outcomes(offsets, error)
        self.window.leave(flight.size, flight.messages_given)
        if error is None:
            self._count(flight, offsets)
        else:
            self.counts.errors += flight.messages
        again = self._note(flight, error) if is_known and producers is not None else []
        if flight.is_gathered and self._batcher.landed() and not is_over:
            self._take(work)
        for entrant in again:
            self._admit(entrant, work)
        if error is not None and is_over:
            self._stop(error, work)

    def _note(self, flight: PublishBatch, error: BaseException | None) -> list[Any]:
        """Returns what was in doubt for it."""
        assert self._producers is not None
        again: list[Any] = []
        for name, numbers in flight.shares():
            if error is None:
                again += self._producers.persisted(name, numbers, self._clock.monotonic_us())
            else:
                again += self._producers.failed(name, numbers)
        return again

    def _count(self, flight: PublishBatch, offsets: range) -> None:
        counts, stored = self.counts, offsets if type(offsets) is range else stored_of(offsets)
        self._end = stored.stop
        counts.messages += len(stored)
        counts.duplicates += len(offsets) - len(stored)
        counts.entries += len(flight.entries)
        counts.bytes += sum(map(len, flight.entries))

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
            self._outbox.push()
        return future

    def _tell_flushed(self) -> None:
        with self._lock:
            if self.window.entries or self._telling:
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
        work.outcomes += left.outcomes(range(0), error)
        self.window.leave(left.size, left.messages)
        for one in waiting:
            work.outcomes.append((one.future, error))
            self.window.leave(one.size, one.messages_given)
