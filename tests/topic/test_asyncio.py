"""Topics in an event loop: each blocking call is refused, and the error names the awaitable form, which works."""

from __future__ import annotations

import asyncio
import inspect
import re
import sys
import types
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import ExitStack, asynccontextmanager
from typing import Any

import pytest

import pyreplog
from pyreplog.errors import InvalidArgumentError, OutcomeUnknownError, WindowFullError
from tests.topic.publishing import Bench
from tests.topic.remoting import PATIENCE_S, PLAIN, ServedCluster, Wire

WHERE = ("local", "remote", "local partitioned", "remote partitioned")
TICK_S = 0.01


class Places:
    """A cluster and a client of its server, with topics in both, with and without partitions."""

    def __init__(self, served: ServedCluster) -> None:
        self.here, self.cluster, self.client = served, served.cluster, served.client()
        self.count = 0

    def of(self, where: str) -> Any:
        return self.client if where.startswith("remote") else self.cluster

    def settings(self, where: str) -> dict[str, Any]:
        """Return the settings of a new topic: its name, and its number of partitions."""
        self.count += 1
        partitions = {"partitions": 2} if where.endswith("partitioned") else {}
        return {"name": f"topic-{self.count}", **partitions, **PLAIN}

    def topic(self, where: str, **settings: Any) -> Any:
        return self.of(where).topic(**self.settings(where), **settings)


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Places]:
    with ExitStack() as stack:
        yield Places(ServedCluster(tmp_path_factory.mktemp("cluster"), stack))


@asynccontextmanager
async def ticking() -> AsyncIterator[Callable[[], int]]:
    """Count the rounds of the event loop. While a call blocks the loop, the count does not grow."""
    ticks = 0

    async def tick() -> None:
        nonlocal ticks
        while True:
            ticks += 1
            await asyncio.sleep(TICK_S)

    async with asyncio.timeout(PATIENCE_S):
        task = asyncio.create_task(tick())
        try:
            yield lambda: ticks
        finally:
            task.cancel()


def run(coroutine: Coroutine[Any, Any, Any]) -> Any:
    async def bounded() -> Any:
        async with asyncio.timeout(PATIENCE_S):
            return await coroutine

    return asyncio.run(bounded())


# ---- blocking calls --------------------------------------------------------------------------------------------


def blocking_calls(topic: Any, consumer: Any, producer: Any) -> Iterator[tuple[Any, str, Callable[[], object]]]:
    """Yield object, name and call of each method that may block."""
    for to in (topic, producer):
        yield to, "publish", lambda to=to: to.publish(b"v", b"k")
        yield to, "publish_batch", lambda to=to: to.publish_batch([b"v"], [b"k"])
    for each in (topic, consumer, producer):
        yield each, "flush", each.flush
    yield topic, "subscribe", lambda: topic.subscribe("s")
    yield topic, "create_subscription", lambda: topic.create_subscription("t")
    yield topic, "delete_subscription", lambda: topic.delete_subscription("s")
    yield topic, "seek", lambda: topic.seek("s", "earliest")
    yield topic, "clear", lambda: topic.clear("s")
    yield topic, "configure", lambda: topic.configure(ttl_ms=1 << 40)
    for name in ("stats", "internal_stats", "trim", "delete"):
        yield topic, name, getattr(topic, name)
    if hasattr(topic, "partitions"):
        yield topic, "read", lambda: topic.read(0)
    else:
        yield topic, "read", topic.read
        yield topic, "skip", lambda: topic.skip("s", 1)
        yield topic, "skip_to", lambda: topic.skip_to("s", 0)
    yield consumer, "receive", consumer.receive
    yield consumer, "receive", lambda: consumer.receive(max_messages=5, timeout=1.0)
    yield consumer, "receive", lambda: next(iter(consumer))
    yield consumer, "receive_batch", consumer.receive_batch
    yield consumer, "receive_batch", lambda: next(consumer.batches())
    yield consumer, "seek", lambda: consumer.seek("earliest")


@pytest.mark.parametrize("where", WHERE)
def test_a_blocking_call_in_an_event_loop_is_refused(places: Places, where: str) -> None:
    place = places.of(where)
    with places.topic(where) as topic, topic.subscribe("s") as consumer, topic.producer("p") as producer:
        calls = [*blocking_calls(topic, consumer, producer), (place, "topic", lambda: place.topic("other"))]
        if place is places.client:
            calls += [(place, name, getattr(place, name)) for name in ("topics", "partitioned_topics")]
        if where == "remote":
            calls += [(topic, "offsets", topic.offsets), (topic, "offsets", lambda: len(topic))]

        async def scene() -> None:
            for each, name, call in calls:
                message = f"{name}() would block the running event loop: await {name}_async() instead"
                with pytest.raises(InvalidArgumentError, match=re.escape(message)):
                    call()
                assert callable(getattr(each, f"{name}_async")), "what the error names is there"

        run(scene())
        stats = topic.stats()
        assert topic.subscriptions() == ["s"], "nothing was done"
        assert getattr(stats, "pending_messages", 0) == 0
        assert len(calls) >= 20


