"""TopicLike, ProducerLike and ConsumerLike: all topics have these methods, with these parameters."""

from __future__ import annotations

import asyncio
import inspect
import pydoc
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any
from unittest.mock import Mock

import pytest

import pyreplog
from pyreplog.topic.client.remote.connection_pool import ConnectionPool
from tests.topic.remoting import PATIENCE_S, PLAIN, ServedCluster

TOPICS = (pyreplog.Topic, pyreplog.RemoteTopic, pyreplog.PartitionedTopic, pyreplog.RemotePartitionedTopic)
KINDS: dict[type, tuple[type, ...]] = {
    pyreplog.TopicLike: TOPICS,
    pyreplog.ProducerLike: (pyreplog.Producer, pyreplog.PartitionedProducer),
    pyreplog.ConsumerLike: (pyreplog.Consumer, pyreplog.PartitionedConsumer),
}


def methods(protocol: type) -> list[str]:
    return [
        name
        for kind in protocol.__mro__[:-3]
        for name, value in vars(kind).items()
        if inspect.isfunction(value) and not name.startswith("_")
    ]


PAIRS = [
    (protocol, kind, name) for protocol, kinds in KINDS.items() for kind in kinds for name in methods(protocol)
]  # fmt: skip


def parameters(kind: type, name: str) -> list[inspect.Parameter]:
    """Return the parameters of a method, without self."""
    return list(inspect.signature(getattr(kind, name)).parameters.values())[1:]


def shown(parameter: inspect.Parameter) -> tuple[str, Any, Any]:
    return parameter.name, parameter.kind, parameter.default


def test_the_protocols_have_the_verbs() -> None:
    assert {*methods(pyreplog.TopicLike)} >= {
        "publish", "submit", "publish_batch", "submit_batch", "room", "flush", "flush_async", "producer", "subscribe",
        "create_subscription", "delete_subscription", "subscriptions", "seek", "clear", "configure", "trim", "stats",
        "internal_stats", "offsets", "offsets_async", "delete", "close",
    }  # fmt: skip
    assert {*methods(pyreplog.ProducerLike)} >= {"publish", "submit", "publish_batch", "submit_batch", "flush", "close"}
    assert {*methods(pyreplog.ConsumerLike)} >= {"receive", "batches", "acknowledge", "nack", "flush", "seek", "close"}
    for protocol in KINDS:
        for name in methods(protocol):
            assert inspect.getdoc(getattr(protocol, name)), name


@pytest.mark.parametrize(("protocol", "kind", "name"), PAIRS)
def test_all_topics_have_the_parameters_of_the_protocols(protocol: type, kind: type, name: str) -> None:
    """Further parameters are keywords with defaults."""
    expected = [shown(parameter) for parameter in parameters(protocol, name)]
    if name == "acknowledge":
        expected = [(key, inspect.Parameter.POSITIONAL_OR_KEYWORD, default) for key, _, default in expected]
        expected[0] = shown(parameters(kind, name)[0])
    actual_parameters = parameters(kind, name)
    assert [shown(parameter) for parameter in actual_parameters[: len(expected)]] == expected
    for parameter in actual_parameters[len(expected) :]:
        assert parameter.default is not parameter.empty, parameter


def help_of(kind: type) -> str:
    """Return the text of `help`. From CPython 3.13 on a long signature has a line for each parameter."""
    text = " ".join(pydoc.plain(pydoc.render_doc(kind)).replace(" |  ", " ").split())
    return text.replace("( ", "(").replace(", )", ")").replace(" )", ")")


@pytest.mark.parametrize("kind", [*KINDS, *TOPICS])
def test_help_shows_the_parameters(kind: type) -> None:
    text = help_of(kind)
    if kind in (pyreplog.TopicLike, *TOPICS):
        assert "subscribe(self, subscription: 'str', *, start: " in text
        assert "configure(self, **settings: 'Unpack[TopicSettings]')" in text
    if kind is not pyreplog.ConsumerLike:
        assert "publish(self, value: 'ReadableBuffer', key: 'ReadableBuffer | None' = None, *, properties: " in text


