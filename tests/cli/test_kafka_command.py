"""`pyreplog kafka` and `pyreplog broker --kafka` as processes, with librdkafka as their client."""

from __future__ import annotations

import signal
import socket
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer
from confluent_kafka.admin import AdminClient, NewTopic

import pyreplog
from pyreplog.kafka.wire.schema import ApiKey
from pyreplog.record_batches.batches import build_batch
from tests.cli.support import Done, Run, process
from tests.kafka.kafka_brokers import RawClient
from tests.kafka.kafka_brokers import produce as produce_request
from tests.ledger.processes import Process, ProcessGroup
from tests.net.test_tls import Authority
from tests.waiting import PATIENCE_S, until

Refused = Callable[..., None]

QUICK = ("--set", "lease_ms=1000", "--set", "segment_bytes=1048576", "--set", "balance_ms=100")


@pytest.fixture
def processes(tmp_path: Path) -> Iterator[ProcessGroup]:
    with ProcessGroup(tmp_path, f"sqlite:{tmp_path}/metadata.sqlite") as processes:
        yield processes


def start(processes: ProcessGroup, *options: object, listen: str = "127.0.0.1:0") -> Process:
    directory = processes.folder / "kafka"
    return processes.start("pyreplog", "kafka", str(directory), "--json", "--listen", listen, *map(str, options))


def end(server: Process, number: signal.Signals = signal.SIGTERM) -> None:
    server.signal(number)
    assert (server.wait(), server.error_text()) == (0, "")


def produce(bootstrap: str, values: list[bytes], topic: str = "events", **settings: Any) -> None:
    """Raises the first error of a delivery."""
    errors: list[KafkaError] = []

    def delivered(error: KafkaError | None, _: Message) -> None:
        if error is not None:
            errors.append(error)

    producer = Producer({"bootstrap.servers": bootstrap, "enable.idempotence": True, **settings})
    for value in values:
        producer.produce(topic, value, on_delivery=delivered)
    assert producer.flush(PATIENCE_S) == 0
    if errors:
        raise KafkaException(errors[0])


def consume(bootstrap: str, count: int, group: str, topic: str = "events", **settings: Any) -> list[bytes]:
    """Values that a member of a group gets; their offsets are committed."""
    consumer = Consumer({
        "bootstrap.servers": bootstrap, "group.id": group, "auto.offset.reset": "earliest",
        "enable.auto.commit": False, **settings,
    })  # fmt: skip
    values: list[bytes] = []
    try:
        consumer.subscribe([topic])

        def has_all() -> bool:
            for message in consumer.consume(1000, 0.5):
                assert message.error() is None, message.error()
                values.append(message.value())
            return len(values) >= count

        until(has_all)
        consumer.commit(asynchronous=False)
    finally:
        consumer.close()
    return values


def test_kafka_command_keeps_records_and_group_offsets_over_restarts(processes: ProcessGroup) -> None:
    """Records and offsets of groups are there after SIGTERM, after Ctrl-C, and after kill -9."""
    values = [b"%d" % number for number in range(40)]
    ends = (signal.SIGTERM, signal.SIGINT, signal.SIGKILL)
    for number, how in enumerate(ends):
        server = start(processes)
        bootstrap = server.wait_for("bootstrap")
        produce(bootstrap, values[number * 10 : number * 10 + 10])
        assert consume(bootstrap, 10, "billing") == values[number * 10 : number * 10 + 10]
        if how is signal.SIGKILL:
            server.kill()
        else:
            end(server, how)
    server = start(processes)
    assert server.wait_for("metadata") == f"sqlite:{processes.folder / 'kafka' / 'metadata'}"
    produce(server.wait_for("bootstrap"), values[30:])
    assert consume(server.wait_for("bootstrap"), 10, "billing") == values[30:]
    assert consume(server.wait_for("bootstrap"), 40, "other") == values
    second = process("kafka", processes.folder / "kafka", "--listen", "127.0.0.1:0")
    assert second.code == 3 and second.error.startswith("pyreplog: ") and second.error.count("\n") == 1, second
    end(server)


def test_kafka_command_serves_the_topics_of_a_topic_server(processes: ProcessGroup) -> None:
    secret = processes.folder / "secret"
    secret.write_text("a secret of servers")
    secured = ("--secret-file", str(secret))
    serve = processes.start("pyreplog", "serve", str(processes.folder / "cluster"), "--json", *secured)
    url = f"pyreplog://{serve.wait_for('address')}"
    server = start(processes, "--topics", url, "--topics-secret-file", secret)
    with pyreplog.connect(url, secret=b"a secret of servers") as client:
        orders = client.topic("orders", deduplicate=True, retention_ms=None)
        subscription = orders.subscribe("native", start="earliest")
        values = [b"%d" % number for number in range(20)]
        produce(server.wait_for("bootstrap"), values, "orders")
        assert [subscription.receive(PATIENCE_S).value for _ in values] == values
        orders.publish(b"native")
        assert consume(server.wait_for("bootstrap"), 21, "billing", "orders") == [*values, b"native"]
        subscription.close()
    end(server)
    end(serve)


