"""Topics over TCP, through the public API: a client in another process gets what the owner's process gets."""

from __future__ import annotations

import asyncio
import random
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, wait
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

import pyreplog
from pyreplog._native.machines.serial_executor import in_callback
from pyreplog.bookie.protocol import RequestKind
from pyreplog.errors import (
    AuthenticationError,
    ClosedError,
    ConfigError,
    InvalidArgumentError,
    NoSuchSubscriptionError,
    NoSuchTopicError,
    NotConnectedError,
    OutOfRangeError,
    RecordTooLargeError,
    SequenceError,
    WrongServiceError,
    WrongTypeError,
)
from pyreplog.net.limits import Limits
from pyreplog.net.reactor import Reactor
from pyreplog.net.server import Server
from pyreplog.topic.client.remote.client import Client
from pyreplog.topic.client.remote.remote_topic import RemoteTopic
from tests.ledger.fault_injection import RequestInterceptor
from tests.net.peers import NODE, Recorder
from tests.net.test_tls import Authority
from tests.topic.batches import submit
from tests.topic.owners import until
from tests.topic.remoting import PATIENCE_S, PLAIN, ServedCluster, pool_of, receive, serve_cluster

VALUES = [b"one", b"two", b"three", b"four"]


@pytest.fixture
def topic(client: Client) -> RemoteTopic:
    return client.topic("news", **PLAIN)


# ---- publishing and reading ------------------------------------------------------------------------------------


def test_messages_published_by_a_client_are_stored_at_the_owner(served: ServedCluster, topic: RemoteTopic) -> None:
    assert topic.publish(b"one", b"key", properties={"a": b"b"}, event_time=5, deliver_at=2_000_000_000_000_006) == 0
    assert topic.publish_batch([b"two", b"three"], [b"k", None]) == range(1, 3)
    future = topic.submit(b"four")
    assert future.result(PATIENCE_S) == 3
    local = served.cluster.topic("news")
    messages = [message for batch in local.read() for message in batch]
    assert [message.value for message in messages] == VALUES
    first = messages[0]
    assert (first.key, first.properties, first.event_time, first.deliver_at) == (
        b"key",
        {"a": b"b"},
        5,
        2_000_000_000_000_006,
    )
    assert [value for batch in topic.read() for value in batch.values()] == VALUES
    assert [value for batch in topic.read(1, 3) for value in batch.values()] == VALUES[1:3]
    at = datetime.fromtimestamp(messages[1].publish_time / 1e6, UTC)
    assert next(batch.first for batch in topic.read(at)) == 1
    assert (topic.offsets(), len(topic)) == (range(4), 4)


def test_all_that_is_compressed_and_large(client: Client) -> None:
    topic = client.topic("news", **PLAIN, compression="zstd", batch_messages=1000)
    values = [b"%d " % number * 40 for number in range(20_000)]
    assert topic.publish_batch(values) == range(20_000)
    assert [value for batch in topic.read() for value in batch.values()] == values
    with pytest.raises(RecordTooLargeError, match="in parts"):
        topic.publish_batch([random.Random(7).randbytes(1 << 20)] * 40)
    with pytest.raises(RecordTooLargeError):
        topic.publish(random.Random(7).randbytes(5 << 20))
    assert topic.publish(b"more") == 20_000


def test_a_client_opens_lists_and_closes_topics(served: ServedCluster, client: Client, topic: RemoteTopic) -> None:
    assert client.topic("news") is topic
    assert client.topic("sport", **PLAIN).publish(b"x") == 0
    assert client.topics() == ["news", "sport"]
    topic.configure(retention_ms=7)
    assert served.cluster.topic("news").config.retention_ms == topic.config.retention_ms == 7
    topic.delete()
    assert client.topics() == ["sport"]
    with pytest.raises(NoSuchTopicError, match="news"):
        client.topic("news", create=False)
    with pytest.raises(ClosedError):
        topic.publish(b"x")


# ---- producers -------------------------------------------------------------------------------------------------


def test_remote_producer_drops_duplicate_sequences(client: Client, served: ServedCluster) -> None:
    topic = client.topic("news", **PLAIN, deduplicate=True)
    me = topic.producer("me")
    assert (me.last_sequence, me.publish(b"0"), me.publish_batch([b"1", b"2"])) == (-1, 0, range(1, 3))
    assert me.publish(b"again", sequence=1) == -1
    assert me.publish_batch([b"again", b"3", b"4"], sequences=[2, 3, 5], properties=[None, {"p": "q"}, None]) == range(
        3, 5
    )
    assert me.publish_batch([b"again"] * 2, sequences=[3, 5]) == range(0)
    assert topic.publish(b"5", producer="me") == 5
    assert me.last_sequence == 6
    other = served.client().topic("news")
    assert other.producer("you").publish(b"6") == 6
    assert other.publish(b"7") == 7
    messages = [message for batch in topic.read() for message in batch]
    assert [message.value for message in messages] == [b"%d" % number for number in range(8)]
    assert [message.sequence for message in messages] == [0, 1, 2, 3, 5, 6, 0, None]
    assert messages[3].properties == {"p": b"q"}
    assert topic.stats().duplicates == 4


