"""Flights on their way to a topic's ledgers: submitted in the order in which they entered, whoever encodes them."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

from pyreplog._native.machines.serial_executor import in_callback
from pyreplog.errors import EntryRefusedError, NotEnoughBookiesError, RecordTooLargeError, TopicFullError
from pyreplog.future import AppendFuture
from pyreplog.topic.client.publishing.publish_batch import STAGE_BYTES, PublishBatch
from pyreplog.topic.model.event_queue import EventQueue

NOT_STORED = (RecordTooLargeError, EntryRefusedError, NotEnoughBookiesError, TopicFullError)


class Landing(NamedTuple):
    """The offsets of a flight, or an error; is_known: whether that says what is stored."""

    flight: PublishBatch
    offsets: range
    error: BaseException | None
    is_known: bool


Parcel = tuple[Sequence[bytes], Sequence[int]]
"""Entries, and how many messages each holds."""


class Sink(Protocol):
    """What entries are published to: a ManagedLedger."""

    def submit_all(self, parcels: Sequence[Parcel]) -> Sequence[AppendFuture[range]]:
        """The AppendFuture of each gives the offsets of its messages. It does not wait in a callback, which this is
        called in. They are done in the order of the parcels and calls. Nothing of a parcel is stored, or will be, when
        an error is raised, or its AppendFuture fails with one of NOT_STORED; with others it may be."""
        ...

    @property
    def has_room(self) -> bool:
        """Whether there is room in its window, or nothing is taken any more."""
        ...

    def room(self) -> AppendFuture[None]:
        """Done when `has_room`."""
        ...


class Outbox:
    """landed: told what becomes of flights, in order, of all that came together at once. soon: has something called by
    another thread, and says if it will. Threads: `enter` wants the caller's lock.

    Where a sink confirms at once, as with bookies of this process, nothing is ever on its way that others could wait
    for, and go together. There, what nobody waits for yet is sent by the other thread, or when there is much of it.
    """

    def __init__(
        self, sink: Sink, landed: Callable[[list[Landing]], object], soon: Callable[[Callable[[], None]], bool]
    ) -> None:
        self._sink, self._landed, self._soon = sink, landed, soon
        self._flights: deque[PublishBatch] = deque()
        self._events = EventQueue()
        self._confirms_at_once = self._is_soon = self._is_landing = False
        self.staged_bytes = 0
        """About, of what is ready, and waits for company or its turn."""
        self._flying = 0  # sent, and not landed
        self._came: deque[list[Landing]] = deque()

    def enter(self, flight: PublishBatch) -> None:
        """Its place is here, though it may not be ready yet."""
        self._flights.append(flight)

    def ready(self, flight: PublishBatch, *, is_awaited: bool) -> None:
        """It is encoded, or has failed to be. is_awaited: its outcome is, or company has come."""
        flight.is_ready = True
        self.staged_bytes += flight.size
        if is_awaited or not self._confirms_at_once or self.staged_bytes >= STAGE_BYTES:
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
        """All that is ready, many together; what could not be encoded lands in its turn."""
        self.staged_bytes = size = 0
        going: list[PublishBatch] = []
        while self._flights and self._flights[0].is_ready:
            flight = self._flights.popleft()
            self._flying += 1
            if flight.failure is not None or size >= STAGE_BYTES:
                self._submit(going)
                going, size = [], 0
            if flight.failure is not None:
                self._come([Landing(flight, range(0), flight.failure, True)])
            else:
                going.append(flight)
                size += flight.size
        self._submit(going)

    def _submit(self, flights: list[PublishBatch]) -> None:
        if not flights:
            return
        try:
            futures = self._sink.submit_all([(flight.entries, flight.counts) for flight in flights])
        except Exception as error:
            self._come([Landing(flight, range(0), error, True) for flight in flights])
        else:
            futures[-1].add_done_callback(lambda _: self._settled(flights, futures))

    def _settled(self, flights: list[PublishBatch], futures: Sequence[AppendFuture[range]]) -> None:
        """They land together, with the last of them; that may be refused before its turn."""
        if futures[-1].exception() is not None:
            for future in futures:
                if not future.done():
                    future.add_done_callback(lambda _: self._settled(flights, futures))
                    return
        self._come([_landing(flight, future) for flight, future in zip(flights, futures, strict=True)])

    def _come(self, landings: list[Landing]) -> None:
        self._came.append(landings)
        if not self._is_landing:
            self._is_landing = True
            self._events.post(self._land)

    def _land(self) -> None:
        """All that have come: they are told together."""
        self._is_landing = False
        landings: list[Landing] = []
        while self._came:
            landings += self._came.popleft()
        self._flying -= len(landings)
        self._landed(landings)


def _landing(flight: PublishBatch, offsets: AppendFuture[range]) -> Landing:
    error = offsets.exception()
    if error is not None:
        return Landing(flight, range(0), error, isinstance(error, NOT_STORED))
    return Landing(flight, offsets.result(), None, True)
