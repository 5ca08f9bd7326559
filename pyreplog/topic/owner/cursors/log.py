"""CursorLog: persists the cursors of all subscriptions of this process, in one ledger that they share.

What changed since the last flush, of however many cursors, is appended at once; one flush is under way at a time. A
cursor whose state is not in the open ledger yet writes a snapshot there, and then changes its subscription's metadata
to name the ledger: at any moment the metadata name a place from which the whole state can be read. Cursors that do not
change cost nothing. One thread does all of this; calls that block are made by those that all ledgers share.

A ledger that is full, failed, or was fenced by who took a subscription over, is retired: the cursors whose state is in
it write snapshots to the next one. Those that were taken over learn it then. The ledger is deleted when the last of
them is gone; one that subscriptions of other processes may refer to, by a `Sweep`. Where no ledger can be had for lack
of bookies, snapshots go into the metadata.
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
from pyreplog.topic.model.cursor_pages import Chains, Key
from pyreplog.topic.model.subscription_metadata import SubscriptionMetadata, take_over
from pyreplog.topic.owner.cursors.cursor_ledgers import CursorLogConfig
from pyreplog.topic.owner.cursors.flush import CursorFlusher
from pyreplog.topic.owner.cursors.slot import CursorSlot, CursorSource

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


CLOSE_S = 30.0


class RecoveredSubscription(NamedTuple):
    """A subscription as it was left. owner: what `change_subscription` asks for. records: of its cursor, from its last
    snapshot on."""

    topic: str
    subscription: str
    owner: str
    metadata: SubscriptionMetadata
    records: list[bytes]


class CursorLog(Handle):
    """Any thread may call anything. Close it before its cluster."""

    def __init__(self, cluster: LedgerCluster, *, config: CursorLogConfig | None = None) -> None:
        self._config = config = config or CursorLogConfig()
        self._cluster, self._runtime = cluster, cluster.runtime
        self._incarnation = secrets.token_hex(8)
        self._owners = count()
        self._lock = threading.Lock()
        self._forgetting = False  # a timer is set
        self._history = CursorHistory(cluster, cache_bytes=config.cache_bytes, cache_s=config.cache_ms / 1000)
        self._flusher = CursorFlusher(cluster, config, self._incarnation)
        super().__init__("cursor log")

    @property
    def flusher(self) -> CursorFlusher:
        """The flusher and its cursor ledgers. For tests and for operators."""
        return self._flusher

    @property
    def flushes(self) -> int:
        """How many there were."""
        return self._flusher.flushes

    @property
    def records(self) -> int:
        """How many cursor records they stored."""
        return self._flusher.records

    @property
    def rollbacks(self) -> int:
        """How many ledgers could not be read, so that cursors went back to older state."""
        return self._history.rollbacks

    # ---- opening subscriptions ------------------------------------------------------------------------------

    def recover(self, topic: str, subscription: str, *, force: bool = False) -> RecoveredSubscription:
        """Take a subscription over, from whoever had it, and read where its cursor is. Waits.

        A ledger that is gone or damaged gives what can be read of it, or the snapshot in the metadata: older state.
        force: so does one that cannot be read now. Errors: NoSuchSubscriptionError; UnreadableError and
        NotEnoughBookiesError, its ledger cannot be read now; InvalidMetadataError; those of the metadata store.
        """
        self._check_open()
        check_may_wait()
        owner = f"{self._incarnation}/{next(self._owners)}"
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

    def attach(self, recovered: RecoveredSubscription, source: CursorSource) -> CursorSlot:
        """Persist a cursor from now on. source: as it was recovered, its sequences go on. Errors: ClosedError."""
        self._check_open()
        slot = CursorSlot(self._flusher, recovered.topic, recovered.subscription, recovered.owner, source)
        if recovered.metadata.cursor_ledger >= 0:
            self._flusher.settle_in(slot, recovered.metadata.cursor_ledger)
        return slot

    def flush_async(self) -> AppendFuture[None]:
        """Persist what is dirty at once; done when nothing is left to do, also with ledgers and metadata."""
        return self._flusher.quiet()

    # ---- the end --------------------------------------------------------------------------------------------

    def close(self, timeout: float = CLOSE_S) -> None:
        """Persist what is dirty, close the ledger, within `timeout` seconds. What cannot be persisted by then comes
        again later.

        Errors: InvalidArgumentError, in a callback.
        """
        check_may_wait()
        self._close_s = timeout
        super().close()

    def _let_go(self) -> None:
        deadline, quiet = time.monotonic() + self._close_s, self._flusher.begin_end(self._error)
        try:
            self._runtime.wait(quiet, self._close_s - reserve_s(self._close_s))
        except OutcomeUnknownError:
            logger.warning("cursors were closed with changes that could not be persisted within %.1f s", self._close_s)
        finally:
            self._flusher.end(max(deadline - time.monotonic(), 0.0))