def test_one_client_at_a_time_publishes_with_a_producer_name(client: Client, served: ServedCluster) -> None:
    topic = client.topic("news", **PLAIN, deduplicate=True)
    assert topic.producer("me").publish(b"0") == 0
    other = served.client().topic("news").producer("me")
    assert (other.last_sequence, other.publish(b"1")) == (0, 1)
    with pytest.raises(SequenceError, match="another client"):
        topic.producer("me").publish(b"2")
    assert other.publish(b"2") == 2


def test_entries_of_peers_are_not_believed(topic: RemoteTopic) -> None:
    sender = topic._publishers[""][1]
    for bad in (bytes(32), bytes(64), b"\x01" + bytes(7) + b"\x02" + bytes(100)):
        with pytest.raises(pyreplog.InvalidEntryError):
            pool_of(topic).wait(submit(sender, [bad], [1]))
    assert topic.publish(b"good") == 0


# ---- errors ----------------------------------------------------------------------------------------------------


def test_errors_are_those_of_the_owner(client: Client, topic: RemoteTopic) -> None:
    with pytest.raises(NoSuchSubscriptionError, match="nobody"):
        topic.seek("nobody", "latest")
    with pytest.raises(OutOfRangeError):
        topic.subscribe("s", start=17)
    with pytest.raises(OutOfRangeError):
        list(topic.read(17))
    with pytest.raises(ConfigError, match="nonsense"):
        topic.subscribe("s", nonsense=1)
    with pytest.raises(ConfigError):
        topic.configure(linger_ms=-1)
    with pytest.raises(InvalidArgumentError):
        topic.skip("s", -1)
    with pytest.raises(InvalidArgumentError, match="control"):
        client.topic("a\nb")
    with pytest.raises(WrongTypeError):
        topic.read(1.5)  # type: ignore[arg-type]
    for url in ("news", "pyreplog://", "http://host:1", "pyreplog://host"):
        with pytest.raises((InvalidArgumentError, pyreplog.ReplogError)):
            pyreplog.connect(url)
    with pytest.raises(ConfigError, match="max_body_bytes"):
        pyreplog.connect("pyreplog://host:1", limits=Limits(max_body_bytes=1 << 20))


def test_a_client_without_a_server_is_not_connected(served: ServedCluster) -> None:
    address = served.server.address
    served.server.close()
    with pytest.raises(NotConnectedError):
        served.client(address).topic("news")


def test_connection_to_a_server_of_another_service_raises_not_connected_error() -> None:
    with Reactor() as reactor:
        reactor.start()
        with Server(reactor, Recorder(), identity=NODE) as server:
            host, port = server.address
            with pyreplog.connect(f"pyreplog://{host}:{port}") as client, pytest.raises(NotConnectedError) as caught:
                client.topic("news")
            assert isinstance(caught.value.__cause__, WrongServiceError)


def test_a_secret_is_asked_for(tmp_path: Path) -> None:
    with serve_cluster(tmp_path, secret=b"s" * 32) as served:
        topic = served.client(secret=b"s" * 32).topic("news", **PLAIN)
        assert topic.publish(b"one") == 0
        for secret in (None, b"t" * 32):
            with pytest.raises(NotConnectedError) as caught:
                served.client(secret=secret).topic("news")
            assert isinstance(caught.value.__cause__, AuthenticationError)


def test_a_client_connects_behind_tls(tmp_path: Path) -> None:
    import ssl

    authority = Authority(tmp_path, "authority")
    of_server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    of_server.load_cert_chain(authority.issue("server"))
    trusting = ssl.create_default_context(cafile=str(authority.file))
    with serve_cluster(tmp_path / "cluster", tls=of_server) as served:
        topic = served.client(tls=trusting).topic("news", **PLAIN)
        assert topic.publish_batch(VALUES) == range(4)
        with topic.subscribe("s", start="earliest") as consumer:
            assert receive(consumer, 4) == VALUES
        with pytest.raises(NotConnectedError):
            served.client(tls=ssl.create_default_context()).topic("news")


# ---- asyncio ---------------------------------------------------------------------------------------------------


def test_coroutines_publish_and_consume_remotely(topic: RemoteTopic) -> None:
    async def publish() -> list[int]:
        futures = []
        for number in range(200):
            await topic.room()
            futures.append(topic.submit(b"%d" % number))
        return [await future for future in futures]

    async def consume(consumer: Any) -> list[bytes]:
        actual_values = []
        async for message in consumer:
            actual_values.append(message.value)
            consumer.acknowledge(message)
            if len(actual_values) == 200:
                return actual_values
        raise AssertionError

    async def both() -> tuple[list[int], list[bytes]]:
        async with asyncio.timeout(PATIENCE_S):
            return await asyncio.gather(publish(), consume(consumer))

    with topic.subscribe("s") as consumer:
        offsets, values = asyncio.run(both())
        consumer.flush()
    assert offsets == list(range(200))
    assert values == [b"%d" % number for number in range(200)]
    assert topic.stats().subscriptions[0].backlog_messages == 0


