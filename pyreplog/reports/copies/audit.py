"""Every record checked against its CRC-32C, segment by segment."""

from __future__ import annotations

import json
from collections.abc import Iterator

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pyreplog.errors import ConfigError
from pyreplog.reports.copies.intervals import union
from pyreplog.reports.copies.torntails import TornTail, torn_tails
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
    """By file, or by bookie where files are not seen."""

    name = "crc_audit"
    title = "Records that are not what was written"
    definition = (
        "Of each segment file of each bookie, or log: records whose CRC-32C is right, and stretches of bytes that "
        "are no such record (several damaged ones in a row are one; a file that cannot be read is one, too). Of a "
        "cluster, intact records of deleted ledgers are checked, but not counted. torn_tail_bytes: behind the end of "
        "the log, left by a crash; its next writer cuts them, and they are no damage. Where bookies are reached over "
        "TCP, one row for each, and nothing is known of files."
    )
    figures = (
        TOPIC,
        ReportColumn("bookie", pa.string(), "whose copy; null: a log by itself"),
        ReportColumn("segment", pa.string(), "file; null: not known"),
        ReportColumn("records", pa.int64(), "intact ones, of entries"),
        ReportColumn("bad_records", pa.int64(), "stretches that are no intact record"),
        ReportColumn("first_bad_position", pa.int64(), "where the first of them begins: bytes since the log began"),
        ReportColumn("torn_tail_bytes", pa.int64(), "behind the end of the log"),
        ReportColumn("bytes_checked", pa.int64(), "of those records and stretches, headers included"),
        ReportColumn("complete", pa.bool_(), "false: the bookie was away, or could not tell"),
    )
    needs = ("topic", "bookie", "segment", "position", "crcOk", "storedSize")
    parts = pa.schema(
        [
            ("topic", pa.string()), ("bookie", pa.string()), ("segment", pa.string()), ("records", pa.int64()),
            ("bytes", pa.int64()), ("bad", pa.int64()), ("start", pa.int64()), ("stop", pa.int64()),
            ("untold", pa.int64()),
        ]
    )  # fmt: skip

    def reads(self, options: ReadOptions, snapshot: Snapshot) -> list[ReportRead]:
        """Errors: ConfigError: not all copies are asked for; those of opening the logs."""
        if options.reads_topics or options.replica not in (ANY, ALL):
            raise ConfigError(f"{self.name} is of all copies: expected no topics and no replica, found one")
        is_cluster = options.cluster is not None or cluster_of(options.paths) is not None
        copies = {"replica": ALL} if is_cluster else {}
        return [ReportRead({"mode": "PERMISSIVE", **copies}, {_TAG: json.dumps([*torn_tails(options)])})]

    def partial(self, batches: Iterator[pa.RecordBatch]) -> pa.Table:
        """One row a segment, and one for each stretch that is damaged; at least one, to carry the tag."""
        good, bad = self.parts.empty_table(), [self._row_of_nothing()]
        for batch in batches:
            is_bad = pc.fill_null(pc.invert(batch["crcOk"]), False)
            good = _summed(pa.concat_tables([good, self._counted(batch.filter(pc.invert(is_bad)))]), self.parts)
            if pc.any(is_bad).as_py():
                bad.append(self._damaged(batch.filter(is_bad)))
        return pa.concat_tables([good, *bad])

    def merge(self, partials: pa.Table, snapshot: Snapshot) -> pa.Table:
        torn: dict[Place, int] = {(one.topic, one.bookie, one.segment): one.size for one in _torn(partials)}
        damaged: dict[Place, list[tuple[int | None, int | None]]] = {}
        for row in partials.filter(pc.greater(partials["bad"], 0)).to_pylist():
            damaged.setdefault(_place(row), []).append((row["start"], row["stop"]))
        found = {_place(row): row for row in _summed(partials.select(self.parts.names), self.parts).to_pylist()}
        rows = []
        for place in sorted({*found, *torn}, key=lambda one: tuple(name or "" for name in one)):
            count, first, size = _stretches(damaged.get(place, []))
            row = found.get(place, {"records": 0, "bytes": 0, "untold": 0})
            if not (row["records"] or row["untold"] or count or place in torn):
                continue
            rows.append((*place, row["records"], count, first, torn.get(place, 0), row["bytes"] + size,
                         not row["untold"]))  # fmt: skip
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
            "untold": pc.invert(known).cast(pa.int64()),
        }
        return pa.table({name: columns.get(name, zeros) for name in self.parts.names}, schema=self.parts)

    def _damaged(self, batch: pa.RecordBatch) -> pa.Table:
        stop = pc.add(batch["position"], batch["storedSize"].cast(pa.int64()))
        zeros, ones = (pa.repeat(pa.scalar(number, pa.int64()), len(batch)) for number in (0, 1))
        columns = {**{name: batch[name] for name in _KEYS}, "bad": ones, "start": batch["position"], "stop": stop}
        return pa.table({name: columns.get(name, zeros) for name in self.parts.names}, schema=self.parts)

    def _row_of_nothing(self) -> pa.Table:
        return pa.table({name: [None if name in _KEYS else 0] for name in self.parts.names}, schema=self.parts)


def _summed(table: pa.Table, schema: pa.Schema) -> pa.Table:
    numbers = [name for name in schema.names if name not in _KEYS]
    made = table.group_by(_KEYS).aggregate([(name, "sum") for name in numbers])
    return made.rename_columns([name.removesuffix("_sum") for name in made.column_names]).select(schema.names)


def _torn(partials: pa.Table) -> list[TornTail]:
    """Of all reads, each once."""
    texts = pc.unique(partials[_TAG]).to_pylist() if _TAG in partials.column_names else []
    return [TornTail(*one) for text in texts for one in json.loads(text)]


def _place(row: dict[str, str | None]) -> Place:
    return row["topic"], row["bookie"], row["segment"]


def _stretches(found: list[tuple[int | None, int | None]]) -> tuple[int, int | None, int]:
    """How many stretches, where the first begins, their bytes. What was damaged on its way has no place."""
    placed = np.array([one for one in found if one[0] is not None], np.int64).reshape(-1, 2)
    ends = union(placed)
    empty = int((placed[:, 0] == placed[:, 1]).sum())  # files that are gone
    first = int(placed[:, 0].min()) if len(placed) else None
    return len(ends) + empty + len(found) - len(placed), first, int(np.diff(ends, axis=1).sum())
