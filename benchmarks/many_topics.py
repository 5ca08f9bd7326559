"""`python -m benchmarks.many_topics [COUNT …]`: what a message takes from publish to receipt when many topics share a
rate.

Each count is measured in a process of its own, an embedded cluster with one bookie: topics of one subscription and one
consumer each, all open, get 1,000 messages a second in turn.
"""

from __future__ import annotations

import argparse
import sys
import time
from contextlib import ExitStack

from benchmarks.idle_costs import print_table, process_sizes
from benchmarks.paced_messages import COLUMNS, measured
from pyreplog.cluster import Cluster

_COLUMNS = (
    ("topics", "{count:,}"),
    ("opened, each", "{opened_ms:.2f} ms"),
    ("anonymous memory, each", "{anonymous:.1f} KiB"),
    *COLUMNS,
)


def main() -> int:
    parser = argparse.ArgumentParser(description="Measure messages that are spread over many topics.")
    parser.add_argument("counts", nargs="*", type=int, default=[1, 1_000, 10_000], metavar="COUNT")
    parser.add_argument("--messages", type=int, default=20_000, help="messages whose latency is measured")
    return print_table("benchmarks.many_topics", parser, _COLUMNS, _measure)


def _measure(arguments: argparse.Namespace, count: int) -> dict[str, float]:
    with ExitStack() as stack:
        cluster = stack.enter_context(
            Cluster.embedded(arguments.directory / "cluster", bookies=1, durability="appended")
        )
        before, began = process_sizes(), time.monotonic()
        topics = [cluster.topic(f"topic-{number}", durability="appended") for number in range(count)]
        consumers = [topic.subscribe("all") for topic in topics]
        for topic in topics:
            topic.submit(b"")  # a ledger is made for the first message
        for consumer in consumers:
            message = consumer.receive()
            consumer.acknowledge(message)
        opened_s, after = time.monotonic() - began, process_sizes()
        figures = measured(topics, consumers, arguments.messages)
    return {
        "count": count, "opened_ms": opened_s / count * 1e3,
        "anonymous": (after["anonymous"] - before["anonymous"]) / count, **figures,
    }  # fmt: skip


if __name__ == "__main__":
    sys.exit(main())
