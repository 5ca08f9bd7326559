"""TimedReason: the value of keys that say since when something holds, and why: orders, and the hold."""

from __future__ import annotations

from dataclasses import dataclass

from pyreplog.errors import InvalidMetadataError
from pyreplog.metadata.values import Kept, field, split_object

VERSION = 1
TIME_MAX = 1 << 62

_NEW = Kept(VERSION, VERSION)
_FIELDS = ("since_us", "reason")


@dataclass(frozen=True)
class TimedReason:
    """A time and a reason.

    Attributes:
        since_us: since when, microseconds since 1970-01-01 UTC; 0: unknown.
        reason: for operators.
        kept: fields of other versions, which are written back as they were.
    """

    since_us: int
    reason: str
    kept: Kept = _NEW

    def encode(self) -> bytes:
        """Return the value of the key."""
        return self.kept.encode({"since_us": self.since_us, "reason": self.reason})

    @classmethod
    def decode(cls, key: str, data: bytes) -> TimedReason:
        """Return what a value says.

        A value that is malformed, or that needs a newer reader, holds as well: its reason is the error.

        Args:
            key: the key, for the error.
            data: the value.
        """
        try:
            body, kept = split_object(key, data, _FIELDS, VERSION)
            since_us = field(body, "since_us", int)
            if not 0 <= since_us <= TIME_MAX:
                raise ValueError(f"since_us: expected 0 to {TIME_MAX}, found {since_us}")
            return cls(since_us, field(body, "reason", str), kept)
        except (ValueError, InvalidMetadataError) as error:
            return cls(0, f"{key}: {data[:80]!r}: {error}")
