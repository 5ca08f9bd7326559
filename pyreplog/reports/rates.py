"""How much was appended, minute by minute."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
import pyarrow.compute as pc

from pyreplog.reports.facts import Facts
from pyreplog.reports.report import TIME, Figure, Report

_GROUP = ["topic", "partition", "minute"]


class RateByMinute(Report):
    name = "rate_by_minute"
    title = "Entries and bytes appended per minute"
    definition = (
        "Of each minute (UTC) in which anything was appended: entries, bytes of their values, their mean and largest "
        "size, and how many named producers they are of."
    )
    figures = (
        Figure("topic", pa.string(), "topic, or name of the log"),
        Figure("partition", pa.int32(), "of a partitioned topic; -1: it is none"),
        Figure("minute", TIME, "its beginning"),
        Figure("entries", pa.int64(), "entries, of a topic messages, appended in it"),
        Figure("bytes", pa.int64(), "of their values"),
        Figure("avg_size", pa.float64(), "bytes / entries"),
        Figure("max_size", pa.int64(), "bytes of the largest"),
        Figure("producers", pa.int64(), "named producers"),
    )
    needs = ("topic", "partition", "timestamp", "size", "producerName")
    parts = pa.schema(
        [
            ("topic", pa.string()), ("partition", pa.int32()), ("minute", TIME), ("producer", pa.string()),
            ("entries", pa.int64()), ("bytes", pa.int64()), ("max_size", pa.int64()),
        ]
    )  # fmt: skip

    def partial(self, batches: Iterator[pa.RecordBatch]) -> pa.Table:
        made = self.parts.empty_table()
        for batch in batches:
            part = pa.table(
                {
                    "topic": batch["topic"], "partition": batch["partition"],
                    "minute": pc.floor_temporal(batch["timestamp"], unit="minute"), "producer": batch["producerName"],
                    "entries": pa.repeat(pa.scalar(1, pa.int64()), len(batch)),
                    "bytes": batch["size"].cast(pa.int64()), "max_size": batch["size"].cast(pa.int64()),
                }
            )  # fmt: skip
            made = _summed(pa.concat_tables([made, part]), [*_GROUP, "producer"])
        return made.select(self.parts.names).cast(self.parts)

    def merge(self, partials: pa.Table, facts: Facts) -> pa.Table:
        per_producer = _summed(partials, [*_GROUP, "producer"])
        producers = per_producer.group_by(_GROUP).aggregate([("producer", "count")])
        made = _summed(partials, _GROUP).join(producers, _GROUP).sort_by([(name, "ascending") for name in _GROUP])
        return self.table(
            {
                **{name: made[name] for name in (*_GROUP, "entries", "bytes", "max_size")},
                "avg_size": pc.divide(made["bytes"].cast(pa.float64()), made["entries"]),
                "producers": made["producer_count"],
            }
        )


def _summed(table: pa.Table, keys: list[str]) -> pa.Table:
    found = table.group_by(keys).aggregate([("entries", "sum"), ("bytes", "sum"), ("max_size", "max")])
    return found.rename_columns(
        [name.removesuffix("_sum") if name != "max_size_max" else "max_size" for name in found.column_names]
    )