def test_partitions_that_were_there_are_led_when_the_address_is_printed(processes: ProcessGroup) -> None:
    """A client that is told of no leader waits a second before it asks again."""
    partitions = 50
    server = start(processes, "--set", f"kafka.partitions={partitions}")
    produce(server.wait_for("bootstrap"), [b"x"])
    server.kill()
    server = start(processes)
    host, _, port = server.wait_for("bootstrap").rpartition(":")
    batch = build_batch([b"x"], timestamps_ms=[1_790_000_000_000])
    listener: Any = SimpleNamespace(address=(host, int(port)))
    with RawClient(listener) as client:
        requests = [produce_request(batch, partition=number) for number in reversed(range(partitions))]
        numbers = [client.send(ApiKey.PRODUCE, 9, request) for request in requests]
        for number in numbers:
            (topic,) = client.answer(ApiKey.PRODUCE, 9, number).responses
            assert [partition.error_code for partition in topic.partition_responses] == [0]
    end(server)


def test_sighup_reloads_users_of_a_listener_with_tls(processes: ProcessGroup) -> None:
    """SIGHUP reads the users again: another password counts, the former one does not."""
    users, authority = processes.folder / "users", Authority(processes.folder, "all")
    users.write_text("# of the tests\n\nbilling:first:with colon\n")
    server = start(
        processes, "--users", users, "--mechanisms", "PLAIN,SCRAM-SHA-512", "--tls-cert", authority.issue("1")
    )
    bootstrap = server.wait_for("bootstrap")

    def settings(password: str, mechanism: str) -> dict[str, Any]:
        return {
            "security.protocol": "SASL_SSL", "ssl.ca.location": str(authority.file), "sasl.mechanism": mechanism,
            "sasl.username": "billing", "sasl.password": password,
        }  # fmt: skip

    def is_let_in(password: str, mechanism: str = "PLAIN") -> bool:
        client = AdminClient({"bootstrap.servers": bootstrap, **settings(password, mechanism)})
        try:
            client.list_topics(timeout=2.0)
        except KafkaException:
            return False
        return True

    for mechanism in ("PLAIN", "SCRAM-SHA-512"):
        produce(bootstrap, [b"x"], **settings("first:with colon", mechanism))
    assert not is_let_in("second")
    users.write_text("billing:second\n")
    server.signal(signal.SIGHUP)
    until(lambda: is_let_in("second"))
    assert not is_let_in("first:with colon")
    users.write_text("billing\n")
    server.signal(signal.SIGHUP)
    lines = server.error_lines("line 1: expected NAME:PASSWORD")  # a server that ends reloads nothing
    assert any("were reloaded, for new connections" in line for line in lines)
    server.signal(signal.SIGTERM)
    assert server.wait() == 0


@pytest.mark.skipif(not socket.has_ipv6, reason="this machine has no IPv6")
def test_a_listener_serves_an_ipv6_address(processes: ProcessGroup) -> None:
    server = start(processes, listen="[::1]:0")
    assert server.wait_for("bootstrap").startswith("[::1]:")
    produce(server.wait_for("bootstrap"), [b"x"])
    assert consume(server.wait_for("bootstrap"), 1, "billing") == [b"x"]
    end(server)


def test_three_brokers_of_which_one_ends(processes: ProcessGroup) -> None:
    """Its partitions are led elsewhere, and what is produced meanwhile is stored once, in order."""
    options = ("--kafka", "127.0.0.1:0", "--set", "kafka.rebalance_delay_ms=0", "--set", "kafka.offsets_partitions=4")
    brokers = {
        name: processes.start(
            "pyreplog", "broker", str(processes.folder / name), "--json", "--metadata", processes.url, *QUICK, *options
        )
        for name in ("1", "2", "3")
    }  # fmt: skip
    bootstrap = ",".join(broker.wait_for("kafka") for broker in brokers.values())
    admin = AdminClient({"bootstrap.servers": bootstrap})
    until(lambda: len(admin.list_topics(timeout=PATIENCE_S).brokers) == 3)
    topic = NewTopic("events", 3, 3, config={"min.insync.replicas": "2"})
    admin.create_topics([topic])["events"].result(PATIENCE_S)

    values = [b"%d" % number for number in range(3000)]
    producer = Producer({"bootstrap.servers": bootstrap, "enable.idempotence": True, "linger.ms": 1})
    errors: list[KafkaError] = []
    for number, value in enumerate(values):
        producer.produce(
            "events", value, partition=number % 3, on_delivery=lambda e, _: errors.append(e) if e else None
        )
        if number == 1000:
            brokers["2"].signal(signal.SIGTERM)
        producer.poll(0.001 if number % 10 == 0 else 0)
    assert producer.flush(PATIENCE_S) == 0 and not errors
    assert (brokers["2"].wait(), brokers.pop("2").error_text()) == (0, "")
    stored = consume(bootstrap, len(values), "billing")
    assert sorted(map(int, stored)) == list(range(len(values)))
    for partition in range(3):
        own = [int(value) for value in stored if int(value) % 3 == partition]
        assert own == sorted(own)
    for broker in brokers.values():
        broker.signal(signal.SIGTERM)
    assert [broker.wait() for broker in brokers.values()] == [0, 0]


