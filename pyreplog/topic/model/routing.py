"""Chooses the partition of a message; Pulsar's producers choose the same one."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable
from typing import TYPE_CHECKING

import mmh3
import numpy as np

from pyreplog._native.topic.partitioning import hash_column, hash_keys
from pyreplog.errors import InvalidArgumentError, WrongTypeError

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer
    from numpy.typing import NDArray

    from pyreplog._native.log.append_arguments import _Column

PARTITIONS_MAX = 1 << 16
_POSITIVE = 0x7FFFFFFF
_SUFFIX = "-partition-"
_PARTITION = re.compile(rf"(.+){_SUFFIX}(0|[1-9]\d{{0,4}})", re.DOTALL | re.ASCII)


def partition_name(topic: str, partition: int) -> str:
    """Return the name of the topic that is a partition."""
    return f"{topic}{_SUFFIX}{partition}"


def partition_of(name: str) -> tuple[str, int] | None:
    """Return (topic, partition) for a name made by `partition_name`; None for other names."""
    match = _PARTITION.fullmatch(name)
    return None if match is None else (match[1], int(match[2]))


def key_hash(key: ReadableBuffer) -> int:
    """Return Pulsar's Murmur3_32Hash of a key: 0 to 2^31 - 1."""
    try:
        return mmh3.hash(key if type(key) is bytes else bytes(key), 0, signed=False) & _POSITIVE
    except TypeError:
        raise WrongTypeError(f"key: expected a bytes-like object, found {type(key).__name__}") from None


class Router:
    """Chooses partitions by the key, or in turn for messages without a key. Any thread may use it."""

    def __init__(self, topic: str, partitions: int) -> None:
        """Create a router for 1 to 65536 partitions. Raises InvalidArgumentError for any other number."""
        if not 1 <= partitions <= PARTITIONS_MAX:
            raise InvalidArgumentError(f"partitions: expected 1 to {PARTITIONS_MAX}, found {partitions}")
        self.topic, self.partitions = topic, partitions
        self._turns = itertools.count()

    @property
    def names(self) -> list[str]:
        """Names of the topics that are its partitions, in order."""
        return [partition_name(self.topic, partition) for partition in range(self.partitions)]

    def route(self, key: ReadableBuffer | None) -> int:
        """Return the partition of one message."""
        return self._next() if key is None else key_hash(key) % self.partitions

    def split(self, keys: Iterable[ReadableBuffer | None]) -> list[NDArray[np.int64]]:
        """Return, for each partition, the ascending rows of a batch that are routed to it.

        All messages without a key are routed to the same partition.
        """
        hashes, keyed = hash_keys(keys)
        chosen = self._chosen(hashes)
        if not keyed.all():
            chosen[~keyed] = self._next()
        return self._group(chosen)

    def split_column(self, keys: _Column) -> list[NDArray[np.int64]]:
        """Split a batch as `split` does; the keys are a column: (offsets, data), a numpy or an Arrow array."""
        return self._group(self.route_column(keys))

    def route_column(self, keys: _Column) -> NDArray[np.int64]:
        """Return the partition of each row, by its key."""
        return self._chosen(hash_column(keys))

    def _next(self) -> int:
        return next(self._turns) % self.partitions

    def _chosen(self, hashes: NDArray[np.uint32]) -> NDArray[np.int64]:
        return (hashes & np.uint32(_POSITIVE)).astype(np.int64) % self.partitions

    def _group(self, chosen: NDArray[np.int64]) -> list[NDArray[np.int64]]:
        rows = np.argsort(chosen, kind="stable")
        return np.split(rows, np.searchsorted(chosen[rows], np.arange(1, self.partitions)))
