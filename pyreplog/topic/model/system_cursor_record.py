"""Records of system cursors, each a whole snapshot: FORMAT.md, "System cursor record", has the bytes."""

from __future__ import annotations

import struct
from collections.abc import Iterable
from typing import NamedTuple

from pyreplog.errors import InvalidMetadataError
from pyreplog.topic.model.positions import TopicPosition

_HEAD = struct.Struct("<4Q")  # sequence of the record; messages, entries and bytes before its mark


class SystemCursorRecord(NamedTuple):
    """A record of a system cursor.

    Attributes:
        sequence: the sequence of the record before, plus 1 or more.
        mark: messages from here on are needed.
        state: bytes whose form depends on the cursor.
    """

    sequence: int
    mark: TopicPosition
    state: bytes

    def to_bytes(self) -> bytes:
        """Encode the record."""
        return _HEAD.pack(self.sequence, *self.mark) + self.state

    @classmethod
    def from_bytes(cls, name: str, data: bytes) -> SystemCursorRecord:
        """Decode a record of the cursor `name`. Raises InvalidMetadataError if it is malformed."""
        try:
            sequence, *mark = _HEAD.unpack_from(data)
        except struct.error as error:
            raise InvalidMetadataError(f"record of {name}: {error}") from error
        return cls(sequence, TopicPosition(*mark), data[_HEAD.size :])


class StoredMark(NamedTuple):
    """The mark of a stored system cursor.

    Attributes:
        mark: the newest known mark; None: no mark is known.
        problem: why the newest record could not be understood; "" if it was.
    """

    mark: TopicPosition | None
    problem: str


def stored_mark(name: str, records: Iterable[bytes], end: TopicPosition | None = None) -> StoredMark:
    """Find the mark in the stored records of a system cursor, which another version may have written.

    An older record is used if a newer one cannot be understood: its mark lies before that of the newer one.

    Args:
        name: name of the cursor.
        records: the newest record first.
        end: end of the topic, behind which no mark can be; None: the end is not known exactly.
    """
    problem = ""
    for data in records:
        try:
            mark = SystemCursorRecord.from_bytes(name, data).mark
        except InvalidMetadataError as error:
            problem = problem or str(error)
            continue
        if end is None or all(part <= limit for part, limit in zip(mark, end, strict=True)):
            return StoredMark(mark, problem)
        problem = problem or f"record of {name}: expected a mark up to the end of the topic, {end}, found {mark}"
    return StoredMark(None, problem or f"record of {name}: there is none")
