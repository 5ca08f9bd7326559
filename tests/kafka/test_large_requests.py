"""Requests that are large, or many that are half there: memory is bounded, and other clients are served."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from pyreplog._native.kafka.request_parser import MAX_REQUEST_BYTES
from pyreplog.kafka.receive_budget import SMALL_BYTES
from pyreplog.kafka.wire.schema import ApiKey
from pyreplog.partition.protocol import record_batch
from pyreplog.record_batches.batches import build_batch
from pyreplog.record_batches.compression import CODECS, decompress
from tests.kafka.kafka_brokers import KafkaBrokers, RawClient, encode_request, frame, produce
from tests.waiting import PATIENCE_S, until

ROOT = Path(__file__).parents[2]
NOW_MS = 1_790_000_000_000
MIB = 1 << 20
MESSAGE_TOO_LARGE = 10


def batch(size: int) -> bytes:
    """A batch of exactly `size` bytes."""
    for over in range(68, 90):
        data = build_batch([bytes(size - over)], timestamps_ms=[NOW_MS])
        if len(data) == size:
            return data
    raise AssertionError(size)


def code_of(response: Any) -> int:
    return int(response.responses[0].partition_responses[0].error_code)


def produced(client: RawClient, data: bytes, topic: str = "events") -> int:
    return code_of(client.ask(ApiKey.PRODUCE, 9, produce(data, topic=topic)))


class BrokerProcess(NamedTuple):
    """A broker with two topics: `events`, and `large`, whose messages may have 20 MiB."""

    pid: int
    address: tuple[str, int]

    def client(self) -> RawClient:
        return RawClient(SimpleNamespace(address=self.address))  # type: ignore[arg-type]

    def memory(self, name: str = "VmRSS") -> int:
        """Bytes of resident memory; VmHWM: the most until now."""
        for line in Path(f"/proc/{self.pid}/status").read_text().splitlines():
            if line.startswith(f"{name}:"):
                return int(line.split()[1]) << 10
        raise AssertionError(name)

    def forget_peak(self) -> None:
        Path(f"/proc/{self.pid}/clear_refs").write_text("5")


@pytest.fixture
def process(tmp_path: Path) -> Iterator[BrokerProcess]:
    command = [sys.executable, "-m", "tests.kafka.kafka_broker_process", str(tmp_path / "1"), "1"]
    with subprocess.Popen(
        [*command, f"sqlite:{tmp_path / 'metadata'}"], cwd=ROOT, stdout=subprocess.PIPE, text=True
    ) as child:
        try:
            assert child.stdout is not None
            advertised = child.stdout.readline().strip()
            host, _, port = advertised.rpartition(":")
            topics = [
                NewTopic("events", num_partitions=1, replication_factor=1),
                NewTopic("large", num_partitions=1, replication_factor=1, config={"max.message.bytes": str(20 * MIB)}),
            ]
            admin = AdminClient({"bootstrap.servers": advertised})
            for future in admin.create_topics(topics).values():
                future.result(PATIENCE_S)
            broker = BrokerProcess(child.pid, (host.strip("[]"), int(port)))
            with broker.client() as client:
                until(lambda: produced(client, batch(100)) == 0 and produced(client, batch(100), "large") == 0)
            yield broker
        finally:
            child.kill()


def test_a_produce_of_more_than_the_limit_closes_its_connection(process: BrokerProcess) -> None:
    """As soon as its size is read: none of its 100 MiB is held."""
    process.forget_peak()
    before = process.memory()
    with process.client() as sibling, process.client() as client:
        whole = frame(encode_request(ApiKey.PRODUCE, 9, 1, produce(bytes(MAX_REQUEST_BYTES))))
        with pytest.raises(ConnectionError):
            client.socket.sendall(whole)
        assert client.is_closed()
        assert produced(sibling, batch(100)) == 0
    assert process.memory("VmHWM") - before < 16 * MIB


def test_a_produce_of_the_largest_request_is_refused_by_its_topic(process: BrokerProcess) -> None:
    """It is received whole, siblings are served meanwhile, and its memory is given back."""
    process.forget_peak()
    before = process.memory()
    size = MAX_REQUEST_BYTES - 100
    with process.client() as sibling, process.client() as client:
        whole = memoryview(frame(encode_request(ApiKey.PRODUCE, 9, 1, produce(batch(size)))))
        assert size < len(whole) <= MAX_REQUEST_BYTES + 4
        for at in range(0, len(whole), 5 * MIB):
            client.socket.sendall(whole[at : at + 5 * MIB])
            assert produced(sibling, batch(100)) == 0
        assert code_of(client.answer(ApiKey.PRODUCE, 9, 1)) == MESSAGE_TOO_LARGE
        assert produced(client, batch(100)) == 0, "the connection is still of use"
    assert process.memory("VmHWM") - before < 240 * MIB, "while the block grows, there are two"
    until(lambda: process.memory() - before < 32 * MIB)


def test_a_message_of_the_topics_limit_is_stored(process: BrokerProcess) -> None:
    with process.client() as client:
        assert produced(client, batch(20 * MIB), "large") == 0
        assert produced(client, batch(20 * MIB + 1), "large") == MESSAGE_TOO_LARGE
        assert produced(client, batch(20 * MIB), "large") == 0


# ---- many that are half there ----------------------------------------------------------------------------------


def test_half_requests_of_many_connections_are_bounded(tmp_path: Path) -> None:
    """Small requests are served meanwhile; when the others go on, all of them arrive."""
    budget, size, count = MIB, 300_000, 40
    with KafkaBrokers(tmp_path, incomplete_request_bytes=budget, broker_settings={"segment_bytes": 4 * MIB}) as brokers:
        brokers.start("1")
        brokers.create()
        server = brokers.servers["1"]
        whole = memoryview(frame(encode_request(ApiKey.PRODUCE, 9, 1, produce(batch(size)))))
        clients = [RawClient(server) for _ in range(count)]
        try:
            left = [whole[send_some(client, whole[: size * 3 // 4]) :] for client in clients]
            until(lambda: server.receive_budget.waiting > count // 2)
            with RawClient(server) as sibling:
                for _ in range(20):
                    assert produced(sibling, batch(SMALL_BYTES // 2)) == 0
                    assert server.receive_budget.used_bytes <= budget + 2 * size
            assert server.receive_budget.waiting > count // 2
            threads = [
                threading.Thread(target=client.socket.sendall, args=(rest,))
                for client, rest in zip(clients, left, strict=True)
            ]
            for thread in threads:
                thread.start()
            assert [code_of(client.answer(ApiKey.PRODUCE, 9, 1)) for client in clients] == [0] * count
            for thread in threads:
                thread.join()
        finally:
            for client in clients:
                client.socket.close()
        until(lambda: not server.connections)
        assert server.receive_budget.used_bytes == server.receive_budget.waiting == 0


def send_some(client: RawClient, data: memoryview) -> int:
    """Send what the kernel takes at once; return the number of bytes."""
    client.socket.setblocking(False)
    sent = 0
    try:
        while sent < len(data):
            sent += client.socket.send(data[sent:])
    except BlockingIOError:
        pass
    client.socket.settimeout(PATIENCE_S)
    return sent


def test_half_requests_that_wait_for_memory_end_in_time(tmp_path: Path) -> None:
    with KafkaBrokers(tmp_path, incomplete_request_bytes=1 << 16, request_ms=1_000) as brokers:
        brokers.start("1")
        server = brokers.servers["1"]
        clients = [RawClient(server) for _ in range(10)]
        half = memoryview(frame(bytes(MIB))[: MIB // 2])
        for client in clients:
            send_some(client, half)
        until(lambda: server.receive_budget.waiting > 0)
        for client in clients:
            assert client.is_closed()
            client.socket.close()
        until(lambda: not server.connections)
        assert server.receive_budget.used_bytes == server.receive_budget.waiting == 0


# ---- large compressed batches ----------------------------------------------------------------------------------


def compressed(number: int, size: int, codec: str = "gzip") -> bytes:
    return build_batch([b"%d" % number, os.urandom(size)], timestamps_ms=[NOW_MS] * 2, codec=CODECS[codec])


def test_large_compressed_batches_are_checked_by_another_thread(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So that a client that sends them does not delay others; small ones are not worth a change of threads."""
    threads = list[str]()

    def noted(codec: int, data: Any, max_bytes: int) -> Any:
        threads.append(threading.current_thread().name)
        return decompress(codec, data, max_bytes)

    monkeypatch.setattr(record_batch, "decompress", noted)
    with KafkaBrokers(tmp_path) as brokers:
        brokers.start("1")
        brokers.create()
        with RawClient(brokers.servers["1"]) as client:
            assert produced(client, compressed(0, 1_000)) == 0
            assert produced(client, compressed(1, 100_000)) == 0
    assert not threads[0].startswith("pyreplog-kafka_") and threads[1].startswith("pyreplog-kafka_")


