"""The cursor of deduplication: the position up to which the producers are known, and their state."""

from __future__ import annotations

import secrets
import threading
from contextlib import suppress

from pyreplog.clock import ahead_us
from pyreplog.cursors.cursor_persister import CursorPersister
from pyreplog.cursors.subscription_metadata import SubscriptionMetadata, create_subscription
from pyreplog.errors import InvalidMetadataError, KeyExistsError, ReplogError
from pyreplog.future import AppendFuture, set_result
from pyreplog.topic.client.publishing.publisher import Publisher
from pyreplog.topic.model.backlog import SYSTEM_PREFIX
from pyreplog.topic.model.dedup import Producers
from pyreplog.topic.model.positions import ORIGIN, TopicPosition, position, then
from pyreplog.topic.model.system_cursor_record import SystemCursorRecord
from pyreplog.topic.owner.topic_context import TopicContext

DEDUP = f"{SYSTEM_PREFIX}dedup"

SNAPSHOT_MESSAGES = 100_000
SNAPSHOT_US = 120_000_000
IDLE_US = 6 * 3_600_000_000
"""Producers that published nothing for so long are forgotten."""


class DedupCursor:
    """The deduplication cursor of one topic: a `SystemCursor`, and a `CursorSource` whose records are whole snapshots.

    Messages behind its mark are read again when the topic is opened, so they are not trimmed.
    """

    name = DEDUP
    needed_by = "deduplicate=True"

    def __init__(self, context: TopicContext) -> None:
        self._context = context
        self._publisher: Publisher | None = None
        self.producers = Producers()
        self.mark = ORIGIN
        """The mark as it is stored."""
        self._lock = threading.Lock()
        self._persister: CursorPersister | None = None
        self._sequence = 0
        self._known = (ORIGIN, b"")
        self._is_new = False
        self._in_flight: dict[int, TopicPosition] = {}
        self._taken_us: int | None = None

    def recover(self) -> None:
        """Read the stored state, and all messages that were published since."""
        context, managed = self._context, self._context.managed
        record = SystemCursorRecord(0, managed.start, self.producers.snapshot()).to_bytes()
        metadata = SubscriptionMetadata(
            token=secrets.token_hex(16), created_us=context.clock.now_us(), snapshot=record
        )  # fmt: skip
        with suppress(KeyExistsError):
            create_subscription(context.metadata, context.name, DEDUP, metadata)
        recovered = context.cursors.recover(context.name, DEDUP, epoch=managed.topic_epoch)
        ahead = ahead_us(context.clock)
        self._begin(recovered.records, ahead)
        at = max(self.mark.offset, managed.start.offset)
        while at < managed.end.offset:
            batch = context.runtime.wait(managed.read(at))
            self.producers.replay(batch, ahead)
            at = batch.end
        self._persister = context.cursors.attach(recovered, self)

    def follow(self, publisher: Publisher) -> None:
        """Take snapshots from this publisher, which uses `producers`."""
        self._publisher = publisher

    def _begin(self, records: list[bytes], ahead: int) -> None:
        """Begin with the newest record. Raises InvalidMetadataError."""
        if not records:
            raise InvalidMetadataError(f"record of {DEDUP}: there is none")
        self._sequence, self.mark, state = SystemCursorRecord.from_bytes(DEDUP, records[-1])
        self._known = (self.mark, state)
        self.producers.restore(state, ahead)

    @property
    def cursor_ledger(self) -> int:
        """Ledger of the last stored state; -1: the metadata store."""
        stored_in = None if self._persister is None else self._persister.cursor_ledger
        return -1 if stored_in is None else stored_in.ledger

    # ---- storing --------------------------------------------------------------------------------------------

    def store_if_due(self) -> None:
        """Store a snapshot if many messages would have to be read again, or the last one is old."""
        if self._publisher is None:
            return
        now_us = self._context.clock.monotonic_us()
        behind = self._context.managed.end.offset - self.mark.offset
        is_late = behind > 0 and (self._taken_us is None or now_us - self._taken_us > SNAPSHOT_US)
        if behind >= SNAPSHOT_MESSAGES or is_late or self._publisher.has_new_failures:
            self._publisher.purge(now_us - IDLE_US)
            self._taken_us = now_us
            self.store()

    def store(self) -> AppendFuture[None]:
        """Store a snapshot of the present state."""
        done: AppendFuture[None] = AppendFuture()
        taken = None if self._publisher is None else self._publisher.snapshot()
        if taken is None or self._persister is None:
            set_result(done, None)
            return done
        offset, data = taken

        def located(total: TopicPosition) -> None:
            assert self._persister is not None
            with self._lock:
                if total.offset >= self._known[0].offset:  # a later snapshot may have been located first
                    self._known, self._is_new = (total, data), True
            self._persister.dirty()
            then(self._persister.flush(), done, stored)

        def stored(_: None) -> None:
            self._context.touch()  # ledgers may be trimmed now, or publishers may go on
            set_result(done, None)

        then(position(self._context.managed, offset), done, located)
        return done

    def take_changes(self) -> tuple[int, bytes] | None:
        with self._lock:
            if not self._is_new:
                return None
        return self.snapshot_record()

    def snapshot_record(self) -> tuple[int, bytes]:
        with self._lock:
            self._sequence += 1
            self._is_new = False
            total, data = self._known
            self._in_flight[self._sequence] = total
            return self._sequence, SystemCursorRecord(self._sequence, total, data).to_bytes()

    def persisted(self, sequence: int) -> None:
        with self._lock:
            for number in [number for number in self._in_flight if number <= sequence]:
                self.mark = self._in_flight.pop(number)

    def lost(self, error: ReplogError) -> None:
        """Do nothing: the topic has another owner, which its ledgers report, too."""

    # ---- the end --------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Store nothing any more."""
        if self._persister is not None:
            self._persister.close()