@pytest.mark.parametrize("where", WHERE)
def test_calls_that_do_not_wait_are_not_refused(places: Places, where: str) -> None:
    with places.topic(where) as topic, topic.subscribe("s") as consumer, topic.producer("p") as producer:

        async def scene() -> None:
            assert consumer.receive(timeout=0) is None and consumer.receive_batch(timeout=0) is None
            assert consumer.receive(max_messages=5, timeout=0) == []
            await topic.submit(b"1", b"k")
            await producer.submit_batch([b"2"], [b"k"])
            message = await consumer.receive_async()
            consumer.nack(message, delay=0)
            consumer.acknowledge(await consumer.receive_async())
            consumer.redeliver()

        run(scene())


def test_a_cell_of_a_notebook_may_block(places: Places, monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel of a notebook runs cells in an event loop that serves nothing else."""
    monkeypatch.setitem(sys.modules, "ipykernel", types.ModuleType("ipykernel"))

    async def cell() -> Any:
        with places.topic("remote") as topic, topic.subscribe("s") as consumer:
            topic.publish(b"1")
            return consumer.receive(timeout=PATIENCE_S).value

    assert run(cell()) == b"1"


# ---- the forms that are awaited ----------------------------------------------------------------------------------


@pytest.mark.parametrize("where", WHERE)
def test_all_of_a_topics_life_in_a_loop(places: Places, where: str) -> None:
    place, settings = places.of(where), places.settings(where)

    async def scene() -> list[bytes]:
        values = []
        async with await place.topic_async(**settings) as topic:
            await topic.create_subscription_async("s", start="earliest", properties={"a": "b"})
            async with await topic.subscribe_async("s") as consumer, await topic.producer_async("p") as producer:
                places_of = [await topic.publish_async(b"0", b"k"), await producer.publish_async(b"1", b"k")]
                await topic.publish_batch_async([b"2", b"3"], [b"k", b"k"])
                await producer.publish_batch_async(iter([b"4"]), [b"k"], timeout=PATIENCE_S)
                assert len({*places_of}) == 2
                async for message in consumer:
                    values.append(message.value)
                    if len(values) == 5:
                        await consumer.acknowledge_cumulative_async(message)
                        break
                await consumer.flush_async()
                await consumer.seek_async("earliest")
                batch = await consumer.receive_batch_async()
                assert batch.values()[0] == b"0"
            await topic.seek_async("s", "latest")
            await topic.clear_async("s")
            await topic.configure_async(retention_ms=3_600_000)
            await topic.trim_async()
            stats = await topic.stats_async()
            assert (stats.name, await topic.subscriptions_async()) == (topic.name, ["s"])
            await topic.internal_stats_async()
            if not hasattr(topic, "partitions"):
                await topic.skip_async("s", 1)
                await topic.skip_to_async("s", 5)
                assert [len(batch) async for batch in topic.read_async(1, 4)] == [3] or where == "local"
            else:
                read = [batch for at in range(2) async for batch in topic.read_async(at)]
                assert sum(map(len, read)) == 5
            await topic.delete_subscription_async("s")
            await topic.delete_async()
        return values

    assert run(scene()) == [b"0", b"1", b"2", b"3", b"4"]


def test_a_named_producer_of_a_topic_that_deduplicates(places: Places) -> None:
    """At a server, the first message of a producer name waits for the owner, in a thread."""
    for where in ("remote", "remote partitioned"):
        topic = places.topic(where, deduplicate=True)

        async def scene(topic: Any = topic) -> None:
            with pytest.raises(InvalidArgumentError, match=r"await producer_async\(\) instead"):
                topic.producer("q")
            async with await topic.producer_async("p") as producer:
                await producer.publish_async(b"1", b"k", sequence=1)
                await topic.publish_async(b"2", b"k", producer="p", sequence=2)

        run(scene())
    topic = places.topic("remote", deduplicate=True)
    assert run(topic.publish_async(b"1", producer="new", sequence=5)) == 0
    assert run(topic.publish_async(b"1", producer="new", sequence=5)) == -1


def test_coroutines_list_names_of_topics(places: Places) -> None:
    places.topic("remote"), places.topic("remote partitioned")

    async def scene() -> tuple[list[str], list[str]]:
        return await places.client.topics_async(), await places.client.partitioned_topics_async()

    assert run(scene()) == (places.client.topics(), places.client.partitioned_topics())


KINDS = (
    pyreplog.Topic, pyreplog.RemoteTopic, pyreplog.PartitionedTopic, pyreplog.RemotePartitionedTopic, pyreplog.Producer,
    pyreplog.PartitionedProducer, pyreplog.Consumer, pyreplog.PartitionedConsumer, pyreplog.Cluster, pyreplog.Client,
    pyreplog.TopicLike, pyreplog.ProducerLike, pyreplog.ConsumerLike,
)  # fmt: skip
BOUNDED = {"flush", "receive", "receive_batch", "seek", "acknowledge_cumulative"}
"""Awaitable forms of consumers. They have no time-out of their own, as `asyncio.timeout` bounds them."""


@pytest.mark.parametrize("kind", KINDS)
def test_a_form_has_the_parameters_of_its_method(kind: Any) -> None:
    forms = [name for name in dir(kind) if name.endswith("_async") and not name.startswith("_")]
    assert "close_async" in forms and all(hasattr(kind, name.removesuffix("_async")) for name in forms)
    for name in forms:
        form, blocking = getattr(kind, name), name.removesuffix("_async")
        assert form.__name__ == name and inspect.getdoc(form)
        if blocking == "receive" and kind is pyreplog.Consumer:
            continue  # a compiled method, without a signature
        expected = list(inspect.signature(getattr(kind, blocking)).parameters.values())
        if blocking in BOUNDED or blocking == "close":
            expected = [each for each in expected if each.name not in ("timeout", "max_messages")]
        values = list(inspect.signature(form).parameters.values())
        assert [(p.name, p.kind, p.default) for p in values] == [(p.name, p.kind, p.default) for p in expected], name


# ---- waiting without blocking ------------------------------------------------------------------------------------


def test_the_loop_goes_on_while_a_server_is_silent(served: ServedCluster, wire: Wire) -> None:
    client = served.client(wire.address, timeout=60.0)
    topic = client.topic("news", **PLAIN)
    topic.subscribe("s").close()

    async def scene() -> None:
        waiting = [
            topic.publish_async(b"1"), topic.stats_async(), topic.seek_async("s", "latest"), topic.subscribe_async("t"),
            client.topic_async("other"),
        ]  # fmt: skip
        async with ticking() as ticks:
            tasks: list[asyncio.Future[Any]] = [asyncio.ensure_future(each) for each in waiting]
            before = ticks()
            while ticks() - before <= 5:  # a call that blocked the loop would have failed by now
                await asyncio.sleep(TICK_S)
            assert not any(task.done() for task in tasks)
            wire.cut()  # once a new connection is made, each call goes on or fails
            outcomes = await asyncio.gather(*tasks, return_exceptions=True)
            for handle in outcomes:
                if isinstance(handle, pyreplog.Consumer):
                    await handle.close_async()
            assert not [error for error in outcomes if isinstance(error, InvalidArgumentError | asyncio.CancelledError)]

    wire.swallow()
    asyncio.run(scene())


@pytest.mark.parametrize("where", WHERE)
def test_a_handle_whose_caller_was_cancelled_is_closed(places: Places, where: str) -> None:
    """No handle is left to its finalizer, whose warning would fail the test."""
    with places.topic(where) as topic:

        async def scene() -> None:
            for turn in range(20):
                task = asyncio.create_task(topic.subscribe_async("s", type="shared"))
                await asyncio.sleep(turn * 0.001)
                if not task.cancel():
                    await (await task).close_async()
                else:
                    await asyncio.wait([task])
                    if not task.cancelled():
                        await task.result().close_async()

        run(scene())  # closing the loop waits for the threads of its executor
        with topic.subscribe("s", name="next") as consumer:
            stats = topic.stats()
            several = [stats] if not hasattr(stats, "parts") else list(stats.parts.values())
            names = {entry.name for each in several for entry in each.subscriptions[0].consumers}
            assert names == {consumer.name}


def test_publishing_waits_for_room_one_after_the_other() -> None:
    """All waiters wake when there is room for one, and the others wait again."""
    bench = Bench(window_bytes=1000)

    async def publish(at: int) -> int:
        offset: int = await bench.publisher.publish_async(b"%03d" % at + bytes(397))
        return offset

    async def scene() -> list[int]:
        tasks = [asyncio.create_task(publish(at)) for at in range(40)]
        while not all(task.done() for task in tasks):
            await asyncio.sleep(0)
            assert bench.publisher.pending_bytes <= 1000 + 600, "a window, and the message that fills it"
            if bench.ledgers.held:
                bench.ledgers.confirm(1)
        return [await task for task in tasks]

    assert sorted(run(scene())) == list(range(40))


def test_a_batch_of_a_generator_waits_for_room_and_is_whole() -> None:
    bench = Bench(window_bytes=1000)

    async def scene() -> list[range]:
        first = bench.submit_batch([bytes(1000)])
        later = asyncio.create_task(bench.publisher.publish_batch_async(value for value in [b"1", b"2"]))
        await asyncio.sleep(0)
        assert not later.done() and bench.ledgers.held == 1
        bench.ledgers.holds = False
        bench.ledgers.confirm()
        return [await first, await later]

    assert run(scene()) == [range(1), range(1, 3)]


def test_publishing_in_coroutines_has_time_limits() -> None:
    bench = Bench(window_bytes=1000)

    async def scene() -> None:
        with pytest.raises(OutcomeUnknownError, match="no outcome in time"):
            await bench.publisher.publish_async(bytes(1200), timeout=0.05)
        with pytest.raises(WindowFullError, match="no room in time"):
            await bench.publisher.publish_async(b"2", timeout=0.05)
        task = asyncio.create_task(bench.publisher.publish_async(b"3"))
        await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait([task])
        assert task.cancelled()

    run(scene())
    bench.ledgers.confirm()
    assert bench.ledgers.values() == [bytes(1200)], "what waited for room was not published"
