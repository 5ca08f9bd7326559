"""What every metadata store does, and promises."""

from __future__ import annotations

import builtins
import os
import sys
import threading
import weakref
from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass

from pyreplog.errors import InvalidArgumentError
from pyreplog.handles import Handle, make_part_of
from pyreplog.metadata.keys import ROOT, check_key, check_value, check_version
from pyreplog.metadata.lease import Lease
from pyreplog.metadata.watching import Watch


@dataclass(frozen=True, slots=True)
class Versioned:
    """A value and the version of its key at that moment; to be handed back to `put` and `delete`."""

    value: bytes
    version: int


class MetadataStore(Handle):
    """Small values under keys like "/ledgers/7", changed by compare-and-set. The namespace is ZooKeeper's.

    - A key is "/name/name..." (see `keys`). Its parents are keys too: `create` makes the missing ones, with empty
      values. A key that has children cannot be deleted.
    - A version is opaque: equal or not, nothing else. It counts within one life of a key: after a delete and a new
      create an old version may fit again (ZooKeeper starts at 0 each time). Who re-creates a key under the same name
      and cares puts something unique into the value, as BookKeeper does with its creation token.
    - A read sees all that was written, by anybody, before the call began.
    - Writes are never repeated by the store. MetadataUnavailableError says that nothing was done;
      OutcomeUnknownError that the connection was lost, or the time ran out, in the middle: the write may be done, may
      yet be done, or not. Read, and compare with something unique in the value.

    Calls block, up to the store's timeout; any thread may make them. asyncio programs make them in threads of their
    own. Every call may raise InvalidArgumentError or WrongTypeError (key or value), ClosedError, ForkedError and
    MetadataUnavailableError.
    """

    def __init__(self, what: str) -> None:
        self._lease_lock = threading.Lock()  # of the two that follow
        self._leases: weakref.WeakSet[Lease] = weakref.WeakSet()
        self._takes_leases = True
        super().__init__(what)

    def close(self) -> None:
        """End the leases and watches, and let go. Waits for a callback that is under way. Closing twice is fine."""
        if os.getpid() != self._pid or sys.is_finalizing():  # which ends the leases, as a kill does
            return
        with self._lease_lock:
            self._takes_leases = False
        for lease in self._opened_leases():
            lease.close()
        super().close()

    def _opened_leases(self) -> builtins.list[Lease]:
        with self._lease_lock:
            return list(self._leases)

    def end_calls_by(self, deadline: float) -> None:
        """For who closes within a time: no call, also of a lease, waits for the store any longer when
        `time.monotonic()` is `deadline`. It raises what it raises after the store's timeout."""

    def get(self, key: str) -> Versioned | None:
        """The value of a key, or None: there is definitely no such key."""
        self._check_open()
        check_key(key)
        return self._get(key)

    def create(self, key: str, value: bytes | bytearray | memoryview) -> int:
        """Make a key, and its parents if need be; returns its version.

        Errors: KeyExistsError; OutcomeUnknownError; InvalidArgumentError, below a key that belongs to a lease.
        """
        self._check_open()
        check_key(key)
        return self._create(key, check_value(value))

    def put(self, key: str, value: bytes | bytearray | memoryview, version: int) -> int:
        """Replace the value if the key's version is `version`; returns the new version.

        Errors: VersionConflictError; NoSuchKeyError; OutcomeUnknownError.
        """
        self._check_open()
        check_key(key)
        check_version(version)
        return self._put(key, check_value(value), version)

    def delete(self, key: str, version: int) -> None:
        """Remove the key if its version is `version`.

        Errors: VersionConflictError; NoSuchKeyError; KeyNotEmptyError, it has children; OutcomeUnknownError.
        """
        self._check_open()
        check_key(key)
        check_version(version)
        self._delete(key, version)

    def list(self, key: str) -> builtins.list[str]:
        """The names of the children of a key (or of "/"), sorted; none when there is no such key."""
        self._check_open()
        _check_key_or_root(key)
        return sorted(self._list(key))

    def watch(self, key: str, callback: Callable[[str], object]) -> Watch:
        """Call `callback(key)` now, and after every change: of the key's value, its existence, its set of children.

        It says "look again", not what happened: several changes may become one call, a call may come without a
        change, and none comes late because of a lost connection but at its return at the latest. Values of children
        are not watched. Calls come from one thread of the store, one after the other; they may use the store and should
        be short. What they raise is logged. Does not block, and needs no connection.
        """
        self._check_open()
        _check_key_or_root(key)
        return self._watch(key, callback)

    def lease(self, ttl: float, on_loss: Callable[[], object] | None = None) -> Lease:
        """Begin a lease: keys created through it exist while it is held, and vanish at most about `ttl` seconds after
        its process dies or loses the store.

        `on_loss` is called once, from a thread of the lease, when it is known to be lost. A server may grant another
        ttl than is asked for: see `Lease.ttl`.
        """
        self._check_open()
        if not 0 < ttl <= 86400:
            raise InvalidArgumentError(f"a lease is kept for 0 to 86400 seconds, not {ttl}")
        lease = self._lease(ttl, on_loss)
        make_part_of(lease, self)
        with self._lease_lock:
            if self._takes_leases:
                self._leases.add(lease)
                return lease
        lease.close()  # the store was closed meanwhile
        raise self._ending()

    @abstractmethod
    def _get(self, key: str) -> Versioned | None: ...

    @abstractmethod
    def _create(self, key: str, value: bytes) -> int: ...

    @abstractmethod
    def _put(self, key: str, value: bytes, version: int) -> int: ...

    @abstractmethod
    def _delete(self, key: str, version: int) -> None: ...

    @abstractmethod
    def _list(self, key: str) -> builtins.list[str]: ...

    @abstractmethod
    def _watch(self, key: str, callback: Callable[[str], object]) -> Watch: ...

    @abstractmethod
    def _lease(self, ttl: float, on_loss: Callable[[], object] | None) -> Lease: ...


def _check_key_or_root(key: str) -> None:
    if key != ROOT:
        check_key(key)
