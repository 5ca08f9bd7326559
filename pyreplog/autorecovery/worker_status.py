"""WorkerStatus: the status of one worker, which it publishes in a leased key of the metadata store."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from pyreplog.autorecovery.leased_keys import WORKERS
from pyreplog.metadata.store import MetadataStore
from pyreplog.metadata.values import MetadataValue, field_names, number


@dataclass(frozen=True)
class WorkerStatus(MetadataValue):
    """Counters of one worker, and the remaining work of its current pass.

    Attributes:
        since_us: start of the process's work, microseconds since 1970-01-01 UTC.
        copied_ledgers: number of ledgers that it copied.
        copied_entries: number of entries that it copied.
        copied_bytes: their size in bytes.
        lost_entries: number of entries that it listed as lost.
        failures: number of failed attempts.
        bytes_per_s: approximate rate of the last seconds.
        ledgers_left: number of ledgers that are still to do in the pass.
        bytes_left: size of their copies, bytes.
        one_copy_left: number of ledgers that had an entry with at most one copy when the pass began.
    """

    KIND: ClassVar[str] = "status of a worker"

    since_us: int
    copied_ledgers: int = 0
    copied_entries: int = 0
    copied_bytes: int = 0
    lost_entries: int = 0
    failures: int = 0
    bytes_per_s: int = 0
    ledgers_left: int = 0
    bytes_left: int = 0
    one_copy_left: int = 0

    @classmethod
    def _decode_fields(cls, fields: dict[str, Any]) -> dict[str, Any]:
        return {name: number(fields, name) for name in field_names(cls)}


def worker_key(owner: str) -> str:
    """Return the key of the status of a worker."""
    return f"{WORKERS}/{owner}"


def list_workers(store: MetadataStore) -> dict[str, WorkerStatus]:
    """Return the status of each running worker that has copied something, by its name.

    Raises:
        InvalidMetadataError: a status is malformed, or needs a newer reader.
        ReplogError: errors of the store.
    """
    owners = store.list(WORKERS)
    stored = zip(owners, store.get_many([worker_key(owner) for owner in owners]), strict=True)
    return {owner: WorkerStatus.decode(value.value) for owner, value in stored if value is not None}
