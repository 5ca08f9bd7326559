"""Whose ledger it is: keys that a bookie does not know are shown to the metadata before they are noted.

Ledger ids follow each other, and the first key that a bookie hears of is the ledger's. Without a look at the metadata
whoever may talk to bookies could give keys of his own to ledgers that will be made next, and keep their writers out.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable
from enum import Enum
from functools import partial
from typing import NamedTuple

from pyreplog.bookie.protocol import Request
from pyreplog.errors import ReplogError
from pyreplog.net.fair_executor import FairExecutor
from pyreplog.net.reactor import Reactor
from pyreplog.net.server_connection import ServerConnection
from pyreplog.net.timers import Timer

logger = logging.getLogger(__name__)

PATIENCE_S = 1.0
"""For an answer of the metadata store: a writer waits for it."""
AWAY_S = 5.0
"""A store that did not answer is not asked again for so long."""
UNPROVEN_MAX = 1024
"""Ledgers to which one connection may give keys while the metadata store is away."""
_QUEUED_MAX = 4096


class KeyVerdict(Enum):
    """What the metadata say of a key."""

    RIGHT = 0
    WRONG = 1
    NO_LEDGER = 2  # no ledger has that id, or it was deleted
    UNKNOWN = 3  # the store is away
    SURPLUS = 4  # the same, and the connection has given keys to many ledgers meanwhile


class _Claim(NamedTuple):
    connection: ServerConnection
    ledger: int
    key: bytes


Proceed = Callable[[ServerConnection, list[tuple[int, Request]], KeyVerdict], object]


class KeyVerifier:
    """All calls by the reactor's driver, but for `close`; `proceed` as well.

    admits: asks the metadata whether a key is a ledger's, None: there is no such ledger. It may block, and raise the
    store's errors. proceed: takes requests that waited, in their order, and what the metadata say of their key.
    """

    def __init__(self, reactor: Reactor, admits: Callable[[int, bytes], bool | None], proceed: Proceed) -> None:
        self._reactor, self._admits, self._proceed = reactor, admits, proceed
        self._jobs = FairExecutor("pyreplog-keys", queued_max=_QUEUED_MAX)
        self._waiting: dict[_Claim, list[tuple[int, Request]]] = {}
        self._timers: dict[_Claim, Timer] = {}
        self._unproven: Counter[ServerConnection] = Counter()
        self._away_until_us = 0

    @property
    def waiting(self) -> int:
        """How many claims wait for the metadata store, or for the end of their time."""
        return max(len(self._waiting), len(self._timers))

    @property
    def is_store_away(self) -> bool:
        """Whether nothing is asked, as the metadata store did not answer within the last `AWAY_S` seconds."""
        return self._reactor.clock.monotonic_us() < self._away_until_us

    def ask(self, connection: ServerConnection, number: int, request: Request) -> None:
        """Have `proceed` called with it; not before this returns."""
        claim = _Claim(connection, request.ledger, request.key)
        kept = request._replace(records=bytes(request.records))
        if claim in self._waiting:
            self._waiting[claim].append((number, kept))
            return
        self._waiting[claim] = [(number, kept)]
        if self.is_store_away:
            self._reactor.call_soon(partial(self._end, claim, KeyVerdict.UNKNOWN))
            return
        self._timers[claim] = self._reactor.call_later(PATIENCE_S, partial(self._end, claim, KeyVerdict.UNKNOWN))
        self._jobs.submit(connection, partial(self._look, claim))

    def leave(self, connection: ServerConnection) -> None:
        """It has ended; what it asked for is not done any more."""
        self._jobs.leave(connection)
        del self._unproven[connection]
        for claim in [claim for claim in self._waiting if claim.connection is connection]:
            del self._waiting[claim]
            if claim in self._timers:
                self._timers.pop(claim).cancel()

    def _look(self, claim: _Claim) -> None:
        """In a thread that may wait."""
        try:
            found = self._admits(claim.ledger, claim.key)
        except (ReplogError, OSError) as error:
            logger.warning("whether the key of ledger %d is right is not known: %s", claim.ledger, error)
            verdict = KeyVerdict.UNKNOWN
        else:
            verdict = KeyVerdict.NO_LEDGER if found is None else KeyVerdict.RIGHT if found else KeyVerdict.WRONG
        try:
            self._reactor.call_soon(partial(self._end, claim, verdict))
        except ReplogError:  # it was closed meanwhile
            return

    def _end(self, claim: _Claim, verdict: KeyVerdict) -> None:
        waiting = self._waiting.pop(claim, None)
        if waiting is None:  # its time was up, or its connection has gone
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
        """After the server. In any thread."""
        self._jobs.close()
