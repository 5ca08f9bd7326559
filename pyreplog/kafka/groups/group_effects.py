"""What the machine of a group asks for."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

GroupRecord = tuple[bytes, bytes | None]
"""Key and value of a record; None: a tombstone."""


class Moment(NamedTuple):
    """A moment in both times.

    Attributes:
        us: monotonic, microseconds.
        wall_ms: milliseconds since 1970-01-01 UTC.
    """

    us: int
    wall_ms: int


class Respond(NamedTuple):
    """Complete a request."""

    request: Any
    result: Any


class AppendRecords(NamedTuple):
    """Append records, all of them or none, and tell the machine the outcome.

    Attributes:
        token: of the append, for `appended`, `append_failed` and `append_unknown` of the machine.
        records: keys and values.
        producer: id and epoch, if the records belong to its transaction.
        verification: of that transaction.
    """

    token: object
    records: Sequence[GroupRecord]
    producer: tuple[int, int] | None = None
    verification: int | None = None


class GroupDeleted(NamedTuple):
    """There is nothing left of the group: forget it."""


class GroupDissolved(NamedTuple):
    """The log holds nothing of the group but its offsets: the name is free for a group of any protocol."""


GroupEffect = Respond | AppendRecords | GroupDeleted | GroupDissolved
