"""A writer in a process of its own: `python -m tests.ledger.writing URL E QW QA`.

It prints a JSON object on each line: the ledger, how many entries are acknowledged, how many have all their copies, how
many bytes lack copies, and how it ended. A line on its standard input closes the ledger.
"""

from __future__ import annotations

import json
import sys
import threading
from collections import deque

from pyreplog.errors import ReplogError
from pyreplog.future import AppendFuture
from pyreplog.ledger.cluster import LedgerCluster
from pyreplog.ledger.ledger_handle import Ledger
from pyreplog.ledger.remote_runtime import QUEUED_BYTES
from pyreplog.net.limits import Limits

BATCH = 64
AHEAD = 16
PATIENT = Limits(queued_bytes=QUEUED_BYTES, silence_ms=60_000)
"""Limits that keep a connection to a bookie that was stopped."""


def value_of(entry: int) -> bytes:
    return b"%d." % entry * 100


def say(**fields: object) -> None:
    print(json.dumps(fields), flush=True)


def write(ledger: Ledger, stop: threading.Event) -> None:
    waiting: deque[AppendFuture[range]] = deque()
    entry = 0
    while not stop.is_set():
        waiting.append(ledger.submit_batch([value_of(entry + i) for i in range(BATCH)]))
        entry += BATCH
        if len(waiting) > AHEAD:
            acked = waiting.popleft().result().stop
            copied = ledger.last_add_pushed + 1 - ledger.pending_entries
            say(acked=acked, copied=copied, pending=ledger.pending_bytes)


def main(url: str, ensemble: int, write_quorum: int, ack_quorum: int) -> None:
    stop = threading.Event()
    threading.Thread(target=lambda: (sys.stdin.readline(), stop.set()), daemon=True).start()
    with LedgerCluster.connect(url, request_timeout_ms=60_000, limits=PATIENT) as cluster:
        try:
            with cluster.create_ledger(ensemble, write_quorum, ack_quorum) as ledger:
                say(ledger=ledger.id)
                write(ledger, stop)
            say(last=ledger.metadata.last_entry)
        except ReplogError as error:
            say(error=type(error).__name__)


if __name__ == "__main__":
    main(sys.argv[1], *map(int, sys.argv[2:]))
