"""The applied position of a log, and the protocol of its stores."""

from __future__ import annotations

from typing import NamedTuple, Protocol


class Applied(NamedTuple):
    """An applied position: all entries before it are applied.

    Attributes:
        log: uuid of the log, 16 bytes, the same at the master and in the relay.
        position: position behind the last applied record, bytes from the beginning of the log.
        entry: number of the first entry that is not applied.
        check: checksum of the last applied record; 0: none. A log with another record there has another history.
    """

    log: bytes
    position: int
    entry: int
    check: int = 0


class Advance(NamedTuple):
    """The change of the applied position by one batch. Each begins where the one before it ended.

    Attributes:
        before: the position before the batch.
        after: the position behind the batch.
    """

    before: Applied
    after: Applied


class PositionStore(Protocol):
    """A store of the applied position. One thread at a time calls it."""

    @property
    def transactional(self) -> bool:
        """Whether the function stores the position itself, in the transaction that applies the batch (exactly once).

        If False, the applier calls `save` when the function has returned (at least once).
        """
        ...

    def load(self) -> Applied | None:
        """Return the position that is stored durably; None: none is stored."""
        ...

    def begin(self, applied: Applied) -> None:
        """Store the first position, durably.

        Args:
            applied: the position.

        Raises:
            PositionError: a position is stored already.
        """
        ...

    def save(self, advance: Advance) -> None:
        """Store `advance.after`, durably.

        Args:
            advance: the change.

        Raises:
            PositionError: the stored position is not `advance.before`.
        """
        ...
