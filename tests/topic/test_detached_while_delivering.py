"""A consumer is detached by another thread, at each line of a delivery in progress."""

from __future__ import annotations

import sys
import threading
from types import FrameType
from typing import Any

import pytest

from pyreplog._native.topic.messages import MessageBatch
from pyreplog.clock import ManualClock
from pyreplog.cursors.subscription_config import SubscriptionConfig
from pyreplog.future import AppendFuture, set_result
from pyreplog.topic.model.cursor import Cursor
from pyreplog.topic.model.positions import ORIGIN, TopicPosition
from pyreplog.topic.owner import subscription as subscription_module
from pyreplog.topic.owner.subscription import Subscription
from tests.topic import dispatching

LOCKED_S = 0.02
"""How long to wait for the detaching thread, which may have to wait for the lock of the traced thread."""


class Managed:
    """A managed ledger of two messages; the test answers its reads."""

    name = "topic"
    start = ORIGIN

    def __init__(self) -> None:
        self._log = dispatching.Log()
        self._log.publish(2)
        self.on_grow: list[Any] = []
        self.asked: list[tuple[Any, AppendFuture[MessageBatch]]] = []

    @property
    def end(self) -> TopicPosition:
        return self._log.end

    def read(self, offset: int, *, bytes_max: int, end: int) -> AppendFuture[MessageBatch]:
        future: AppendFuture[MessageBatch] = AppendFuture()
        self.asked.append(((offset, end, bytes_max), future))
        return future

    def answer(self) -> None:
        asked, future = self.asked.pop(0)
        set_result(future, self._log.read(*asked))


class Runtime:
    def wait(self, future: Any, timeout: float | None = None) -> Any:
        return future.result(timeout)

    def wake_after(self, seconds: float, call: Any) -> None:
        return None

    def work(self, job: Any) -> None:
        job()


class Receiver:
    """A consumer that records the messages that it gets."""

    name = "a"

    def __init__(self) -> None:
        self.delivered: list[int] = []

    def deliver(self, delivery: Any) -> None:
        self.delivered += delivery.batch.offset.tolist()

    def set_active(self, active: bool) -> None: ...
    def discard(self, *, sought: bool = False) -> None: ...
    def forget_acks(self, era: int) -> None: ...
    def failed(self, error: Any) -> None: ...
    def close(self) -> None: ...


def deliver(line: int) -> bool:
    """Detach the consumer at a line of the delivery; return whether the delivery has so many lines. The next consumer
    gets the messages that were not acknowledged."""
    managed, receiver, other = Managed(), Receiver(), Receiver()
    subscription = Subscription(
        "subscription", managed, Cursor("subscription", ORIGIN), SubscriptionConfig.of({"type": "exclusive"}),  # type: ignore[arg-type]
        Runtime(), ManualClock(dispatching.NOW), publish_dead=lambda *_: AppendFuture(), on_change=lambda: None,  # type: ignore[arg-type]
        on_over=lambda _: None,
    )  # fmt: skip
    subscription.follow_topic()
    number = subscription.attach(receiver, None)
    subscription.flow(number, 10)
    detaching = threading.Thread(target=subscription.detach, args=(number,))
    lines = 0

    def trace(frame: FrameType, event: str, _: object) -> Any:
        nonlocal lines
        if frame.f_code.co_filename != subscription_module.__file__:
            return None
        if event == "line":
            lines += 1
            if lines == line:
                detaching.start()
                detaching.join(LOCKED_S)
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        managed.answer()
    finally:
        sys.settrace(before)
    if lines < line:
        assert receiver.delivered == [0, 1]
        return False
    detaching.join()
    assert receiver.delivered in ([], [0, 1]) and not subscription.consumers
    subscription.flow(subscription.attach(other, None), 10)
    while managed.asked:
        managed.answer()
    assert other.delivered == [0, 1], line
    return True


def test_a_consumer_is_detached_at_any_line_of_a_delivery(caplog: pytest.LogCaptureFixture) -> None:
    """An effect that fails is logged by the queue that carries it out."""
    line = 1
    while deliver(line):
        assert not caplog.records, f"line {line}: {caplog.text}"
        line += 1
    assert line > 20, "hardly any line was traced"
