"""The client of pyreplog's side of `recovery`: what src/main/java/pyreplog/Recover.java is on BookKeeper's.

Arguments: metadata URL, durability, then the numbers that Recover.java takes. Each line of standard input is answered
with a line of JSON.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from random import Random
from typing import Any

from pyreplog.errors import ReplogError
from pyreplog.ledger.cluster import LedgerCluster
from pyreplog.ledger.ledger_handle import Ledger

_ADDS_PER_S = 200
_THREADS = 8


class Client:
    """Fills ledgers, keeps some open, and adds to one of its own at a fixed rate.

    quorums: ensemble, write quorum, ack quorum. size: bytes of an entry.
    """

    def __init__(self, cluster: LedgerCluster, durability: str, quorums: tuple[int, int, int], size: int) -> None:
        self._cluster, self._durability, self._quorums = cluster, durability, quorums
        self._value = Random(size).randbytes(size)
        self._closed: list[int] = []
        self._idle: list[Ledger] = []
        self._adds: Adds | None = None

    def fill(self, ledgers: int, entries: int) -> dict[str, Any]:
        """Make closed ledgers, several at a time."""
        with ThreadPoolExecutor(_THREADS) as pool:
            self._closed = list(pool.map(lambda _: self._one(entries), range(ledgers)))
        return {"ledgers": len(self._closed)}

    def _create(self) -> Ledger:
        ensemble, write, ack = self._quorums
        return self._cluster.create_ledger(ensemble, write, ack, durability=self._durability)

    def _one(self, entries: int) -> int:
        with self._create() as ledger:
            ledger.submit_batch([self._value] * entries)
        return ledger.id

    def idle(self, count: int) -> dict[str, Any]:
        """Make ledgers that stay open with an entry each."""
        self._idle = [self._create() for _ in range(count)]
        for ledger in self._idle:
            ledger.append(self._value)
        return {"idle": len(self._idle)}

    def begin(self) -> dict[str, Any]:
        """Begin to add."""
        self._adds = Adds(self._create(), self._value)
        return {"began": True}

    def end(self) -> dict[str, Any]:
        """Add no more; tell how it was."""
        if self._adds is None:
            raise ValueError("no adds have begun")
        found, ledger = self._adds.end()
        self._cluster.delete_ledger(ledger)  # its entries are not among those that are counted
        return found

    def fenced(self) -> dict[str, Any]:
        """Count the open ledgers that no longer take entries of their writer."""
        return {"fenced": sum(not self._takes(ledger) for ledger in self._idle)}

    def _takes(self, ledger: Ledger) -> bool:
        try:
            ledger.append(self._value)
        except ReplogError:
            return False
        return True


class Adds:
    """Adds to a ledger, one at a time at a fixed rate, until `end`."""

    def __init__(self, ledger: Ledger, value: bytes) -> None:
        self._ledger, self._value, self._failed = ledger, value, 0
        self._taken, self._over = list[int](), threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        following = time.monotonic_ns()
        while not self._over.is_set():
            begin = time.monotonic_ns()
            if begin < following:
                time.sleep((following - begin) * 1e-9)
                continue
            following = max(following + 1_000_000_000 // _ADDS_PER_S, begin - 1_000_000_000)
            try:
                self._ledger.append(self._value)
            except ReplogError:
                self._failed += 1
            self._taken.append(time.monotonic_ns() - begin)

    def end(self) -> tuple[dict[str, Any], int]:
        """Stop; returns the 99th percentile, how many adds there were and how many failed; and the ledger."""
        self._over.set()
        self._thread.join()
        with suppress(ReplogError):
            self._ledger.close()
        taken = sorted(self._taken)
        p99_ns = taken[len(taken) * 99 // 100] if taken else 0
        return {"p99_ns": p99_ns, "adds": len(taken), "failed": self._failed}, self._ledger.id


def main() -> None:
    """Fill, then do what standard input says, until its end."""
    url, durability, *words = sys.argv[1:]
    ensemble, write, ack, ledgers, entries, size = map(int, words)
    with LedgerCluster.connect(url) as cluster:
        client = Client(cluster, durability, (ensemble, write, ack), size)
        _say(client.fill(ledgers, entries))
        for line in sys.stdin:
            word, *numbers = line.split()
            _say(getattr(client, word)(*map(int, numbers)))


def _say(found: dict[str, Any]) -> None:
    print(json.dumps(found), flush=True)


if __name__ == "__main__":
    main()
