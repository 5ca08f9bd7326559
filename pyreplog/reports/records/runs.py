"""Runs: sets of numbers of many groups, as first and last number without a gap. All work is done in numpy."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from pyreplog.reports.records.streams import Numbers

FIRST, LAST = "first", "last"
"""Columns of a table of runs, besides those of the group."""


def codes_of(table: pa.Table, keys: Sequence[str]) -> Numbers:
    """Return a number for each row, the same for rows that are equal in these columns; null equals null."""
    codes = np.zeros(len(table), np.int64)
    for name in keys:
        column = table[name].combine_chunks().dictionary_encode(null_encoding="encode")
        codes = codes * max(len(column.dictionary), 1) + column.indices.to_numpy()
        codes = np.unique(codes, return_inverse=True)[1].astype(np.int64)
    return codes


def in_order(table: pa.Table, keys: Sequence[str]) -> tuple[pa.Table, Numbers]:
    """Return the rows ordered by group and first number; and a number for the group of each row, ascending."""
    codes = codes_of(table, keys)
    order = np.lexsort((table[LAST].to_numpy(), table[FIRST].to_numpy(), codes))
    return table.take(pa.array(order)), codes[order]


def joined(table: pa.Table, keys: Sequence[str]) -> pa.Table:
    """Join runs that follow each other; each number stays in as many runs as before.

    Other columns keep the values of the first run.
    """
    if len(table) < 2:
        return table
    rows, codes = in_order(table, keys)
    first, last = rows[FIRST].to_numpy(), rows[LAST].to_numpy()
    starts = np.flatnonzero(np.concatenate(([True], (codes[1:] != codes[:-1]) | (first[1:] != last[:-1] + 1))))
    ends = np.append(starts[1:], len(first)) - 1
    return rows.take(pa.array(starts)).set_column(rows.schema.get_field_index(LAST), LAST, pa.array(last[ends]))


def holes(table: pa.Table, keys: Sequence[str]) -> tuple[pa.Table, Numbers, Numbers]:
    """Return (row after each hole, last number before it, first number after it).

    A hole is a range of numbers that no run of a group has.
    """
    rows, codes = in_order(table, keys)
    first = rows[FIRST].to_numpy()
    reached = _running_last(codes, rows[LAST].to_numpy())
    following = np.flatnonzero((codes[1:] == codes[:-1]) & (first[1:] > reached[:-1] + 1)) + 1
    return rows.take(pa.array(following)), reached[following - 1], first[following]


def repeated(table: pa.Table, keys: Sequence[str]) -> pa.Table:
    """Return the runs of numbers that more than one run of a group has: columns of the group, `first` and `last`."""
    rows, codes = in_order(table.select([*keys, FIRST, LAST]), keys)
    count = len(rows)
    groups = np.concatenate((codes, codes))
    places = np.concatenate((rows[FIRST].to_numpy(), rows[LAST].to_numpy() + 1))
    steps = np.repeat(np.array([1, -1]), count)
    order = np.lexsort((places, groups))
    groups, places, sources = groups[order], places[order], order % max(count, 1)
    cover = np.cumsum(steps[order])
    is_last = np.append((places[1:] != places[:-1]) | (groups[1:] != groups[:-1]), True)[: count * 2]
    groups, places, sources, cover = groups[is_last], places[is_last], sources[is_last], cover[is_last]
    covered = np.flatnonzero(cover >= 2)
    keyed = rows.select([*keys]).take(pa.array(sources[covered]))
    runs = keyed.append_column(FIRST, pa.array(places[covered])).append_column(LAST, pa.array(places[covered + 1] - 1))
    return joined(runs, keys)


def _running_last(codes: Numbers, last: Numbers) -> Numbers:
    """Return for each row the largest `last` of its group up to that row."""
    ranks = np.empty(len(last), np.int64)
    by_last = np.argsort(last, kind="stable")
    ranks[by_last] = np.arange(len(last))
    highest = np.maximum.accumulate(codes * len(last) + ranks)
    reached: Numbers = last[by_last[highest - codes * len(last)]]
    return reached
