"""Properties of all handles: their truth value, `with`, `async with`, and iteration of closed consumers."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from itertools import count
from pathlib import Path
from typing import Any

import pytest

import pyreplog
from pyreplog import ha
from pyreplog.bookie.ledger_log import LedgerLog
from pyreplog.errors import ClosedError, TopicFencedError
from pyreplog.ha.remote_node import RemoteNode
from pyreplog.topic.client.remote.remote_topic import RemoteTopic
from tests.topic.remoting import PATIENCE_S, PLAIN, ServedCluster


class Handles:
    """Opens handles, by the name of their kind."""

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        self.here = ServedCluster(folder / "cluster", stack)
        self.cluster, self.client = self.here.cluster, self.here.client()
        self._folder, self._stack, self._numbers = folder, stack, count()

    @property
    def folder(self) -> Path:
        """Return a new folder."""
        return self._folder / str(next(self._numbers))

    def topic(self, name: str) -> Any:
        partitions = {"partitions": 2} if "partitioned" in name else {}
        opened_by = self.client if name.startswith("remote") else self.cluster
        return opened_by.topic(f"topic-{next(self._numbers)}", **partitions, **PLAIN)

    def open(self, name: str) -> Any:
        where, _, kind = name.rpartition(" ")
        if kind == "topic":
            return self.topic(where)
        if kind == "consumer":
            return self.topic(where).subscribe("s")
        if kind == "producer":
            return self.topic(where).producer("p")
        return getattr(self, f"_{name.replace(' ', '_')}")()

    def _cluster(self) -> Any:
        return pyreplog.Cluster.embedded(self.folder, bookies=1)

    def _client(self) -> Any:
        return self.here.client()

    def _server(self) -> Any:
        return pyreplog.TopicServer(self._stack.enter_context(self._cluster()))

    def _ledger(self) -> Any:
        return self.cluster.create_ledger(1, durability="appended")

    def _ledger_reader(self) -> Any:
        with self.cluster.create_ledger(1, durability="appended") as ledger:
            return self.cluster.open_ledger(ledger.id, recover=False)

    def _log(self) -> Any:
        return pyreplog.open(self.folder)

    def _log_reader(self) -> Any:
        folder = self.folder
        pyreplog.open(folder).close()
        return pyreplog.open(folder, "r")

    def _ledger_log(self) -> Any:
        return LedgerLog(self.folder, pyreplog.LogConfig())

    def _node(self) -> Any:
        return ha.open_master(self.folder, name="a", members=["a"])

    def _remote_node(self) -> Any:
        return RemoteNode("127.0.0.1:9")  # connects with the first request


TOPICS = ("local", "remote", "local partitioned", "remote partitioned")
NAMES = (
    *(f"{where} {kind}" for kind in ("topic", "consumer", "producer") for where in TOPICS),
    "cluster", "client", "server", "ledger", "ledger reader", "log", "log reader", "ledger log", "node", "remote node",
)  # fmt: skip


@pytest.fixture(scope="module")
def handles(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Handles]:
    with ExitStack() as stack:
        yield Handles(tmp_path_factory.mktemp("handles"), stack)


@pytest.mark.parametrize("name", NAMES)
def test_an_empty_handle_is_true_and_so_is_a_closed_one(handles: Handles, name: str) -> None:
    with handles.open(name) as handle:
        assert bool(handle) is True
    assert bool(handle) is True


def test_the_truth_value_of_a_remote_topic_is_no_request(handles: Handles, monkeypatch: pytest.MonkeyPatch) -> None:
    topic = handles.open("remote topic")
    calls: list[str] = []
    monkeypatch.setattr(RemoteTopic, "_call", lambda self, name, **arguments: calls.append(name) or [0, 0])
    assert topic
    assert calls == []
    assert len(topic) == 0
    assert calls == ["where"], "the length is asked for"


@pytest.mark.parametrize("name", NAMES)
def test_async_with_closes_in_a_thread(handles: Handles, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Closing waits for an event that only the loop sets: if the loop called it, it would wait for ever."""
    released, waited = threading.Event(), []
    handle = handles.open(name)
    close = type(handle).close

    def blocking(self: Any, *given: Any) -> None:
        if self is handle:
            waited.append((threading.current_thread() is not threading.main_thread(), released.wait(PATIENCE_S)))
        close(self, *given)

    monkeypatch.setattr(type(handle), "close", blocking)

    async def use() -> None:
        async with handle as entered:
            assert entered is handle
            asyncio.get_running_loop().call_soon(released.set)

    asyncio.run(use())
    assert waited == [(True, True)]
    handle.close()  # closing again is allowed
    assert waited[1:] == [(False, True)]


