"""Connections are cut and servers are killed: no message is lost, and no numbered message is stored twice."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import pytest

from pyreplog.cluster import Cluster
from pyreplog.errors import ClosedError, NotConnectedError, OutcomeUnknownError, PeerError, TopicFencedError
from pyreplog.topic.client.consumer import Consumer
from pyreplog.topic.client.publishing.producer import Producer
from pyreplog.topic.client.remote import connection_pool as link_module
from pyreplog.topic.client.remote.client import Client, connect
from pyreplog.topic.client.remote.connection_pool import reads
from pyreplog.topic.client.remote.remote_subscription import RemoteSubscription
from pyreplog.topic.model.wire.protocol import Call, CallResult
from pyreplog.topic.owner import topics as topics_module
from pyreplog.topic.server.topic_server import TopicServer
from tests.ledger.processes import ProcessGroup
from tests.topic.owners import until
from tests.topic.remoting import PATIENCE_S, PLAIN, ServedCluster, Wire, channels_of, is_backing_off, pool_of, receive

VALUES = [b"one", b"two", b"three", b"four"]


def values_of(served: ServedCluster, topic: str = "news") -> list[bytes]:
    return [value for batch in served.cluster.topic(topic).read() for value in batch.values()]


def publishes(producer: Producer, value: bytes) -> bool:
    try:
        producer.publish(value)
    except PeerError:  # no server listens yet
        return False
    return True


def connected(client: Client) -> bool:
    return any(channel.connected for channel in channels_of(client))


def attached(consumer: Consumer) -> bool:
    """Return whether the consumer takes itself for attached."""
    source = consumer._source
    assert isinstance(source, RemoteSubscription)
    return source._handle > 0


def asks(consumer: Consumer) -> bool:
    """Return whether requests wait until the consumer is attached."""
    source = consumer._source
    assert isinstance(source, RemoteSubscription)
    return bool(source._waiting)


# ---- a connection ----------------------------------------------------------------------------------------------


def test_without_acknowledgement_messages_come_again(served: ServedCluster, wire: Wire) -> None:
    topic = served.client(wire.address).topic("news", **PLAIN)
    with topic.subscribe("s", start="earliest", queue=3) as consumer:
        for turn in range(5):
            topic.publish_batch(VALUES)
            assert receive(consumer, 3) == VALUES[:3]
            consumer.acknowledge([4 * turn])
            consumer.flush()
            wire.cut_and_mend()
            assert receive(consumer, 3) == VALUES[1:]
            consumer.acknowledge_cumulative(4 * turn + 3) if turn % 2 else consumer.acknowledge(
                [4 * turn + 1, 4 * turn + 2, 4 * turn + 3]
            )
            consumer.flush()
    assert served.cluster.topic("news").stats().subscriptions[0].backlog_messages == 0


def test_flushed_acknowledgements_survive_lost_connections(served: ServedCluster, wire: Wire) -> None:
    """The acknowledgement, or all answers of the owner, are lost with the connection."""
    topic = served.client(wire.address).topic("news", **PLAIN)
    with topic.subscribe("s", start="earliest", type="shared") as consumer:
        for turn in range(4):
            topic.publish_batch([b"%d" % number for number in range(20)])
            messages = consumer.receive(max_messages=20, timeout=PATIENCE_S)
            while len(messages) < 20:
                messages += consumer.receive(max_messages=20, timeout=PATIENCE_S)
            if turn % 2:
                with wire.apart():
                    until(lambda: served.server.connections == 0)
                    consumer.acknowledge(messages)
            else:
                wire.swallow()
                consumer.acknowledge(messages[:10])
                consumer.acknowledge([message.offset for message in messages[10:]])
                wire.cut()
            consumer.flush(timeout=PATIENCE_S)
            assert served.cluster.topic("news").stats().subscriptions[0].backlog_messages == 0
            assert consumer.receive(timeout=0.05) is None


def test_all_below_a_message_is_acknowledged_over_the_next_connection(served: ServedCluster, wire: Wire) -> None:
    topic = served.client(wire.address).topic("news", **PLAIN)
    topic.publish_batch(VALUES)
    with topic.subscribe("s", start="earliest") as consumer, ThreadPoolExecutor(1) as pool:
        assert receive(consumer, 4) == VALUES
        with wire.apart():
            until(lambda: not attached(consumer))
            acknowledging = pool.submit(consumer.acknowledge_cumulative, 2)
            until(lambda: asks(consumer))
        acknowledging.result(PATIENCE_S)
        consumer.flush(timeout=PATIENCE_S)
        assert receive(consumer, 1) == VALUES[3:]


def test_a_seek_while_there_is_no_connection_takes_acknowledgements_with_it(served: ServedCluster, wire: Wire) -> None:
    """It is unknown whether they were meant for messages before or after the seek: they do not count, and the flush
    raises an error."""
    topic = served.client(wire.address).topic("news", **PLAIN)
    topic.publish_batch(VALUES)
    with topic.subscribe("s", start="earliest") as consumer:
        assert receive(consumer, 4) == VALUES
        with wire.apart():
            until(lambda: not attached(consumer))
            consumer.acknowledge([0, 1, 2, 3])
            assert served.cluster.topic("news").seek("s", "earliest") == 0
        with pytest.raises(OutcomeUnknownError, match="seek"):
            consumer.flush(timeout=PATIENCE_S)
        consumer.flush(timeout=PATIENCE_S)
        assert receive(consumer, 4) == VALUES


def test_flush_over_a_reconnect_to_an_older_server_raises_outcome_unknown_error(
    served: ServedCluster, wire: Wire, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is unknown whether such a server got the acknowledgement, and the flush raises an error."""
    monkeypatch.setattr(link_module, "VERSION", 1)
    topic = served.client(wire.address).topic("news", **PLAIN)
    topic.publish_batch(VALUES)
    with topic.subscribe("s", start="earliest") as consumer:
        assert receive(consumer, 4) == VALUES
        consumer.acknowledge([0])
        consumer.flush(timeout=PATIENCE_S)
        with wire.apart():
            until(lambda: not attached(consumer))
            consumer.acknowledge([1])
        with pytest.raises(OutcomeUnknownError, match="may come again"):
            consumer.flush(timeout=PATIENCE_S)
        consumer.flush(timeout=PATIENCE_S)
        assert receive(consumer, 3) == VALUES[1:]


