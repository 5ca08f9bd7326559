"""How evenly a topic's records are distributed over its partitions."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa

from pyreplog.reports.records.streams import PARTITION, TOPIC, OnRecords, streams
from pyreplog.reports.report import ReportColumn
from pyreplog.reports.snapshot import Snapshot


class PartitionSkew(OnRecords):
    """Entries by partition, including partitions without records."""

    name = "partition_skew"
    title = "Entries and bytes of each partition, compared with the mean"
    definition = (
        "For each partition: its entries, bytes of their values, and its entries divided by the mean over all "
        "partitions of the topic. Partitions without entries count as 0 if the topic's partitions are known. A log, or "
        "a topic without partitions, is one partition, -1."
    )
    figures = (
        TOPIC,
        PARTITION,
        ReportColumn("entries", pa.int64(), "entries (of a topic: messages)"),
        ReportColumn("bytes", pa.int64(), "bytes of their values"),
        ReportColumn("ratio_to_mean", pa.float64(), "entries / mean of the entries of the topic's partitions"),
    )
    needs = ("topic", "partition", "size")
    parts = pa.schema(
        [("topic", pa.string()), ("partition", pa.int32()), ("entries", pa.int64()), ("bytes", pa.int64())]
    )
    needs_snapshot = True

    def partial(self, batches: Iterator[pa.RecordBatch]) -> pa.Table:
        sums: dict[tuple[str | None, int], tuple[int, int]] = {}
        for batch in batches:
            for stream, rows in streams(batch):
                before, key = sums.get(stream[:2], (0, 0)), stream[:2]
                sums[key] = before[0] + len(rows), before[1] + int(rows["size"].to_numpy().sum(dtype=np.int64))
        sum_rows = [(*key, *counts) for key, counts in sums.items()]
        columns = zip(*sum_rows, strict=True) if sum_rows else ([] for _ in self.parts)
        return pa.table(dict(zip(self.parts.names, columns, strict=True)), schema=self.parts)

    def merge(self, partials: pa.Table, snapshot: Snapshot) -> pa.Table:
        sums = partials.group_by(["topic", "partition"]).aggregate([("entries", "sum"), ("bytes", "sum")])
        counts = {(row["topic"], row["partition"]): (row["entries_sum"], row["bytes_sum"]) for row in sums.to_pylist()}
        topics = {topic for topic, _ in counts}
        for known in snapshot.topics:
            if known.topic in topics:
                counts.setdefault((known.topic, known.partition), (0, 0))
        entries, partitions = dict.fromkeys(topics, 0), dict.fromkeys(topics, 0)
        for (topic, _), (count, _) in counts.items():
            entries[topic] += count
            partitions[topic] += 1
        rows = [
            (topic, partition, count, size, count * partitions[topic] / entries[topic])
            for (topic, partition), (count, size) in sorted(
                counts.items(), key=lambda item: (item[0][0] or "", item[0])
            )
        ]
        columns = zip(*rows, strict=True) if rows else ([] for _ in self.figures)
        return self.table(dict(zip(self.schema().names, columns, strict=True)))
