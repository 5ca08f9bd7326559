"""`python -m benchmarks.many_clients [COUNT …]`: what idle connections to a topic server cost, and what a publish takes
meanwhile.

Each count is measured in a process of its own, a topic server of an embedded cluster with one bookie. The clients are
in other processes, because each connection takes a descriptor on both sides: `ulimit -n` must be above the count.
"""

from __future__ import annotations

import argparse
import dataclasses
import gc
import sys
import time
from contextlib import ExitStack

from benchmarks.idle_costs import allow_connections, hold_connections, latencies_of, print_table, process_sizes
from pyreplog.cluster import Cluster
from pyreplog.topic.client.remote.connection_pool import LIMITS
from pyreplog.topic.server.topic_server import TopicServer

_COLUMNS = (
    ("connections", "{connections:,}"),
    ("opened, each", "{opened_ms:.3f} ms"),
    ("anonymous memory, each", "{anonymous:.2f} KiB"),
    ("descriptors, each", "{descriptors:.2f}"),
    ("idle, share of a core", "{idle:.2%}"),
    ("publish, median", "{median_us:.0f} us"),
    ("p99", "{p99_us:.0f} us"),
)


def main() -> int:
    parser = argparse.ArgumentParser(description="Measure what idle connections to a topic server cost.")
    parser.add_argument("counts", nargs="*", type=int, default=[1, 1_000, 10_000], metavar="COUNT")
    parser.add_argument("--seconds", type=float, default=20.0, help="how long CPU time is measured")
    parser.add_argument(
        "--publishes", type=int, default=5_000, help="messages whose latency is measured, one at a time"
    )
    return print_table("benchmarks.many_clients", parser, _COLUMNS, _measure)


def _measure(arguments: argparse.Namespace, count: int) -> dict[str, float]:
    allow_connections(count)
    with ExitStack() as stack:
        directory, limits = arguments.directory / "cluster", dataclasses.replace(LIMITS, connections=count + 10)
        cluster = stack.enter_context(Cluster.embedded(directory, bookies=1, durability="appended"))
        server = stack.enter_context(TopicServer(cluster, limits=limits))
        host, _, port = server.address.rpartition(":")
        command = [sys.executable, "-m", "benchmarks.topic_clients", host, port]
        latencies_of(command, "publish", 500)  # what is made once is made
        gc.collect()
        before, began = process_sizes(), time.monotonic()
        hold_connections(stack, command, count)
        opened_s = time.monotonic() - began
        after, busy = process_sizes(), time.process_time()
        time.sleep(arguments.seconds)
        idle = (time.process_time() - busy) / arguments.seconds
        latencies = latencies_of(command, "publish", arguments.publishes)
    return {
        "connections": count, "opened_ms": opened_s / count * 1e3,
        "anonymous": (after["anonymous"] - before["anonymous"]) / count,
        "descriptors": (after["descriptors"] - before["descriptors"]) / count, "idle": idle,
        "median_us": latencies[len(latencies) // 2] * 1e6, "p99_us": latencies[len(latencies) * 99 // 100] * 1e6,
    }  # fmt: skip


if __name__ == "__main__":
    sys.exit(main())