BAD_USERS = {
    "no colon": ("billing\n", "line 1: expected NAME:PASSWORD"),
    "no name": ("# users\n:secret\n", "line 2: expected NAME:PASSWORD"),
    "no password": ("billing:\n", "line 1: expected NAME:PASSWORD"),
    "twice": ("a:b\na:c\n", "line 2: expected each user once"),
    "none": ("# nobody\n", "found none"),
}


@pytest.fixture
def refused(tmp_path: Path, run: Run) -> Iterator[Refused]:
    """Runs a command in this process, which must refuse its options before it makes anything."""

    def refuse(expected: str, *options: object, command: str = "kafka") -> None:
        listen = ("--listen", "127.0.0.1:0") if command == "kafka" and "--listen" not in options else ()
        check_refusal(run(command, tmp_path / "1", *listen, *options), expected)
        assert not (tmp_path / "1").exists()

    numbers = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
    handlers = [signal.getsignal(number) for number in numbers]
    yield refuse
    for number, handler in zip(numbers, handlers, strict=True):
        signal.signal(number, handler)


def check_refusal(done: Done, expected: str) -> None:
    assert done.code == 2 and done.out == "", done
    assert done.error.startswith("pyreplog: ") and done.error.count("\n") == 1 and expected in done.error, done
    assert "secret" not in done.error


@pytest.mark.parametrize("kind", BAD_USERS)
def test_malformed_files_of_users_are_refused(refused: Refused, tmp_path: Path, kind: str) -> None:
    text, expected = BAD_USERS[kind]
    users = tmp_path / "users"
    users.write_text(text)
    refused(expected, "--users", users)


def test_contradictory_options_of_a_listener_are_refused(refused: Refused, tmp_path: Path) -> None:
    users = tmp_path / "users"
    users.write_text("billing:a secret\n")
    refused("found ('GSSAPI',)", "--users", users, "--mechanisms", "GSSAPI")
    refused("--mechanisms: expected with --users", "--mechanisms", "PLAIN")
    refused("--tls-key, --tls-client-ca: expected with --tls-cert", "--tls-key", users)
    refused("or one in --advertise", "--listen", "0.0.0.0:0")
    refused("--advertise: expected HOST:PORT", "--advertise", "kafka")
    refused("no_such", "--set", "kafka.no_such=1")
    refused("partitions", "--set", "kafka.partitions=0")
    refused("expected a table", "--set", "kafka=1")
    refused("lease_ms", "--set", "lease_ms=1")
    refused("--topics-tls-ca: expected with --topics", "--topics-tls-ca", users)
    refused("url: expected pyreplog://host:port", "--topics", "kafka://a:1")
    refused("--topics-tls-ca: expected certificates in", "--topics", "pyreplog://a:1", "--topics-tls-ca", users)


def test_options_of_a_broker_that_cannot_be(refused: Refused, tmp_path: Path) -> None:
    metadata = ("--metadata", f"sqlite:{tmp_path}/metadata")
    users = tmp_path / "users"
    users.write_text("billing:a secret\n")

    def broker(expected: str, *options: object) -> None:
        refused(expected, *metadata, *options, command="broker")

    broker("expected with --kafka HOST:PORT", "--kafka-users", users)
    broker("expected with --kafka HOST:PORT", "--kafka-advertise", "a:1")
    broker("expected with --kafka HOST:PORT", "--kafka-topics", "pyreplog://a:1")
    broker("expected with --kafka-users", "--kafka-mechanisms", "PLAIN")
    broker("--kafka-tls-key, --kafka-tls-client-ca: expected with --kafka-tls-cert", "--kafka-tls-key", users)
    broker("--kafka: expected HOST:PORT", "--kafka", "9092")
    broker("or one in --kafka-advertise", "--kafka", "0.0.0.0:0")
    broker("settings of a listener", "--set", "kafka.partitions=3")


def test_metrics_of_broker_and_listener(processes: ProcessGroup) -> None:
    server = start(processes, "--metrics", 0)
    produce(server.wait_for("bootstrap"), [b"one"])
    text = urllib.request.urlopen(f"http://{server.wait_for('metrics')}/metrics", timeout=PATIENCE_S).read().decode()
    values = dict(line.rsplit(" ", 1) for line in text.splitlines() if not line.startswith("#"))
    assert float(values['pyreplog_kafka_groups{broker="1",state="Stable"}']) == 0
    assert float(values['pyreplog_broker_registered{broker="1"}']) == 1
    end(server)
