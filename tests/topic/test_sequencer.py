"""The sequencer: which batches are sent at once and which are gathered; outcomes are reported in order, in whichever
order they arrive."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest

from pyreplog.clock import ManualClock
from pyreplog.errors import TopicFullError
from pyreplog.future import AppendFuture, Outcome
from pyreplog.topic.client.publishing.publish_batch import STAGE_BYTES, BatchEntrant, Encoder, PublishBatch, Share
from pyreplog.topic.client.publishing.sequencer import Sequencer
from pyreplog.topic.client.publishing.window import Window
from pyreplog.topic.model.config import TopicConfig
from pyreplog.topic.model.dedup import Producers

FULL = TopicFullError("bench", "it is full")


class Plane(BatchEntrant):
    """A batch of one entry. encoding: called when the batch is encoded."""

    def __init__(self, port: Port, name: bytes, size: int, encoding: Callable[[], object]) -> None:
        self.name, self.size, self.messages, self.messages_submitted = name, size, 1, 1
        self.future: AppendFuture[range] = AppendFuture()
        self._port, self._encoding = port, encoding

    def find_new(self, producers: Producers) -> bytes | None:
        raise AssertionError

    def encode(self, encoder: Encoder) -> None:
        self._encoding()
        self.entries, self.counts = [self.name], [1]

    def shares(self) -> Iterator[Share]:
        return iter(())

    def outcomes(self) -> list[Outcome]:
        self._port.landed.append((self.name, self.offsets, self.error is None))
        return super().outcomes()


class FakeSink:
    """A sink of batches. at_once: confirm them within `submit_all`."""

    pending = None

    def __init__(self, *, at_once: bool) -> None:
        self.at_once = at_once
        self.taken: list[bytes] = []
        self.calls: list[int] = []  # the number of batches of each call
        self.open: list[PublishBatch] = []
        self.on_room: Callable[[], object] = lambda: None

    def check_open(self) -> None: ...

    def submit_all(self, batches: Sequence[PublishBatch]) -> None:
        self.calls.append(len(batches))
        for batch in batches:
            batch.offsets = range(len(self.taken), len(self.taken) + 1)
            self.taken += batch.entries
            if self.at_once:
                batch.settle()
            else:
                self.open.append(batch)


class Port:
    """A sequencer with its sink and runtime. has_thread: whether another thread can run a call soon."""

    def __init__(self, *, at_once: bool, has_thread: bool = True) -> None:
        self.sink = FakeSink(at_once=at_once)
        self.soon: list[Callable[[], None]] = []
        self.landed: list[tuple[bytes, Sequence[int], bool]] = []
        self._has_thread = has_thread
        self.window = Window(1 << 30, 1 << 20)
        self.sequencer = Sequencer(
            "bench", self.sink, self, ManualClock(0), Encoder.of(TopicConfig(), 1 << 20),
            linger_us=0, window=self.window, producers=None, end=0,
        )  # fmt: skip

    def wait(self, future: AppendFuture[Any], timeout: float | None = None) -> Any:
        raise AssertionError

    def wake_after(self, seconds: float, call: Callable[[], None]) -> object:
        assert not seconds
        if self._has_thread:
            self.soon.append(call)
        return self._has_thread or None

    def send(
        self,
        name: bytes,
        size: int = 1,
        *,
        is_awaited: bool = False,
        encoding: Callable[[], object] = lambda: None,
    ) -> Plane:
        plane = Plane(self, name, size, encoding)
        self.sequencer.enter(plane, is_awaited=is_awaited)
        return plane

    def send_together(self, *names: bytes, size: int = 1) -> None:
        """Enter several batches, the first of which is encoded last, and takes all others with it."""
        first, *others = names

        def enter_others() -> None:
            for name in others:
                self.send(name, size, is_awaited=True)

        self.send(first, size, is_awaited=True, encoding=enter_others)


def test_every_batch_is_sent_at_once_to_a_slow_sink() -> None:
    port = Port(at_once=False)
    for name in (b"a", b"b", b"c"):
        port.send(name)
    assert port.sink.taken == [b"a", b"b", b"c"]
    assert port.soon == []


def test_batches_are_gathered_for_a_sink_that_confirms_at_once() -> None:
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


def test_a_waiting_caller_sends_earlier_batches() -> None:
    port = Port(at_once=True)
    for name in (b"a", b"b"):
        port.send(name)
    port.send(b"c", is_awaited=True)
    assert port.sink.taken == [b"a", b"b", b"c"]
    port.soon[0]()
    assert port.sink.taken == [b"a", b"b", b"c"], "nothing is sent twice"


def test_a_full_stage_is_sent_at_once() -> None:
    port = Port(at_once=True)
    port.send(b"a")
    port.send(b"b", STAGE_BYTES - 1)
    assert port.sink.taken == [b"a"]
    port.send(b"c")
    assert port.sink.taken == [b"a", b"b", b"c"]


def test_a_flush_sends_everything() -> None:
    port = Port(at_once=True)
    for name in (b"a", b"b"):
        port.send(name)
    flushed = port.sequencer.flush()
    assert port.sink.taken == [b"a", b"b"] and flushed.done()


def test_batches_do_not_wait_for_a_thread_that_is_gone() -> None:
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
    for batch in port.sink.open:
        batch.settle()
    assert [name for name, _, _ in port.landed] == [b"a", b"b", b"c"]
    assert port.window.messages == port.window.bytes == 0


def test_order_is_that_of_entering() -> None:
    port = Port(at_once=True)

    def enter_second() -> None:
        port.send(b"second", is_awaited=True)
        assert port.sink.taken == []

    port.send(b"first", is_awaited=True, encoding=enter_second)
    assert port.sink.taken == [b"first", b"second"]


@pytest.mark.parametrize("at_once", [True, False])
def test_batch_that_fails_to_encode_completes_in_its_turn(at_once: bool) -> None:
    port = Port(at_once=at_once)

    def fail() -> None:
        raise FULL

    port.send(b"a")
    bad = port.send(b"bad", is_awaited=True, encoding=fail)
    assert bad.failure is FULL
    assert port.sink.taken == [b"a"]
    for batch in port.sink.open:
        assert port.landed == []
        batch.settle()
    assert port.landed == [(b"a", range(1), True), (b"bad", range(0), False)]
    assert bad.future.exception(0) is FULL and port.sequencer.counts.errors == 1


def test_batches_that_are_ready_together_are_submitted_in_one_call() -> None:
    port = Port(at_once=False)
    port.send_together(b"a", b"b", b"c")
    assert port.sink.calls == [3]
    for batch in port.sink.open:
        batch.settle()
    assert port.landed == [(b"a", range(1), True), (b"b", range(1, 2), True), (b"c", range(2, 3), True)]


def test_the_last_one_is_refused_before_its_turn() -> None:
    port = Port(at_once=False)
    port.send_together(b"a", b"b", b"c")
    first, second, third = port.sink.open
    third.settle(FULL)
    assert port.landed == [], "it is not its turn"
    first.settle()
    assert port.landed == [(b"a", range(1), True)]
    second.settle()
    assert port.landed[1:] == [(b"b", range(1, 2), True), (b"c", range(2, 3), False)]


def test_batch_refused_by_the_sink_completes_after_earlier_batches() -> None:
    port = Port(at_once=False)
    port.send(b"a")

    def refuse(batches: Sequence[PublishBatch]) -> None:
        raise FULL

    port.sink.submit_all = refuse  # type: ignore[method-assign]
    refused = port.send(b"b")
    assert port.landed == [] and not refused.future.done()
    port.sink.open[0].settle()
    assert [(name, is_stored) for name, _, is_stored in port.landed] == [(b"a", True), (b"b", False)]


def test_very_much_does_not_go_in_one_call() -> None:
    port = Port(at_once=False)
    port.send_together(b"a", b"b", b"c", size=STAGE_BYTES // 2)
    assert port.sink.calls == [2, 1]
    port.sink.open[0].settle()
    port.sink.open[1].settle()
    assert [name for name, _, _ in port.landed] == [b"a", b"b"]
