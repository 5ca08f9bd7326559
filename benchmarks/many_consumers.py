"""`python -m benchmarks.many_consumers [COUNT …]`: what a message takes from publish to receipt when a `shared`
subscription has many consumers.

Each count is measured in a process of its own, an embedded cluster with one bookie. The consumers are tasks of one
event loop; 1,000 messages a second are published.
"""

from __future__ import annotations

import argparse
import sys
import time

from benchmarks.idle_costs import print_table, process_sizes
from benchmarks.paced_messages import COLUMNS, measured
from pyreplog.cluster import Cluster

_COLUMNS = (
    ("consumers", "{count:,}"),
    ("attached, each", "{attached_ms:.3f} ms"),
    ("anonymous memory, each", "{anonymous:.2f} KiB"),
    *COLUMNS,
)


def main() -> int:
    parser = argparse.ArgumentParser(description="Measure the messages of a shared subscription with many consumers.")
    parser.add_argument("counts", nargs="*", type=int, default=[1, 2_000], metavar="COUNT")
    parser.add_argument("--messages", type=int, default=10_000, help="messages whose latency is measured")
    return print_table("benchmarks.many_consumers", parser, _COLUMNS, _measure)


def _measure(arguments: argparse.Namespace, count: int) -> dict[str, float]:
    directory = arguments.directory / "cluster"
    with (
        Cluster.embedded(directory, bookies=1, durability="appended") as cluster,
        cluster.topic("crowded", durability="appended") as topic,
    ):
        before, began = process_sizes(), time.monotonic()
        consumers = [topic.subscribe("all", type="shared") for _ in range(count)]
        attached_s, after = time.monotonic() - began, process_sizes()
        try:
            figures = measured([topic], consumers, arguments.messages)
        finally:
            for consumer in consumers:
                consumer.close()
    return {
        "count": count, "attached_ms": attached_s / count * 1e3,
        "anonymous": (after["anonymous"] - before["anonymous"]) / count, **figures,
    }  # fmt: skip


if __name__ == "__main__":
    sys.exit(main())
