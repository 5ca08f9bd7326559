"""Places of messages in a partitioned topic."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from typing import Any, Literal, NamedTuple

from pyreplog._native.topic.messages import Message, MessageBatch
from pyreplog.errors import WrongTypeError
from pyreplog.topic.model.positions import check_start


class PartitionOffset(NamedTuple):
    """One message: an offset says nothing without its partition. offset: DUPLICATE (-1), it was published before."""

    partition: int
    offset: int


class PartitionRange(NamedTuple):
    """Messages of one partition, published together."""

    partition: int
    offsets: range


PartitionedStart = PartitionOffset | datetime | Literal["earliest", "latest"]
"""A message, of one partition; or of all: a moment of publishing, or their ends."""

PartitionedWhat = Message | MessageBatch | PartitionOffset | Iterable[Message | PartitionOffset]
"""One message, a batch of them, a place, or several."""


def is_offset(start: Any) -> bool:
    """Of which nobody knows in what partition. Errors: as check_start."""
    return not isinstance(check_start(start), datetime | str)


def by_partition(what: Iterable[Message | PartitionOffset]) -> dict[int, list[int]]:
    """Offsets of each partition; of an empty list, none. Errors: WrongTypeError."""
    if not isinstance(what, Iterable) or isinstance(what, str | bytes | bytearray | memoryview):
        raise WrongTypeError(
            f"what: expected messages, a batch of them, or PartitionOffsets, found {type(what).__name__}"
        )
    found: dict[int, list[int]] = {}
    for one in what:
        if not isinstance(one, Message | PartitionOffset):
            raise WrongTypeError(f"what: expected messages or PartitionOffsets, found {type(one).__name__}")
        found.setdefault(one.partition, []).append(one.offset)
    return found