def test_a_flush_while_the_server_is_away_waits_for_it(served: ServedCluster, wire: Wire) -> None:
    topic = served.client(wire.address).topic("news", **PLAIN)
    topic.publish_batch(VALUES)
    with topic.subscribe("s", start="earliest") as consumer, ThreadPoolExecutor(1) as pool:
        assert receive(consumer, 4) == VALUES
        consumer.acknowledge([0, 1, 2, 3])
        with wire.apart():
            until(lambda: not attached(consumer))
            with pytest.raises(OutcomeUnknownError):
                consumer.flush(timeout=0.05)
            with pytest.raises(OutcomeUnknownError):
                consumer.seek("earliest", timeout=0.05)  # it is not done later
            flushing = pool.submit(consumer.flush, PATIENCE_S)
        flushing.result(PATIENCE_S)
        assert served.cluster.topic("news").stats().subscriptions[0].backlog_messages == 0


def test_reconnect_does_not_repeat_messages_that_wait_in_the_consumer(served: ServedCluster, wire: Wire) -> None:
    topic = served.client(wire.address).topic("news", **PLAIN)
    with topic.subscribe("s", start="earliest", type="shared") as consumer:
        topic.publish_batch([b"%d" % number for number in range(1000)])
        first = consumer.receive(timeout=PATIENCE_S)
        assert first is not None
        consumer.acknowledge(first)
        consumer.flush()
        wire.cut_and_mend()
        assert receive(consumer, 999) == [b"%d" % number for number in range(1, 1000)]
        assert consumer.receive(timeout=0.05) is None


def test_a_subscription_that_is_not_durable_goes_on_behind_what_came(served: ServedCluster, wire: Wire) -> None:
    topic = served.client(wire.address).topic("news", **PLAIN)
    with topic.subscribe("s", durable=False) as consumer:
        topic.publish_batch(VALUES)
        assert receive(consumer, 2) == VALUES[:2]
        with wire.apart():
            until(lambda: served.server.connections == 0)
            served.cluster.topic("news").publish(b"meanwhile")
        assert receive(consumer, 3) == [*VALUES[2:], b"meanwhile"]


def test_the_outcome_of_what_is_on_its_way_is_unknown(served: ServedCluster, wire: Wire) -> None:
    topic = served.client(wire.address).topic("news", **PLAIN)
    topic.publish(b"one")
    wire.swallow()
    lost = topic.submit(b"two")
    assert wire.swallowed.wait(PATIENCE_S)
    wire.cut()
    with pytest.raises(OutcomeUnknownError):
        lost.result(PATIENCE_S)
    assert topic.publish(b"three") == 2
    assert values_of(served) == [b"one", b"two", b"three"]


