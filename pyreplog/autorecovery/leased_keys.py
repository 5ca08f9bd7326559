"""LeasedKeys: keys by which the processes of auto-recovery share the work. They vanish with their process.

They are advisory: two auditors, or two workers on one ledger, do no harm, because every change is a compare-and-set.
"""

from __future__ import annotations

import threading
from contextlib import suppress
from typing import Protocol

from pyreplog.errors import (
    KeyExistsError,
    LeaseLostError,
    OutcomeUnknownError,
    ReplogError,
    VersionConflictError,
)
from pyreplog.handles import Handle, make_part_of
from pyreplog.ledger.ledger_metadata import ID_DIGITS
from pyreplog.metadata.changes import change_key
from pyreplog.metadata.lease import Lease, LeaseState
from pyreplog.metadata.store import MetadataStore

AUDITOR = "/autorecovery/auditor"
"""Who has this key is the auditor."""
CLAIMS = "/autorecovery/claims"
WORKERS = "/autorecovery/workers"
TTL_S = 30.0


def claim_key(ledger: int) -> str:
    """Return the key that the worker has which copies a ledger."""
    return f"{CLAIMS}/{ledger:0{ID_DIGITS}d}"


class SharedKeys(Protocol):
    """Keys that one process of several has, as a worker and an auditor need them."""

    @property
    def owner(self) -> str:
        """Text that no other process has, and that tells operators who it is."""
        ...

    @property
    def is_held(self) -> bool:
        """Whether the keys surely exist at this moment, so far as they were taken."""
        ...

    def take(self, key: str) -> bool:
        """Create a key, unless another process has it. Returns whether this one has it. Raises errors of the store."""
        ...

    def release(self, key: str) -> None:
        """Delete a key of this process."""
        ...

    def publish(self, key: str, value: bytes) -> None:
        """Give a key of this process a value that others may read. Raises errors of the store."""
        ...

    def close(self) -> None:
        """Delete all keys of this process."""
        ...


class LocalKeys:
    """The keys of a process that has the cluster alone: there is nobody to share them with."""

    is_held = True

    def __init__(self, owner: str) -> None:
        self.owner = owner

    def take(self, key: str) -> bool:
        return True

    def release(self, key: str) -> None:
        return

    def publish(self, key: str, value: bytes) -> None:
        return

    def close(self) -> None:
        return


class LeasedKeys(Handle):
    """The leased keys of one process, in one lease, which is made again when it was lost. Any thread may use it.

    Args:
        store: metadata store. Close this object first.
        owner: text that no other process has, and that tells operators who it is.
    """

    def __init__(self, store: MetadataStore, owner: str) -> None:
        self._store, self.owner, self._value = store, owner, owner.encode()
        self._lock = threading.Lock()
        self._lease: Lease | None = None
        self._versions: dict[str, int] = {}  # of keys that were created in this lease
        super().__init__(f"keys of {owner}")

    def take(self, key: str) -> bool:
        """Create a key, unless another process has it.

        Args:
            key: the key.

        Returns:
            Whether this process has it now.

        Raises:
            ReplogError: errors of the store.
        """
        for _ in range(2):
            lease = self._current_lease()
            try:
                version = lease.create(key, self._value)
            except KeyExistsError:
                stored = self._store.get(key)
                return stored is not None and stored.value == self._value
            except LeaseLostError:
                continue  # another lease is made
            with self._lock:
                if lease is self._lease:
                    self._versions[key] = version
            return True
        return False

    def release(self, key: str) -> None:
        """Delete a key of this process. It ends with the lease at the latest, so errors of the store are ignored.

        While the lease is held the key is surely still the one that was created, and is not read before.
        """
        with self._lock:
            version = self._versions.pop(key, None)
        with suppress(ReplogError):
            if version is not None and self.is_held:
                with suppress(VersionConflictError, OutcomeUnknownError):
                    self._store.delete(key, version)
                    return
            change_key(self._store, key, lambda value: None if value == self._value else value)

    def publish(self, key: str, value: bytes) -> None:
        """Give a leased key of this process a value. Raises errors of the store."""
        stored = self._store.get(key)
        if stored is None:
            with suppress(KeyExistsError, LeaseLostError):
                self._current_lease().create(key, value)
        elif stored.value != value:
            change_key(self._store, key, lambda current: None if current is None else value)

    @property
    def is_held(self) -> bool:
        """Whether the keys surely exist at this moment, so far as they were taken."""
        with self._lock:
            return self._lease is not None and self._lease.state is LeaseState.HELD

    def _current_lease(self) -> Lease:
        """Return a lease that is not lost. Raises errors of the store."""
        lost: Lease | None = None
        with self._lock:
            self._check_open()
            if self._lease is not None and self._lease.state is LeaseState.LOST:
                lost, self._lease = self._lease, None
            if self._lease is None:
                self._versions.clear()
                self._lease = self._store.lease(TTL_S)
                make_part_of(self._lease, self)
            lease = self._lease
        if lost is not None:
            lost.close()
        return lease

    def _do_close(self) -> None:
        with self._lock:
            lease, self._lease = self._lease, None
        if lease is not None:
            lease.close()
