"""Slots: the copies that should exist, numbered by ledger, bookie and entry.

By the rule of striping, bookie number p of an ensemble of E has the entries e with (p - e) mod E < write quorum.

Questions about slots are answered by arithmetic on ranges; nothing grows with the number of entries.
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
    from pyreplog.ledger.ledger_metadata import LedgerMetadata

Column = NDArray[np.int64]


@dataclass(frozen=True)
class Slots:
    """Columns with one row for each bookie of each fragment, ordered by ledger, bookie and first entry.

    Attributes:
        bookie: number of the bookie.
        size: ensemble size.
        quorum: write quorum.
        phase: lowest entry at which a run of the bookie's entries may begin.
        first: first entry of the fragment.
        stop: entry after the last one of the fragment.
        offset: first slot of the row; one row more has the number of all slots.
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
        """Return the slots of ledgers, each up to before an entry.

        numbers: numbers of bookies, to which those of new bookies are added.
        """
        rows = [row for metadata, stop in ledgers for row in _rows(metadata, stop, numbers)]
        table = np.array(rows, np.int64).reshape(-1, len(fields(cls)) - 1)
        columns = table[np.lexsort((table[:, 5], table[:, 1], table[:, 0]))].T
        ledger, bookie, size, quorum, phase, first, stop = columns
        slots = cls(ledger, bookie, size, quorum, phase, first, stop, np.zeros(1, np.int64))
        counts = slots._below(slice(None), slots.stop) - slots._below(slice(None), slots.first)
        return replace(slots, offset=np.concatenate(([0], np.cumsum(counts))))

    @property
    def all(self) -> Intervals:
        """All slots."""
        return union(np.array([[0, self.offset[-1]]], np.int64))

    @property
    def borders(self) -> Column:
        """Slots at which a bookie's copies of a ledger begin."""
        changes = (np.diff(self.ledger) != 0) | (np.diff(self.bookie) != 0)
        borders: Column = self.offset[1:-1][changes]
        return borders

    def row(self, slots: Column) -> NDArray[np.intp]:
        """Return the row of each slot."""
        return np.searchsorted(self.offset, slots, side="right") - 1

    def entry(self, slots: Column) -> Column:
        """Return the entry of each slot."""
        at = self.row(slots)
        size, quorum, phase = self.size[at], self.quorum[at], self.phase[at]
        turn = slots - self.offset[at] + self.turn(at)
        entries: Column = phase + turn // quorum * size + turn % quorum
        return entries

    def turn(self, at: NDArray[np.intp]) -> Column:
        """Return the number of the bookie's entries between the phase of a row and its first slot."""
        return self._below(at, self.first[at])

    def _below(self, at: NDArray[np.intp] | slice, entries: Column) -> Column:
        """Return the number of a row's entries between its phase and each of these entries."""
        size, quorum = self.size[at], self.quorum[at]
        turn = entries - self.phase[at]
        counts: Column = turn // size * quorum + np.minimum(turn % size, quorum)
        return counts

    # ---- stripes --------------------------------------------------------------------------------------------

    def covered(self, stripes: Stripes) -> Intervals:
        """Return the slots whose entries stripes have."""
        at, which = self._pairs(stripes)
        matched = stripes[which]
        whole = (matched["step"] == self.size[at]) & (matched["run"] == self.quorum[at])
        whole &= (matched["first"] - self.phase[at]) % self.size[at] == 0
        whole |= matched["times"] == 1
        low = [self._covered_slots(at[whole], matched[whole])]
        rows, runs = self._runs(at[~whole], matched[~whole])
        low.append(self._covered_slots(rows, runs))
        return union(np.concatenate(low))

    def _covered_slots(self, at: NDArray[np.intp], stripes: Stripes) -> Intervals:
        """Return the slots that stripes cover.

        Each stripe has all entries of its row between its first and its last entry.
        """
        ends = stripes["first"] + (stripes["times"] - 1) * stripes["step"] + stripes["run"]
        base = self.offset[at] - self.turn(at)
        parts = [
            base + self._below(at, np.clip(entries, self.first[at], self.stop[at]))
            for entries in (stripes["first"], ends)
        ]
        return np.stack(parts, axis=1)

    def _runs(self, at: NDArray[np.intp], stripes: Stripes) -> tuple[NDArray[np.intp], Stripes]:
        """Return stripes that do not fit a row, run by run, cut down to its fragment."""
        bounds = (self.first[at], self.stop[at] - 1)
        low, high = (
            np.clip((entries - stripes["first"]) // stripes["step"], 0, stripes["times"] - 1) for entries in bounds
        )
        part = stripes.copy()
        part["first"] += low * part["step"]
        part["times"] = high - low + 1
        return np.repeat(at, part["times"]), runs_of(part)

    def _pairs(self, stripes: Stripes) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
        """Return the rows and stripes of the same ledger and bookie whose entries overlap."""
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
        at, matched = np.repeat(starts, counts) + turn, stripes[which]
        ends = matched["first"] + (matched["times"] - 1) * matched["step"] + matched["run"]
        meet = (matched["first"] < self.stop[at]) & (ends > self.first[at])
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
