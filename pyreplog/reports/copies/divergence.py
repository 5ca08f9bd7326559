"""Entries whose copies are intact, but differ.

Comparing all CRCs would need memory for all of them. So the CRCs of many entries are first summed up for each bookie;
only where the sums of bookies differ are single CRCs compared.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from pyreplog.reports.copies.copies import certain_entries, reads_of_copies
from pyreplog.reports.records.slots import Column
from pyreplog.reports.report import Report, ReportColumn, ReportRead
from pyreplog.reports.snapshot import Snapshot
from pyreplog.tables.options import ReadOptions, merged

if TYPE_CHECKING:
    from pyreplog.ledger.ledger_metadata import LedgerMetadata

BLOCK = 4096
"""Entries of a ledger whose CRCs are summed up, if they have the same write set."""

_MIX = np.uint64(0x9E3779B97F4A7C15)


@dataclass(frozen=True)
class ReplicaDivergence(Report):
    """Copies that differ. The report sets its fields itself.

    Attributes:
        shapes: by ledger, the size of the ensemble and the first entries of fragments, unless all bookies have every
            entry.
        single: ledgers with one copy.
        blocks: by ledger, the blocks to compare entry by entry; None: not known yet.
    """

    shapes: Mapping[str, list[int]] = field(default_factory=dict)
    single: Sequence[int] = ()
    blocks: Mapping[str, list[int]] | None = None

    name = "replica_divergence"
    title = "Copies that differ"
    definition = (
        "Confirmed entries of which bookies have intact copies with different CRC-32Cs: a reader gets one or the "
        "other. Ledgers with one copy of each entry are left out. Copies on bookies that are away are not compared."
    )
    figures = (
        ReportColumn("ledger_id", pa.int64(), "id of the ledger"),
        ReportColumn("entry_id", pa.int64(), "number of the entry"),
        ReportColumn("crcs", pa.list_(pa.int64()), "the different CRC-32Cs of its copies, ascending"),
    )
    needs = ("ledgerId", "entryId", "bookie", "crc", "crcOk")
    parts = pa.schema(
        [
            ("ledger", pa.int64()), ("entry", pa.int64()), ("rest", pa.int64()), ("bookie", pa.string()),
            ("copies", pa.int64()), ("sum", pa.int64()),
        ]
    )  # fmt: skip

    def reads(self, options: ReadOptions, snapshot: Snapshot) -> list[ReportRead]:
        """Return the read of all copies, or of the ledgers whose sums differ.

        Raises the errors of `reads_of_copies`.
        """
        reads = reads_of_copies(self.name, options, snapshot)
        if self.blocks is None or not reads:
            return reads
        chosen = ",".join(f"{low}-{high}" for low, high in merged((int(ledger), int(ledger)) for ledger in self.blocks))
        return [ReportRead({**reads[0].options, "ledgers": chosen})]

    def at(self, snapshot: Snapshot) -> ReplicaDivergence:
        shapes = {str(each.metadata.ledger): _shape(each.metadata) for each in snapshot.ledgers}
        single = tuple(each.metadata.ledger for each in snapshot.ledgers if each.metadata.write_quorum == 1)
        return replace(
            self, shapes={ledger: shape for ledger, shape in shapes.items() if shape != [1, 0]}, single=single
        )  # fmt: skip

    def partial(self, batches: Iterator[pa.RecordBatch]) -> pa.Table:
        """Return the sums of blocks; for blocks that are compared, every CRC."""
        table = self.parts.empty_table()
        for batch in batches:
            part = self._counted(batch.filter(pc.fill_null(batch["crcOk"], False)))
            table = _summed(pa.concat_tables([table, part])) if self.blocks is None else _distinct(table, part)
        return table

    def second(self, partials: pa.Table) -> ReplicaDivergence | None:
        """Return the report on blocks whose sums differ: their copies differ, or some bookies lack some."""
        if self.blocks is not None:
            return None
        sums = _summed(partials.select(self.parts.names)).group_by(["ledger", "entry", "rest"])
        bounds = sums.aggregate(
            [("sum", "min"), ("sum", "max"), ("copies", "min"), ("copies", "max"), ("bookie", "count")]
        )
        differs = pc.or_(
            pc.not_equal(bounds["sum_min"], bounds["sum_max"]), pc.not_equal(bounds["copies_min"], bounds["copies_max"])
        )
        is_alone = pc.equal(bounds["bookie_count"], 1)  # the bookie may have two copies of an entry
        single = pc.is_in(bounds["ledger"], value_set=pa.array(self.single, pa.int64()))
        differs = pc.and_(pc.or_(differs, is_alone), pc.invert(single))
        blocks: dict[str, list[int]] = {}
        for row in bounds.filter(differs).sort_by([("ledger", "ascending"), ("entry", "ascending")]).to_pylist():
            listed = blocks.setdefault(str(row["ledger"]), [])
            if row["entry"] not in listed[-1:]:
                listed.append(row["entry"])
        return replace(self, blocks=blocks) if blocks else None

    def merge(self, partials: pa.Table, snapshot: Snapshot) -> pa.Table:
        if self.blocks is None:
            return self.schema().empty_table()
        ends = {each.metadata.ledger: certain_entries(each) for each in snapshot.ledgers}
        copies = _distinct(self.parts.empty_table(), partials.select(self.parts.names))
        counts = copies.group_by(["ledger", "entry"]).aggregate([("sum", "count_distinct"), ("sum", "list")])
        differs = counts.filter(pc.greater(counts["sum_count_distinct"], 1))
        rows = differs.sort_by([("ledger", "ascending"), ("entry", "ascending")]).to_pylist()
        rows = [row for row in rows if row["entry"] < ends[row["ledger"]]]
        return self.table(
            {
                "ledger_id": [row["ledger"] for row in rows],
                "entry_id": [row["entry"] for row in rows],
                "crcs": [sorted(set(row["sum_list"])) for row in rows],
            }
        )

    # ---- rows of partials ---------------------------------------------------------------------------------------

    def _counted(self, batch: pa.RecordBatch) -> pa.Table:
        ledger, entry, crc = (batch[name].to_numpy() for name in ("ledgerId", "entryId", "crc"))
        bookie, rest, block = batch["bookie"], np.zeros_like(entry), entry // BLOCK
        if self.blocks is None:
            rest, value = _write_sets(self.shapes, ledger, entry), _pair_hashes(entry, crc)
            entry = block
        else:
            keep = _chosen(self.blocks, ledger, block)
            ledger, entry, rest, value = ledger[keep], entry[keep], rest[keep], crc[keep]
            bookie = pa.nulls(len(entry), pa.string())
        columns = {"ledger": ledger, "entry": entry, "rest": rest, "bookie": bookie, "sum": value}
        return pa.table({**columns, "copies": np.ones(len(entry), np.int64)}).select(self.parts.names).cast(self.parts)


def _pair_hashes(entry: Column, crc: Column) -> Column:
    """Hash (entry, CRC), so that sums of hashes differ if any pair differs. (The finisher of splitmix64.)"""
    mixed = (entry.astype(np.uint64) << np.uint64(32) ^ crc.astype(np.uint64)) * _MIX
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        mixed = (mixed ^ mixed >> np.uint64(shift)) * np.uint64(factor)
    return (mixed ^ mixed >> np.uint64(31)).view(np.int64)


def _shape(metadata: LedgerMetadata) -> list[int]:
    size = 1 if metadata.ensemble_size == metadata.write_quorum else metadata.ensemble_size
    return [size, *(fragment.first for fragment in metadata.fragments)]


def _write_sets(shapes: Mapping[str, list[int]], ledgers: Column, entries: Column) -> Column:
    """Return a number for each entry. Entries of a ledger with the same number are on the same bookies."""
    write_sets = np.zeros_like(entries)
    for ledger in np.unique(ledgers).tolist():
        size, *firsts = shapes.get(str(ledger), [1, 0])
        if (size, firsts) != (1, [0]):
            own = ledgers == ledger
            write_sets[own] = np.searchsorted(firsts, entries[own], side="right") * size + entries[own] % size
    return write_sets


def _chosen(blocks: Mapping[str, list[int]], ledgers: Column, block: Column) -> NDArray[np.bool_]:
    keep = np.zeros(len(ledgers), np.bool_)
    for ledger in np.unique(ledgers).tolist():
        keep |= (ledgers == ledger) & np.isin(block, blocks.get(str(ledger), []))
    return keep


def _summed(table: pa.Table) -> pa.Table:
    """Return one row for each bookie and block; sums wrap around."""
    keys = ["ledger", "entry", "rest", "bookie"]
    sums = table.group_by(keys).aggregate([("copies", "sum"), ("sum", "sum")])
    return sums.rename_columns([*keys, "copies", "sum"])


def _distinct(some: pa.Table, others: pa.Table) -> pa.Table:
    """Return one row for each entry and CRC."""
    keys = ["ledger", "entry", "rest", "bookie", "sum"]
    rows = pa.concat_tables([some, others]).group_by(keys).aggregate([("copies", "sum")])
    return rows.rename_columns([*keys, "copies"]).select(some.column_names)
