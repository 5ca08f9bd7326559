"""Verifies ledger keys with the metadata before a bookie notes them.

Ledger numbers are consecutive, and a bookie takes the first key that it receives as that of the ledger. Without this
check any client of the bookies could send keys for the ledgers that are created next, and lock out their writers.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable
from enum import Enum
from functools import partial
from typing import NamedTuple, Protocol

from pyreplog.bookie.protocol import Request
from pyreplog.errors import ReplogError
from pyreplog.net.fair_executor import FairExecutor
from pyreplog.net.reactor import Reactor
from pyreplog.net.server_connection import ServerConnection
from pyreplog.net.timers import Timer

logger = logging.getLogger(__name__)

PATIENCE_S = 1.0
"""Seconds to wait for an answer of the metadata store, while a writer waits."""
AWAY_S = 5.0
"""Seconds for which no keys are verified after the metadata store did not answer."""
UNPROVEN_MAX = 1024
"""Number of ledgers whose keys are accepted from one connection while the metadata store does not answer."""
_QUEUED_MAX = 4096


class KeyVerdict(Enum):
    """The verdict of the metadata on a key."""

    RIGHT = 0
    WRONG = 1
    NO_LEDGER = 2  # the ledger does not exist, or was deleted
    UNKNOWN = 3  # the metadata store does not answer
    SURPLUS = 4  # the store does not answer, and the connection has sent keys of more than UNPROVEN_MAX ledgers


class KeyRegistry(Protocol):
    """The keys of ledgers according to their metadata. Methods may block, and raise errors of the store."""

    def admits(self, ledger: int, key: bytes) -> bool | None:
        """Return whether this is the key of a ledger; None: the ledger does not exist.

        Raises InvalidMetadataError when its metadata are malformed.
        """
        ...

    def admits_copy(self, ledger: int, proof: bytes) -> bool | None:
        """Return whether this is the proof of a ledger's key; otherwise as `admits`."""
        ...


class _Claim(NamedTuple):
    connection: ServerConnection
    ledger: int
    key: bytes
    is_copy: bool


Proceed = Callable[[ServerConnection, list[tuple[int, Request]], KeyVerdict], object]


class KeyVerifier:
    """Verifies keys with the metadata, on a thread of its own. The reactor's driver makes all calls except `close`.

    Args:
        reactor: drives the server.
        ledgers: the keys according to the metadata.
        proceed: called by the reactor's driver with the requests that waited, in their order, and the verdict on their
            key.
    """

    def __init__(self, reactor: Reactor, ledgers: KeyRegistry, proceed: Proceed) -> None:
        self._reactor, self._ledgers, self._proceed = reactor, ledgers, proceed
        self._jobs = FairExecutor("pyreplog-keys", queued_max=_QUEUED_MAX)
        self._waiting: dict[_Claim, list[tuple[int, Request]]] = {}
        self._timers: dict[_Claim, Timer] = {}
        self._unproven: Counter[ServerConnection] = Counter()
        self._away_until_us = 0

    @property
    def waiting(self) -> int:
        """Number of keys that wait for the metadata store, or for the end of their time."""
        return max(len(self._waiting), len(self._timers))

    @property
    def is_store_away(self) -> bool:
        """Whether no keys are verified, because the metadata store did not answer within the last `AWAY_S` seconds."""
        return self._reactor.clock.monotonic_us() < self._away_until_us

    def ask(self, connection: ServerConnection, number: int, request: Request) -> None:
        """Verify the key of a request, and have `proceed` called after this call has returned."""
        claim = _Claim(connection, request.ledger, request.key, request.is_copy)
        copy = request._replace(records=bytes(request.records))
        if claim in self._waiting:
            self._waiting[claim].append((number, copy))
            return
        self._waiting[claim] = [(number, copy)]
        if self.is_store_away:
            self._reactor.call_soon(partial(self._end, claim, KeyVerdict.UNKNOWN))
            return
        self._timers[claim] = self._reactor.call_later(PATIENCE_S, partial(self._end, claim, KeyVerdict.UNKNOWN))
        self._jobs.submit(connection, partial(self._check, claim))

    def leave(self, connection: ServerConnection) -> None:
        """Drop the requests of a connection that has ended."""
        self._jobs.leave(connection)
        del self._unproven[connection]
        for claim in [claim for claim in self._waiting if claim.connection is connection]:
            del self._waiting[claim]
            if claim in self._timers:
                self._timers.pop(claim).cancel()

    def _check(self, claim: _Claim) -> None:
        """Verify a key with the metadata. Runs on a thread that may block."""
        admits = self._ledgers.admits_copy if claim.is_copy else self._ledgers.admits
        try:
            admitted = admits(claim.ledger, claim.key)
        except (ReplogError, OSError) as error:
            logger.warning("the key of ledger %d could not be checked: %s", claim.ledger, error)
            verdict = KeyVerdict.UNKNOWN
        else:
            verdict = KeyVerdict.NO_LEDGER if admitted is None else KeyVerdict.RIGHT if admitted else KeyVerdict.WRONG
        try:
            self._reactor.call_soon(partial(self._end, claim, verdict))
        except ReplogError:  # the reactor was closed meanwhile
            return

    def _end(self, claim: _Claim, verdict: KeyVerdict) -> None:
        waiting = self._waiting.pop(claim, None)
        if waiting is None:  # the claim timed out, or its connection was closed
            return
        if claim in self._timers:
            self._timers.pop(claim).cancel()
            if verdict is KeyVerdict.UNKNOWN:
                self._away_until_us = self._reactor.clock.monotonic_us() + int(AWAY_S * 1e6)
        if verdict is KeyVerdict.UNKNOWN:
            self._unproven[claim.connection] += 1
            if self._unproven[claim.connection] > UNPROVEN_MAX:
                verdict = KeyVerdict.SURPLUS
        self._proceed(claim.connection, waiting, verdict)

    def close(self) -> None:
        """Stop the thread. Call it after the server was closed, on any thread."""
        self._jobs.close()