def test_help_of_a_consumer_shows_the_parameters() -> None:
    text = help_of(pyreplog.Consumer)
    assert "receive(self, /, timeout=None, max_messages=None)" in text
    assert "acknowledge(self, messages, /)" in text


@pytest.mark.parametrize("kind", [*TOPICS, *KINDS])
def test_a_stand_in_has_the_methods_and_no_others(kind: Any) -> None:
    stand_in = Mock(spec=kind)
    for name in ("flush", "close", *(() if "Consumer" in kind.__name__ else ("publish", "submit", "publish_batch"))):
        getattr(stand_in, name)()
    with pytest.raises(AttributeError):
        stand_in.send  # noqa: B018


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Any]]:
    with ExitStack() as stack:
        served = ServedCluster(tmp_path_factory.mktemp("cluster"), stack)
        yield [served.cluster, served.client()]


@pytest.mark.parametrize("partitions", [None, 2])
def test_function_on_topic_like_works_with_all_topic_classes(places: list[Any], partitions: int | None) -> None:
    def work(topic: pyreplog.TopicLike) -> list[bytes]:
        topic.create_subscription("s", start="earliest")
        with topic.producer("p") as producer, topic.subscribe("s", queue=8) as consumer:
            for at in range(4):
                producer.publish(b"%d" % at, b"key", properties={"at": str(at)})
            topic.publish_batch([b"4", b"5"], [b"key"] * 2)
            kept = topic.offsets()
            ranges = [kept] if isinstance(kept, range) else [part.offsets for part in kept]
            assert sorted(ranges, key=len)[-1] == range(6) and len(ranges) == (partitions or 1)
            messages = [consumer.receive(timeout=PATIENCE_S) for _ in range(6)]
            consumer.acknowledge(message for message in messages if message is not None)
            consumer.flush(PATIENCE_S)
            assert (consumer.topic, consumer.subscription, producer.name) == (topic.name, "s", "p")
        topic.seek("s", "earliest")
        topic.clear("s")
        topic.configure(ttl_ms=60_000)
        assert topic.subscriptions() == ["s"]
        topic.delete_subscription("s")
        topic.delete()
        return sorted(message.value for message in messages if message is not None)

    for number, place in enumerate(places):
        topic = place.topic(f"t{number}-{partitions}", partitions=partitions, **PLAIN)
        assert isinstance(topic, TOPICS)
        assert work(topic) == [b"0", b"1", b"2", b"3", b"4", b"5"]


def test_offsets_async_of_all_topic_classes(places: list[Any]) -> None:
    async def scene(number: int, place: Any) -> None:
        plain = await place.topic_async(f"async{number}", **PLAIN)
        parts = await place.topic_async(f"async{number}-parts", partitions=2, **PLAIN)
        await plain.publish_async(b"1")
        await parts.publish_async(b"1", b"key")
        assert await plain.offsets_async() == range(1)
        assert sorted(len(part.offsets) for part in await parts.offsets_async()) == [0, 1]

    for number, place in enumerate(places):
        asyncio.run(scene(number, place))


def test_no_property_asks_a_server(places: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    client = places[1]
    topic, parts = client.topic("silent", **PLAIN), client.topic("silent-parts", partitions=2, **PLAIN)
    with (
        topic.producer("p") as producer, parts.producer("p") as producers,
        topic.subscribe("s") as consumer, parts.subscribe("s") as consumers,
    ):  # fmt: skip
        asked: list[object] = []
        monkeypatch.setattr(ConnectionPool, "ask", lambda *arguments, **_: asked.append(arguments))
        monkeypatch.setattr(ConnectionPool, "ask_for", lambda *arguments, **_: asked.append(arguments))
        monkeypatch.setattr(ConnectionPool, "wait", lambda *arguments, **_: asked.append(arguments))
        for handle in (client, topic, parts, producer, producers, consumer, consumers):
            for name, value in inspect.getmembers(type(handle)):
                if isinstance(value, property) and not name.startswith("_"):
                    getattr(handle, name)
        monkeypatch.undo()
    assert not asked
