"""`python -m benchmarks.many_partitions [COUNT …]`: what partitions cost while nothing is appended to them.

Each count is measured in a process of its own, which has three brokers: a topic is made, each partition gets one
message, all is closed, opened again, and left alone until its logs are idle. What grows with the count is printed for
each partition, with all its replicas: it should be the same in all rows.
"""

from __future__ import annotations

import argparse
import gc
import sys
import threading
import time
from collections.abc import Callable

from benchmarks.idle_costs import print_table, process_sizes
from pyreplog.disk_usage import size_on_disk
from pyreplog.partition.client.partition_client import PartitionClient
from pyreplog.partition.client.partition_producer import ProducerConfig
from pyreplog.partition.config import BrokerConfig

_WAIT_S = 1800.0
_COLUMNS = (
    ("partitions", "{partitions:,}"),
    ("made and led, each", "{made_ms:.2f} ms"),
    ("first message, each", "{first_ms:.2f} ms"),
    ("closed, each", "{closed_ms:.2f} ms"),
    ("opened again and led, each", "{opened_ms:.2f} ms"),
    ("threads", "{threads}"),
    ("descriptors", "{descriptors}"),
    ("maps, each", "{maps:.2f}"),
    ("anonymous memory, each", "{anonymous:.1f} KiB"),
    ("disk, each", "{disk:.1f} KiB"),
    ("idle, share of a core", "{idle:.2%}"),
)


def main() -> int:
    parser = argparse.ArgumentParser(description="Measure what partitions of three brokers cost while they are idle.")
    parser.add_argument("counts", nargs="*", type=int, default=[10, 100, 1000, 10_000], metavar="COUNT")
    parser.add_argument("--replicas", type=int, default=3, help="of each partition (default 3)")
    parser.add_argument("--seconds", type=float, default=20.0, help="how long CPU time is measured")
    parser.add_argument("--settle", type=float, default=15.0, help="all is idle when no file was closed for so long")
    parser.add_argument("--segment-bytes", type=int, default=1 << 20)
    return print_table("benchmarks.many_partitions", parser, _COLUMNS, _measure)


def _measure(arguments: argparse.Namespace, count: int) -> dict[str, float]:
    before = process_sizes()
    made_s, first_s, closed_s = _make(arguments, count)
    gc.collect()  # what was closed
    began = time.monotonic()
    with _client(arguments) as client:
        _until(lambda: _led(client) == count)
        opened_s = time.monotonic() - began
        _settle(arguments.settle)
        after, busy = process_sizes(), time.process_time()
        time.sleep(arguments.seconds)
        idle, threads = (time.process_time() - busy) / arguments.seconds, threading.active_count()
        disk = size_on_disk(arguments.directory) / 1024
        topic = client.topic("t")
        assert all(topic[number].offsets().end == 1 for number in range(0, count, max(count // 100, 1)))
    return {
        "partitions": count, "made_ms": made_s / count * 1e3, "first_ms": first_s / count * 1e3,
        "closed_ms": closed_s / count * 1e3, "opened_ms": opened_s / count * 1e3, "threads": threads,
        "descriptors": after["descriptors"], "maps": (after["maps"] - before["maps"]) / count,
        "anonymous": (after["anonymous"] - before["anonymous"]) / count, "disk": disk / count, "idle": idle,
    }  # fmt: skip


def _make(arguments: argparse.Namespace, count: int) -> tuple[float, float, float]:
    """Make the partitions; return the seconds that making them, their first messages, and closing them took."""
    with _client(arguments) as client:
        began = time.monotonic()
        topic = client.create_topic("t", partitions=count, replication_factor=arguments.replicas)
        _until(lambda: _led(client) == count)
        made_s, began = time.monotonic() - began, time.monotonic()
        with topic.producer() as producer:
            futures = [producer.submit(bytes(100), partition=number) for number in range(count)]
            assert [future.result(_WAIT_S).offset for future in futures] == [0] * count
        first_s, began = time.monotonic() - began, time.monotonic()
    return made_s, first_s, time.monotonic() - began


def _client(arguments: argparse.Namespace) -> PartitionClient:
    config = BrokerConfig(segment_bytes=arguments.segment_bytes)
    patient = ProducerConfig(timeout_s=_WAIT_S)
    return PartitionClient.embedded(arguments.directory, config=patient, broker_config=config)


def _led(client: PartitionClient) -> int:
    return sum(partition.is_leader for broker in client.brokers.values() for partition in broker.replicas)


def _until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + _WAIT_S
    while True:
        began = time.monotonic()
        if condition():
            return
        if began > deadline:
            raise TimeoutError(f"{_WAIT_S:.0f} s were not enough")
        time.sleep(max(0.05, 20 * (time.monotonic() - began)))  # of the time that is measured, looking takes little


def _settle(seconds: float) -> None:
    least, since = process_sizes()["descriptors"], time.monotonic()
    while time.monotonic() - since < seconds:
        time.sleep(min(seconds, 0.5))
        if (descriptors := process_sizes()["descriptors"]) < least:
            least, since = descriptors, time.monotonic()


if __name__ == "__main__":
    sys.exit(main())