def test_produces_behind_a_large_compressed_batch_keep_their_order(tmp_path: Path) -> None:
    with KafkaBrokers(tmp_path, broker_settings={"segment_bytes": 4 * MIB}) as brokers:
        brokers.start("1")
        brokers.create()
        with RawClient(brokers.servers["1"]) as client:
            batches = [compressed(number, 300_000 if number % 3 == 0 else 10) for number in range(30)]
            sender = threading.Thread(
                target=lambda: [client.send(ApiKey.PRODUCE, 9, produce(data, acks=1)) for data in batches]
            )
            sender.start()
            answers = [client.answer(ApiKey.PRODUCE, 9, number + 1) for number in range(30)]
            sender.join()
    assert [code_of(answer) for answer in answers] == [0] * 30
    offsets = [answer.responses[0].partition_responses[0].base_offset for answer in answers]
    assert offsets == list(range(0, 60, 2))


def test_a_large_compressed_batch_without_acks_that_is_refused_closes_the_connection(tmp_path: Path) -> None:
    with KafkaBrokers(tmp_path) as brokers:
        brokers.start("1")
        brokers.create()
        with RawClient(brokers.servers["1"]) as client, RawClient(brokers.servers["1"]) as sibling:
            client.send(ApiKey.PRODUCE, 9, produce(compressed(0, 100_000), acks=0))
            until(lambda: produced(sibling, batch(100)) == 0)
            bad = bytearray(compressed(0, 100_000))
            bad[-1] ^= 1
            client.send(ApiKey.PRODUCE, 9, produce(bytes(bad), acks=0))
            assert client.is_closed()
            assert produced(sibling, batch(100)) == 0