def test_async_with_raises_what_closing_fails_with(handles: Handles, monkeypatch: pytest.MonkeyPatch) -> None:
    topic = handles.open("local topic")
    monkeypatch.setattr(topic, "_wait_stored", _failing)

    async def use() -> None:
        async with topic:
            pass

    with pytest.raises(ClosedError, match="of a test"):
        asyncio.run(use())


def test_async_with_passes_errors_of_its_block_on(handles: Handles) -> None:
    async def use(handle: Any) -> None:
        async with handle:
            raise KeyError("of the block")

    for name in ("local topic", "log", "local producer"):
        handle = handles.open(name)
        with pytest.raises(KeyError, match="of the block"):
            asyncio.run(use(handle))


def _failing(*_: Any) -> None:
    raise ClosedError("of a test")


async def _first_async(consumer: Any) -> object:
    async for message in consumer:
        return message
    return None


@pytest.mark.parametrize("where", TOPICS)
def test_iterating_a_closed_consumer_raises(handles: Handles, where: str) -> None:
    consumer = handles.open(f"{where} consumer")
    consumer.close()
    ways: list[Callable[[], object]] = [lambda: next(iter(consumer)), lambda: asyncio.run(_first_async(consumer))]
    for iterate in ways:
        with pytest.raises(ClosedError, match=r"the consumer .* was closed"):
            iterate()


@pytest.mark.parametrize("where", TOPICS)
def test_iterating_ends_when_the_consumer_is_closed_meanwhile(handles: Handles, where: str) -> None:
    consumer = handles.open(f"{where} consumer")

    async def use() -> object:
        waiting = asyncio.ensure_future(_first_async(consumer))
        await asyncio.sleep(0)  # it waits now
        async with consumer:
            pass
        async with asyncio.timeout(PATIENCE_S):
            return await waiting

    assert asyncio.run(use()) is None
    consumer = handles.open(f"{where} consumer")
    waiting = threading.Thread(target=lambda: ended.append([*consumer]))
    ended: list[list[Any]] = []
    waiting.start()
    consumer.close()
    waiting.join(PATIENCE_S)
    assert ended in ([[]], []), "closed before the loop began, it raised"


@pytest.mark.parametrize("where", TOPICS)
def test_the_body_of_a_loop_may_close_the_consumer(handles: Handles, where: str) -> None:
    topic = handles.topic(where)
    topic.publish_batch([b"1", b"2"], [b"k", b"k"])

    async def values() -> list[bytes]:
        actual_values = []
        async for message in (consumer := await topic.subscribe_async("t", start="earliest")):
            actual_values.append(message.value)
            await consumer.close_async()
        return actual_values

    assert asyncio.run(values()) == [b"1"]
    consumer = topic.subscribe("s", start="earliest")
    seen = []
    for message in consumer:
        seen.append(message.value)
        consumer.close()
    assert seen == [b"1"]


@pytest.mark.parametrize("where", TOPICS)
def test_closing_a_topic_ends_the_loops_of_its_consumers(handles: Handles, where: str) -> None:
    topic = handles.topic(where)
    consumer = topic.subscribe("s")

    async def use() -> object:
        waiting = asyncio.ensure_future(_first_async(consumer))
        await asyncio.sleep(0)
        await topic.close_async()
        async with asyncio.timeout(PATIENCE_S):
            return await waiting

    assert asyncio.run(use()) is None


def test_a_loop_raises_what_the_subscription_failed_with(handles: Handles) -> None:
    """This includes a ClosedError of a consumer that was not closed: no error is taken for the end."""
    for error in (TopicFencedError("topic", "of a test"), ClosedError("of a test")):
        with handles.topic("local").subscribe("s") as consumer:
            consumer.failed(error)
            for iterate in (lambda: next(iter(consumer)), lambda: asyncio.run(_first_async(consumer))):
                with pytest.raises(type(error), match="of a test"):
                    iterate()
