"""Reports on the copies of ledgers: which of those that there should be are there, intact.

Every bookie's copies are read. What a bookie does not give counts as missing, what it cannot tell as unknown: a bookie
that is away, or does not know, has not lost anything.
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
"""More entries than a ledger has."""

_ROWS = 1 << 16  # stripes that are collected before they are joined


class MissingCopies(NamedTuple):
    """Copies that were not found. numbers: of bookies. missing, unknown: slots."""

    slots: Slots
    numbers: dict[str, int]
    missing: Intervals
    unknown: Intervals

    def names(self, numbers: Column) -> pa.Array:
        """Of bookies."""
        return pa.array([*self.numbers], pa.string()).take(pa.array(numbers))


class OnCopies(Report):
    """A report that compares the copies that there are with those that there should be."""

    needs = ("ledgerId", "entryId", "bookie", "crcOk")
    parts = pa.schema(
        [
            ("ledger", pa.int64()), ("bookie", pa.string()), ("held", pa.bool_()), ("first", pa.int64()),
            ("run", pa.int64()), ("step", pa.int64()), ("times", pa.int64()),
        ]
    )  # fmt: skip

    def reads(self, options: ReadOptions, snapshot: Snapshot) -> list[ReportRead]:
        """Errors: as of `reads_of_copies`."""
        return reads_of_copies(self.name, options, snapshot)

    def partial(self, batches: Iterator[pa.RecordBatch]) -> pa.Table:
        """What one task found, as stripes."""
        numbers: dict[str, int] = {}
        found, limit = np.zeros(0, STRIPE), _ROWS
        for batch in batches:
            found = np.concatenate((found, _stripes(batch, numbers)))
            if len(found) > limit:
                found = joined(found)
                limit = max(_ROWS, 2 * len(found))
        return _as_table(joined(found), numbers)

    def lacking(self, partials: pa.Table, snapshot: Snapshot) -> MissingCopies:
        """What all tasks together did not find."""
        numbers: dict[str, int] = {}
        found = joined(_from_table(partials, numbers))
        slots = Slots.of(((one.metadata, certain_entries(one)) for one in snapshot.ledgers), numbers)
        held = slots.covered(found[found["held"]])
        untold = without(slots.covered(found[~found["held"]]), held)
        return MissingCopies(slots, numbers, without(without(slots.all, held), untold), untold)


def reads_of_copies(name: str, options: ReadOptions, snapshot: Snapshot) -> list[ReportRead]:
    """All copies of the ledgers of the snapshot, damaged ones too.

    ConfigError: what is read is no cluster, or not whole ledgers are asked for.
    """
    if options.cluster is None and cluster_of(options.paths) is None:
        raise ConfigError(f"path: {name} is of a cluster's ledgers; {', '.join(options.paths)} is no cluster")
    limits = (options.starting_offsets, options.ending_offsets, options.starting_time, options.ending_time)
    if options.reads_topics or options.replica not in (ANY, ALL) or limits != (EARLIEST, LATEST, None, None):
        raise ConfigError(
            f"{name} is of whole ledgers on all bookies: expected the option ledgers alone to choose among them, found "
            "topics, a replica, or bounds of offsets or times"
        )
    ids = merged((one.metadata.ledger, one.metadata.ledger) for one in snapshot.ledgers)
    chosen = ",".join(f"{low}-{high}" for low, high in ids)
    return [ReportRead({"replica": ALL, "mode": "PERMISSIVE", "ledgers": chosen})] if chosen else []


def certain_entries(fact: LedgerSnapshot) -> int:
    """How many entries of a ledger were confirmed: where no bookie says, those that its metadata prove."""
    return fact.metadata.last_fragment.first if fact.entries is None else fact.entries


# ---- stripes ---------------------------------------------------------------------------------------------------


def _stripes(batch: pa.RecordBatch, numbers: dict[str, int]) -> Stripes:
    """Of good copies, and of those that nobody can tell of: crcOk is null, and the entry, where it is all of them."""
    batch = batch.filter(pc.is_valid(batch["ledgerId"]))
    batch = batch.filter(pc.fill_null(batch["crcOk"], True))
    entries = batch["entryId"]
    made = stripes_of(
        len(batch), ledger=batch["ledgerId"].to_numpy(), bookie=numbered(batch["bookie"], numbers),
        held=batch["crcOk"].is_valid().to_numpy(zero_copy_only=False), first=pc.fill_null(entries, 0).to_numpy(),
    )  # fmt: skip
    made["run"][entries.is_null().to_numpy(zero_copy_only=False)] = EVERYTHING
    return in_runs(made)


def numbered(names: pa.Array, numbers: dict[str, int]) -> Column:
    """A number for each name; those that have none get one."""
    encoded = names.dictionary_encode()
    known = [numbers.setdefault(name, len(numbers)) for name in encoded.dictionary.to_pylist()]
    found: Column = np.array(known, np.int64)[encoded.indices.to_numpy()]
    return found


def _as_table(stripes: Stripes, numbers: dict[str, int]) -> pa.Table:
    names = pa.array([*numbers], pa.string()).take(pa.array(stripes["bookie"]))
    columns = {name: names if name == "bookie" else pa.array(stripes[name]) for name in OnCopies.parts.names}
    return pa.table(columns, schema=OnCopies.parts)


def _from_table(table: pa.Table, numbers: dict[str, int]) -> Stripes:
    table = table.combine_chunks()
    names = table["bookie"].combine_chunks()
    columns = {name: table[name].to_numpy() for name in OnCopies.parts.names if name != "bookie"}
    return stripes_of(len(table), bookie=numbered(names, numbers), **columns)
