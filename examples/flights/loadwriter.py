"""Appends to a ledger all the time, in a process of its own, and tells how far it is: a JSON object per line.

    loadwriter.py URL

One number an entry, each acknowledged before the next, until there is a line on its standard input. Then it closes the
ledger, and tells how long it waited for entries, in microseconds. An error, such as being fenced, ends it.
"""

from __future__ import annotations

import json
import sys
import threading
import time

import pyreplog

ENSEMBLE, WRITE_QUORUM, ACK_QUORUM = 3, 2, 2
TELL_S = 0.05
PAUSE_S = 0.002


def main(url: str) -> None:
    over = threading.Event()
    threading.Thread(target=lambda: (sys.stdin.readline(), over.set()), daemon=True).start()
    waited_us = []
    with pyreplog.Cluster.connect(url) as cluster:
        with cluster.create_ledger(ENSEMBLE, WRITE_QUORUM, ACK_QUORUM) as ledger:
            say(ledger=ledger.id)
            told = 0.0
            while not over.is_set():
                began = time.perf_counter()
                ledger.append(b"%d" % len(waited_us))
                waited_us.append(int((time.perf_counter() - began) * 1e6))
                if began - told >= TELL_S:
                    told = began
                    say(acked=len(waited_us))
                time.sleep(PAUSE_S)
        ordered = sorted(waited_us)
        say(acked=len(waited_us), p99_us=ordered[len(ordered) * 99 // 100], most_us=ordered[-1])
        say(closed=ledger.last_add_confirmed)


def say(**fields: int) -> None:
    sys.stdout.write(json.dumps(fields) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main(sys.argv[1])
