"""Stripes: which entries there are, in few rows, however many entries they are.

A bookie has `run` entries in a row of every `step` entries of a ledger, as many times as the ledger is long: one stripe
says so. It takes more of them only where something is missing. Whole ledgers are one stripe of one run.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

Stripes: TypeAlias = "NDArray[np.void]"
"""Of dtype `STRIPE`."""

STRIPE = np.dtype(
    [("ledger", "i8"), ("bookie", "i4"), ("held", "?"), ("first", "i8"), ("run", "i8"), ("step", "i8"), ("times", "i8")]
)
"""Entries first to first + run - 1, and so again `step` further on, so many times. step: 0 where it is once. bookie: a
number that stands for it. held: intact copies; or else: nobody can tell whether they are."""

_SHORT = 3
"""Times of stripes that are taken apart again: a run that a batch or task has cut off may look like one of them."""


def stripes_of(count: int, **columns: Any) -> Stripes:
    """One row an entry; `first` is its number."""
    made = np.zeros(count, STRIPE)
    made["run"] = made["times"] = 1
    for name, values in columns.items():
        made[name] = values
    return made


def joined(stripes: Stripes) -> Stripes:
    """The same entries in fewer stripes, ordered by ledger, bookie and first entry."""
    short = stripes["times"] <= _SHORT
    return _repeated(in_runs(np.concatenate((stripes[~short], runs_of(stripes[short])))))


def in_runs(stripes: Stripes) -> Stripes:
    """The same, ordered so, with runs put together that have no gap between them."""
    order = np.lexsort([stripes[name] for name in ("first", "held", "bookie", "ledger")])
    return _touching(stripes[order])


def runs_of(stripes: Stripes) -> Stripes:
    """Each run by itself."""
    made = np.repeat(stripes, stripes["times"])
    turn = np.arange(len(made)) - np.repeat(np.cumsum(stripes["times"]) - stripes["times"], stripes["times"])
    made["first"] += turn * made["step"]
    made["step"], made["times"] = 0, 1
    return made


def _touching(stripes: Stripes) -> Stripes:
    """Runs without a gap between them become one; also those that overlap."""
    if len(stripes) < 2:
        return stripes
    ends = stripes["first"] + stripes["run"]
    once = stripes["times"] == 1
    joins = _alike(stripes, "held") & once[1:] & once[:-1] & (stripes["first"][1:] <= ends[:-1])
    starts = _starts(~joins)
    made = stripes[starts]
    made["run"] = np.maximum.reduceat(ends, starts) - made["first"]
    return made


def _repeated(stripes: Stripes) -> Stripes:
    """Equal runs at equal distances become one stripe."""
    if len(stripes) < 2:
        return stripes
    first, step, times = stripes["first"], stripes["step"], stripes["times"]
    away = first[1:] - (first + (times - 1) * step)[:-1]
    follows = _alike(stripes, "held", "run") & (away > stripes["run"][1:])
    follows &= ((times[:-1] == 1) | (step[:-1] == away)) & ((times[1:] == 1) | (step[1:] == away))
    begins = ~follows
    begins[1:] |= (times[1:-1] == 1) & follows[:-1] & (away[1:] != away[:-1])  # at another distance than the one before
    starts = _starts(begins)
    made = stripes[starts]
    made["times"] = np.add.reduceat(times, starts)
    grown = made["times"] > times[starts]
    made["step"][grown] = away[starts[grown]]
    return made


def _alike(stripes: Stripes, *names: str) -> NDArray[np.bool_]:
    """Whether each but the first is of the same ledger and bookie as the one before it, and equal in these."""
    found = np.ones(len(stripes) - 1, np.bool_)
    for name in ("ledger", "bookie", *names):
        found &= stripes[name][1:] == stripes[name][:-1]
    return found


def _starts(begins: NDArray[np.bool_]) -> NDArray[np.intp]:
    """Where groups begin; begins: of each item but the first, whether one begins with it."""
    return np.flatnonzero(np.concatenate(([True], begins)))
