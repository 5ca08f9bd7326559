"""Reports on the copies of ledgers: which of the copies that should exist do exist, and are intact.

The copies of every bookie are read. A copy that a bookie does not return is missing; a copy about which a bookie cannot
answer is unknown. The copies of a bookie that is away, or cannot answer, do not count as lost.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pyreplog.errors import ConfigError
from pyreplog.reports.copies.intervals import Intervals, without
from pyreplog.reports.copies.stripes import STRIPE, Stripes, in_runs, joined, stripes_of
from pyreplog.reports.records.slots import Column, Slots
from pyreplog.reports.report import Report, ReportRead
from pyreplog.reports.snapshot import LedgerSnapshot, Snapshot
from pyreplog.tables.offsets import EARLIEST, LATEST
from pyreplog.tables.options import ALL, ANY, ReadOptions, merged
from pyreplog.tables.paths import cluster_of

EVERYTHING = 1 << 62
"""More entries than any ledger has."""

_ROWS = 1 << 16  # stripes that are collected before they are joined


class MissingCopies(NamedTuple):
    """Copies that were not found. numbers: of bookies. missing, unknown: sets of slots."""

    slots: Slots
    numbers: dict[str, int]
    missing: Intervals
    unknown: Intervals

    def names(self, numbers: Column) -> pa.Array:
        """Return the names of bookies."""
        return pa.array([*self.numbers], pa.string()).take(pa.array(numbers))


class OnCopies(Report):
    """A report that compares the copies that exist with those that should exist."""

    needs = ("ledgerId", "entryId", "bookie", "crcOk")
    parts = pa.schema(
        [
            ("ledger", pa.int64()), ("bookie", pa.string()), ("held", pa.bool_()), ("first", pa.int64()),
            ("run", pa.int64()), ("step", pa.int64()), ("times", pa.int64()),
        ]
    )  # fmt: skip

    def reads(self, options: ReadOptions, snapshot: Snapshot) -> list[ReportRead]:
        """Return the read of all copies. Raises the errors of `reads_of_copies`."""
        return reads_of_copies(self.name, options, snapshot)

    def partial(self, batches: Iterator[pa.RecordBatch]) -> pa.Table:
        """Return the copies that one task has read, as stripes."""
        numbers: dict[str, int] = {}
        stripes, limit = np.zeros(0, STRIPE), _ROWS
        for batch in batches:
            stripes = np.concatenate((stripes, _stripes(batch, numbers)))
            if len(stripes) > limit:
                stripes = joined(stripes)
                limit = max(_ROWS, 2 * len(stripes))
        return _as_table(joined(stripes), numbers)

    def lacking(self, partials: pa.Table, snapshot: Snapshot) -> MissingCopies:
        """Return the copies that no task has read."""
        numbers: dict[str, int] = {}
        stripes = joined(_from_table(partials, numbers))
        slots = Slots.of(((ledger.metadata, certain_entries(ledger)) for ledger in snapshot.ledgers), numbers)
        held = slots.covered(stripes[stripes["held"]])
        unknown = without(slots.covered(stripes[~stripes["held"]]), held)
        return MissingCopies(slots, numbers, without(without(slots.all, held), unknown), unknown)


def reads_of_copies(name: str, options: ReadOptions, snapshot: Snapshot) -> list[ReportRead]:
    """Return the read of all copies of the snapshot's ledgers, including damaged ones.

    Raises ConfigError if the source is no cluster, or if not whole ledgers are selected.
    """
    if options.cluster is None and cluster_of(options.paths) is None:
        raise ConfigError(f"path: {name} reads ledgers of a cluster; {', '.join(options.paths)} is no cluster")
    limits = (options.starting_offsets, options.ending_offsets, options.starting_time, options.ending_time)
    if options.reads_topics or options.replica not in (ANY, ALL) or limits != (EARLIEST, LATEST, None, None):
        raise ConfigError(
            f"{name} reads whole ledgers on all bookies: expected only the option ledgers to select some, found "
            "topics, a replica, or bounds of offsets or times"
        )
    ids = merged((ledger.metadata.ledger, ledger.metadata.ledger) for ledger in snapshot.ledgers)
    chosen = ",".join(f"{low}-{high}" for low, high in ids)
    return [ReportRead({"replica": ALL, "mode": "PERMISSIVE", "ledgers": chosen})] if chosen else []


def certain_entries(ledger: LedgerSnapshot) -> int:
    """Return the number of confirmed entries of a ledger; if no bookie knows it, the number that its metadata prove."""
    return ledger.metadata.last_fragment.first if ledger.entries is None else ledger.entries


# ---- stripes ---------------------------------------------------------------------------------------------------


def _stripes(batch: pa.RecordBatch, numbers: dict[str, int]) -> Stripes:
    """Return stripes of intact and of unknown copies.

    An unknown copy has a null in crcOk. If all copies of a bookie are unknown, its entry is null, too.
    """
    batch = batch.filter(pc.is_valid(batch["ledgerId"]))
    batch = batch.filter(pc.fill_null(batch["crcOk"], True))
    entries = batch["entryId"]
    stripes = stripes_of(
        len(batch), ledger=batch["ledgerId"].to_numpy(), bookie=numbered(batch["bookie"], numbers),
        held=batch["crcOk"].is_valid().to_numpy(zero_copy_only=False), first=pc.fill_null(entries, 0).to_numpy(),
    )  # fmt: skip
    stripes["run"][entries.is_null().to_numpy(zero_copy_only=False)] = EVERYTHING
    return in_runs(stripes)


def numbered(names: pa.Array, numbers: dict[str, int]) -> Column:
    """Return the number of each name. A new name gets the next number."""
    encoded = names.dictionary_encode()
    known = [numbers.setdefault(name, len(numbers)) for name in encoded.dictionary.to_pylist()]
    codes: Column = np.array(known, np.int64)[encoded.indices.to_numpy()]
    return codes


def _as_table(stripes: Stripes, numbers: dict[str, int]) -> pa.Table:
    names = pa.array([*numbers], pa.string()).take(pa.array(stripes["bookie"]))
    columns = {name: names if name == "bookie" else pa.array(stripes[name]) for name in OnCopies.parts.names}
    return pa.table(columns, schema=OnCopies.parts)


def _from_table(table: pa.Table, numbers: dict[str, int]) -> Stripes:
    table = table.combine_chunks()
    names = table["bookie"].combine_chunks()
    columns = {name: table[name].to_numpy() for name in OnCopies.parts.names if name != "bookie"}
    return stripes_of(len(table), bookie=numbered(names, numbers), **columns)
