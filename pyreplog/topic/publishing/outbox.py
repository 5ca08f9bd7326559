"""Flights on their way to a topic's ledgers: submitted in the order in which they entered, whoever encodes them."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import Protocol

from pyreplog.ack import Ack
from pyreplog.errors import EntryRefusedError, RecordTooLargeError, TopicFullError
from pyreplog.ledger.driver import in_callback
from pyreplog.topic.managed.pipeline import STAGE_BYTES
from pyreplog.topic.publishing.flight import Flight
from pyreplog.topic.turns import Events

NOT_STORED = (RecordTooLargeError, EntryRefusedError, TopicFullError)


class Landed(Protocol):
    """Told the offsets of a flight, or an error; is_known: whether that says what is stored."""

    def __call__(self, flight: Flight, offsets: range, error: BaseException | None, *, is_known: bool) -> None: ...


class Sink(Protocol):
    """What entries are published to: a ManagedLedger."""

    def submit(self, entries: Sequence[bytes], counts: Sequence[int]) -> Ack[range]:
        """Entries, and how many messages each holds; the Ack gives the offsets of the messages. It does not wait in a
        callback, which this is called in. Acks are done in the order of the calls. Nothing is stored, nor will be, when
        an error is raised, or one fails with an error of NOT_STORED; with others it may be."""
        ...

    def room(self) -> Ack[None]:
        """Done when there is room in its window, or nothing is taken any more."""
        ...


class Outbox:
    """landed: told what becomes of each flight, in order. soon: has something called by another thread, and says if
    it will. Threads: `enter` wants the caller's lock.

    Where a sink confirms at once, as with bookies of this process, nothing is ever on its way that others could wait
    for, and go together. There, what nobody waits for yet is sent by the other thread, or when there is much of it.
    """

    def __init__(self, sink: Sink, landed: Landed, soon: Callable[[Callable[[], None]], bool]) -> None:
        self._sink, self._landed, self._soon = sink, landed, soon
        self._flights: deque[Flight] = deque()
        self._events = Events()
        self._confirms_at_once = self._is_soon = False
        self._staged_bytes = 0  # about
        self._flying: set[Flight] = set()  # without an outcome

    def enter(self, flight: Flight) -> None:
        """Its place is here, though it may not be ready yet."""
        self._flights.append(flight)

    def ready(self, flight: Flight, *, is_awaited: bool) -> None:
        """It is encoded, or has failed to be. is_awaited: its outcome is, or company has come."""
        flight.is_ready = True
        self._staged_bytes += flight.size
        if is_awaited or not self._confirms_at_once or self._staged_bytes >= STAGE_BYTES:
            self._go()
        elif not self._is_soon:
            self._is_soon = True
            if not self._soon(self._send_soon):
                self._send_soon()

    def push(self) -> None:
        """Send all that is ready."""
        if self._flights:
            self._go()

    def _send_soon(self) -> None:
        self._is_soon = False
        self._go()

    def _go(self) -> None:
        self._events.post(self._send)
        if not in_callback():  # else it is sent later
            self._confirms_at_once = not self._flying

    def _send(self) -> None:
        self._staged_bytes = 0
        while self._flights and self._flights[0].is_ready:
            flight = self._flights.popleft()
            try:
                if flight.failure is not None:
                    raise flight.failure
                offsets = self._sink.submit(flight.entries, flight.counts)
            except Exception as error:
                self._landed(flight, range(0), error, is_known=True)
            else:
                self._flying.add(flight)
                offsets.add_done_callback(partial(self._settled, flight))

    def _settled(self, flight: Flight, offsets: Ack[range]) -> None:
        self._flying.discard(flight)
        error = offsets.exception()
        numbers = range(0) if error is not None else offsets.result()
        self._landed(flight, numbers, error, is_known=error is None or isinstance(error, NOT_STORED))
