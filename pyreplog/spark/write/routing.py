"""Routes the rows of a partitioned topic: by key as any producer does, or by the row's number if it has no key."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np
import pyarrow.compute as pc

from pyreplog.spark.write.rows import RowBatch, taken
from pyreplog.topic.model.routing import Router, partition_name

if TYPE_CHECKING:
    from numpy.typing import NDArray


def by_partition(rows: RowBatch, router: Router, turn: int) -> Iterator[RowBatch]:
    """Yield the rows of each partition, in order, as rows of the topic that the partition is.

    turn: partition of row 0 without a key, so that a row goes to the same partition in each attempt.
    """
    chosen = _chosen(rows, router, turn)
    order = np.argsort(chosen, kind="stable")
    partitions, starts = np.unique(chosen[order], return_index=True)
    for partition, which in zip(partitions.tolist(), np.split(order, starts[1:]), strict=True):
        yield taken(rows, partition_name(router.topic, partition), which)


def _chosen(rows: RowBatch, router: Router, turn: int) -> NDArray[np.int64]:
    keys = rows.keys
    if keys is None or keys.null_count == len(keys):
        return (rows.numbers + turn) % router.partitions
    if not keys.null_count:
        return router.route_column(keys)
    by_key = router.route_column(pc.fill_null(keys, b""))
    is_keyed = keys.is_valid().to_numpy(zero_copy_only=False)
    return np.where(is_keyed, by_key, (rows.numbers + turn) % router.partitions)
