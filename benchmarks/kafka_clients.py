"""`python -m benchmarks.kafka_clients HOST PORT hold COUNT | produce COUNT`: clients of a Kafka listener.

`hold` opens connections, asks each for the versions of the APIs, prints a line, and keeps them until its input ends.
`produce` sends one record of 100 B at a time, and prints the latencies as JSON, in seconds.
"""

from __future__ import annotations

import json
import socket
import sys
import time
from typing import Any

from pyreplog.kafka.wire.codec import request_codec, response_codec
from pyreplog.kafka.wire.messages import (
    ApiVersionsRequest,
    MetadataRequest,
    MetadataRequestTopic,
    ProducePartitionProduceData,
    ProduceRequest,
    ProduceTopicProduceData,
)
from pyreplog.kafka.wire.schema import ApiKey
from pyreplog.record_batches.batches import build_batch

TOPIC = "latency"
_PATIENCE_S = 60.0


def _framed(key: ApiKey, version: int, message: Any) -> bytes:
    codec = request_codec(key, version)
    head = key.to_bytes(2, "big") + version.to_bytes(2, "big") + bytes(4) + b"\xff\xff" + b"\0" * codec.flexible
    data = head + codec.schema.encode(message)
    return len(data).to_bytes(4, "big") + data


def _ask(client: socket.socket, request: bytes) -> bytes:
    client.sendall(request)
    return _receive(client, int.from_bytes(_receive(client, 4), "big"))


def _produced(answer: bytes) -> bool:
    response = response_codec(ApiKey.PRODUCE, 9).schema.decode(answer[5:])
    return not response.responses[0].partition_responses[0].error_code


def _receive(client: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        part = client.recv(size - len(data))
        if not part:
            raise ConnectionResetError("the listener closed the connection")
        data += part
    return data


def hold(address: tuple[str, int], count: int) -> None:
    request = _framed(ApiKey.API_VERSIONS, 3, ApiVersionsRequest())
    clients = []
    for _ in range(count):
        clients.append(socket.create_connection(address, _PATIENCE_S))
        _ask(clients[-1], request)
    print("ready", flush=True)
    sys.stdin.read()
    for client in clients:
        _ask(client, request)  # none was closed


def produce(address: tuple[str, int], count: int) -> None:
    data = build_batch([bytes(100)], timestamps_ms=[time.time_ns() // 1_000_000])
    partition = ProducePartitionProduceData(0, data)
    request = _framed(
        ApiKey.PRODUCE, 9, ProduceRequest(None, -1, 30_000, (ProduceTopicProduceData(TOPIC, (partition,)),))
    )
    with socket.create_connection(address, _PATIENCE_S) as client:
        client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        _ask(client, _framed(ApiKey.METADATA, 9, MetadataRequest((MetadataRequestTopic(name=TOPIC),))))
        while not _produced(_ask(client, request)):  # the topic has no leader yet
            time.sleep(0.01)
        latencies = []
        for _ in range(count):
            began = time.perf_counter()
            _ask(client, request)
            latencies.append(time.perf_counter() - began)
        if not _produced(_ask(client, request)):
            raise RuntimeError("a produce failed")
    print(json.dumps(latencies), flush=True)


if __name__ == "__main__":
    host, port, action, number = sys.argv[1:]
    {"hold": hold, "produce": produce}[action]((host, int(port)), int(number))
