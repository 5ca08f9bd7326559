"""CursorSlot: the place of one cursor in the cursor log; CursorLedger: a ledger that holds states of cursors."""

from __future__ import annotations

from typing import Protocol

from pyreplog.errors import ReplogError
from pyreplog.future import AppendFuture
from pyreplog.ledger.ledger_handle import Ledger


class CursorSource(Protocol):
    """A cursor, as far as it is persisted. One thread calls these, without any lock: who needs one takes it itself.

    Sequences ascend. A record holds what changed since the record before it, of either kind; a snapshot holds all. What
    a record of more than 1 MiB left out is in the next one, which is asked for at once.
    """

    def take_changes(self) -> tuple[int, bytes] | None:
        """(sequence, record) of what has changed; None: nothing has. It may be a snapshot, too."""
        ...

    def snapshot_record(self) -> tuple[int, bytes]:
        """(sequence, record) of the whole state."""
        ...

    def persisted(self, sequence: int) -> None:
        """All records up to this one are durable: the next owner of the subscription finds them."""
        ...

    def lost(self, error: ReplogError) -> None:
        """Nothing more can be persisted: TopicFencedError, somebody took the subscription over; or it was deleted, or
        its metadata make no sense."""
        ...


class CursorLedger:
    """A cursor ledger, and the cursors of this process whose state is in it.

    handle: None, it is a former owner's, or was one's of this process that is forgotten.
    """

    __slots__ = ("began", "handle", "is_abandoned", "is_closed", "is_done", "is_retired", "ledger", "naming", "nbytes",
                 "slots")  # fmt: skip

    def __init__(self, ledger: int, handle: Ledger | None = None, began: float = 0.0) -> None:
        self.ledger, self.handle, self.began = ledger, handle, began
        self.slots: set[CursorSlot] = set()
        self.naming = 0
        """How many subscriptions' metadata may just now be changed to name it."""
        self.nbytes = 0
        self.is_retired = self.is_closed = handle is None
        self.is_abandoned = handle is None
        """Subscriptions may refer to it that this process does not hold, or not any more."""
        self.is_done = False

    @property
    def is_free(self) -> bool:
        """No cursor of this process has its state here, or will."""
        return self.is_retired and self.is_closed and not self.slots and not self.naming


class SlotLog(Protocol):
    """The part of a cursor log that its slots call."""

    def queue(self, slot: CursorSlot) -> None: ...
    def wait_for(self, slot: CursorSlot, into_metadata: bool) -> AppendFuture[None]: ...
    def let_go(self, slot: CursorSlot, deleted: bool) -> None: ...


class CursorSlot:
    """One durable cursor's place in a CursorLog. Any thread may call its methods; none of them waits."""

    __slots__ = ("error", "home", "into_metadata", "is_busy", "is_dirty", "is_parked", "is_whole", "key", "log",
                 "moved_us", "owner", "served", "source", "waiting")  # fmt: skip

    def __init__(self, log: SlotLog, topic: str, subscription: str, owner: str, source: CursorSource) -> None:
        self.log, self.source, self.owner = log, source, owner
        self.key = (topic, subscription)
        self.moved_us = 0  # when the cursor's mark last moved, 0: not since it is here
        self.is_dirty = False  # these two are set by any thread; all below is the log's thread's
        self.is_busy = False  # what was taken is on its way
        self.is_parked = False  # and it has to be taken again afterwards
        self.is_whole = False  # the last records may be lost: the next one must be a snapshot
        self.into_metadata = False
        self.home: CursorLedger | None = None  # None: the state is in the metadata
        self.waiting: list[AppendFuture[None]] = []  # for what is taken next
        self.served: list[AppendFuture[None]] = []  # for what is on its way
        self.error: ReplogError | None = None

    def dirty(self) -> None:
        """The cursor has changed. Cheap enough for every acknowledgement: it takes no lock but now and then."""
        if not self.is_dirty:
            self.is_dirty = True
            self.log.queue(self)

    def flush(self) -> AppendFuture[None]:
        """Persist what has changed so far at once; done when it is durable, or fails with what `lost` was told.

        While the metadata store, or both that and the bookies, cannot be reached, it waits.
        """
        return self.log.wait_for(self, False)

    def store_clean(self) -> AppendFuture[None]:
        """As flush, into the metadata store if the cursor's snapshot is small enough: nobody has to read a ledger
        then to find it. For a subscription that is about to be closed."""
        return self.log.wait_for(self, True)

    def close(self, *, deleted: bool = False) -> None:
        """Nothing of this cursor is persisted any more: what was not flushed is redelivered when it is opened next.

        deleted: the subscription's metadata are gone.
        """
        self.log.let_go(self, deleted)
