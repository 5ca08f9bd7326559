"""Flights on their way to a topic's ledgers: submitted in the order in which they entered, whoever encodes them."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from functools import partial
from typing import Protocol

from pyreplog.ack import Ack
from pyreplog.errors import EntryRefusedError, RecordTooLargeError, TopicFullError
from pyreplog.topic.flight import Flight
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
    """landed: told what becomes of each flight, in order. Threads: `enter` wants the caller's lock."""

    def __init__(self, sink: Sink, landed: Landed) -> None:
        self._sink, self._landed = sink, landed
        self._flights: deque[Flight] = deque()
        self._events = Events()

    def enter(self, flight: Flight) -> None:
        """Its place is here, though it may not be ready yet."""
        self._flights.append(flight)

    def ready(self, flight: Flight) -> None:
        """It is encoded, or has failed to be."""
        flight.is_ready = True
        self._events.post(self._send)

    def _send(self) -> None:
        while self._flights and self._flights[0].is_ready:
            flight = self._flights.popleft()
            try:
                if flight.failure is not None:
                    raise flight.failure
                offsets = self._sink.submit(flight.entries, flight.counts)
            except Exception as error:
                self._landed(flight, range(0), error, is_known=True)
            else:
                offsets.add_done_callback(partial(self._settled, flight))

    def _settled(self, flight: Flight, offsets: Ack[range]) -> None:
        error = offsets.exception()
        numbers = range(0) if error is not None else offsets.result()
        self._landed(flight, numbers, error, is_known=error is None or isinstance(error, NOT_STORED))
