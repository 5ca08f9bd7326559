"""The effects that the state machines of groups return."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

GroupRecord = tuple[bytes, bytes | None]
"""Key and value of a record; None: a tombstone."""


class Moment(NamedTuple):
    """A point in time, on both clocks.

    Attributes:
        us: monotonic time, microseconds.
        wall_ms: wall-clock time, milliseconds since 1970-01-01 UTC.
    """

    us: int
    wall_ms: int


class Respond(NamedTuple):
    """Send the response to a request."""

    request: Any
    result: Any


class AppendRecords(NamedTuple):
    """Append records atomically, and report the outcome to the state machine.

    Attributes:
        token: identifies the append in `appended`, `append_failed` and `append_unknown`.
        records: keys and values.
        producer: id and epoch of the producer, if the records belong to its transaction.
        verification: verification token of the transaction.
    """

    token: object
    records: Sequence[GroupRecord]
    producer: tuple[int, int] | None = None
    verification: int | None = None


class GroupDeleted(NamedTuple):
    """Remove the group: the log has no records of it."""


class GroupDissolved(NamedTuple):
    """Free the group's name for any protocol: the log has only offsets of the group."""


GroupEffect = Respond | AppendRecords | GroupDeleted | GroupDissolved
