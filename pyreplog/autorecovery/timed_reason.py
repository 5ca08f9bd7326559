"""TimedReason: a time and a reason, the value of the keys of orders and of the hold."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from pyreplog.errors import InvalidMetadataError
from pyreplog.metadata.values import MetadataValue, field, number


@dataclass(frozen=True)
class TimedReason(MetadataValue):
    """A time and a reason.

    Attributes:
        since_us: the time, microseconds since 1970-01-01 UTC; 0: unknown.
        reason: the reason, for operators.
    """

    KIND: ClassVar[str] = "time and reason"

    since_us: int
    reason: str

    @classmethod
    def _decode_fields(cls, fields: dict[str, Any]) -> dict[str, Any]:
        return {"since_us": number(fields, "since_us"), "reason": field(fields, "reason", str)}

    @classmethod
    def read(cls, key: str, data: bytes) -> TimedReason:
        """Decode the value of a key.

        A malformed value, or one that needs a newer reader, is returned as well, with the error as its reason.

        Args:
            key: the key, for the error.
            data: the value.
        """
        try:
            return cls.decode(data)
        except InvalidMetadataError as error:
            return cls(0, f"{key}: {error}")
