"""`python -m benchmarks.many_connections [COUNT …]`: what idle connections of Kafka clients cost, and what a produce
takes meanwhile. `benchmarks.many_clients` does the same with a topic server.

Each count is measured in a process of its own, a broker with one listener. The clients are in other processes, because
each connection takes a descriptor on both sides: `ulimit -n` must be above the count.
"""

from __future__ import annotations

import argparse
import gc
import sys
import time
from contextlib import ExitStack

from benchmarks.idle_costs import allow_connections, hold_connections, latencies_of, print_table, process_sizes
from benchmarks.kafka_clients import TOPIC
from pyreplog.kafka import EmbeddedKafka, KafkaConfig
from pyreplog.partition.metadata.topic_metadata import create_topic

_COLUMNS = (
    ("connections", "{connections:,}"),
    ("opened and asked, each", "{opened_ms:.3f} ms"),
    ("anonymous memory, each", "{anonymous:.2f} KiB"),
    ("descriptors, each", "{descriptors:.2f}"),
    ("idle, share of a core", "{idle:.2%}"),
    ("produce, median", "{median_us:.0f} us"),
    ("p99", "{p99_us:.0f} us"),
)


def main() -> int:
    parser = argparse.ArgumentParser(description="Measure what idle connections of Kafka clients cost.")
    parser.add_argument("counts", nargs="*", type=int, default=[1, 1000, 10_000], metavar="COUNT")
    parser.add_argument("--seconds", type=float, default=20.0, help="how long CPU time is measured")
    parser.add_argument("--produces", type=int, default=5_000, help="messages whose latency is measured, one at a time")
    return print_table("benchmarks.many_connections", parser, _COLUMNS, _measure)


def _measure(arguments: argparse.Namespace, count: int) -> dict[str, float]:
    allow_connections(count)
    with ExitStack() as stack:
        config = KafkaConfig(connections=count + 10, replication_factor=1)
        kafka = stack.enter_context(EmbeddedKafka(arguments.directory / "kafka", config=config))
        create_topic(kafka.brokers["1"].store, TOPIC, partitions=1, replication_factor=1, now_us=1)
        host, _, port = kafka.bootstrap_servers.rpartition(":")
        command = [sys.executable, "-m", "benchmarks.kafka_clients", host, port]
        latencies_of(command, "produce", 500)  # until the topic has a leader, and what is made once is made
        gc.collect()
        before, began = process_sizes(), time.monotonic()
        hold_connections(stack, command, count)
        opened_s = time.monotonic() - began
        after, busy = process_sizes(), time.process_time()
        time.sleep(arguments.seconds)
        idle = (time.process_time() - busy) / arguments.seconds
        latencies = latencies_of(command, "produce", arguments.produces)
        assert len(kafka.servers["1"].connections) >= count
    return {
        "connections": count, "opened_ms": opened_s / count * 1e3,
        "anonymous": (after["anonymous"] - before["anonymous"]) / count,
        "descriptors": (after["descriptors"] - before["descriptors"]) / count, "idle": idle,
        "median_us": latencies[len(latencies) // 2] * 1e6, "p99_us": latencies[len(latencies) * 99 // 100] * 1e6,
    }  # fmt: skip


if __name__ == "__main__":
    sys.exit(main())
