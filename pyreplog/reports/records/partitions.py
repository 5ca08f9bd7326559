"""How evenly a topic's records are spread over its partitions."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa

from pyreplog.reports.records.streams import PARTITION, TOPIC, OnRecords, streams
from pyreplog.reports.report import ReportColumn
from pyreplog.reports.snapshot import Snapshot


class PartitionSkew(OnRecords):
    """By partition, those that have no records among them."""

    name = "partition_skew"
    title = "Entries and bytes of each partition beside the mean"
    definition = (
        "Of each partition: its entries, bytes of their values, and its entries divided by the mean over all "
        "partitions of the topic, among which those without any count as 0 where the topic's partitions are known. A "
        "log, or a topic without partitions, is one partition, -1."
    )
    figures = (
        TOPIC,
        PARTITION,
        ReportColumn("entries", pa.int64(), "entries, of a topic messages"),
        ReportColumn("bytes", pa.int64(), "of their values"),
        ReportColumn("ratio_to_mean", pa.float64(), "entries / mean of entries over the topic's partitions"),
    )
    needs = ("topic", "partition", "size")
    parts = pa.schema(
        [("topic", pa.string()), ("partition", pa.int32()), ("entries", pa.int64()), ("bytes", pa.int64())]
    )
    needs_facts = True

    def partial(self, batches: Iterator[pa.RecordBatch]) -> pa.Table:
        found: dict[tuple[str | None, int], tuple[int, int]] = {}
        for batch in batches:
            for stream, rows in streams(batch):
                before, key = found.get(stream[:2], (0, 0)), stream[:2]
                found[key] = before[0] + len(rows), before[1] + int(rows["size"].to_numpy().sum(dtype=np.int64))
        made = [(*key, *sums) for key, sums in found.items()]
        columns = zip(*made, strict=True) if made else ([] for _ in self.parts)
        return pa.table(dict(zip(self.parts.names, columns, strict=True)), schema=self.parts)

    def merge(self, partials: pa.Table, snapshot: Snapshot) -> pa.Table:
        sums = partials.group_by(["topic", "partition"]).aggregate([("entries", "sum"), ("bytes", "sum")])
        found = {(row["topic"], row["partition"]): (row["entries_sum"], row["bytes_sum"]) for row in sums.to_pylist()}
        topics = {topic for topic, _ in found}
        for fact in snapshot.topics:
            if fact.topic in topics:
                found.setdefault((fact.topic, fact.partition), (0, 0))
        entries, partitions = dict.fromkeys(topics, 0), dict.fromkeys(topics, 0)
        for (topic, _), (count, _) in found.items():
            entries[topic] += count
            partitions[topic] += 1
        rows = [
            (topic, partition, count, size, count * partitions[topic] / entries[topic])
            for (topic, partition), (count, size) in sorted(found.items(), key=lambda item: (item[0][0] or "", item[0]))
        ]
        columns = zip(*rows, strict=True) if rows else ([] for _ in self.figures)
        return self.table(dict(zip(self.schema().names, columns, strict=True)))
