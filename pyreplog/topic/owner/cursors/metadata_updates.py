"""Changes of subscriptions' metadata on their way: a few at a time, repeated while the store is away."""

from __future__ import annotations

import dataclasses
import logging
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

from pyreplog.errors import MetadataUnavailableError, OutcomeUnknownError, ReplogError
from pyreplog.ledger.driver import Runtime
from pyreplog.topic.model.subscription_metadata import SubscriptionMetadata, change_subscription
from pyreplog.topic.owner.cursors.slot import CursorLedger, CursorSlot

logger = logging.getLogger(__name__)

AT_ONCE = 2
"""So many of the threads that all ledgers share may be busy with it."""


class MetadataUpdate(NamedTuple):
    """A cursor's state is in `home` from `entry` on (None: in the snapshot alone); its metadata are to say so.

    snapshot: b"", the former one stays. sequence: of the last record that is persisted when they do.
    """

    slot: CursorSlot
    sequence: int
    home: CursorLedger | None
    entry: int
    snapshot: bytes

    def change(self, metadata: SubscriptionMetadata) -> SubscriptionMetadata:
        ledger, since = (-1, 0) if self.home is None else (self.home.ledger, self.entry)
        return dataclasses.replace(
            metadata, snapshot=self.snapshot or metadata.snapshot, cursor_ledger=ledger, cursor_from=since,
            moved_us=max(metadata.moved_us, self.slot.moved_us),
        )  # fmt: skip


Post = Callable[[Callable[[], object]], None]
Done = Callable[[MetadataUpdate, Exception | None], None]


class MetadataUpdates:
    """Stores updates and tells of each: `done(move, error)`, with an error nothing will come of it.

    All happens in one thread, which does what it is given by `post`, but for the store's calls.
    """

    def __init__(self, runtime: Runtime, post: Post, done: Done, *, retry_s: float, retry_max_s: float) -> None:
        self._runtime, self._post, self._done = runtime, post, done
        self._retry_s, self._retry_max_s = retry_s, retry_max_s
        self._queue: deque[MetadataUpdate] = deque()
        self._busy = 0
        self._failures = 0  # in a row
        self._resting = False
        self.pending = 0

    def add(self, move: MetadataUpdate) -> None:
        """Have it stored."""
        self.pending += 1
        self._queue.append(move)
        self._go_on()

    def _go_on(self) -> None:
        while self._queue and self._busy < AT_ONCE and not self._resting:
            self._busy += 1
            self._runtime.work(partial(self._store, self._queue.popleft()))

    def _store(self, move: MetadataUpdate) -> None:
        """In one of the threads for what blocks."""
        topic, name = move.slot.key
        error: Exception | None = None
        try:
            change_subscription(self._runtime.metadata, topic, name, move.slot.owner, move.change)
        except Exception as caught:
            error = caught
        self._post(partial(self._stored, move, error))

    def _stored(self, move: MetadataUpdate, error: Exception | None) -> None:
        self._busy -= 1
        if isinstance(error, MetadataUnavailableError | OutcomeUnknownError):
            self._queue.append(move)
            self._rest(error)
            return
        self._failures = 0
        self.pending -= 1
        self._done(move, error)
        self._go_on()

    def _rest(self, error: ReplogError) -> None:
        if self._resting:
            return
        if not self._failures:
            logger.warning("%d cursors wait for the metadata store: %s", self.pending, error)
        self._resting = True
        seconds = min(self._retry_s * 2 ** min(self._failures, 20), self._retry_max_s)
        self._failures += 1
        self._runtime.wake_after(seconds, partial(self._post, self._rested))

    def _rested(self) -> None:
        self._resting = False
        self._go_on()