def test_a_named_producer_sends_again_and_nothing_is_stored_twice(served: ServedCluster, wire: Wire) -> None:
    topic = served.client(wire.address).topic("news", **PLAIN, deduplicate=True)
    producer = topic.producer("me")
    values = [b"%d" % number for number in range(300)]
    for turn in range(10):
        wire.swallow()
        mine = values[30 * turn : 30 * turn + 30]
        futures = [producer.submit(value) for value in mine[:20]]
        batch = producer.submit_batch(mine[20:])
        assert wire.swallowed.wait(PATIENCE_S)
        wire.cut()
        offsets = [future.result(PATIENCE_S) for future in futures]
        assert {offset for offset in offsets if offset >= 0} <= set(range(30 * turn, 30 * turn + 20))
        assert batch.result(PATIENCE_S) in (range(0), range(30 * turn + 20, 30 * turn + 30))
    assert values_of(served) == values
    assert topic.stats().duplicates > 0


def test_numbers_whose_outcome_is_unknown_are_not_given_again(served: ServedCluster, wire: Wire) -> None:
    client = served.client(wire.address)
    producer = client.topic("news", **PLAIN, deduplicate=True).producer("me")
    pool_of(client).timeout = 0.2  # the time-out of later requests
    wire.swallow()
    lost = producer.submit(b"lost")
    assert wire.swallowed.wait(PATIENCE_S)
    served.server.close()
    wire.cut()
    with pytest.raises(OutcomeUnknownError):
        lost.result(PATIENCE_S)
    assert values_of(served) == [b"lost"]
    pool_of(client).timeout = PATIENCE_S
    served.cluster.topic("news").close()
    with TopicServer(served.cluster) as server:
        wire.lead_to(server.address)
        until(lambda: publishes(producer, b"new"))
    assert values_of(served) == [b"lost", b"new"]


def test_requests_are_not_repeated_for_ever(served: ServedCluster, wire: Wire) -> None:
    client = served.client(wire.address)
    topic = client.topic("news", **PLAIN, deduplicate=True)
    producer = topic.producer("me")
    with topic.subscribe("s") as consumer:
        pool_of(client).timeout = 0.2  # the time-out of later requests
        served.server.close()
        with pytest.raises((NotConnectedError, OutcomeUnknownError)):
            producer.publish(b"x")
        with pytest.raises(PeerError):
            consumer.receive(timeout=PATIENCE_S)
        with pytest.raises(PeerError):
            topic.stats()


def test_a_request_while_the_server_is_away_is_answered_when_it_is_back(served: ServedCluster, wire: Wire) -> None:
    client = served.client(wire.address)
    topic = client.topic("news", **PLAIN)
    topic.publish(b"one")
    served.server.close()
    until(lambda: not connected(client))
    served.cluster.topic("news").close()
    with ThreadPoolExecutor(1) as pool:
        asked = pool.submit(topic.stats)
        until(lambda: is_backing_off(client))
        with TopicServer(served.cluster) as server:
            wire.lead_to(server.address)
            assert asked.result(PATIENCE_S).end.offset == 1


def test_a_request_while_the_server_is_away_fails_when_the_client_is_closed(served: ServedCluster) -> None:
    client = served.client()
    topic = client.topic("news", **PLAIN)
    served.server.close()
    until(lambda: not connected(client))
    with ThreadPoolExecutor(1) as pool:
        asked = pool.submit(topic.stats)
        until(lambda: is_backing_off(client))
        client.close()
        with pytest.raises(ClosedError):
            asked.result(PATIENCE_S)


def test_a_request_while_it_connects_fails_when_the_client_is_closed(served: ServedCluster, wire: Wire) -> None:
    """The closed client asks no server again later."""
    client = served.client(wire.address)
    client.topic("news", **PLAIN)
    with wire.apart():
        until(lambda: not connected(client))
        asked = pool_of(client).ask_for("", Call("", "topics", "{}"), reads(CallResult))
        client.close()
        assert isinstance(asked.exception(PATIENCE_S), ClosedError)


# ---- owners ----------------------------------------------------------------------------------------------------


