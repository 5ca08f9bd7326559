"""ProducerIds: ids of producers that no other producer of the cluster ever has, from blocks that brokers take."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import Any, ClassVar

from pyreplog.metadata.changes import change_key
from pyreplog.metadata.store import MetadataStore
from pyreplog.metadata.values import MetadataValue, number

PRODUCER_IDS = "/partitions/producer_ids"
BLOCK = 1000


@dataclass(frozen=True, kw_only=True)
class ProducerIdBlock(MetadataValue):
    """The key of all producer ids.

    Attributes:
        next_id: the first id that no broker has taken.
    """

    KIND: ClassVar[str] = "producer ids"

    next_id: int

    @classmethod
    def _decode_fields(cls, fields: dict[str, Any]) -> dict[str, Any]:
        return {"next_id": number(fields, "next_id")}


class ProducerIds:
    """Ids of producers, one after the other. Any thread may use it.

    Args:
        store: metadata store.
    """

    def __init__(self, store: MetadataStore) -> None:
        self._store = store
        self._lock = threading.Lock()
        self._ids = range(0)

    def next(self) -> int:
        """Return an id. Blocks now and then for the metadata store. Raises errors of the store."""
        with self._lock:
            if not self._ids:
                self._ids = self._take()
            taken, self._ids = self._ids[0], self._ids[1:]
            return taken

    def _take(self) -> range:
        """Take a block. If a write had an unknown outcome, its block is nobody's."""

        def taken(value: bytes | None) -> bytes:
            first = 0 if value is None else ProducerIdBlock.decode(value).next_id
            return ProducerIdBlock(next_id=first + BLOCK).encode()

        stored = change_key(self._store, PRODUCER_IDS, taken)
        assert stored is not None
        end = ProducerIdBlock.decode(stored).next_id
        return range(end - BLOCK, end)
