"""`python -m tests.foreign.record_transcripts`: records what clients and Apache Kafka say to each other.

A client talks to Apache Kafka through a proxy, which writes each request and each response down in the order in which
they passed. The files are in tests/kafka/transcripts; tests/kafka/test_transcripts.py sends the same requests to this
project's listener, and compares the responses.

The proxy changes two things: addresses of the broker become its own, and ApiVersions lists the versions that the
listener serves, too, without finalized features, so that the client speaks in versions that both serve.
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import json
import socket
import struct
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka import TopicPartition as AIOTopicPartition
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, ConfigResource, NewPartitions, NewTopic, OffsetSpec
from kafka import KafkaConsumer, KafkaProducer
from kafka import TopicPartition as PythonTopicPartition

from benchmarks.peers.kafka import broker as apache_kafka
from pyreplog.kafka.wire.codec import decode_request, encode_response, response_codec
from pyreplog.kafka.wire.schema import ANNOUNCED, ApiKey
from tests.foreign.java_client import JavaClient, Record

TRANSCRIPTS = Path(__file__).parents[1] / "kafka" / "transcripts"
_WAIT_S = 30.0
_QUIET = {"log_level": 2}


class RecordingProxy:
    """Passes what clients and a broker say, and writes it down.

    Args:
        broker: its address.
        path: file for the transcript: a line for each frame, [connection, kind, base64 of the frame without its size].
    """

    def __init__(self, broker: str, path: Path) -> None:
        host, _, port = broker.rpartition(":")
        self._broker = (host, int(port))
        self._lock, self._file = threading.Lock(), path.open("w")
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._port = self._listener.getsockname()[1]
        self._sockets: list[socket.socket] = []
        self._threads = [threading.Thread(target=self._accept, daemon=True)]
        self._threads[0].start()

    @property
    def address(self) -> str:
        """Address for clients."""
        return f"127.0.0.1:{self._port}"

    def _accept(self) -> None:
        connection = 0
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                server = socket.create_connection(self._broker)
                self._sockets += client, server
                pending: list[tuple[int, int]] = []
                for pump, source, target in ((self._requests, client, server), (self._responses, server, client)):
                    thread = threading.Thread(target=pump, args=(connection, source, target, pending), daemon=True)
                    self._threads.append(thread)
                    thread.start()
                connection += 1

    def _requests(self, connection: int, client: socket.socket, server: socket.socket, pending: list[Any]) -> None:
        for frame in _frames(client, server):
            key, version = struct.unpack_from(">hh", frame)
            with self._lock:
                if not (key == ApiKey.PRODUCE and _acks(frame) == 0):
                    pending.append((key, version))
                self._write(connection, "request", frame)
                server.sendall(struct.pack(">i", len(frame)) + frame)

    def _responses(self, connection: int, server: socket.socket, client: socket.socket, pending: list[Any]) -> None:
        for frame in _frames(server, client):
            with self._lock:
                changed = self._changed(*pending.pop(0), frame)
                self._write(connection, "response", changed)
                client.sendall(struct.pack(">i", len(changed)) + changed)

    def _write(self, connection: int, kind: str, frame: bytes) -> None:
        self._file.write(json.dumps([connection, kind, base64.b64encode(frame).decode()]) + "\n")

    def _changed(self, key: int, version: int, frame: bytes) -> bytes:
        """Return a response with addresses of the proxy, and with versions that both serve."""
        codec = response_codec(key, version)
        start = 5 if codec.flexible and key != ApiKey.API_VERSIONS else 4
        message = self._here(codec.schema.decode(frame[start:]))
        if key == ApiKey.API_VERSIONS:
            message = message._replace(
                api_keys=[
                    item._replace(max_version=min(item.max_version, ANNOUNCED[item.api_key][1]))
                    for item in message.api_keys
                    if item.api_key in ANNOUNCED and item.min_version <= ANNOUNCED[item.api_key][1]
                ],
                supported_features=(), finalized_features=(), finalized_features_epoch=-1,
            )  # fmt: skip
        return b"".join(map(bytes, encode_response(key, version, struct.unpack_from(">i", frame)[0], message)))[4:]

    def _here(self, value: Any) -> Any:
        """Return a message with the proxy's port in place of the broker's."""
        if isinstance(value, tuple) and hasattr(value, "_fields"):
            changed = {name: self._here(item) for name, item in value._asdict().items()}
            if changed.get("port") == self._broker[1]:
                changed["port"] = self._port
            return value._replace(**changed)
        return tuple(self._here(item) for item in value) if isinstance(value, (tuple, list)) else value

    def close(self) -> None:
        """End all connections, and the file."""
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for one in self._sockets:
            with suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join(_WAIT_S)
        for one in self._sockets:
            one.close()
        self._file.close()


def _frames(source: socket.socket, target: socket.socket) -> Iterator[bytes]:
    """Yield frames until the source ends; then end the target."""
    with suppress(OSError), source.makefile("rb") as stream:
        while len(head := stream.read(4)) == 4:
            yield stream.read(struct.unpack(">i", head)[0])
    with suppress(OSError):
        target.shutdown(socket.SHUT_RDWR)


def _acks(frame: bytes) -> int:
    return int(decode_request(frame).message.acks)


# ---- clients ---------------------------------------------------------------------------------------------------


def _create(servers: str, topic: str) -> None:
    admin = AdminClient({"bootstrap.servers": servers, **_QUIET})
    admin.create_topics([NewTopic(topic, 1, 1)])[topic].result(_WAIT_S)


def librdkafka_records(servers: str) -> None:
    """Produce with each codec, ask for offsets, consume in a group, commit, go on."""
    admin = AdminClient({"bootstrap.servers": servers, **_QUIET})
    admin.create_topics([NewTopic("orders", 2, 1)])["orders"].result(_WAIT_S)
    for codec in ("none", "gzip", "snappy", "lz4", "zstd"):
        producer = Producer(
            {"bootstrap.servers": servers, "enable.idempotence": True, "compression.type": codec, **_QUIET}
        )
        for number in range(20):
            producer.produce(
                "orders", b"%s %d" % (codec.encode(), number) * 4, b"key", number % 2, timestamp=1_700_000_000_000 + number,
                headers=[("codec", codec.encode()), ("none", None)],
            )  # fmt: skip
        producer.flush(_WAIT_S)
    admin.list_offsets(
        {
            TopicPartition("orders", number): spec
            for number, spec in enumerate((OffsetSpec.earliest(), OffsetSpec.latest()))
        }
    )
    settings = {"bootstrap.servers": servers, "group.id": "billing", "auto.offset.reset": "earliest", **_QUIET}
    for count in (40, 60):
        consumer = Consumer({**settings, "enable.auto.commit": False})
        consumer.subscribe(["orders"])
        received = 0
        while received < count:
            received += len([one for one in consumer.consume(count - received, 1.0) if not one.error()])
        if count == 40:
            consumer.offsets_for_times([TopicPartition("orders", 0, 1_700_000_000_004)], _WAIT_S)
            consumer.get_watermark_offsets(TopicPartition("orders", 1), _WAIT_S)
        consumer.commit(asynchronous=False)
        consumer.close()


def librdkafka_administration(servers: str) -> None:
    """Topics, settings, records and groups; and what is refused."""
    admin = AdminClient({"bootstrap.servers": servers, **_QUIET})

    def refused(call: Callable[[], Any]) -> None:
        with suppress(KafkaException):
            for future in call().values():
                future.result(_WAIT_S)
            raise AssertionError("expected a refusal")

    admin.list_topics(timeout=_WAIT_S)
    admin.create_topics([NewTopic("kept", 1, 1, config={"retention.ms": "60000", "max.message.bytes": "2000"})])[
        "kept"
    ].result(_WAIT_S)
    refused(lambda: admin.create_topics([NewTopic("kept", 1, 1)]))
    refused(lambda: admin.create_topics([NewTopic("many", 1, 5)]))
    refused(lambda: admin.create_topics([NewTopic("none", 0, 1)]))
    refused(lambda: admin.create_topics([NewTopic("odd/name", 1, 1)]))
    refused(lambda: admin.create_topics([NewTopic("unknown", 1, 1, config={"no.such.setting": "1"})]))
    refused(lambda: admin.create_topics([NewTopic("malformed", 1, 1, config={"retention.ms": "soon"})]))
    admin.create_partitions([NewPartitions("kept", 3)])["kept"].result(_WAIT_S)
    refused(lambda: admin.create_partitions([NewPartitions("kept", 2)]))
    refused(lambda: admin.create_partitions([NewPartitions("absent", 2)]))
    refused(lambda: admin.delete_topics(["absent"]))
    topic = ConfigResource(ConfigResource.Type.TOPIC, "kept")
    admin.describe_configs([topic])[topic].result(_WAIT_S)
    refused(lambda: admin.describe_configs([ConfigResource(ConfigResource.Type.TOPIC, "absent")]))
    producer = Producer({"bootstrap.servers": servers, **_QUIET})
    for number in range(10):
        producer.produce("kept", b"%d" % number, partition=0)
    producer.flush(_WAIT_S)
    producer.produce("kept", bytes(5_000), partition=0)  # larger than the topic takes
    producer.flush(_WAIT_S)
    admin.delete_records([TopicPartition("kept", 0, 4)])[TopicPartition("kept", 0, 4)].result(_WAIT_S)
    refused(lambda: admin.delete_records([TopicPartition("kept", 0, 400)]))
    with suppress(KafkaException):  # it is a dead group to old versions
        admin.describe_consumer_groups(["absent"])["absent"].result(_WAIT_S)
    refused(lambda: admin.delete_consumer_groups(["absent"]))
    admin.list_consumer_groups().result(_WAIT_S)
    admin.describe_cluster().result(_WAIT_S)
    admin.delete_topics(["kept"])["kept"].result(_WAIT_S)
    admin.list_topics(timeout=_WAIT_S)


def librdkafka_transactions(servers: str) -> None:
    """Commit, abort, offsets of a transaction, and a producer that is fenced."""
    admin = AdminClient({"bootstrap.servers": servers, **_QUIET})
    admin.create_topics([NewTopic("bills", 1, 1)])["bills"].result(_WAIT_S)
    settings = {"bootstrap.servers": servers, "transactional.id": "mover", **_QUIET}
    consumer = Consumer(
        {"bootstrap.servers": servers, "group.id": "movers", "isolation.level": "read_committed",
         "auto.offset.reset": "earliest", "enable.auto.commit": False, **_QUIET}
    )  # fmt: skip
    consumer.subscribe(["bills"])
    producer = Producer(settings)
    producer.init_transactions(_WAIT_S)
    for number, end in enumerate(
        (producer.commit_transaction, producer.abort_transaction, producer.commit_transaction)
    ):
        producer.begin_transaction()
        producer.produce("bills", b"%d" % number, partition=0)
        if number == 2:
            metadata = consumer.consumer_group_metadata()
            producer.send_offsets_to_transaction([TopicPartition("bills", 0, 0)], metadata, _WAIT_S)
        end(_WAIT_S)
    values: list[bytes] = []
    while len(values) < 2:
        values += [one.value() or b"" for one in consumer.consume(2, 1.0) if not one.error()]
    assert values == [b"0", b"2"], values
    consumer.close()
    producer.begin_transaction()
    producer.produce("bills", b"open", partition=0)
    producer.flush(_WAIT_S)
    Producer(settings).init_transactions(_WAIT_S)  # it aborts that transaction, and fences its producer
    with suppress(KafkaException):
        producer.commit_transaction(_WAIT_S)
        raise AssertionError("expected a refusal")


def librdkafka_consumer_protocol(servers: str) -> None:
    """A group with the protocol of KIP-848."""
    admin = AdminClient({"bootstrap.servers": servers, **_QUIET})
    admin.create_topics([NewTopic("assigned", 2, 1)])["assigned"].result(_WAIT_S)
    producer = Producer({"bootstrap.servers": servers, **_QUIET})
    for number in range(10):
        producer.produce("assigned", b"%d" % number, partition=number % 2)
    producer.flush(_WAIT_S)
    consumer = Consumer(
        {"bootstrap.servers": servers, "group.id": "assigned", "group.protocol": "consumer",
         "auto.offset.reset": "earliest", "enable.auto.commit": False, **_QUIET}
    )  # fmt: skip
    consumer.subscribe(["assigned"])
    received = 0
    while received < 10:
        received += len([one for one in consumer.consume(10, 1.0) if not one.error()])
    consumer.commit(asynchronous=False)
    consumer.close()


def kafka_python(servers: str) -> None:
    """Produce, consume in a group, commit."""
    _create(servers, "python")
    producer = KafkaProducer(bootstrap_servers=[servers], acks="all")
    for number in range(10):
        producer.send("python", b"%d" % number, b"key", partition=0, timestamp_ms=1_700_000_000_000 + number)
    producer.flush()
    producer.close()
    consumer = KafkaConsumer(
        "python", bootstrap_servers=[servers], group_id="python", auto_offset_reset="earliest", enable_auto_commit=False
    )
    received: list[Any] = []
    while len(received) < 10:
        for records in consumer.poll(1000).values():
            received += records
    consumer.commit()
    consumer.end_offsets([PythonTopicPartition("python", 0)])
    consumer.close()


def aiokafka(servers: str) -> None:
    """Produce in a transaction, consume what is committed."""
    _create(servers, "coroutines")

    async def run() -> None:
        name = AIOTopicPartition("coroutines", 0)
        async with AIOKafkaProducer(bootstrap_servers=servers, transactional_id="aio") as producer:
            async with producer.transaction():
                await producer.send_and_wait("coroutines", b"0", partition=0)
                await producer.send_offsets_to_transaction({name: 1}, "aio")
        async with AIOKafkaConsumer(
            "coroutines", bootstrap_servers=servers, group_id="aio-readers", auto_offset_reset="earliest",
            isolation_level="read_committed", enable_auto_commit=False,
        ) as consumer:  # fmt: skip
            assert (await consumer.getone()).value == b"0"
            await consumer.commit()

    asyncio.run(asyncio.wait_for(run(), 2 * _WAIT_S))


def java(servers: str) -> None:
    """The Java client: produce, consume, and what its AdminClient asks."""
    with tempfile.TemporaryDirectory() as folder, JavaClient(servers, Path(folder)) as client:
        client.call("create-topic", "java", 2, 1)
        records = [
            Record(b"%d" % number, b"key", (("name", b"value"),), number % 2, 1_700_000_000_000) for number in range(10)
        ]
        client.produce("java", records)
        assert len(client.consume("java", "java-readers", 10)) == 10
        client.call("describe-topic", "java")
        client.call("describe-cluster")
        client.call("list-offsets", "java", 0, "latest")
        client.call("describe-group", "java-readers")
        client.call("group-offsets", "java-readers")
        client.call("delete-group", "java-readers")
        client.call("delete-topic", "java")


CLIENTS = {
    client.__name__: client
    for client in (
        librdkafka_records, librdkafka_administration, librdkafka_transactions, librdkafka_consumer_protocol,
        kafka_python, aiokafka, java,
    )
}  # fmt: skip


@contextmanager
def _recording(broker: str, path: Path) -> Iterator[str]:
    proxy = RecordingProxy(broker, path)
    try:
        yield proxy.address
    finally:
        proxy.close()


def main() -> None:
    """Record the transcripts anew, each with a broker of its own."""
    parser = argparse.ArgumentParser(prog="python -m tests.foreign.record_transcripts", description=__doc__)
    parser.add_argument("--only", nargs="*", choices=CLIENTS, help="record these alone")
    chosen = parser.parse_args().only or list(CLIENTS)
    apache_kafka.build()
    TRANSCRIPTS.mkdir(exist_ok=True)
    for name in chosen:
        with tempfile.TemporaryDirectory() as folder:
            broker = apache_kafka.Broker(Path(folder))
            try:
                path = TRANSCRIPTS / f"{name}.jsonl"
                with _recording(broker.address, path) as address:
                    CLIENTS[name](address)
            finally:
                broker.close()
        print(f"{path.name}: {len(path.read_text().splitlines())} frames, {path.stat().st_size:,} bytes", flush=True)


if __name__ == "__main__":
    main()