def test_a_topic_that_is_closed_at_the_server_is_opened_again(served: ServedCluster) -> None:
    topic = served.client().topic("news", **PLAIN, deduplicate=True)
    with topic.subscribe("s") as consumer:
        for turn in range(5):
            producer = topic.producer("me")
            futures = [producer.submit(b"%d.%d" % (turn, number)) for number in range(50)]
            served.cluster.topic("news").close()
            for future in futures:
                future.result(PATIENCE_S)
            assert topic.publish(b"end %d" % turn, producer="me") == 51 * turn + 50
            contents: set[bytes] = set()
            while len(contents) < 51:
                batch = consumer.receive_batch(timeout=PATIENCE_S)
                assert batch is not None
                contents |= {value for value in batch.values() if value.startswith((b"%d." % turn, b"end %d" % turn))}
                consumer.acknowledge(batch)
    assert len(values_of(served)) == len(set(values_of(served))) == 255


@pytest.fixture
def processes(tmp_path: Path) -> Iterator[ProcessGroup]:
    with ProcessGroup(tmp_path, f"sqlite:{tmp_path / 'metadata.sqlite'}") as processes:
        processes.start_bookies("b0")
        yield processes


def test_any_server_finds_the_owner(processes: ProcessGroup) -> None:
    with ExitStack() as stack:
        servers = [
            stack.enter_context(TopicServer(stack.enter_context(Cluster.connect(processes.url)))) for _ in range(2)
        ]
        clients = [stack.enter_context(connect(f"pyreplog://{server.address}")) for server in servers]
        assert clients[0].topic("a", **PLAIN).publish(b"0") == 0
        assert clients[1].topic("b", **PLAIN).publish(b"0") == 0
        for name in ("a", "b"):
            topics = [client.topic(name) for client in clients]
            assert [topic.publish(b"x") for topic in topics] == [1, 2]
            assert len({topic.stats().owner for topic in topics}) == 1
            with topics[0].subscribe("s", start="earliest", type="shared") as consumer:
                assert receive(consumer, 3) == [b"0", b"x", b"x"]
        assert {topic.stats().owner for topic in (clients[0].topic("a"), clients[0].topic("b"))} == {
            server.address for server in servers
        }


def test_a_server_is_killed_and_another_takes_over(processes: ProcessGroup) -> None:
    """Of a producer that numbers its messages, none is lost and none is stored twice. A consumer goes on."""
    servers = [processes.start("tests.topic.topic_server", processes.url) for _ in range(2)]
    addresses = [server.wait_for("address") for server in servers]
    with connect(f"pyreplog://{','.join(addresses)}", timeout=60.0) as client:
        topic = client.topic("news", **PLAIN, deduplicate=True)
        assert topic.stats().owner == addresses[0]
        with topic.subscribe("s", start="earliest") as consumer:
            contents: dict[int, bytes] = {}

            def consume() -> None:
                while len(contents) < 400:
                    message = consumer.receive(timeout=PATIENCE_S)
                    assert message is not None
                    contents[message.offset] = message.value
                    consumer.acknowledge(message)

            thread = threading.Thread(target=consume)
            thread.start()
            producer = topic.producer("me")
            values = [b"%d" % number for number in range(400)]
            futures = [producer.submit(value) for value in values[:200]]
            futures[100].result(PATIENCE_S)
            servers[0].kill()
            futures += [producer.submit(value) for value in values[200:]]
            assert len([future.result(PATIENCE_S) for future in futures]) == 400
            thread.join(PATIENCE_S)
            assert not thread.is_alive()
        assert [value for batch in topic.read() for value in batch.values()] == values
        assert [contents[offset] for offset in range(400)] == values
        assert topic.stats().owner == addresses[1]


def test_a_server_that_was_taken_over_from_does_no_harm(
    processes: ProcessGroup, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server has lost its lease without noticing: publishing through it raises an error that names the new owner."""
    monkeypatch.setattr(topics_module, "MAINTENANCE_S", 86_400.0)
    with ExitStack() as stack:
        old = stack.enter_context(Cluster.connect(processes.url))
        server = stack.enter_context(TopicServer(old))
        topic = stack.enter_context(connect(f"pyreplog://{server.address}")).topic("news", **PLAIN)
        assert topic.publish(b"one") == 0
        old.topic("news").claim.release()
        other = stack.enter_context(Cluster.connect(processes.url))
        assert other.topic("news").publish(b"two") == 1
        with pytest.raises((TopicFencedError, OutcomeUnknownError)):
            topic.publish(b"three")
        assert [value for batch in other.topic("news").read() for value in batch.values()] == [b"one", b"two"]
