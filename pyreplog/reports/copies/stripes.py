"""Stripes: sets of entries in few rows, however many entries they have.

Of every `step` entries of a ledger a bookie has `run` entries in a row, from one end of the ledger to the other: that
is one stripe. More stripes are needed only where copies are missing. A ledger with all entries on every bookie is one
run.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

Stripes: TypeAlias = "NDArray[np.void]"
"""Array of dtype `STRIPE`."""

STRIPE = np.dtype(
    [("ledger", "i8"), ("bookie", "i4"), ("held", "?"), ("first", "i8"), ("run", "i8"), ("step", "i8"), ("times", "i8")]
)
"""The entries first to first + run - 1, repeated `times` times at a distance of `step`; step: 0 if times is 1.

bookie: number of the bookie. held: True: intact copies; False: unknown copies.
"""

_SHORT = 3
"""Stripes that repeat at most so often are taken apart again: the end of a batch or task may have cut a run."""


def stripes_of(count: int, **columns: Any) -> Stripes:
    """Return one stripe for each entry; `first` is its number."""
    stripes = np.zeros(count, STRIPE)
    stripes["run"] = stripes["times"] = 1
    for name, values in columns.items():
        stripes[name] = values
    return stripes


def joined(stripes: Stripes) -> Stripes:
    """Return the same entries in fewer stripes, ordered by ledger, bookie and first entry."""
    short = stripes["times"] <= _SHORT
    return _repeated(in_runs(np.concatenate((stripes[~short], runs_of(stripes[short])))))


def in_runs(stripes: Stripes) -> Stripes:
    """Return the same stripes in that order, with adjacent runs joined."""
    order = np.lexsort([stripes[name] for name in ("first", "held", "bookie", "ledger")])
    return _merged_runs(stripes[order])


def runs_of(stripes: Stripes) -> Stripes:
    """Return each run as a stripe of its own."""
    runs = np.repeat(stripes, stripes["times"])
    turn = np.arange(len(runs)) - np.repeat(np.cumsum(stripes["times"]) - stripes["times"], stripes["times"])
    runs["first"] += turn * runs["step"]
    runs["step"], runs["times"] = 0, 1
    return runs


def _merged_runs(stripes: Stripes) -> Stripes:
    """Join runs that touch or overlap."""
    if len(stripes) < 2:
        return stripes
    ends = stripes["first"] + stripes["run"]
    once = stripes["times"] == 1
    joins = _equals_previous(stripes, "held") & once[1:] & once[:-1] & (stripes["first"][1:] <= ends[:-1])
    starts = _starts(~joins)
    runs = stripes[starts]
    runs["run"] = np.maximum.reduceat(ends, starts) - runs["first"]
    return runs


def _repeated(stripes: Stripes) -> Stripes:
    """Join equal runs at equal distances into stripes."""
    if len(stripes) < 2:
        return stripes
    first, step, times = stripes["first"], stripes["step"], stripes["times"]
    away = first[1:] - (first + (times - 1) * step)[:-1]
    follows = _equals_previous(stripes, "held", "run") & (away > stripes["run"][1:])
    follows &= ((times[:-1] == 1) | (step[:-1] == away)) & ((times[1:] == 1) | (step[1:] == away))
    begins = ~follows
    begins[1:] |= (times[1:-1] == 1) & follows[:-1] & (away[1:] != away[:-1])  # its distance differs from the last one
    starts = _starts(begins)
    result = stripes[starts]
    result["times"] = np.add.reduceat(times, starts)
    grown = result["times"] > times[starts]
    result["step"][grown] = away[starts[grown]]
    return result


def _equals_previous(stripes: Stripes, *names: str) -> NDArray[np.bool_]:
    """Return for each stripe but the first whether it equals the one before it in ledger, bookie and these fields."""
    alike = np.ones(len(stripes) - 1, np.bool_)
    for name in ("ledger", "bookie", *names):
        alike &= stripes[name][1:] == stripes[name][:-1]
    return alike


def _starts(begins: NDArray[np.bool_]) -> NDArray[np.intp]:
    """Return the indices at which groups begin. begins: for each item but the first, whether it begins a group."""
    return np.flatnonzero(np.concatenate(([True], begins)))
