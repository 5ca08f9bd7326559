"""CursorPersister: one cursor in the cursor log; CursorLedger: a ledger that holds states of cursors.

A persister notes that its cursor has changed; `cursor_flusher` writes the change, and then it is durable.
"""

from __future__ import annotations

from typing import Protocol

from pyreplog.errors import ReplogError
from pyreplog.future import AppendFuture
from pyreplog.ledger.ledger_handle import Ledger


class CursorSource(Protocol):
    """A cursor, as the cursor log sees it. One thread calls these methods, without any lock.

    Sequences ascend. A record holds the changes since the record before it, whatever kind that is; a snapshot holds
    all. Changes that a record of more than 1 MiB left out are in the next one, which is asked for at once.
    """

    def take_changes(self) -> tuple[int, bytes] | None:
        """Return (sequence, record) of the changes; None: there are none. The record may be a snapshot."""
        ...

    def snapshot_record(self) -> tuple[int, bytes]:
        """Return (sequence, record) of the whole state."""
        ...

    def persisted(self, sequence: int) -> None:
        """Note that all records up to this one are durable: the next owner of the subscription finds them."""
        ...

    def lost(self, error: ReplogError) -> None:
        """Note that nothing more can be persisted.

        error: TopicFencedError if another process took the subscription over; or it was deleted, or its metadata are
        invalid.
        """
        ...


class CursorLedger:
    """A cursor ledger, and the cursors of this process whose state it holds.

    handle: None if a former owner, or a forgotten owner of this process, wrote it.
    """

    __slots__ = ("began", "handle", "is_abandoned", "is_closed", "is_done", "is_retired", "ledger", "naming", "nbytes",
                 "persisters")  # fmt: skip

    def __init__(self, ledger: int, handle: Ledger | None = None, began: float = 0.0) -> None:
        self.ledger, self.handle, self.began = ledger, handle, began
        self.persisters: dict[CursorPersister, None] = {}  # in the order in which they came
        self.naming = 0
        """Number of pending metadata updates that make a subscription refer to it."""
        self.nbytes = 0
        self.is_retired = self.is_closed = handle is None
        self.is_abandoned = handle is None
        """Subscriptions that this process does not own (any more) may refer to it."""
        self.is_done = False

    @property
    def is_free(self) -> bool:
        """No cursor of this process has, or will have, its state here."""
        return self.is_retired and self.is_closed and not self.persisters and not self.naming


class PersisterLog(Protocol):
    """The part of a cursor log that its persisters use."""

    def queue(self, persister: CursorPersister) -> None: ...
    def wait_for(self, persister: CursorPersister, into_metadata: bool) -> AppendFuture[None]: ...
    def release(self, persister: CursorPersister, deleted: bool) -> None: ...


class CursorPersister:
    """The persister of one durable cursor in a CursorLog. Any thread may call its methods; none of them waits."""

    __slots__ = ("cursor_ledger", "error", "into_metadata", "is_busy", "is_dirty", "is_parked", "is_whole", "key",
                 "log", "moved_us", "owner", "served", "source", "waiting")  # fmt: skip

    def __init__(self, log: PersisterLog, topic: str, subscription: str, owner: str, source: CursorSource) -> None:
        self.log, self.source, self.owner = log, source, owner
        self.key = (topic, subscription)
        self.moved_us = 0  # when the cursor's mark last moved; 0: not since it was attached
        self.is_dirty = False  # this and `moved_us` are set by any thread, all below by the log's thread
        self.is_busy = False  # its records are in flight
        self.is_parked = False  # it was queued again meanwhile
        self.is_whole = False  # the last records may be lost, so the next one must be a snapshot
        self.into_metadata = False
        self.cursor_ledger: CursorLedger | None = None  # None: the state is in the metadata
        self.waiting: list[AppendFuture[None]] = []  # futures of the next flush
        self.served: list[AppendFuture[None]] = []  # futures of the flush in flight
        self.error: ReplogError | None = None

    def dirty(self) -> None:
        """Note that the cursor has changed. Cheap enough for every acknowledgement: it rarely takes a lock."""
        if not self.is_dirty:
            self.is_dirty = True
            self.log.queue(self)

    def flush(self) -> AppendFuture[None]:
        """Persist all changes at once; the future is done when they are durable, or fails with the error passed to
        `lost`.

        It waits while the metadata store, or both the store and the bookies, cannot be reached.
        """
        return self.log.wait_for(self, False)

    def store_clean(self) -> AppendFuture[None]:
        """Persist all changes in the metadata store, if the cursor's snapshot is small enough; otherwise as `flush`
        does.

        The next owner then needs to read no ledger. For a subscription that is about to be closed.
        """
        return self.log.wait_for(self, True)

    def close(self, *, deleted: bool = False) -> None:
        """Persist nothing more; messages whose acknowledgements were not flushed are delivered again by the next owner.

        deleted: the subscription's metadata do not exist any more.
        """
        self.log.release(self, deleted)
