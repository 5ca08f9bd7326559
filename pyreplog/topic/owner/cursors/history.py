"""CursorHistory: what cursor ledgers say, read when subscriptions are opened; each ledger once for all of them."""

from __future__ import annotations

import logging
import threading
import time
from collections import OrderedDict

from pyreplog.errors import (
    InvalidEntryError,
    InvalidMetadataError,
    NoSuchLedgerError,
    NotEnoughBookiesError,
    OutOfRangeError,
    ReplogError,
    UnauthorizedError,
    UnreadableError,
)
from pyreplog.ledger.cluster import LedgerCluster
from pyreplog.ledger.ledger_handle import Ledger
from pyreplog.topic.model.cursor_pages import Chains, Key

logger = logging.getLogger(__name__)

_GONE = (NoSuchLedgerError, InvalidMetadataError, InvalidEntryError, UnauthorizedError, OutOfRangeError)
"""Trying again would not help."""

_AWAY = (UnreadableError, NotEnoughBookiesError)


class _Story:
    """One ledger: its chains once it has been read. lock: held by who reads it."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.chains: Chains | None = None
        self.since = 0
        self.read_at = 0.0


class CursorHistory:
    """Any thread; several ledgers at once. cache_bytes, cache_s: how much is kept, and how long."""

    def __init__(self, cluster: LedgerCluster, *, cache_bytes: int, cache_s: float) -> None:
        self._cluster, self._cache_bytes, self._cache_s = cluster, cache_bytes, cache_s
        self._lock = threading.Lock()
        self._stories: OrderedDict[int, _Story] = OrderedDict()
        self.rollbacks = 0
        """How often a ledger could not be read, and older state had to do."""

    def read(self, ledger: int, key: Key, since: int, *, force: bool = False) -> list[bytes]:
        """Records of a cursor, from its last snapshot on; ends the ledger's writer. A ledger that is gone or damaged
        gives what comes before the damage, maybe nothing.

        force: so does one that cannot be read now. Errors: UnreadableError, NotEnoughBookiesError; those of the
        metadata store.
        """
        with self._lock:
            story = self._stories.setdefault(ledger, _Story())
            self._stories.move_to_end(ledger)
        try:
            with story.lock:
                if story.chains is None or since < story.since:
                    story.chains, story.since = self._read_closed(ledger, since, force), since
                    story.read_at = time.monotonic()
        except BaseException:
            self._drop_unread(ledger, story)
            raise
        with self._lock:
            self._forget_old()
        return story.chains.records(key, since)

    def read_open(self, handle: Ledger, key: Key, since: int) -> list[bytes]:
        """As read, of a ledger that this process writes, and goes on with."""
        chains = Chains()
        with self._cluster.open_ledger(handle.id, recover=False) as reader:
            last = handle.last_add_confirmed
            if since <= last:
                for batch in reader.read_unconfirmed(since, last + 1):
                    for record in batch:
                        chains.add(record.value, handle.id, record.entry)
        return chains.records(key, since)

    def _read_closed(self, ledger: int, since: int, force: bool) -> Chains:
        chains = Chains()
        try:
            with self._cluster.open_ledger(ledger) as reader:
                if since <= reader.last_add_confirmed:
                    for batch in reader.read(since):
                        for record in batch:
                            chains.add(record.value, ledger, record.entry)
        except _GONE as error:
            self._roll_back(ledger, error)
        except _AWAY as error:
            if not force:
                raise
            self._roll_back(ledger, error)
        return chains

    def _roll_back(self, ledger: int, error: ReplogError) -> None:
        self.rollbacks += 1
        logger.error("cursor ledger %d: cursors go back to what was persisted before: %s", ledger, error)

    def forget_old(self) -> bool:
        """What was read long ago, and the oldest while it is too much; whether anything is left."""
        with self._lock:
            self._forget_old()
            return bool(self._stories)

    def _drop_unread(self, ledger: int, story: _Story) -> None:
        """It could not be read, and nothing is kept of it."""
        with self._lock:
            if story.chains is None and self._stories.get(ledger) is story:
                del self._stories[ledger]

    def _forget_old(self) -> None:
        """What is too old goes first: it is no reason for what is not to go."""
        kept_since = time.monotonic() - self._cache_s
        fresh: list[tuple[int, int]] = []
        for ledger, story in list(self._stories.items()):
            if story.chains is not None and story.read_at < kept_since:
                del self._stories[ledger]
            elif story.chains is not None:
                fresh.append((ledger, story.chains.nbytes))
        held = sum(nbytes for _, nbytes in fresh)
        for ledger, nbytes in fresh:
            if held <= self._cache_bytes:
                return
            held -= nbytes
            del self._stories[ledger]
