"""Keys in the metadata store that name the writers of open ledgers: one for each ledger, under one lease for each
client.

Auto-recovery does not recover a ledger whose key exists. The keys give no safety: bookies do that by fencing.
"""

from __future__ import annotations

import json
import logging
import os
import random
import socket
import threading
import uuid
import weakref
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass, fields
from typing import Protocol

from pyreplog.errors import (
    ClosedError,
    InvalidMetadataError,
    KeyExistsError,
    NoSuchKeyError,
    ReplogError,
    VersionConflictError,
)
from pyreplog.handles import Handle, make_part_of
from pyreplog.ledger.driver import TimerLike
from pyreplog.ledger.ledger_metadata import ID_DIGITS
from pyreplog.metadata.lease import Lease, LeaseState
from pyreplog.metadata.store import MetadataStore, Versioned
from pyreplog.metadata.values import check_reader, decode_object
from pyreplog.net.backoff import Backoff
from pyreplog.net.sockets import weak_callback

logger = logging.getLogger(__name__)

WRITERS = "/writers"
VERSION = 1
LEASE_S = 10.0
CREATE_AFTER_S = 1.0
"""Seconds before a key is created. A ledger that is closed before costs no call of the metadata store."""
RETRY_S = 0.5
RETRY_MOST_S = 10.0


@dataclass(frozen=True, slots=True)
class LedgerWriterIdentity:
    """The client that has a ledger open for appending.

    Attributes:
        host: name of the machine.
        pid: id of the process on the machine.
        incarnation: random, drawn by the client.
    """

    host: str
    pid: int
    incarnation: str

    def encode(self) -> bytes:
        """Encode as the value of the key."""
        return json.dumps({"version": VERSION, "min_reader": VERSION, **asdict(self)}, separators=(",", ":")).encode()

    @classmethod
    def decode(cls, data: bytes) -> LedgerWriterIdentity:
        """Decode the value of a key. Unknown fields are ignored: only the writer's client writes the value.

        Raises:
            MetadataVersionError: it needs a newer reader.
            InvalidMetadataError: it is malformed.
        """
        try:
            body = decode_object(data)
            check_reader("writer of a ledger", body, VERSION)
            host, pid, incarnation = (body[item.name] for item in fields(cls))
            if type(host) is not str or type(pid) is not int or type(incarnation) is not str:
                raise TypeError("a field is of another type")
        except (ValueError, TypeError, KeyError) as error:
            raise InvalidMetadataError(f"writer of a ledger: {data[:80]!r}: {error}") from error
        return cls(host, pid, incarnation)


def writer_key(ledger: int) -> str:
    """Return the key that exists while a client has the ledger open for appending."""
    return f"{WRITERS}/{ledger:0{ID_DIGITS}d}"


class KeysRuntime(Protocol):
    """The part of a cluster's runtime that `WriterKeys` uses."""

    metadata: MetadataStore

    def wake_after(self, seconds: float, call: Callable[[], None]) -> TimerLike | None: ...
    def work(self, job: Callable[[], object]) -> None: ...


