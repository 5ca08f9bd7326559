"""A check of every record against its CRC-32C, segment by segment."""

from __future__ import annotations

import json
from collections.abc import Iterator

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pyreplog.errors import ConfigError
from pyreplog.reports.copies.intervals import union
from pyreplog.reports.copies.torn_tails import TornTail, torn_tails
from pyreplog.reports.records.streams import TOPIC
from pyreplog.reports.report import Report, ReportColumn, ReportRead
from pyreplog.reports.snapshot import Snapshot
from pyreplog.tables.options import ALL, ANY, ReadOptions
from pyreplog.tables.paths import cluster_of

_KEYS = ["topic", "bookie", "segment"]
_TAG = "torn_tails"

Place = tuple[str | None, str | None, str | None]
"""Topic, bookie, segment."""


class CrcAudit(Report):
    """Damage by segment file; by bookie if bookies are reached over TCP."""

    name = "crc_audit"
    title = "Damaged records"
    definition = (
        "For each segment file of each bookie, or log: records whose CRC-32C is right, and damaged ranges of bytes. "
        "Several damaged records in a row are one range; so is a file that cannot be read. In a cluster, intact "
        "records of deleted ledgers are checked, but not counted. torn_tail_bytes are bytes after the end of the log "
        "that a crash left behind; its next writer cuts them, and they are no damage. If bookies are reached over TCP, "
        "each has one row, and nothing is known about files."
    )
    figures = (
        TOPIC,
        ReportColumn("bookie", pa.string(), "bookie that has the copy; null: a log outside of clusters"),
        ReportColumn("segment", pa.string(), "name of the file; null: not known"),
        ReportColumn("records", pa.int64(), "intact records of entries"),
        ReportColumn("bad_records", pa.int64(), "damaged ranges"),
        ReportColumn("first_bad_position", pa.int64(), "position in the log of the first of them, in bytes"),
        ReportColumn("torn_tail_bytes", pa.int64(), "bytes after the end of the log"),
        ReportColumn("bytes_checked", pa.int64(), "bytes of these records and ranges, headers included"),
        ReportColumn("complete", pa.bool_(), "false: the bookie was away, or did not know"),
    )
    needs = ("topic", "bookie", "segment", "position", "crcOk", "storedSize")
    parts = pa.schema(
        [
            ("topic", pa.string()), ("bookie", pa.string()), ("segment", pa.string()), ("records", pa.int64()),
            ("bytes", pa.int64()), ("bad", pa.int64()), ("start", pa.int64()), ("stop", pa.int64()),
            ("unknown", pa.int64()),
        ]
    )  # fmt: skip

    def reads(self, options: ReadOptions, snapshot: Snapshot) -> list[ReportRead]:
        """Return the read of all copies.

        Raises ConfigError if only some are selected, and the errors of opening the logs.
        """
        if options.reads_topics or options.replica not in (ANY, ALL):
            raise ConfigError(f"{self.name} checks all copies: expected neither topics nor a replica, found one")
        is_cluster = options.cluster is not None or cluster_of(options.paths) is not None
        copies = {"replica": ALL} if is_cluster else {}
        return [ReportRead({"mode": "PERMISSIVE", **copies}, {_TAG: json.dumps([*torn_tails(options)])})]

    def partial(self, batches: Iterator[pa.RecordBatch]) -> pa.Table:
        """Return one row for each segment, and one for each damaged range; at least one row, which carries the tag."""
        good, bad = self.parts.empty_table(), [self._empty_row()]
        for batch in batches:
            is_bad = pc.fill_null(pc.invert(batch["crcOk"]), False)
            good = _summed(pa.concat_tables([good, self._counted(batch.filter(pc.invert(is_bad)))]), self.parts)
            if pc.any(is_bad).as_py():
                bad.append(self._damaged(batch.filter(is_bad)))
        return pa.concat_tables([good, *bad])

    def merge(self, partials: pa.Table, snapshot: Snapshot) -> pa.Table:
        torn: dict[Place, int] = {(tail.topic, tail.bookie, tail.segment): tail.size for tail in _torn(partials)}
        damaged: dict[Place, list[tuple[int | None, int | None]]] = {}
        for row in partials.filter(pc.greater(partials["bad"], 0)).to_pylist():
            damaged.setdefault(_place(row), []).append((row["start"], row["stop"]))
        counted = {_place(row): row for row in _summed(partials.select(self.parts.names), self.parts).to_pylist()}
        rows = []
        for place in sorted({*counted, *torn}, key=lambda key: tuple(name or "" for name in key)):
            count, first, size = _damaged_ranges(damaged.get(place, []))
            row = counted.get(place, {"records": 0, "bytes": 0, "unknown": 0})
            if not (row["records"] or row["unknown"] or count or place in torn):
                continue
            rows.append((*place, row["records"], count, first, torn.get(place, 0), row["bytes"] + size,
                         not row["unknown"]))  # fmt: skip
        names = self.schema().names
        return self.table({name: [row[i] for row in rows] for i, name in enumerate(names)})

    # ---- rows of partials ---------------------------------------------------------------------------------------

    def _counted(self, batch: pa.RecordBatch) -> pa.Table:
        known = batch["crcOk"].is_valid()
        zeros = pa.repeat(pa.scalar(0, pa.int64()), len(batch))
        columns = {
            **{name: batch[name] for name in _KEYS},
            "records": known.cast(pa.int64()),
            "bytes": pc.fill_null(batch["storedSize"], 0).cast(pa.int64()),
            "unknown": pc.invert(known).cast(pa.int64()),
        }
        return pa.table({name: columns.get(name, zeros) for name in self.parts.names}, schema=self.parts)

    def _damaged(self, batch: pa.RecordBatch) -> pa.Table:
        stop = pc.add(batch["position"], batch["storedSize"].cast(pa.int64()))
        zeros, ones = (pa.repeat(pa.scalar(number, pa.int64()), len(batch)) for number in (0, 1))
        columns = {**{name: batch[name] for name in _KEYS}, "bad": ones, "start": batch["position"], "stop": stop}
        return pa.table({name: columns.get(name, zeros) for name in self.parts.names}, schema=self.parts)

    def _empty_row(self) -> pa.Table:
        return pa.table({name: [None if name in _KEYS else 0] for name in self.parts.names}, schema=self.parts)


def _summed(table: pa.Table, schema: pa.Schema) -> pa.Table:
    numbers = [name for name in schema.names if name not in _KEYS]
    sums = table.group_by(_KEYS).aggregate([(name, "sum") for name in numbers])
    return sums.rename_columns([name.removesuffix("_sum") for name in sums.column_names]).select(schema.names)


def _torn(partials: pa.Table) -> list[TornTail]:
    """Return the torn tails of all reads, each once."""
    texts = pc.unique(partials[_TAG]).to_pylist() if _TAG in partials.column_names else []
    return [TornTail(*values) for text in texts for values in json.loads(text)]


def _place(row: dict[str, str | None]) -> Place:
    return row["topic"], row["bookie"], row["segment"]


def _damaged_ranges(ranges: list[tuple[int | None, int | None]]) -> tuple[int, int | None, int]:
    """Return (number of ranges, start of the first, their bytes).

    A range without a position was damaged on the network.
    """
    placed = np.array([bounds for bounds in ranges if bounds[0] is not None], np.int64).reshape(-1, 2)
    ends = union(placed)
    empty = int((placed[:, 0] == placed[:, 1]).sum())  # missing files
    first = int(placed[:, 0].min()) if len(placed) else None
    return len(ends) + empty + len(ranges) - len(placed), first, int(np.diff(ends, axis=1).sum())
