"""A batch of messages for a partitioned topic, split by partition; messages of one keep their order."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from pyreplog._native.topic.spread import gather
from pyreplog.errors import InvalidArgumentError
from pyreplog.topic.client.publishing.outgoing import Outgoing
from pyreplog.topic.model.routing import Router
from pyreplog.topic.model.sequences import check_sequences

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

Rows = NDArray[np.int64]


class PartitionBatch(NamedTuple):
    """What one partition gets of a batch."""

    partition: int
    batch: Outgoing
    sequences: NDArray[np.int64] | None


def split_batch(router: Router, batch: Outgoing, sequences: ArrayLike | None) -> list[PartitionBatch]:
    """By key; messages without one go to the same partition. A batch without keys stays as it is.

    Errors: WrongTypeError, InvalidArgumentError; SequenceError, the sequences do not ascend.
    """
    count = batch.messages
    numbers = None if sequences is None else np.asarray(check_sequences(router.topic, sequences, count), np.int64)
    if not count:
        return []
    if batch.keys is None:
        return [PartitionBatch(router.route(None), batch, numbers)]
    split = router.split_column if _is_column(batch.keys) else router.split
    groups = split(batch.keys)
    _check_counts(batch, count, sum(map(len, groups)))
    return list(_portions(batch, groups, numbers))


def _portions(batch: Outgoing, groups: list[Rows], numbers: NDArray[np.int64] | None) -> Iterator[PartitionBatch]:
    for partition, rows in enumerate(groups):
        if len(rows):
            part = Outgoing(*(_taken(column, rows, at < 2) for at, column in enumerate(batch)))
            yield PartitionBatch(partition, part, None if numbers is None else numbers[rows])


def _check_counts(batch: Outgoing, count: int, keys: int) -> None:
    """Before anything is published of it."""
    found = {"keys": keys}
    for name in ("properties", "event_times", "deliver_at"):
        column = getattr(batch, name)
        if column is not None and hasattr(column, "__len__"):
            found[name] = len(column)
    for name, rows in found.items():
        if rows != count:
            raise InvalidArgumentError(f"{name}: expected {count}, one per value, found {rows}")


def _is_column(items: Any) -> bool:
    """Of bytes, and no sequence of objects."""
    if isinstance(items, tuple):
        return len(items) == 2 and not isinstance(items[0], bytes | bytearray | memoryview | None)
    return hasattr(items, "dtype") or hasattr(items, "buffers")


def _taken(column: Any, rows: Rows, is_bytes: bool) -> Any:
    """These rows of a column, in whatever form it is."""
    if column is None:
        return None
    if is_bytes and _is_column(column):
        return gather(column, rows)
    return column[rows] if isinstance(column, np.ndarray) else [column[row] for row in rows.tolist()]
