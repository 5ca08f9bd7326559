"""WorkerStatus: what one worker tells everybody, in a leased key of the metadata store."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

from pyreplog.autorecovery.leased_keys import WORKERS
from pyreplog.errors import InvalidMetadataError
from pyreplog.metadata.store import MetadataStore
from pyreplog.metadata.values import Kept, split_object

VERSION = 1

_NEW = Kept(VERSION, VERSION)


@dataclass(frozen=True)
class WorkerStatus:
    """What one worker has done, and has left of its present pass.

    Attributes:
        since_us: when its process began to work, microseconds since 1970-01-01 UTC.
        copied_ledgers: ledgers that it copied.
        copied_entries: entries that it copied.
        copied_bytes: their bytes.
        lost_entries: entries that it listed as lost.
        failures: attempts that failed.
        bytes_per_s: bytes that it copied in each of the last seconds, about.
        ledgers_left: ledgers that it has left to look at.
        bytes_left: their bytes.
        one_copy_left: ledgers that had at most one copy of an entry when the pass began.
        kept: fields of other versions.
    """

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
    kept: Kept = _NEW

    def encode(self) -> bytes:
        """Return the value of the key."""
        return self.kept.encode({name: getattr(self, name) for name in _FIELDS})

    @classmethod
    def decode(cls, data: bytes) -> WorkerStatus:
        """Return the status that a value holds.

        Raises:
            MetadataVersionError: it needs a newer reader.
            InvalidMetadataError: it is malformed.
        """
        try:
            body, kept = split_object("status of a worker", data, _FIELDS, VERSION)
            for name in _FIELDS:
                if type(body.get(name)) is not int or body[name] < 0:
                    raise ValueError(f"{name}: expected a number, found {str(body.get(name))[:80]!r}")
            return cls(**body, kept=kept)
        except ValueError as error:
            raise InvalidMetadataError(f"status of a worker: {data[:80]!r}: {error}") from error


_FIELDS = tuple(item.name for item in dataclasses.fields(WorkerStatus) if item.name != "kept")


def worker_key(owner: str) -> str:
    """Return the key of the status of a worker."""
    return f"{WORKERS}/{owner}"


def list_workers(store: MetadataStore) -> dict[str, WorkerStatus]:
    """Return the status of each worker that runs and has copied something, by its name.

    Raises:
        InvalidMetadataError: a status is malformed, or needs a newer reader.
        ReplogError: errors of the store.
    """
    owners = store.list(WORKERS)
    stored = zip(owners, store.get_many([worker_key(owner) for owner in owners]), strict=True)
    return {owner: WorkerStatus.decode(value.value) for owner, value in stored if value is not None}
