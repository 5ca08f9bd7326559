"""One of two nodes that hold the flights: whichever is master appends those that its log lacks.

    flightsnode.py DIRECTORY NAME LOG SECONDS [MASTER]

Without MASTER it is the first master, else a replica of that one until it is promoted. Appends evenly over so many
seconds for all of LOG, so that others can do something in the middle: at HELD_AT of it, it waits for a line on its
standard input. Tells where it is, how much it has written, and how much of that is acknowledged: the other one has it,
too. A JSON object per line.
"""

from __future__ import annotations

import json
import sys
import time
from collections import deque

import pyreplog
from pyreplog import ha

MEMBERS = ("a", "b")
BATCH_BYTES = 32 << 10
AHEAD = 16
HELD_AT = 2 / 3
SEGMENT_BYTES = 4 << 20
LOG = pyreplog.LogConfig(segment_bytes=SEGMENT_BYTES)


def main(directory: str, name: str, path: str, seconds: float, master: str | None) -> None:
    if master is None:
        opened = ha.open_master(directory, name=name, members=MEMBERS, sync_replicas=1, log=LOG)
    else:
        opened = ha.open_replica(directory, name=name, master=master, log=LOG)
    with opened as node, pyreplog.open(path, "r") as source:
        say(address=node.address)
        while node.role != "master":
            time.sleep(0.02)
        append_rest(node, source, seconds / max(source.end, 1))
        while True:  # it serves its replicas until it is killed
            time.sleep(60)


def append_rest(node: ha.Node, source: pyreplog.LogReader, pace: float) -> None:
    """Entries of the source have the same numbers here."""
    written = node.stats()["received"]["entry"]
    waiting: deque[pyreplog.AppendFuture[range]] = deque()
    held = pace > 0
    for batch in source.read(written, batch_bytes=BATCH_BYTES):
        if held and int(batch.entry[-1]) >= source.end * HELD_AT:
            held = not sys.stdin.readline()
        time.sleep(len(batch) * pace)  # who is late does not hurry: others have to find it in the middle
        waiting.append(node.submit_batch(batch.values(), batch.keys(), batch.event_time.tolist()))
        written += len(batch)
        say(written=written)
        if len(waiting) > AHEAD:
            say(acked=waiting.popleft().result().stop)
    while waiting:
        say(acked=waiting.popleft().result().stop)


def say(**fields: object) -> None:
    sys.stdout.write(json.dumps(fields) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3], float(sys.argv[4]), sys.argv[5] if len(sys.argv) > 5 else None)
