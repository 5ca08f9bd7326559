"""Pending updates of subscriptions' metadata: a few at a time, repeated while the store is unavailable."""

from __future__ import annotations

import dataclasses
import logging
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

from pyreplog.cursors.cursor_persister import CursorLedger, CursorPersister
from pyreplog.cursors.subscription_metadata import SubscriptionMetadata, change_subscription
from pyreplog.errors import MetadataUnavailableError, OutcomeUnknownError, ReplogError
from pyreplog.ledger.driver import Runtime

logger = logging.getLogger(__name__)

AT_ONCE = 2
"""Most shared threads that may be busy with updates."""


class MetadataUpdate(NamedTuple):
    """The change of metadata after which they refer to `cursor_ledger` from `entry` on; None: to the snapshot alone.

    snapshot: b"": the former one stays. sequence: of the last record that is persisted by this.
    """

    persister: CursorPersister
    sequence: int
    cursor_ledger: CursorLedger | None
    entry: int
    snapshot: bytes

    def change(self, metadata: SubscriptionMetadata) -> SubscriptionMetadata:
        ledger, since = (-1, 0) if self.cursor_ledger is None else (self.cursor_ledger.ledger, self.entry)
        return dataclasses.replace(
            metadata, snapshot=self.snapshot or metadata.snapshot, cursor_ledger=ledger, cursor_from=since,
            moved_us=max(metadata.moved_us, self.persister.moved_us),
        )  # fmt: skip


Post = Callable[[Callable[[], object]], None]
Done = Callable[[MetadataUpdate, Exception | None], None]


class MetadataUpdates:
    """Stores updates, and calls `done(update, error)` for each; after an error it is not stored.

    One thread, which runs what is passed to `post`, does everything except the calls of the store.
    """

    def __init__(self, runtime: Runtime, post: Post, done: Done, *, retry_s: float, retry_max_s: float) -> None:
        self._runtime, self._post, self._done = runtime, post, done
        self._retry_s, self._retry_max_s = retry_s, retry_max_s
        self._queue: deque[MetadataUpdate] = deque()
        self._busy = 0
        self._failures = 0  # consecutive
        self._is_backing_off = False
        self.pending = 0

    def add(self, update: MetadataUpdate) -> None:
        """Store an update."""
        self.pending += 1
        self._queue.append(update)
        self._go_on()

    def _go_on(self) -> None:
        while self._queue and self._busy < AT_ONCE and not self._is_backing_off:
            self._busy += 1
            self._runtime.work(partial(self._store, self._queue.popleft()))

    def _store(self, update: MetadataUpdate) -> None:
        """Store one update, in a shared thread."""
        topic, name = update.persister.key
        error: Exception | None = None
        try:
            change_subscription(self._runtime.metadata, topic, name, update.persister.owner, update.change)
        except Exception as caught:
            error = caught
        self._post(partial(self._stored, update, error))

    def _stored(self, update: MetadataUpdate, error: Exception | None) -> None:
        self._busy -= 1
        if isinstance(error, MetadataUnavailableError | OutcomeUnknownError):
            self._queue.append(update)
            self._back_off(error)
            return
        self._failures = 0
        self.pending -= 1
        self._done(update, error)
        self._go_on()

    def _back_off(self, error: ReplogError) -> None:
        if self._is_backing_off:
            return
        if not self._failures:
            logger.warning("%d cursors cannot be stored until the metadata store answers: %s", self.pending, error)
        self._is_backing_off = True
        seconds = min(self._retry_s * 2 ** min(self._failures, 20), self._retry_max_s)
        self._failures += 1
        self._runtime.wake_after(seconds, partial(self._post, self._end_back_off))

    def _end_back_off(self) -> None:
        self._is_backing_off = False
        self._go_on()
