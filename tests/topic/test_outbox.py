"""What is sent at once, and what waits for company."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import pytest

from pyreplog.errors import TopicFullError
from pyreplog.future import AppendFuture, Outcome
from pyreplog.topic.client.publishing.outbox import Landing, Outbox, Parcel
from pyreplog.topic.client.publishing.publish_batch import STAGE_BYTES, Encoder, Share


class Plane:
    """A Flight of one entry."""

    is_gathered = False

    def __init__(self, name: bytes, size: int = 1) -> None:
        self.entries, self.counts = [name], [1]
        self.messages = self.messages_given = 1
        self.size, self.is_ready = size, False
        self.failure: Exception | None = None

    def encode(self, encoder: Encoder) -> None:
        raise AssertionError

    def shares(self) -> Iterator[Share]:
        return iter(())

    def outcomes(self, offsets: range, error: BaseException | None) -> list[Outcome]:
        return []


class Unwaited(AppendFuture[range]):
    """Nobody may wait for it: callbacks must not."""

    def exception(self, timeout: float | None = None) -> BaseException | None:
        assert self.done()
        return super().exception(timeout)


class Sink:
    """at_once: it confirms within `submit`."""

    def __init__(self, *, at_once: bool) -> None:
        self.at_once = at_once
        self.taken: list[bytes] = []
        self.calls: list[int] = []  # how many parcels each had
        self.open: list[AppendFuture[range]] = []

    def submit_all(self, parcels: Sequence[Parcel]) -> list[AppendFuture[range]]:
        self.calls.append(len(parcels))
        return [self._submit(entries, counts) for entries, counts in parcels]

    def _submit(self, entries: Sequence[bytes], counts: Sequence[int]) -> AppendFuture[range]:
        future = Unwaited(range(len(self.taken), len(self.taken) + sum(counts)))
        self.taken += entries
        if self.at_once:
            future.complete()
        else:
            self.open.append(future)
        return future

    @property
    def has_room(self) -> bool:
        raise AssertionError

    def room(self) -> AppendFuture[None]:
        raise AssertionError


class Port:
    """An Outbox with what is around it. has_thread: something can be called soon."""

    def __init__(self, *, at_once: bool, has_thread: bool = True) -> None:
        self.sink = Sink(at_once=at_once)
        self.soon: list[Callable[[], None]] = []
        self.landed: list[tuple[bytes, range, bool]] = []
        self._has_thread = has_thread
        self.outbox = Outbox(self.sink, self._land, self._soon)

    def _soon(self, call: Callable[[], None]) -> bool:
        if self._has_thread:
            self.soon.append(call)
        return self._has_thread

    def _land(self, landings: list[Landing]) -> None:
        self.landed += [(flight.entries[0], offsets, error is None) for flight, offsets, error, _ in landings]

    def send(self, name: bytes, size: int = 1, *, is_awaited: bool = False) -> Plane:
        plane = Plane(name, size)
        self.outbox.enter(plane)
        self.outbox.ready(plane, is_awaited=is_awaited)
        return plane

    def send_together(self, *names: bytes, size: int = 1) -> None:
        """The first one is ready last: it takes all with it."""
        planes = [Plane(name, size) for name in names]
        for plane in planes:
            self.outbox.enter(plane)
        for plane in reversed(planes):
            self.outbox.ready(plane, is_awaited=True)


def test_where_it_takes_a_while_everything_is_sent() -> None:
    port = Port(at_once=False)
    for name in (b"a", b"b", b"c"):
        port.send(name)
    assert port.sink.taken == [b"a", b"b", b"c"]
    assert port.soon == []


def test_where_it_is_confirmed_at_once_others_are_waited_for() -> None:
    port = Port(at_once=True)
    for name in (b"a", b"b", b"c"):
        port.send(name)
    assert port.sink.taken == [b"a"], "then it is known how the sink is"
    (call,) = port.soon
    call()
    assert port.sink.taken == [b"a", b"b", b"c"]
    assert port.landed == [(b"a", range(1), True), (b"b", range(1, 2), True), (b"c", range(2, 3), True)]
    port.send(b"d")
    assert len(port.soon) == 2


def test_who_waits_sends_what_was_before() -> None:
    port = Port(at_once=True)
    for name in (b"a", b"b"):
        port.send(name)
    port.send(b"c", is_awaited=True)
    assert port.sink.taken == [b"a", b"b", b"c"]
    port.soon[0]()
    assert port.sink.taken == [b"a", b"b", b"c"], "nothing is sent twice"


def test_much_does_not_wait() -> None:
    port = Port(at_once=True)
    port.send(b"a")
    port.send(b"b", STAGE_BYTES - 1)
    assert port.sink.taken == [b"a"]
    port.send(b"c")
    assert port.sink.taken == [b"a", b"b", b"c"]


def test_everything_can_be_pushed() -> None:
    port = Port(at_once=True)
    for name in (b"a", b"b"):
        port.send(name)
    port.outbox.push()
    assert port.sink.taken == [b"a", b"b"]


def test_nobody_waits_for_a_thread_that_is_gone() -> None:
    port = Port(at_once=True, has_thread=False)
    for name in (b"a", b"b"):
        port.send(name)
    assert port.sink.taken == [b"a", b"b"]


def test_a_sink_that_becomes_slow_is_not_waited_for() -> None:
    port = Port(at_once=True)
    port.send(b"a")
    port.sink.at_once = False
    port.send(b"b", is_awaited=True)
    port.send(b"c")
    assert port.sink.taken == [b"a", b"b", b"c"]
    for future in port.sink.open:
        future.complete()
    assert [name for name, _, _ in port.landed] == [b"a", b"b", b"c"]


def test_order_is_that_of_entering() -> None:
    port = Port(at_once=True)
    first, second = Plane(b"first"), Plane(b"second")
    port.outbox.enter(first)
    port.outbox.enter(second)
    port.outbox.ready(second, is_awaited=True)
    assert port.sink.taken == []
    port.outbox.ready(first, is_awaited=True)
    assert port.sink.taken == [b"first", b"second"]


@pytest.mark.parametrize("at_once", [True, False])
def test_what_cannot_be_sent_lands_in_its_turn(at_once: bool) -> None:
    port = Port(at_once=at_once)
    plane = Plane(b"bad")
    plane.failure = TopicFullError("bench", "it is full")
    port.send(b"a")
    port.outbox.enter(plane)
    port.outbox.ready(plane, is_awaited=True)
    assert port.sink.taken == [b"a"]
    assert port.landed[-1] == (b"bad", range(0), False)


def test_what_is_ready_goes_together_and_lands_together() -> None:
    port = Port(at_once=False)
    port.send_together(b"a", b"b", b"c")
    assert port.sink.calls == [3]
    for future in port.sink.open:
        future.complete()
    assert port.landed == [(b"a", range(1), True), (b"b", range(1, 2), True), (b"c", range(2, 3), True)]


def test_the_last_one_is_refused_before_its_turn() -> None:
    port = Port(at_once=False)
    port.send_together(b"a", b"b", b"c")
    first, second, third = port.sink.open
    third.fail(TopicFullError("bench", "it is full"))
    first.complete()
    assert port.landed == [], "one has no outcome yet"
    second.complete()
    assert port.landed == [(b"a", range(1), True), (b"b", range(1, 2), True), (b"c", range(0), False)]


def test_nobody_waits_for_the_outcome_of_very_much() -> None:
    port = Port(at_once=False)
    port.send_together(b"a", b"b", b"c", size=STAGE_BYTES // 2)
    assert port.sink.calls == [2, 1]
    port.sink.open[0].complete()
    port.sink.open[1].complete()
    assert [name for name, _, _ in port.landed] == [b"a", b"b"]
