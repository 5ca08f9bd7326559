"""Waits until partitions are led, and all their replicas have all records."""

from __future__ import annotations

from pyreplog.partition.client.partition_client import PartitionClient
from tests.waiting import until


def until_settled(client: PartitionClient, *topics: str) -> None:
    """Wait. The brokers learn of a new topic one after the other."""

    def is_settled() -> bool:
        rows = client.overview(topics).partitions
        lags = [replica.lag for row in rows for replica in row.replicas]
        marks = [row.high_watermark == row.end is not None for row in rows]
        whole = len(rows) == sum(len(client.topic(name)) for name in topics)
        return whole and all(marks) and all(lag == 0 for lag in lags) and all(not row.out_of_sync for row in rows)

    until(is_settled)