class WriterKeys:
    """Maintains the keys of the ledgers that a client has open for appending, in the background. Any thread.

    Keys that were deleted with a lost lease are created again. While the metadata store is away, calls are retried in
    growing intervals; no other work waits for them.

    Args:
        runtime: runtime of the cluster.
        owner: the client, which closes this object; it is not kept alive. None: no client does.
        create_after_s: seconds between `hold` and the creation of a key.
        lease_s: seconds of the lease.
    """

    def __init__(
        self,
        runtime: KeysRuntime,
        owner: Handle | None = None,
        *,
        create_after_s: float = CREATE_AFTER_S,
        lease_s: float = LEASE_S,
    ) -> None:
        self._runtime, self._create_after_s, self._lease_s = runtime, create_after_s, lease_s
        self._owner = None if owner is None else weakref.ref(owner)
        identity = LedgerWriterIdentity(socket.gethostname(), os.getpid(), uuid.uuid4().hex)
        self._value = identity.encode()
        self._events: deque[tuple[int, bool] | None] = deque()  # (ledger, whether it is open); None: check the keys
        self._handling = threading.Lock()  # held by the thread that handles events; no thread blocks on it
        self._open: set[int] = set()  # ledgers whose key should exist
        self._held: dict[int, int | None] = {}  # ledger -> version of its key; None: it may exist
        self._lease: Lease | None = None
        self._backoff = Backoff(RETRY_S, RETRY_MOST_S, random.random)
        self._is_timer_set = self._is_closed = False
        self._awaits_retry = False  # an attempt failed, and a retry is scheduled

    def hold(self, ledger: int) -> None:
        """Create the key of a ledger after `create_after_s`, unless the ledger is released before."""
        self._events.append((ledger, True))
        if not self._is_timer_set:
            self._is_timer_set = True
            self._runtime.wake_after(self._create_after_s, self._on_timer)

    def release(self, ledger: int) -> None:
        """Delete the key of a ledger, if it was created. May be called twice, and by a finalizer."""
        self._post((ledger, False))

    def stop(self) -> None:
        """Make no more changes; existing keys stay until `close`."""
        self._is_closed = True

    def close(self) -> None:
        """End the lease, and with it the keys.

        If a thread is waiting for the store, the lease ends when the store is closed.
        """
        self._is_closed = True
        if self._handling.acquire(blocking=False):  # never released: no events are handled any more
            lease, self._lease = self._lease, None
            if lease is not None:
                with suppress(ClosedError):  # the store is closed, and has ended its leases
                    lease.close()

    # ---- the background -------------------------------------------------------------------------------------

    def _on_timer(self) -> None:
        self._is_timer_set = False  # before `_post`: a ledger that is held later sets another timer
        self._post(None)

    def _post(self, event: tuple[int, bool] | None) -> None:
        self._events.append(event)
        if not self._is_closed:
            self._runtime.work(self._handle)

    def _on_lease_lost(self) -> None:
        """Let a worker thread create a new lease.

        This call runs on the thread of the lost lease, for which its `close` waits.
        """
        self._post(None)

    def _handle(self) -> None:
        """Handle the events, unless another thread is doing so; that thread checks for events again when it is done."""
        while self._events and not self._awaits_retry and not self._is_closed:
            if not self._handling.acquire(blocking=False):
                return
            try:
                self._update_keys()
                self._backoff.reset()
            except ClosedError:
                return
            except ReplogError as error:
                logger.warning("keys of ledgers that are open for appending: %s; another attempt follows", error)
                self._awaits_retry = True
                self._runtime.wake_after(self._backoff.next_s(), self._retry)
            finally:
                self._handling.release()

    def _retry(self) -> None:
        self._awaits_retry = False
        self._post(None)

    def _update_keys(self) -> None:
        """Create and delete keys until they are those of the open ledgers. Raises errors of the store."""
        self._apply_events()
        while not self._is_closed:
            self._check_lease()
            closed = [ledger for ledger in self._held if ledger not in self._open]
            missing = sorted(ledger for ledger in self._open if self._held.get(ledger) is None)
            if not closed and not missing:
                return
            for ledger in closed:
                self._delete(ledger)
            for ledger in missing:
                self._apply_events()
                if ledger in self._open and not self._is_closed:
                    self._create(ledger)
            self._apply_events()

    def _apply_events(self) -> None:
        while self._events:
            event = self._events.popleft()
            if event is not None:
                ledger, is_open = event
                (self._open.add if is_open else self._open.discard)(ledger)

    def _check_lease(self) -> None:
        """Drop a lost lease, whose keys are deleted."""
        lease = self._lease
        if lease is not None and lease.state is LeaseState.LOST:
            logger.warning("the lease of %d ledgers that are open for appending was lost", len(self._held))
            self._lease = None
            self._held.clear()
            lease.close()

    def _create(self, ledger: int) -> None:
        """Create a key. An existing key belongs to this client: to a lost lease, or to a call whose reply was lost."""
        key = writer_key(ledger)
        if self._lease is None:
            self._lease = self._runtime.metadata.lease(self._lease_s, weak_callback(self._on_lease_lost))
            owner = None if self._owner is None else self._owner()
            if owner is not None:
                make_part_of(self._lease, owner)  # not only of the store, which other clients of this process may share
        self._held[ledger] = None
        try:
            self._held[ledger] = self._lease.create(key, self._value)
        except KeyExistsError:
            self._remove(key, None)
            self._held[ledger] = self._lease.create(key, self._value)

    def _delete(self, ledger: int) -> None:
        self._remove(writer_key(ledger), self._held[ledger])
        del self._held[ledger]

    def _remove(self, key: str, version: int | None) -> None:
        """Delete a key, whatever its current version is."""
        store = self._runtime.metadata
        stored = store.get(key) if version is None else Versioned(b"", version)
        while stored is not None:
            try:
                store.delete(key, stored.version)
            except NoSuchKeyError:
                return
            except VersionConflictError:
                stored = store.get(key)
            else:
                return
