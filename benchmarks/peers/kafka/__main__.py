"""Kafka and the topic server in one run: the same messages, in turns, one copy, the same durability."""

from __future__ import annotations

import argparse
import time
from pathlib import Path

from benchmarks import machine, report
from benchmarks.limits.build import ROOT
from benchmarks.peers.kafka.broker import build
from benchmarks.peers.queues import QueuePeer, ServedTopic
from benchmarks.plan import Plan
from benchmarks.proc import Load
from benchmarks.result import Section
from benchmarks.rows.topics.peers import compare

try:
    from benchmarks.peers.kafka.topic import KafkaTopic
except ModuleNotFoundError as missing:
    raise SystemExit(f"{missing}: pip install --group kafka") from None

_QUEUES: dict[str, type[QueuePeer]] = {kind.__name__: kind for kind in (ServedTopic, KafkaTopic)}


def main() -> None:
    """Parse the command line and run."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.peers.kafka", description=__doc__)
    parser.add_argument("--seconds", type=int, default=60, help="of measuring, in all")
    parser.add_argument("--directory", type=Path, default=ROOT / "build" / "bench-data")
    options = parser.parse_args()
    plan = Plan(directory=options.directory, budget=options.seconds)
    print(report.header(machine.describe(plan.directory)), flush=True)
    build()
    section = Section("kafka", "Topics beside Kafka, one broker, one partition, the same durability")
    load, begin = Load(), time.monotonic()
    compare(plan, section, _QUEUES)
    section.others, section.seconds = load.others(), time.monotonic() - begin
    section.notes += [
        f"Versions: {'; '.join(kind.version() for kind in _QUEUES.values())}. Both servers run on this "
        "machine, and are reached through TCP.",
        "Kafka: acks=all; batches with linger.ms=5, as many on their way as its client takes; consume of up to 1,000 "
        "and a commit behind each; the partition is assigned by hand, so no group has to gather; its client fetches "
        "ahead while messages are published. appended: it leaves syncs to the system; synced: flush.messages=1. A turn "
        "ends when all is confirmed, commits, too.",
    ]
    print("\n" + report.markdown(section), flush=True)


if __name__ == "__main__":
    main()
