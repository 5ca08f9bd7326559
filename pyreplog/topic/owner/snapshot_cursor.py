"""SnapshotCursor: a system cursor whose records are whole snapshots of a state that the topic's messages change."""

from __future__ import annotations

import secrets
import threading
from abc import ABC, abstractmethod
from contextlib import suppress
from typing import Any, NamedTuple

from pyreplog._native.topic.messages import MessageBatch
from pyreplog.cursors.cursor_persister import CursorPersister
from pyreplog.cursors.subscription_metadata import SubscriptionMetadata, create_subscription
from pyreplog.errors import InvalidMetadataError, KeyExistsError, ReplogError
from pyreplog.future import AppendFuture, set_result, then
from pyreplog.topic.client.publishing.publisher import Publisher
from pyreplog.topic.model.positions import ORIGIN, TopicPosition, position
from pyreplog.topic.model.system_cursor_record import SystemCursorRecord
from pyreplog.topic.owner.topic_context import TopicContext

SNAPSHOT_MESSAGES = 100_000
SNAPSHOT_US = 120_000_000


class StateSnapshot(NamedTuple):
    """A state.

    Attributes:
        offset: the messages before it are part of the state.
        data: the state, encoded.
        content: passed to `_stored` once it is stored.
    """

    offset: int
    data: bytes
    content: Any = None


class _Located(NamedTuple):
    """A snapshot, its number, and its position in the topic."""

    number: int
    mark: TopicPosition
    snapshot: StateSnapshot


class SnapshotCursor(ABC):
    """A `SystemCursor`, and a `CursorSource`. Messages behind its mark are read again when the topic is opened, so they
    are not trimmed. Any thread; `recover` and `create` wait.
    """

    name: str
    needed_by: str
    is_small = False
    """Whether the last state is stored in the metadata, where other processes see the mark without reading a ledger."""
    replays = True
    """Whether messages behind the mark are part of the state."""

    def __init__(self, context: TopicContext) -> None:
        self._context = context
        self._publisher: Publisher | None = None
        self.mark = ORIGIN
        """The mark as it is stored."""
        self._taking = threading.RLock()  # held while a snapshot is taken, so that numbers are in their order
        self._taken = 0  # number of the last one
        self._taken_us: int | None = None
        self._lock = threading.Lock()  # guards the following
        self._persister: CursorPersister | None = None
        self._sequence = 0
        self._known = _Located(0, ORIGIN, StateSnapshot(0, b""))
        self._is_new = False
        self._in_flight: dict[int, _Located] = {}

    # ---- of the subclass ------------------------------------------------------------------------------------

    @abstractmethod
    def _empty(self) -> bytes:
        """Return the state before the first message."""

    @abstractmethod
    def _restore(self, data: bytes) -> None:
        """Begin with a stored state. Raises InvalidMetadataError if it is malformed."""

    @abstractmethod
    def _replay(self, batch: MessageBatch) -> None:
        """Apply messages behind the mark, in order."""

    @abstractmethod
    def _take(self) -> StateSnapshot | None:
        """Return the present state; None: there is none."""

    def _stored(self, snapshot: StateSnapshot) -> None:  # noqa: B027
        """Note that a snapshot, and with it all earlier ones, is stored."""

    # ---- opening --------------------------------------------------------------------------------------------

    def recover(self) -> None:
        """Read the stored state, and all messages that were published since; create it if there is none."""
        self.create(self._context.managed.start)
        context, managed = self._context, self._context.managed
        recovered = context.cursors.recover(context.name, self.name, epoch=managed.topic_epoch)
        if not recovered.records:
            raise InvalidMetadataError(f"record of {self.name}: there is none")
        self._sequence, self.mark, state = SystemCursorRecord.from_bytes(self.name, recovered.records[-1])
        self._known = _Located(0, self.mark, StateSnapshot(self.mark.offset, state))
        self._restore(state)
        at = max(self.mark.offset, managed.start.offset)
        while self.replays and at < managed.end.offset:
            batch = context.runtime.wait(managed.read(at))
            self._replay(batch)
            at = batch.end
        self._persister = context.cursors.attach(recovered, self)

    def create(self, mark: TopicPosition) -> None:
        """Store an empty state up to `mark`, unless a state is stored."""
        context = self._context
        metadata = SubscriptionMetadata(
            token=secrets.token_hex(16), created_us=context.clock.now_us(),
            snapshot=SystemCursorRecord(0, mark, self._empty()).to_bytes(),
        )  # fmt: skip
        with suppress(KeyExistsError):
            create_subscription(context.metadata, context.name, self.name, metadata)

    def follow(self, publisher: Publisher) -> None:
        """Take snapshots from this publisher."""
        self._publisher = publisher

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
        if behind >= SNAPSHOT_MESSAGES or is_late or self._has_news(self._publisher):
            self._before_snapshot(self._publisher, now_us)
            self._taken_us = now_us
            self.store()

    def _has_news(self, publisher: Publisher) -> bool:
        """Return whether a snapshot should be stored soon."""
        return False

    def _before_snapshot(self, publisher: Publisher, now_us: int) -> None:  # noqa: B027
        """Forget what need not be stored."""

    def store(self, *, is_last: bool = False) -> AppendFuture[None]:
        """Store a snapshot of the present state. is_last: before the topic is closed."""
        done: AppendFuture[None] = AppendFuture()
        persister = self._persister
        with self._taking:
            self._taken += 1
            number = self._taken  # first: taking a snapshot may lead to another one, which is newer
            taken = None if persister is None else self._take()
        if taken is None or persister is None:
            set_result(done, None)
            return done

        def located(mark: TopicPosition) -> None:
            with self._lock:
                if number > self._known.number:  # a later snapshot may have been located first
                    self._known, self._is_new = _Located(number, mark, taken), True
            persister.dirty()
            then(persister.store_clean() if is_last and self.is_small else persister.flush(), done, stored)

        def stored(_: None) -> None:
            self._context.touch()  # ledgers may be trimmed now, or publishers may go on
            set_result(done, None)

        then(position(self._context.managed, taken.offset), done, located)
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
            self._in_flight[self._sequence] = known = self._known
            return self._sequence, SystemCursorRecord(self._sequence, known.mark, known.snapshot.data).to_bytes()

    def persisted(self, sequence: int) -> None:
        last: _Located | None = None
        with self._lock:
            for number in [number for number in self._in_flight if number <= sequence]:
                last = self._in_flight.pop(number)
                self.mark = last.mark
        if last is not None and last.snapshot.content is not None:
            self._stored(last.snapshot)

    def lost(self, error: ReplogError) -> None:  # noqa: B027
        """Do nothing: the topic has another owner, which its ledgers report, too."""

    # ---- the end --------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Store nothing any more."""
        if self._persister is not None:
            self._persister.close()
