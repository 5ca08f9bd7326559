"""Slots: the copies that there should be, numbered by ledger, bookie and entry.

By the rule of striping, bookie number p of an ensemble of E has the entries e with (p - e) mod E < write quorum.

All that is asked of them is arithmetic on ranges of slots: nothing grows with the number of entries.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Self

import numpy as np
from numpy.typing import NDArray

from pyreplog.reports.copies.intervals import Intervals, union
from pyreplog.reports.copies.stripes import Stripes, runs_of

if TYPE_CHECKING:
    from pyreplog.ledger.ledgermetadata import LedgerMetadata

Column = NDArray[np.int64]


@dataclass(frozen=True)
class Slots:
    """Columns of one row for each bookie of each fragment, by ledger, bookie and first entry.

    bookie: a number that stands for it. size, quorum: of the ensemble, and of writes. phase: the lowest entry at which
    a run of its entries may begin. first, stop: entries of the fragment. offset: the row's first slot; of one row
    more: how many slots there are.
    """

    ledger: Column
    bookie: Column
    size: Column
    quorum: Column
    phase: Column
    first: Column
    stop: Column
    offset: Column

    @classmethod
    def of(cls, ledgers: Iterable[tuple[LedgerMetadata, int]], numbers: dict[str, int]) -> Self:
        """Of ledgers, each up to before an entry. numbers: of bookies; those that have none get one."""
        rows = [row for metadata, stop in ledgers for row in _rows(metadata, stop, numbers)]
        table = np.array(rows, np.int64).reshape(-1, len(fields(cls)) - 1)
        columns = table[np.lexsort((table[:, 5], table[:, 1], table[:, 0]))].T
        ledger, bookie, size, quorum, phase, first, stop = columns
        made = cls(ledger, bookie, size, quorum, phase, first, stop, np.zeros(1, np.int64))
        counts = made._below(slice(None), made.stop) - made._below(slice(None), made.first)
        return replace(made, offset=np.concatenate(([0], np.cumsum(counts))))

    @property
    def all(self) -> Intervals:
        """All slots there are."""
        return union(np.array([[0, self.offset[-1]]], np.int64))

    @property
    def borders(self) -> Column:
        """Slots at which a bookie's copies of a ledger begin."""
        changes = (np.diff(self.ledger) != 0) | (np.diff(self.bookie) != 0)
        found: Column = self.offset[1:-1][changes]
        return found

    def row(self, slots: Column) -> NDArray[np.intp]:
        """Of each slot, the row that it is in."""
        return np.searchsorted(self.offset, slots, side="right") - 1

    def entry(self, slots: Column) -> Column:
        """Of each slot, the entry that it is for."""
        at = self.row(slots)
        size, quorum, phase = self.size[at], self.quorum[at], self.phase[at]
        turn = slots - self.offset[at] + self.turn(at)
        found: Column = phase + turn // quorum * size + turn % quorum
        return found

    def turn(self, at: NDArray[np.intp]) -> Column:
        """Of the first slot of a row: how many of its bookie's entries from the phase on come before it."""
        return self._below(at, self.first[at])

    def _below(self, at: NDArray[np.intp] | slice, entries: Column) -> Column:
        """How many entries of a row are lower than each of these, counted from its phase."""
        size, quorum = self.size[at], self.quorum[at]
        turn = entries - self.phase[at]
        found: Column = turn // size * quorum + np.minimum(turn % size, quorum)
        return found

    # ---- stripes --------------------------------------------------------------------------------------------

    def covered(self, stripes: Stripes) -> Intervals:
        """The slots whose entries these stripes have."""
        at, which = self._pairs(stripes)
        found = stripes[which]
        whole = (found["step"] == self.size[at]) & (found["run"] == self.quorum[at])
        whole &= (found["first"] - self.phase[at]) % self.size[at] == 0
        whole |= found["times"] == 1
        low = [self._lowered(at[whole], found[whole])]
        rows, runs = self._runs(at[~whole], found[~whole])
        low.append(self._lowered(rows, runs))
        return union(np.concatenate(low))

    def _lowered(self, at: NDArray[np.intp], stripes: Stripes) -> Intervals:
        """Slots of a row from the first to the last entry of a stripe that has all of the row's in between."""
        ends = stripes["first"] + (stripes["times"] - 1) * stripes["step"] + stripes["run"]
        base = self.offset[at] - self.turn(at)
        parts = [
            base + self._below(at, np.clip(entries, self.first[at], self.stop[at]))
            for entries in (stripes["first"], ends)
        ]
        return np.stack(parts, axis=1)

    def _runs(self, at: NDArray[np.intp], stripes: Stripes) -> tuple[NDArray[np.intp], Stripes]:
        """Stripes that do not fit a row, run by run, as far as they lie in its fragment."""
        bounds = (self.first[at], self.stop[at] - 1)
        low, high = (
            np.clip((entries - stripes["first"]) // stripes["step"], 0, stripes["times"] - 1) for entries in bounds
        )
        part = stripes.copy()
        part["first"] += low * part["step"]
        part["times"] = high - low + 1
        return np.repeat(at, part["times"]), runs_of(part)

    def _pairs(self, stripes: Stripes) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
        """Rows and stripes of the same ledger and bookie, of which neither ends before the other begins."""
        ledgers, dense = np.unique(self.ledger, return_inverse=True)
        width = max(int(self.bookie.max(initial=0)), int(stripes["bookie"].max(initial=0))) + 1
        place = np.searchsorted(ledgers, stripes["ledger"])
        known = np.flatnonzero(np.append(ledgers, -1)[place] == stripes["ledger"])
        keys = dense * width + self.bookie
        wanted = place[known] * width + stripes["bookie"][known]
        starts = np.searchsorted(keys, wanted, side="left")
        counts = np.searchsorted(keys, wanted, side="right") - starts
        which = np.repeat(known, counts)
        turn = np.arange(len(which)) - np.repeat(np.cumsum(counts) - counts, counts)
        at, found = np.repeat(starts, counts) + turn, stripes[which]
        ends = found["first"] + (found["times"] - 1) * found["step"] + found["run"]
        meet = (found["first"] < self.stop[at]) & (ends > self.first[at])
        return at[meet], which[meet]


def _rows(metadata: LedgerMetadata, stop: int, numbers: dict[str, int]) -> Iterable[tuple[int, ...]]:
    size, quorum = metadata.ensemble_size, metadata.write_quorum
    ends = [*(fragment.first for fragment in metadata.fragments[1:]), stop]
    for fragment, end in zip(metadata.fragments, ends, strict=True):
        end = min(end, stop)
        for place, bookie in enumerate(fragment.ensemble):
            if fragment.first < end:
                number = numbers.setdefault(bookie, len(numbers))
                phase = (place - quorum + 1) % size
                yield metadata.ledger, number, size, quorum, phase, fragment.first, end
