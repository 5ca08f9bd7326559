"""How far a log has been applied: what is stored, and what a store of it must do."""

from __future__ import annotations

from typing import NamedTuple, Protocol

from pyreplog._native.log.record import Record
from pyreplog._native.system.checksum import crc32c

_HEADER = 24  # length, CRC, stamp, time: what tells one record from another in its place


class Applied(NamedTuple):
    """All before `entry` has been applied.

    log: uuid of the log, the same on master and relay. position: bytes since the log began, behind the last record
    applied. entry: number of the first entry not applied. check: of the last record applied, 0 when there is none; a
    log that holds another record in its place is another history.
    """

    log: bytes
    position: int
    entry: int
    check: int = 0


class Advance(NamedTuple):
    """What applying one batch changes: `before` it, and `after`. Each begins where the one before it ended."""

    before: Applied
    after: Applied


def check_of(record: Record) -> int:
    """Of the last record applied; never 0."""
    return crc32c(record.raw[:_HEADER]) or 1


class PositionStore(Protocol):
    """Where the applied position is kept. One thread at a time."""

    @property
    def transactional(self) -> bool:
        """Whether the callback stores the position, in the transaction of what it applies (exactly once). If not, the
        applier calls `save` when the callback has returned (at least once)."""
        ...

    def load(self) -> Applied | None:
        """What is stored durably; None: nothing yet."""
        ...

    def begin(self, applied: Applied) -> None:
        """Store the first position, durably. PositionError when there is one."""
        ...

    def save(self, advance: Advance) -> None:
        """Store `advance.after`, durably. PositionError when what is stored is not `advance.before`."""
        ...
