"""SubscriptionJournal: the durable records of a topic's replicated subscriptions."""

from __future__ import annotations

import secrets
import struct
import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress

from pyreplog.cursors.cursor_persister import CursorPersister
from pyreplog.cursors.subscription_metadata import SubscriptionMetadata, create_subscription
from pyreplog.errors import InvalidMetadataError, KeyExistsError, ReplogError
from pyreplog.future import AppendFuture, completed_future
from pyreplog.geo.acks.effects import Persist
from pyreplog.topic.client.publishing.publisher import Publisher
from pyreplog.topic.model.positions import TopicPosition
from pyreplog.topic.model.system_cursor_record import SystemCursorRecord
from pyreplog.topic.owner.subscriptions import JOURNAL
from pyreplog.topic.owner.topic_context import TopicContext

VERSION = 1
_WHOLE = 1
_HEAD = struct.Struct("<BB2xI")  # version, flags, number of records
_SIZE = struct.Struct("<I")


class SubscriptionJournal:
    """A `SystemCursor` and a `CursorSource` whose records hold those of `geo.acks.journal`. It keeps no messages.

    Any thread may call its methods; `recover` waits.

    Args:
        context: the topic.
        on_persisted: called with the sequence up to which all records are durable.
        on_lost: called when records can no longer be stored.
    """

    name = JOURNAL
    needed_by = "subscriptions that are replicated to other clusters"

    def __init__(
        self,
        context: TopicContext,
        on_persisted: Callable[[int], object],
        on_lost: Callable[[ReplogError], object],
    ) -> None:
        self._context, self._on_persisted, self._on_lost = context, on_persisted, on_lost
        self._persister: CursorPersister | None = None
        self._lock = threading.Lock()  # guards the attributes below
        self._records: list[bytes] = []  # from the last snapshot on
        self._taken = 0  # number of records that were given to the cursor log
        self._last = 0  # sequence of the last record
        self._sequence = 0  # of the last record of the cursor
        self._in_flight: deque[tuple[int, int]] = deque()  # sequences of cursor records, and of the last record in each

    @property
    def mark(self) -> TopicPosition:
        """The end of the topic: no message is needed."""
        return self._context.managed.end

    @property
    def cursor_ledger(self) -> int:
        """Ledger of the last stored state; -1: the metadata store."""
        stored_in = None if self._persister is None else self._persister.cursor_ledger
        return -1 if stored_in is None else stored_in.ledger

    @property
    def records(self) -> list[bytes]:
        """The records that `recover` read, for `journal.replay`."""
        return list(self._records)

    def recover(self) -> None:
        """Read the stored records; create the journal if it does not exist."""
        context, managed = self._context, self._context.managed
        metadata = SubscriptionMetadata(
            token=secrets.token_hex(16), created_us=context.clock.now_us(),
            snapshot=SystemCursorRecord(0, managed.start, encode_records([], whole=True)).to_bytes(),
        )  # fmt: skip
        with suppress(KeyExistsError):
            create_subscription(context.metadata, context.name, self.name, metadata)
        recovered = context.cursors.recover(context.name, self.name, epoch=managed.topic_epoch)
        records: list[bytes] = []
        for data in recovered.records:
            self._sequence, _, state = SystemCursorRecord.from_bytes(self.name, data)
            whole, more = decode_records(state)
            records = more if whole else [*records, *more]
        self._records, self._taken = records, len(records)
        self._persister = context.cursors.attach(recovered, self)

    def append(self, record: Persist) -> None:
        """Store a record at once."""
        with self._lock:
            if record.is_snapshot:
                self._records, self._taken = [], 0
            self._records.append(record.data)
            self._last = record.sequence
        if self._persister is not None:
            self._persister.dirty()
            self._persister.flush()

    def follow(self, publisher: Publisher) -> None:
        """Do nothing: messages do not change the journal."""

    def store_if_due(self) -> None:
        """Do nothing: each record is stored at once."""

    def store(self, *, is_last: bool = False) -> AppendFuture[None]:
        """Store the records that are not stored yet."""
        return completed_future() if self._persister is None else self._persister.flush()

    def close(self) -> None:
        """Stop storing records."""
        if self._persister is not None:
            self._persister.close()

    # ---- CursorSource ---------------------------------------------------------------------------------------

    def take_changes(self) -> tuple[int, bytes] | None:
        """Return the records since the last call."""
        with self._lock:
            return self._take(self._taken) if self._taken < len(self._records) else None

    def snapshot_record(self) -> tuple[int, bytes]:
        """Return all records from the last snapshot on."""
        with self._lock:
            return self._take(0)

    def _take(self, start: int) -> tuple[int, bytes]:
        self._sequence += 1
        self._in_flight.append((self._sequence, self._last))
        state = encode_records(self._records[start:], whole=start == 0)
        self._taken = len(self._records)
        return self._sequence, SystemCursorRecord(self._sequence, self.mark, state).to_bytes()

    def persisted(self, sequence: int) -> None:
        """Note that the cursor records up to `sequence` are durable."""
        last = 0
        with self._lock:
            while self._in_flight and self._in_flight[0][0] <= sequence:
                last = self._in_flight.popleft()[1]
        if last:
            self._on_persisted(last)

    def lost(self, error: ReplogError) -> None:
        """Note that records can no longer be stored."""
        self._on_lost(error)


def encode_records(records: list[bytes], *, whole: bool) -> bytes:
    """Return the state of a record of the cursor.

    Args:
        records: records of `geo.acks.journal`.
        whole: whether they are all records, so that no earlier record is needed.
    """
    parts = [part for data in records for part in (_SIZE.pack(len(data)), data)]
    return _HEAD.pack(VERSION, _WHOLE if whole else 0, len(records)) + b"".join(parts)


def decode_records(state: bytes) -> tuple[bool, list[bytes]]:
    """Return whether the records are all, so that no earlier record is needed, and the records.

    Raises:
        InvalidMetadataError: the state is malformed, or has another version.
    """
    try:
        version, flags, count = _HEAD.unpack_from(state)
        if version != VERSION or count > len(state) // _SIZE.size:
            raise InvalidMetadataError(f"record of {JOURNAL}: expected version {VERSION}, found {version}, {count}")
        records, at = [], _HEAD.size
        for _ in range(count):
            (size,) = _SIZE.unpack_from(state, at)
            at += _SIZE.size + size
            records.append(state[at - size : at])
    except struct.error as error:
        raise InvalidMetadataError(f"record of {JOURNAL}: {error}") from error
    if at != len(state):
        raise InvalidMetadataError(f"record of {JOURNAL}: expected {len(state)} bytes, found {at}")
    return bool(flags & _WHOLE), records
