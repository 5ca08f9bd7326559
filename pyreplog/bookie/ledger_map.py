"""The map from ledgers to the sealed segments that hold their entries, in memory."""

from __future__ import annotations

import threading
from typing import NamedTuple

import numpy as np
import numpy.typing as npt


class LedgerExtent(NamedTuple):
    """The share of a ledger in one segment: `entries` distinct entries from `first` to `last`, of `bytes` bytes."""

    base: int
    first: int
    last: int
    bytes: int
    entries: int


class BadRange(NamedTuple):
    """Damaged records of one segment: all entries of a ledger from `first` to `last` that the segment's index has.

    ledger: number of the ledger, plus CONTROL for control records.
    """

    ledger: int
    first: int
    last: int


class LedgerMap:
    """Shares of all ledgers in sealed segments, a few hundred bytes of memory for each. Any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._shares: dict[int, dict[int, LedgerExtent]] = {}  # ledger, base
        self._ledgers: dict[int, list[int]] = {}  # base
        self.removals = 0

    def begin_removal(self) -> None:
        """Count a removal before it begins, so that concurrent readers see another value of `removals` afterwards."""
        with self._lock:
            self.removals += 1

    def add(self, base: int, table: npt.NDArray[np.void]) -> None:
        """Set the shares of a segment that was sealed or replaced. table: result of `LedgerIndex.ledgers`."""
        rows = table.tolist()
        with self._lock:
            self._drop(base)
            self._ledgers[base] = [row[0] for row in rows]
            for ledger, first, last, size, entries in rows:
                self._shares.setdefault(ledger, {})[base] = LedgerExtent(base, first, last, size, entries)

    def remove(self, base: int) -> None:
        """Remove the shares of a segment that left the log."""
        with self._lock:
            self._drop(base)

    def _drop(self, base: int) -> None:
        for ledger in self._ledgers.pop(base, ()):
            shares = self._shares[ledger]
            del shares[base]
            if not shares:
                del self._shares[ledger]

    def shares(self, ledger: int) -> list[LedgerExtent]:
        """Return the shares of a ledger, the oldest segment first."""
        with self._lock:
            return sorted(self._shares.get(ledger, {}).values())

    def ledgers(self) -> list[int]:
        """Return the numbers of all ledgers, ascending."""
        with self._lock:
            return sorted(self._shares)

    def is_hollow(self, base: int) -> bool:
        """Return whether a sealed segment has no records."""
        with self._lock:
            return not self._ledgers.get(base, True)

    def segments(self) -> list[tuple[int, list[tuple[int, LedgerExtent]]]]:
        """Return (base, [(ledger, share)]) of every segment, the oldest first."""
        with self._lock:
            rows = [(base, [(n, self._shares[n][base]) for n in ledgers]) for base, ledgers in self._ledgers.items()]
        return sorted(rows)
