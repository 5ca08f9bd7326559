"""Which segments hold entries of which ledgers: what a log of many ledgers keeps in memory of its sealed segments."""

from __future__ import annotations

import threading
from typing import NamedTuple

import numpy as np
import numpy.typing as npt


class LedgerExtent(NamedTuple):
    """What a ledger has in one segment. first, last: entry ids, of `entries` distinct ones. bytes: of its records."""

    base: int
    first: int
    last: int
    bytes: int
    entries: int


class LedgerMap:
    """Shares of all ledgers in sealed segments. Thread-safe. A few hundred bytes for each ledger in each segment."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._shares: dict[int, dict[int, LedgerExtent]] = {}  # ledger, base
        self._ledgers: dict[int, list[int]] = {}  # base
        self.removals = 0

    def begin_removal(self) -> None:
        """Something is about to leave the log. Whoever reads meanwhile sees another number of `removals` afterwards."""
        with self._lock:
            self.removals += 1

    def add(self, base: int, table: npt.NDArray[np.void]) -> None:
        """A segment was sealed, or holds something else now; table: as of `LedgerIndex.ledgers`."""
        rows = table.tolist()
        with self._lock:
            self._drop(base)
            self._ledgers[base] = [row[0] for row in rows]
            for ledger, first, last, size, entries in rows:
                self._shares.setdefault(ledger, {})[base] = LedgerExtent(base, first, last, size, entries)

    def remove(self, base: int) -> None:
        """A segment left the log."""
        with self._lock:
            self._drop(base)

    def _drop(self, base: int) -> None:
        for ledger in self._ledgers.pop(base, ()):
            shares = self._shares[ledger]
            del shares[base]
            if not shares:
                del self._shares[ledger]

    def shares(self, ledger: int) -> list[LedgerExtent]:
        """Of one ledger, the oldest segment first."""
        with self._lock:
            return sorted(self._shares.get(ledger, {}).values())

    def ledgers(self) -> list[int]:
        """All there are."""
        with self._lock:
            return sorted(self._shares)

    def segments(self) -> list[tuple[int, list[tuple[int, LedgerExtent]]]]:
        """(base, [(ledger, its share)]) of every segment, the oldest first."""
        with self._lock:
            found = [(base, [(n, self._shares[n][base]) for n in ledgers]) for base, ledgers in self._ledgers.items()]
        return sorted(found)
