"""Times: a datetime with a time zone, or microseconds since 1970-01-01 UTC."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from pyreplog.errors import InvalidArgumentError

Time = int | datetime
"""Microseconds since the epoch, or a datetime with a time zone."""

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def moment_us(name: str, moment: datetime) -> int:
    """Return the microseconds since the epoch of a datetime.

    Raises InvalidArgumentError if it has no time zone, or its time zone moves it out of the valid years.
    """
    if moment.utcoffset() is None:
        raise InvalidArgumentError(
            f"{name}: expected a datetime with a time zone, found {moment!r}: give it one, as in "
            f"datetime.now(UTC) or moment.astimezone()"
        )
    try:
        return (moment.astimezone(UTC) - EPOCH) // timedelta(microseconds=1)
    except (OverflowError, ValueError, OSError) as error:
        raise InvalidArgumentError(f"{name}: expected a moment that UTC has, found {moment}: {error}") from None


def moment_at(time_us: int) -> datetime:
    """Return microseconds since the epoch as a datetime. Raises OverflowError if it is out of a datetime's range."""
    return EPOCH + timedelta(microseconds=time_us)
