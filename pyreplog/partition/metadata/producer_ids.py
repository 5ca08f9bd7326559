"""ProducerIds: ids of idempotent producers, no two alike in a cluster."""

from __future__ import annotations

import threading
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from pyreplog.metadata.changes import change_key
from pyreplog.metadata.store import MetadataStore
from pyreplog.metadata.values import MetadataValue, number

PRODUCER_IDS = "/partitions/producer-ids"
BLOCK = 1000
"""Ids that a process takes at a time."""


@dataclass(frozen=True, kw_only=True)
class ProducerIdBlock(MetadataValue):
    """The key of producer ids.

    Attributes:
        next_id: the lowest id that no process has taken.
    """

    KIND: ClassVar[str] = "producer ids"

    next_id: int = 0

    @classmethod
    def _decode_fields(cls, fields: dict[str, Any]) -> dict[str, Any]:
        return {"next_id": number(fields, "next_id")}


class ProducerIds:
    """Gives ids, of blocks that it takes from the metadata store. Any thread may use it.

    Args:
        store: metadata store. Use this object no more when it is closed.
    """

    def __init__(self, store: MetadataStore) -> None:
        self._store = store
        self._lock = threading.Lock()  # held while a block is taken
        self._next = self._end = 0

    def next(self) -> int:
        """Return an id that nobody ever had, and nobody else will have.

        Raises:
            ReplogError: errors of the metadata store.
        """
        with self._lock:
            if self._next == self._end:
                self._end = self._take_block()
                self._next = self._end - BLOCK
            self._next += 1
            return self._next - 1

    def _take_block(self) -> int:
        """Take a block and return its end. One whose taking had no known outcome is given up."""

        def take(value: bytes | None) -> bytes:
            block = ProducerIdBlock() if value is None else ProducerIdBlock.decode(value)
            return replace(block, next_id=block.next_id + BLOCK).encode()

        stored = change_key(self._store, PRODUCER_IDS, take)
        assert stored is not None
        return ProducerIdBlock.decode(stored).next_id
