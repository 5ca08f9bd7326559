"""A partitioned topic is closed while another thread subscribes; its partition is a fake."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any
from weakref import WeakKeyDictionary

import pytest

from pyreplog.topic.owner.partitioned_topic import PartitionedTopic
from tests.topic.partitioning import PATIENCE_S


class Partition:
    """A partition whose consumers get nothing, and its subscription. `on_flow` is called at the end of `subscribe`."""

    name, era = "t-partition-0", 1

    def __init__(self) -> None:
        self.on_flow: Callable[[], object] = lambda: None

    def attach(self, *_: Any) -> tuple[Any, int]:
        return self, 1

    def flow(self, consumer: int, messages: int) -> None:
        self.on_flow()

    def detach(self, consumer: int) -> None:
        return

    def acknowledge_noted(self, consumer: int, take: Callable[[], object]) -> None:
        return

    def close(self) -> None:
        return


def test_a_topic_is_closed_while_another_thread_subscribes(monkeypatch: pytest.MonkeyPatch) -> None:
    """The other thread has its turn in the middle of an iteration over weak keys, which is Python code."""
    partition, registry = Partition(), SimpleNamespace(forget=lambda _: None)
    topics: Any = SimpleNamespace(
        runtime=SimpleNamespace(wait=None), get=lambda name: None, open=lambda name, **settings: partition
    )
    topic = PartitionedTopic(topics, registry, "t", 1)  # type: ignore[arg-type]
    topic.own(1, 0.0, {})
    consumers = [topic.subscribe("s") for _ in range(3)]
    has_attached, may_go_on = threading.Event(), threading.Event()

    def attached() -> None:
        has_attached.set()
        assert may_go_on.wait(PATIENCE_S)

    partition.on_flow, iterate = attached, WeakKeyDictionary.__iter__
    with ThreadPoolExecutor(1) as pool:
        late = pool.submit(topic.subscribe, "s")
        assert has_attached.wait(PATIENCE_S)

        def iterate_with_a_break(keys: WeakKeyDictionary[Any, Any]) -> Iterator[Any]:
            for key in iterate(keys):
                may_go_on.set()
                late.result(PATIENCE_S)
                yield key

        monkeypatch.setattr(WeakKeyDictionary, "__iter__", iterate_with_a_break)
        try:
            topic.close()
        finally:
            may_go_on.set()
        late.result(PATIENCE_S).close()
    assert all(consumer.is_closed for consumer in consumers)
