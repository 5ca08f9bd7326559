"""LeasedKeys: keys with which the processes of auto-recovery share work. They expire with the lease of their process.

The keys are advisory: two auditors, or two workers on one ledger, do no harm, because every change is a
compare-and-set.
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
"""The process that holds this key is the auditor."""
CLAIMS = "/autorecovery/claims"
WORKERS = "/autorecovery/workers"
TTL_S = 30.0


def claim_key(ledger: int) -> str:
    """Return the key that the worker holds which copies a ledger."""
    return f"{CLAIMS}/{ledger:0{ID_DIGITS}d}"


class SharedKeys(Protocol):
    """Keys that at most one of several processes holds, as used by workers and auditors."""

    @property
    def owner(self) -> str:
        """Unique name of this process, for operators."""
        ...

    @property
    def is_held(self) -> bool:
        """Whether the keys that were taken certainly exist at this moment."""
        ...

    def take(self, key: str) -> bool:
        """Create a key, unless another process holds it.

        Returns whether this process holds it. Raises errors of the store.
        """
        ...

    def release(self, key: str) -> None:
        """Delete a key of this process."""
        ...

    def publish(self, key: str, value: bytes) -> None:
        """Set the value of a key of this process, which others may read. Raises errors of the store."""
        ...

    def close(self) -> None:
        """Delete all keys of this process."""
        ...


class LocalKeys:
    """The keys of a process that has a cluster alone: no other process competes for them."""

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
    """Keys of one process in one lease, which is replaced when it is lost. Any thread may use it.

    Args:
        store: metadata store. Close this object first.
        owner: unique name of this process, for operators.
    """

    def __init__(self, store: MetadataStore, owner: str) -> None:
        self._store, self.owner, self._value = store, owner, owner.encode()
        self._lock = threading.Lock()
        self._lease: Lease | None = None
        self._versions: dict[str, int] = {}  # versions of the keys that were created in this lease
        super().__init__(f"keys of {owner}")

    def take(self, key: str) -> bool:
        """Create a key, unless another process has it.

        Args:
            key: the key.

        Returns:
            Whether this process holds the key now.

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
                continue  # retry with another lease
            with self._lock:
                if lease is self._lease:
                    self._versions[key] = version
            return True
        return False

    def release(self, key: str) -> None:
        """Delete a key of this process, and ignore errors of the store: the key expires with the lease anyway.

        While the lease is held, the key is certainly the one that was created, so it is deleted without reading it
        first.
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
        """Set the value of a leased key of this process. Raises errors of the store."""
        stored = self._store.get(key)
        if stored is None:
            with suppress(KeyExistsError, LeaseLostError):
                self._current_lease().create(key, value)
        elif stored.value != value:
            change_key(self._store, key, lambda current: None if current is None else value)

    @property
    def is_held(self) -> bool:
        """Whether the keys that were taken certainly exist at this moment."""
        with self._lock:
            return self._lease is not None and self._lease.state is LeaseState.HELD

    def _current_lease(self) -> Lease:
        """Return a lease that is not lost; take one if necessary. Raises errors of the store."""
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
