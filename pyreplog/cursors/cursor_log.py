"""CursorLog: persists the cursors of all subscriptions of this process in one ledger.

The changes of any number of cursors since the last flush are appended together; one flush runs at a time. A cursor
whose state is not in the open ledger yet writes a snapshot there, and then changes its subscription's metadata to refer
to the ledger: at any moment the metadata refer to a place from which the whole state can be read. Cursors that do not
change cost nothing. One thread does all of this; the threads that all ledgers share make the blocking calls.

A ledger that is full, failed, or was fenced by a process that took a subscription over, is retired: the cursors whose
state it holds write snapshots to the next one. A cursor whose subscription was taken over learns it then. The ledger is
deleted when the last cursor has left it. A `Sweep` deletes ledgers to which subscriptions of other processes may refer.
If no ledger can be opened for lack of bookies, snapshots go into the metadata.
"""

from __future__ import annotations

import logging
import secrets
import threading
import time
from collections import OrderedDict
from itertools import count
from typing import NamedTuple

from pyreplog._native.machines.serial_executor import check_may_wait
from pyreplog.cursors.cursor_flusher import CursorFlusher
from pyreplog.cursors.cursor_ledgers import CursorLogConfig
from pyreplog.cursors.cursor_pages import Chains, Key
from pyreplog.cursors.cursor_persister import CursorPersister, CursorSource
from pyreplog.cursors.subscription_metadata import SubscriptionMetadata, TopicEpoch, owner_token, take_over
from pyreplog.errors import (
    InvalidEntryError,
    InvalidMetadataError,
    NoSuchLedgerError,
    NotEnoughBookiesError,
    OutcomeUnknownError,
    OutOfRangeError,
    ReplogError,
    UnauthorizedError,
    UnreadableError,
)
from pyreplog.future import AppendFuture
from pyreplog.handles import Handle
from pyreplog.ledger.closing import reserve_s
from pyreplog.ledger.cluster import LedgerCluster
from pyreplog.ledger.ledger_handle import Ledger

logger = logging.getLogger(__name__)

_UNRECOVERABLE = (NoSuchLedgerError, InvalidMetadataError, InvalidEntryError, UnauthorizedError, OutOfRangeError)
"""Errors of a ledger that do not go away: older state is used."""

_UNAVAILABLE = (UnreadableError, NotEnoughBookiesError)
"""Errors of a ledger that can be read later."""


