"""The lag of a copy behind the cluster, topic or log that it is a copy of.

Both sides are read as ranges of numbers that identify their entries (`same_names`). Then the entries of the source in
the ranges that the copy lacks are read again.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from pyreplog.errors import ConfigError
from pyreplog.reports.copies.same_names import Names, as_names, as_rows, gaps_between, missing_in, names_in
from pyreplog.reports.records.streams import numbers, streams
from pyreplog.reports.report import TIME, Report, ReportColumn, ReportRead
from pyreplog.reports.snapshot import Snapshot
from pyreplog.tables.options import ANY, ReadOptions
from pyreplog.tables.paths import cluster_of, log_directories, offloaded_urls

SOURCE, TARGET = "source", "target"
_SIDE, _FROM, _IS_LOG, _IS_ALONE = "side", "from", "is_log", "is_alone"  # tags


@dataclass(frozen=True)
class ReplicationLag(Report):
    """Missing entries and lag of a copy.

    Attributes:
        to: options of the Spark source that name the copy; they replace those of the source.
        gaps: ranges that the copy lacks, in a form that JSON has; the report sets it; None: not known yet.
    """

    to: Mapping[str, str] = field(default_factory=dict, repr=False)
    gaps: Mapping[str, list[list[int]]] | None = None

    name = "replication_lag"
    title = "How far a copy is behind"
    definition = (
        "For each topic or log of the source: the entries that the target lacks. Messages are the same if they have "
        "the same producer and sequence number; messages without these, if the property original-offset of the "
        "target's message is the offset in the source; entries of logs, if they have the same offset. lag_s is the "
        "append time of the last entry of the source, minus that of the last one that the target has; null if it has "
        "none. Topics and logs are matched by name, unless each side names just one."
    )
    figures = (
        ReportColumn("from_cluster", pa.string(), "place of the source"),
        ReportColumn("to_cluster", pa.string(), "place of the copy"),
        ReportColumn("topic", pa.string(), "topic or log of the source"),
        ReportColumn("partition", pa.int32(), "partition number; -1: no partition of a topic"),
        ReportColumn("missing_entries", pa.int64(), "entries that the copy lacks"),
        ReportColumn("missing_bytes", pa.int64(), "bytes of their values"),
        ReportColumn("oldest_missing_ts", TIME, "append time of the first of them"),
        ReportColumn(
            "lag_s", pa.float64(), "seconds between the last entry that the copy has and the last of the source"
        ),
    )
    needs = ("topic", "partition", "offset", "timestamp", "size", "producerName", "sequenceId", "headers")
    parts = pa.schema(
        [
            ("topic", pa.string()), ("partition", pa.int32()), ("kind", pa.string()), ("producer", pa.string()),
            ("first", pa.int64()), ("stop", pa.int64()), ("entries", pa.int64()), ("bytes", pa.int64()),
            ("oldest", TIME), ("newest", TIME), ("newest_held", TIME),
        ]
    )  # fmt: skip

    def reads(self, options: ReadOptions, snapshot: Snapshot) -> list[ReportRead]:
        """Return the reads of both sides.

        Raises ConfigError if `to` names no copy, or if entries of ledgers are selected.
        """
        if not self.to:
            raise ConfigError(f"to: {self.name} compares two sources; expected options that name the copy, found none")
        copy = ReadOptions.of(self.to)
        is_log = not (options.reads_topics or copy.reads_topics)
        for side in (options, copy):
            if side.replica != ANY or (is_log and (side.cluster is not None or cluster_of(side.paths) is not None)):
                raise ConfigError(
                    f"{self.name} compares topics or logs; expected the option topics for {place_of(side)}"
                )
        tag = {
            _FROM: place_of(options), _IS_LOG: str(is_log),
            _IS_ALONE: str(_is_alone(options, is_log) and _is_alone(copy, is_log, options)),
        }  # fmt: skip
        source = ReportRead({}, {**tag, _SIDE: SOURCE})
        return [source, ReportRead(self.to, {**tag, _SIDE: TARGET})] if self.gaps is None else [source]

    def partial(self, batches: Iterator[pa.RecordBatch]) -> pa.Table:
        """Return ranges of numbers, and the newest time; in the second run, the entries that the copy lacks."""
        names = Names()
        sums = self.parts.empty_table()
        for batch in batches:
            for stream, rows in streams(batch):
                times = rows["timestamp"]
                row: dict[str, Any] = {"topic": stream.topic, "partition": stream.partition, "newest": pc.max(times)}
                if self.gaps is None:
                    names.add(stream.topic, stream.partition, names_in(rows))
                else:
                    row |= _counted(rows, missing_in(self.gaps, stream.topic, stream.partition, rows))
                sums = _summed(pa.concat_tables([sums, self._row(row)]), self.parts)
        return pa.concat_tables([sums, as_rows(names, self.parts)])

    def second(self, partials: pa.Table) -> ReplicationLag | None:
        """Return the report on the ranges that the copy lacks."""
        if self.gaps is not None or not len(partials):
            return None
        is_log, is_alone = (partials[name][0].as_py() == "True" for name in (_IS_LOG, _IS_ALONE))
        ranges = partials.filter(partials["kind"].is_valid())
        source, target = (as_names(ranges.filter(pc.equal(ranges[_SIDE], side))) for side in (SOURCE, TARGET))
        gaps = gaps_between(source, target, is_log=is_log, is_alone=is_alone)
        return replace(self, gaps=gaps) if gaps else None

    def merge(self, partials: pa.Table, snapshot: Snapshot) -> pa.Table:
        origin = partials[_FROM][0].as_py() if len(partials) else None
        rows = partials.filter(partials["kind"].is_null())
        if _SIDE in rows.column_names:
            rows = rows.filter(pc.equal(rows[_SIDE], SOURCE))
        rows = _summed(rows.select(self.parts.names), self.parts)
        rows = rows.sort_by([("topic", "ascending"), ("partition", "ascending")])
        held = rows["newest"] if self.gaps is None else rows["newest_held"]
        lag = pc.subtract(rows["newest"].cast(pa.int64()), held.cast(pa.int64()))
        return self.table(
            {
                "from_cluster": pa.repeat(pa.scalar(origin, pa.string()), len(rows)),
                "to_cluster": pa.repeat(pa.scalar(place_of(ReadOptions.of(self.to))), len(rows)),
                "topic": rows["topic"],
                "partition": rows["partition"],
                "missing_entries": rows["entries"],
                "missing_bytes": rows["bytes"],
                "oldest_missing_ts": rows["oldest"],
                "lag_s": pc.divide(lag.cast(pa.float64()), 1e6),
            }
        )

    def _row(self, known: Mapping[str, Any]) -> pa.Table:
        values = {"entries": 0, "bytes": 0, **known}
        arrays = [pa.array([_plain(values.get(column.name))], column.type) for column in self.parts]
        return pa.Table.from_arrays(arrays, schema=self.parts)


def place_of(options: ReadOptions) -> str:
    """Return a description of the place that options name, for people."""
    return options.cluster if options.cluster is not None else ", ".join(options.paths)


def _is_alone(options: ReadOptions, is_log: bool, other: ReadOptions | None = None) -> bool:
    """Return whether options name exactly one log or topic. other: its topics are used if these options name none."""
    if is_log:
        return len(log_directories(options.paths)) + len(offloaded_urls(options.paths)) == 1
    named = options if options.reads_topics or other is None else other
    return named.topics is not None and len(named.topics) == 1


def _counted(rows: pa.RecordBatch, missing: pa.Array) -> dict[str, Any]:
    lost = rows.filter(missing)
    return {
        "entries": len(lost), "bytes": int(numbers(lost["size"]).sum()), "oldest": pc.min(lost["timestamp"]),
        "newest_held": pc.max(rows.filter(pc.invert(missing))["timestamp"]),
    }  # fmt: skip


def _plain(value: Any) -> Any:
    return value.as_py() if isinstance(value, pa.Scalar) else value


def _summed(table: pa.Table, schema: pa.Schema) -> pa.Table:
    """Return one row for each topic and partition."""
    functions = {"entries": "sum", "bytes": "sum", "oldest": "min", "newest": "max", "newest_held": "max"}
    sums = table.group_by(["topic", "partition"]).aggregate([*functions.items()])
    sums = sums.rename_columns(["topic", "partition", *functions])
    blank = {name: pa.nulls(len(sums), schema.field(name).type) for name in schema.names}
    return pa.table({name: sums[name] if name in sums.column_names else blank[name] for name in schema.names})
