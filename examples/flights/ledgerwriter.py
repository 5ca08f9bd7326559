"""Appends the entries of a log to a ledger, in a process of its own, and tells how far it is: a JSON object per line.

    ledgerwriter.py URL LOG FROM [SECONDS]

From entry FROM on; evenly over so many seconds, so that others can do something in the middle: then it begins when
there is one bookie more than the ledger needs, waits at HELD_AT of all for a line on its standard input, and in the end
to be killed. Up to AHEAD batches are on their way at a time.
"""

from __future__ import annotations

import json
import sys
import time
from collections import deque

import pyreplog

ENSEMBLE, WRITE_QUORUM, ACK_QUORUM = 4, 3, 2
BATCH_BYTES = 32 << 10
AHEAD = 16
HELD_AT = 2 / 3


def main(url: str, path: str, start: int, seconds: float) -> None:
    with pyreplog.open(path, "r") as log, pyreplog.Cluster.connect(url) as cluster:
        pace = seconds / max(log.end - start, 1)
        with cluster.create_ledger(ENSEMBLE, WRITE_QUORUM, ACK_QUORUM) as ledger:
            say(ledger=ledger.id)
            while seconds and len(cluster.status().bookies) <= ENSEMBLE:
                time.sleep(0.02)
            waiting: deque[pyreplog.AppendFuture[range]] = deque()
            held = seconds > 0
            for batch in log.read(start, batch_bytes=BATCH_BYTES):
                if held and int(batch.entry[-1]) >= log.end * HELD_AT:
                    held = not sys.stdin.readline()
                time.sleep(len(batch) * pace)  # who is late does not hurry: others have to find it in the middle
                waiting.append(ledger.submit_batch(batch.values(), batch.keys(), batch.event_time.tolist()))
                if len(waiting) > AHEAD:
                    say(acked=waiting.popleft().result().stop)
            while waiting:
                say(acked=waiting.popleft().result().stop)
            while seconds:
                time.sleep(60)
        say(closed=ledger.last_add_confirmed)


def say(**fields: int) -> None:
    sys.stdout.write(json.dumps(fields) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), float(sys.argv[4]) if len(sys.argv) > 4 else 0.0)
