"""ProducerIds: unique ids of the producers of a cluster (KIP-730)."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import Any, ClassVar

from pyreplog.metadata import values
from pyreplog.metadata.changes import change_key
from pyreplog.metadata.store import MetadataStore
from pyreplog.metadata.values import MetadataValue

PRODUCER_IDS = "/partitions/producer_ids"
BLOCK = 1000


@dataclass(frozen=True, kw_only=True)
class ProducerIdBlock(MetadataValue):
    """The allocated blocks of producer ids.

    Attributes:
        next_id: the first id that belongs to no block.
    """

    KIND: ClassVar[str] = "producer ids"

    next_id: int

    @classmethod
    def _decode_fields(cls, fields: dict[str, Any]) -> dict[str, Any]:
        return {"next_id": values.number(fields, "next_id")}


class ProducerIds:
    """Producer ids, from blocks of 1000 that are allocated by compare-and-set. Any thread may use it; it may block.

    A block whose allocation has an unknown outcome is not used, so ids may have gaps.

    Args:
        store: metadata store.
    """

    def __init__(self, store: MetadataStore) -> None:
        self._store = store
        self._lock = threading.Lock()
        self._next = self._end = 0

    def next(self) -> int:
        """Return an unused id. Raises the errors of the store; then no id is used."""
        with self._lock:
            if self._next == self._end:
                stored = change_key(self._store, PRODUCER_IDS, _take)
                assert stored is not None
                self._end = ProducerIdBlock.decode(stored).next_id
                self._next = self._end - BLOCK
            self._next += 1
            return self._next - 1


def _take(value: bytes | None) -> bytes:
    first = 0 if value is None else ProducerIdBlock.decode(value).next_id
    return ProducerIdBlock(next_id=first + BLOCK).encode()