def test_publishing_in_a_callback_is_refused(topic: RemoteTopic) -> None:
    errors: list[Any] = []

    def call(_: object) -> None:
        try:
            errors.append(in_callback() and topic.publish(b"two"))
        except InvalidArgumentError as error:
            errors.append(error)

    held, added = threading.Event(), threading.Event()
    # no reply is handled before this callback returns
    pool_of(topic).reactor.call_soon(lambda: (held.set(), added.wait(PATIENCE_S)))
    assert held.wait(PATIENCE_S)
    topic.submit(b"one").add_done_callback(call)
    added.set()
    until(lambda: errors)
    assert isinstance(errors[0], InvalidArgumentError)


# ---- the end ---------------------------------------------------------------------------------------------------


def test_a_client_that_is_closed_takes_its_consumers_along(served: ServedCluster) -> None:
    client = served.client()
    topic = client.topic("news", **PLAIN)
    consumer = topic.subscribe("s", start="earliest")
    future = topic.submit(b"one")
    client.close()
    assert future.result(0) == 0
    for call in (client.topics, consumer.receive, lambda: topic.publish(b"x"), topic.stats):
        with pytest.raises(ClosedError):
            call()
    until(lambda: not served.cluster.topic("news").subscription("s").consumers)


def closes(
    served: ServedCluster, client: Client, topic: RemoteTopic, pool: ThreadPoolExecutor
) -> tuple[RequestInterceptor, Any, Any]:
    """A thread closes the topic, and waits for a message whose bookie does not answer yet."""
    interceptor = RequestInterceptor(served.cluster)
    interceptor.add_rule(interceptor.hold, kind=RequestKind.ADD)
    last = topic.submit(b"last")
    interceptor.wait_for(RequestKind.ADD)
    closing = pool.submit(topic.close)
    until(lambda: is_closed(topic.stats))
    return interceptor, last, closing


def is_closed(call: Callable[[], object]) -> bool:
    try:
        call()
    except ClosedError:
        return True
    return False


def test_a_client_that_is_closed_waits_for_a_topic_that_another_thread_closes(served: ServedCluster) -> None:
    client = served.client()
    topic = client.topic("news", **PLAIN)
    with ThreadPoolExecutor(2) as pool:
        interceptor, last, closing = closes(served, client, topic, pool)
        ending = pool.submit(client.close)
        wait([ending], 0.2)  # it must not end
        interceptor.clear()
        interceptor.release()
        closing.result(PATIENCE_S)
        ending.result(PATIENCE_S)
    assert last.result(0) == 0


def test_a_topic_that_another_thread_closes_is_opened_again(served: ServedCluster, client: Client) -> None:
    topic = client.topic("news", **PLAIN)
    with ThreadPoolExecutor(2) as pool:
        interceptor, last, closing = closes(served, client, topic, pool)
        opening = pool.submit(client.topic, "news")
        wait([opening], 0.2)  # it waits for the end of the former one
        interceptor.clear()
        interceptor.release()
        assert opening.result(PATIENCE_S).publish(b"next") == 1
        closing.result(PATIENCE_S)
    assert last.result(0) == 0


def test_a_server_that_drains_answers_what_it_has(served: ServedCluster, topic: RemoteTopic) -> None:
    consumer = topic.subscribe("s", start="earliest")
    futures = [topic.submit(b"%d" % number) for number in range(100)]
    futures[-1].result(PATIENCE_S)
    assert served.server.drain(PATIENCE_S)
    assert [future.result(0) for future in futures] == list(range(100))
    assert served.cluster.topic("news").end == 100
    consumer.close()


def test_reading_goes_on_when_the_owner_has_closed_the_topic(served: ServedCluster, client: Client) -> None:
    """Between two batches: it is opened again, and nothing is left out."""
    topic = client.topic("read", **PLAIN)
    for number in range(3):
        topic.publish_batch([b"%d" % number + bytes(1 << 20)] * 4)
    batches = topic.read()
    values = [value[:1] for value in next(batches).values()]
    closed = served.cluster.topics.get("read")
    assert 0 < len(values) < 12 and closed is not None
    closed.close()
    for batch in batches:
        values += [value[:1] for value in batch.values()]
    assert values == [b"%d" % number for number in range(3) for _ in range(4)]


def test_a_server_that_is_closed_leaves_no_thread(tmp_path: Path) -> None:
    before = {thread.name for thread in threading.enumerate()}
    with serve_cluster(tmp_path / "cluster") as service:
        service.client().topic("t", **PLAIN).publish(b"x")
        assert any(thread.name.startswith("pyreplog-topics") for thread in threading.enumerate())
    until(lambda: not [thread for thread in threading.enumerate() if thread.name not in before])