class _CachedLedger:
    """A ledger that was read. lock: held by a thread that reads it."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.chains: Chains | None = None
        self.since = 0
        self.read_at = 0.0


class CursorLedgerReader:
    """Reads the records of cursors from cursor ledgers, several at once, and caches them. Any thread.

    cache_bytes, cache_s: how many bytes are cached, and for how many seconds.
    """

    def __init__(self, cluster: LedgerCluster, *, cache_bytes: int, cache_s: float) -> None:
        self._cluster, self._cache_bytes, self._cache_s = cluster, cache_bytes, cache_s
        self._lock = threading.Lock()
        self._cache: OrderedDict[int, _CachedLedger] = OrderedDict()
        self.rollbacks = 0
        """How often a ledger could not be read, and older state was used."""

    def read(self, ledger: int, key: Key, since: int, *, force: bool = False) -> list[bytes]:
        """Return the records of a cursor from its last snapshot on; ends the ledger's writer.

        Of a ledger that does not exist or is damaged it returns the records before the damage, possibly none.

        force: do so as well if the ledger cannot be read now. Raises UnreadableError, NotEnoughBookiesError, and errors
        of the metadata store.
        """
        with self._lock:
            cached = self._cache.setdefault(ledger, _CachedLedger())
            self._cache.move_to_end(ledger)
        try:
            with cached.lock:
                if cached.chains is None or since < cached.since:
                    cached.chains, cached.since = self._read_closed(ledger, since, force), since
                    cached.read_at = time.monotonic()
        except BaseException:
            self._drop_unread(ledger, cached)
            raise
        with self._lock:
            self._forget_old()
        return cached.chains.records(key, since)

    def read_open(self, handle: Ledger, key: Key, since: int) -> list[bytes]:
        """Return the records of a cursor, like `read`, from a ledger that this process goes on writing."""
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
        except _UNRECOVERABLE as error:
            self._roll_back(ledger, error)
        except _UNAVAILABLE as error:
            if not force:
                raise
            self._roll_back(ledger, error)
        return chains

    def _roll_back(self, ledger: int, error: ReplogError) -> None:
        self.rollbacks += 1
        logger.error("cursor ledger %d: it cannot be read, cursors use older state: %s", ledger, error)

    def forget_old(self) -> bool:
        """Drop ledgers that were read long ago, and the oldest beyond the limit; return whether any is left."""
        with self._lock:
            self._forget_old()
            return bool(self._cache)

    def _drop_unread(self, ledger: int, cached: _CachedLedger) -> None:
        """Drop a ledger that could not be read."""
        with self._lock:
            if cached.chains is None and self._cache.get(ledger) is cached:
                del self._cache[ledger]

    def _forget_old(self) -> None:
        """Drop old ledgers first, so that their size does not push out others."""
        kept_since = time.monotonic() - self._cache_s
        fresh: list[tuple[int, int]] = []
        for ledger, cached in list(self._cache.items()):
            if cached.chains is not None and cached.read_at < kept_since:
                del self._cache[ledger]
            elif cached.chains is not None:
                fresh.append((ledger, cached.chains.nbytes))
        held = sum(nbytes for _, nbytes in fresh)
        for ledger, nbytes in fresh:
            if held <= self._cache_bytes:
                return
            held -= nbytes
            del self._cache[ledger]


CLOSE_S = 30.0


class RecoveredSubscription(NamedTuple):
    """A subscription that was taken over.

    Attributes:
        topic: name of the topic.
        subscription: name of the subscription.
        owner: token for `change_subscription`.
        metadata: its metadata.
        records: records of its cursor, from the last snapshot on.
    """

    topic: str
    subscription: str
    owner: str
    metadata: SubscriptionMetadata
    records: list[bytes]


class CursorLog(Handle):
    """The cursors of a process. Any thread may use it. Close it before its cluster."""

    def __init__(self, cluster: LedgerCluster, *, config: CursorLogConfig | None = None) -> None:
        self._config = config = config or CursorLogConfig()
        self._cluster, self._runtime = cluster, cluster.runtime
        self._incarnation = secrets.token_hex(8)
        self._owners = count()
        self._lock = threading.Lock()
        self._forgetting = False  # a timer runs
        self._history = CursorLedgerReader(cluster, cache_bytes=config.cache_bytes, cache_s=config.cache_ms / 1000)
        self._flusher = CursorFlusher(cluster, config, self._incarnation)
        super().__init__("cursor log")

    @property
    def flusher(self) -> CursorFlusher:
        """The flusher and its cursor ledgers; for tests and operators."""
        return self._flusher

    @property
    def flushes(self) -> int:
        """Number of flushes."""
        return self._flusher.flushes

    @property
    def records(self) -> int:
        """Number of cursor records that were stored."""
        return self._flusher.records

    @property
    def rollbacks(self) -> int:
        """Number of ledgers that could not be read, so that cursors use older state."""
        return self._history.rollbacks

    # ---- opening subscriptions ------------------------------------------------------------------------------

    def recover(
        self, topic: str, subscription: str, *, epoch: TopicEpoch | None = None, force: bool = False
    ) -> RecoveredSubscription:
        """Take a subscription over from its owner, and read its cursor. Blocks.

        If its ledger does not exist or is damaged, the cursor is what can be read of it, or the snapshot in the
        metadata, which is older. epoch: in which this process owns the topic; None: not known. force: do so as well if
        the ledger cannot be read now.

        Raises TopicFencedError if a later owner of the topic has it; NoSuchSubscriptionError; UnreadableError or
        NotEnoughBookiesError if its ledger cannot be read now; InvalidMetadataError; errors of the metadata store.
        """
        self._check_open()
        check_may_wait()
        owner = owner_token(self._incarnation, next(self._owners), epoch)
        metadata = take_over(self._runtime.metadata, topic, subscription, owner)
        records = self._read((topic, subscription), metadata, force) if metadata.cursor_ledger >= 0 else []
        if not records and metadata.snapshot:
            records = [metadata.snapshot]
        return RecoveredSubscription(topic, subscription, owner, metadata, records)

    def _read(self, key: Key, metadata: SubscriptionMetadata, force: bool) -> list[bytes]:
        ledger, since = metadata.cursor_ledger, metadata.cursor_from
        written = self._flusher.open_ledger
        if written is not None and written.id == ledger:
            return self._history.read_open(written, key, since)
        records = self._history.read(ledger, key, since, force=force)
        self._forget_later()
        return records

    def _forget_later(self) -> None:
        with self._lock:
            if self._forgetting:
                return
            self._forgetting = True
        self._runtime.wake_after(self._config.cache_ms / 1000, self._forget)

    def _forget(self) -> None:
        self._forgetting = False
        if self._history.forget_old():
            self._forget_later()

    def attach(self, recovered: RecoveredSubscription, source: CursorSource) -> CursorPersister:
        """Persist a cursor from now on. source: the recovered cursor, whose sequences go on. Raises ClosedError."""
        self._check_open()
        persister = CursorPersister(self._flusher, recovered.topic, recovered.subscription, recovered.owner, source)
        if recovered.metadata.cursor_ledger >= 0:
            self._flusher.adopt(persister, recovered.metadata.cursor_ledger)
        return persister

    def flush_async(self) -> AppendFuture[None]:
        """Persist all changes at once; done when nothing is left to do, including work on ledgers and metadata."""
        return self._flusher.quiet()

    # ---- the end --------------------------------------------------------------------------------------------

    def close(self, timeout: float = CLOSE_S) -> None:
        """Persist all changes, and close the ledger, within `timeout` seconds.

        Acknowledgements that cannot be persisted by then are forgotten: their messages come again. Raises
        InvalidArgumentError in a callback.
        """
        check_may_wait()
        self._close_s = timeout
        super().close()

    def _do_close(self) -> None:
        deadline, quiet = time.monotonic() + self._close_s, self._flusher.begin_end(self._error)
        try:
            self._runtime.wait(quiet, self._close_s - reserve_s(self._close_s))
        except OutcomeUnknownError:
            logger.warning("cursors were closed with changes that could not be persisted within %.1f s", self._close_s)
        finally:
            self._flusher.end(max(deadline - time.monotonic(), 0.0))
