"""MetadataStore: the base class of metadata stores, with their calls and guarantees."""

from __future__ import annotations

import builtins
import os
import sys
import threading
import weakref
from abc import abstractmethod
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass

from pyreplog.errors import InvalidArgumentError
from pyreplog.handles import Handle, make_part_of
from pyreplog.metadata.keys import ROOT, VALUE_MAX, check_key, check_value, check_version
from pyreplog.metadata.lease import Lease
from pyreplog.metadata.operations import CreateKey, Operation, PutValue, check_operation
from pyreplog.metadata.watching import Watch

_READ_KEYS_MAX = 256
"""Number of keys that one request reads. Their values are in memory together."""


@dataclass(frozen=True, slots=True)
class Versioned:
    """A value, and the version of its key when it was read, for `put` and `delete`.

    Attributes:
        value: the value.
        version: the version of the key.
    """

    value: bytes
    version: int


class MetadataStore(Handle):
    """Small values under keys like "/ledgers/7", changed by compare-and-set; made by `open_store`.

    The namespace and the rules are those of ZooKeeper.

    - A key is "/name/name…"; its parents are keys, too. `create` makes missing parents, with empty values. A key with
      children cannot be deleted.
    - Versions are opaque, and are only compared for equality. After a key was deleted and created again, an old version
      may match, as in ZooKeeper. If that matters, create a second key with a unique name together with the key, and
      let writes check that it exists: see `multi`.
    - A read sees all writes, of any process, that were complete before the call began.
    - The store never repeats a write. MetadataUnavailableError says that nothing was written. OutcomeUnknownError says
      that the write may be done, may be done later, or may never be done: read the value, and compare its unique id.

    Calls block, up to the timeout of the store. Any thread may make them; coroutines make them in a thread. Every call
    may raise InvalidArgumentError or WrongTypeError (key or value), ClosedError, ForkedError and
    MetadataUnavailableError.
    """

    def __init__(self, what: str) -> None:
        self._lease_lock = threading.Lock()  # guards the leases
        self._leases: weakref.WeakSet[Lease] = weakref.WeakSet()
        self._takes_leases = True
        self.what = what
        """Name of the store for messages: "metadata store", and the path of its file or the URL of its root."""
        super().__init__(what)

    def close(self) -> None:
        """End all leases and watches, and close the store. Closing twice has no effect.

        Waits for a callback that runs. If the keys of a lease cannot be deleted, they expire; the error is raised after
        all other leases have ended and the store is closed.
        """
        if os.getpid() != self._pid or sys.is_finalizing():  # leases end with the process, as after a kill
            return
        with self._lease_lock:
            self._takes_leases = False
        if self._error is not None:  # closed before
            return
        with ExitStack() as cleanup:
            cleanup.callback(super().close)
            for lease in self._opened_leases():
                cleanup.callback(lease.close)

    def _opened_leases(self) -> builtins.list[Lease]:
        with self._lease_lock:
            return list(self._leases)

    def end_calls_by(self, deadline: float) -> None:
        """Set a time after which no call waits for the store, for a caller that closes within a time limit.

        A call that ends at that time raises the error that it raises after the timeout of the store.

        Args:
            deadline: seconds of `time.monotonic()`.
        """

    def get(self, key: str) -> Versioned | None:
        """Return the value of a key, or None if the key does not exist.

        Args:
            key: the key.

        Raises:
            MetadataUnavailableError: the store cannot be reached.
        """
        self._check_open()
        check_key(key)
        return self._get(key)

    def get_many(self, keys: Sequence[str]) -> builtins.list[Versioned | None]:
        """Return the values of several keys, with as few requests as the store allows.

        This is no snapshot: the values may be of different times after the call began.

        Args:
            keys: the keys.

        Returns:
            A value, or None, for each key.

        Raises:
            MetadataUnavailableError: the store cannot be reached.
        """
        self._check_open()
        for key in keys:
            check_key(key)
        values: builtins.list[Versioned | None] = []
        for at in range(0, len(keys), _READ_KEYS_MAX):
            values += self._get_many(keys[at : at + _READ_KEYS_MAX])
        return values

    def create(self, key: str, value: bytes | bytearray | memoryview) -> int:
        """Create a key, and its missing parents.

        Args:
            key: the key.
            value: its value, at most 1,044,480 bytes.

        Returns:
            The version of the key.

        Raises:
            KeyExistsError: the key exists.
            OutcomeUnknownError: the connection was lost in the middle of the call.
            InvalidArgumentError: a parent belongs to a lease and cannot have children.
            MetadataUnavailableError: the store cannot be reached. Nothing was written.
        """
        self._check_open()
        check_key(key)
        return self._create(key, check_value(value))

    def put(self, key: str, value: bytes | bytearray | memoryview, version: int) -> int:
        """Replace the value of a key, if the key has the expected version.

        Args:
            key: the key.
            value: its new value, at most 1,044,480 bytes.
            version: the expected version.

        Returns:
            The new version.

        Raises:
            VersionConflictError: the key has another version.
            NoSuchKeyError: the key does not exist.
            OutcomeUnknownError: the connection was lost in the middle of the call.
            MetadataUnavailableError: the store cannot be reached. Nothing was written.
        """
        self._check_open()
        check_key(key)
        check_version(version)
        return self._put(key, check_value(value), version)

    def delete(self, key: str, version: int) -> None:
        """Delete a key, if it has the expected version.

        Args:
            key: the key.
            version: the expected version.

        Raises:
            VersionConflictError: the key has another version.
            NoSuchKeyError: the key does not exist.
            KeyNotEmptyError: the key has children.
            OutcomeUnknownError: the connection was lost in the middle of the call.
            MetadataUnavailableError: the store cannot be reached. Nothing was deleted.
        """
        self._check_open()
        check_key(key)
        check_version(version)
        self._delete(key, version)

    def multi(self, operations: Sequence[Operation]) -> builtins.list[int | None]:
        """Do several operations atomically, all of them or none, as ZooKeeper's `multi`.

        They are done in their order. Missing parents of created keys are created, and may stay if an operation fails.

        Args:
            operations: the operations, of different keys; their values have at most 1,044,480 bytes together.

        Returns:
            The new version of the key by operation; None for checks and deletions.

        Raises:
            NoSuchKeyError, KeyExistsError, VersionConflictError, KeyNotEmptyError: the first operation that failed did
                so for this reason. Nothing was written.
            OutcomeUnknownError: the connection was lost in the middle of the call.
            InvalidArgumentError: an operation is invalid, or the values are too large together.
            MetadataUnavailableError: the store cannot be reached. Nothing was written.

        Example:
            ```python
            store.multi([CheckExists("/app/ids/7"), PutValue("/app/name", b"seven", version)])
            ```
        """
        self._check_open()
        for operation in operations:
            check_operation(operation)
        size = sum(len(operation.value) for operation in operations if isinstance(operation, CreateKey | PutValue))
        if size > VALUE_MAX:
            raise InvalidArgumentError(f"operations: expected at most {VALUE_MAX} bytes of values, found {size}")
        return self._multi(operations) if operations else []

    def list(self, key: str) -> builtins.list[str]:
        """Return the names of the children of a key, sorted; an empty list if the key does not exist.

        Args:
            key: the key, or "/".

        Raises:
            MetadataUnavailableError: the store cannot be reached.
        """
        self._check_open()
        _check_key_or_root(key)
        return sorted(self._list(key))

    def watch(self, key: str, callback: Callable[[str], object]) -> Watch:
        """Call a function now, and after every change of a key: of its value, its existence, or its set of children.

        A call does not say what changed: the callback reads the key again. Several changes may lead to one call, and a
        call may come without a change. After a lost connection, calls come when the connection is back, at the latest.
        Values of children are not watched. One thread of the store makes the calls, one after the other. `watch` does
        not block, and needs no connection.

        Args:
            key: the key, or "/".
            callback: called with the key. It may use the store, and should be short. Its exceptions are logged.

        Returns:
            A `Watch` to be closed.

        Raises:
            ClosedError: the store was closed.
        """
        self._check_open()
        _check_key_or_root(key)
        return self._watch(key, callback)

    def lease(self, ttl: float, on_loss: Callable[[], object] | None = None) -> Lease:
        """Begin a lease: keys created through it exist while it is held.

        The keys are deleted about `ttl` seconds after the process dies or loses its connection, or sooner.

        Args:
            ttl: seconds, more than 0 and at most 86400. A server may grant another time: see `Lease.ttl`.
            on_loss: called once, from a thread of the lease, when the lease is known to be lost.

        Raises:
            InvalidArgumentError: `ttl` is outside its bounds.
            MetadataUnavailableError: the store cannot be reached.
            ClosedError: the store was closed.
        """
        self._check_open()
        if not 0 < ttl <= 86400:
            raise InvalidArgumentError(f"ttl: expected more than 0 and at most 86400 seconds, found {ttl}")
        lease = self._lease(ttl, on_loss)
        make_part_of(lease, self)
        with self._lease_lock:
            if self._takes_leases:
                self._leases.add(lease)
                return lease
        lease.close()  # the store was closed meanwhile
        raise self._closed_error()

    @abstractmethod
    def _get(self, key: str) -> Versioned | None: ...

    def _get_many(self, keys: Sequence[str]) -> builtins.list[Versioned | None]:
        """Return the values of at most _READ_KEYS_MAX keys."""
        return [self._get(key) for key in keys]

    @abstractmethod
    def _create(self, key: str, value: bytes) -> int: ...

    @abstractmethod
    def _put(self, key: str, value: bytes, version: int) -> int: ...

    @abstractmethod
    def _delete(self, key: str, version: int) -> None: ...

    @abstractmethod
    def _multi(self, operations: Sequence[Operation]) -> builtins.list[int | None]: ...

    @abstractmethod
    def _list(self, key: str) -> builtins.list[str]: ...

    @abstractmethod
    def _watch(self, key: str, callback: Callable[[str], object]) -> Watch: ...

    @abstractmethod
    def _lease(self, ttl: float, on_loss: Callable[[], object] | None) -> Lease: ...


def _check_key_or_root(key: str) -> None:
    if key != ROOT:
        check_key(key)
