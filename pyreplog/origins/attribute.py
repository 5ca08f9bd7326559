"""The record attribute of a replicated entry: FORMAT.md, "Origin attribute", has the bytes."""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from pyreplog.errors import InvalidEntryError
from pyreplog.origins.origin import GAPS_MAX, Gap, GapCause

TAG_ORIGIN = 5

_HEAD = struct.Struct("<Qqq")
_TAGGED = struct.Struct("<BHQqq")
_GAP = struct.Struct("<qqB")
_CAUSES: dict[int, GapCause] = {cause.value: cause for cause in GapCause}


class OriginAttribute(NamedTuple):
    """The origin of a replicated entry, as its record stores it.

    Attributes:
        key: `Origin.key`.
        first: offset at the origin of the first message.
        publish_time_us: when the origin stored the entry, microseconds since 1970.
        gaps: gaps between the entry of the origin before it and this one, ascending.
    """

    key: int
    first: int
    publish_time_us: int
    gaps: tuple[Gap, ...] = ()

    def to_bytes(self) -> bytes:
        """Encode the attribute with its tag and length."""
        size = _HEAD.size + _GAP.size * len(self.gaps)
        head = _TAGGED.pack(TAG_ORIGIN, size, self.key, self.first, self.publish_time_us)
        return head + b"".join([_GAP.pack(*gap) for gap in self.gaps]) if self.gaps else head

    @classmethod
    def from_bytes(cls, value: bytes) -> OriginAttribute:
        """Decode the value of the attribute, without tag and length. Raises InvalidEntryError if it is malformed."""
        if len(value) < _HEAD.size or (len(value) - _HEAD.size) % _GAP.size:
            raise InvalidEntryError(
                f"origin attribute: expected {_HEAD.size} bytes and a multiple of {_GAP.size}, found {len(value)}"
            )
        key, first, publish_time_us = _HEAD.unpack_from(value)
        gaps = tuple(decode_gaps(value[_HEAD.size :]))
        if first < 0 or (gaps and gaps[-1].end > first):
            raise InvalidEntryError(
                f"origin attribute: expected gaps before the first message, found {first} and {gaps}"
            )
        return cls(key, first, publish_time_us, gaps)


def encode_gaps(gaps: Sequence[Gap]) -> bytes:
    """Encode gaps, one behind the other."""
    return b"".join([_GAP.pack(*gap) for gap in gaps])


def decode_gaps(data: bytes) -> list[Gap]:
    """Decode gaps.

    Raises InvalidEntryError unless there are at most GAPS_MAX, ascending, none empty. A cause that this build does not
    know is `GapCause.LOST`.
    """
    if len(data) > GAPS_MAX * _GAP.size or len(data) % _GAP.size:
        raise InvalidEntryError(f"gaps: expected at most {GAPS_MAX} of {_GAP.size} bytes, found {len(data)} bytes")
    gaps = list(_decoded(data))
    at = 0
    for gap in gaps:
        if not at <= gap.start < gap.end:
            raise InvalidEntryError(f"gaps: expected one from {at} on that is not empty, found {gap}")
        at = gap.end
    return gaps


def _decoded(data: bytes) -> Iterator[Gap]:
    for start, end, number in _GAP.iter_unpack(data):
        yield Gap(start, end, _CAUSES.get(number, GapCause.LOST))
