"""Times as arguments of topics: one time or a column, whose unit is certain. `pyreplog.times` has moments."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from typing import TYPE_CHECKING, Any, NoReturn, SupportsIndex

import numpy as np

from pyreplog.arguments import as_microseconds
from pyreplog.errors import InvalidArgumentError
from pyreplog.times import Time, moment_us

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

    Times = Iterable[int | datetime | None] | ArrayLike

YEAR_2001_US = 978_307_200_000_000
YEAR_2100_US = 4_102_444_800_000_000

PLAIN_MIN_US, PLAIN_MAX_US = YEAR_2100_US // 1_000, YEAR_2001_US * 1_000
"""An integer between them is no number of seconds, milliseconds or nanoseconds of a moment from 2001 to 2100."""


class KnownTime(int):
    """Microseconds since the epoch from a datetime or a stored message: the unit is certain."""


class KnownTimes(np.ndarray[Any, np.dtype[np.int64]]):
    """A column of microseconds since the epoch whose unit is certain; see `KnownTime`."""


def known_time(time_us: int | None) -> KnownTime | None:
    """Return the time of a stored message, for publishing that message again."""
    return None if time_us is None else KnownTime(time_us)


def as_time_us(name: str, time: Time) -> int:
    """Return the microseconds since the epoch of one time.

    Raises WrongTypeError; InvalidArgumentError for a datetime without a time zone, or for an integer that can only be
    seconds, milliseconds or nanoseconds.
    """
    if type(time) is int and PLAIN_MIN_US <= time < PLAIN_MAX_US:
        return time
    if isinstance(time, KnownTime):
        return int(time)
    time_us = as_microseconds(name, time)
    if isinstance(time, datetime):
        return time_us
    if has_other_unit(time_us):
        refuse_unit(name, time_us)
    return time_us


def as_times_us(name: str, times: Times | None) -> Any:
    """Return a column of times in the form that `Messages` takes. Raises the errors of `as_time_us`.

    A value of the wrong type is returned as it is, because `Messages` refuses it with WrongTypeError.
    """
    if times is None or isinstance(times, KnownTimes):
        return times
    if isinstance(times, np.ndarray) and times.dtype.kind in "iu":
        _check_column(name, times)
        return times
    if not isinstance(times, Iterable) or isinstance(times, str | bytes) or hasattr(times, "buffers"):
        return times
    items: Any = times if isinstance(times, list | tuple) else list(times)
    if all(type(time) is int and PLAIN_MIN_US <= time < PLAIN_MAX_US for time in items):
        return items
    return [_time_of_row(name, time, row) for row, time in enumerate(items)]


def _time_of_row(name: str, time: Any, row: int) -> Any:
    if isinstance(time, datetime):
        return KnownTime(moment_us(name, time))
    if isinstance(time, KnownTime):
        return time
    if isinstance(time, SupportsIndex) and not isinstance(time, bool) and has_other_unit(int(time)):
        refuse_unit(name, int(time), f" for message {row}")
    return time


def _check_column(name: str, times: Any) -> None:
    doubtful = times[(times < PLAIN_MIN_US) & (times >= YEAR_2001_US // 1_000_000) | (times >= PLAIN_MAX_US)]
    for time in doubtful.tolist():
        if has_other_unit(time):
            refuse_unit(name, time, f" for message {int((times == time).argmax())}")


def has_other_unit(time: int) -> bool:
    """Return whether an integer must be seconds, milliseconds or nanoseconds of a moment from 2001 to 2100."""
    return (
        time >= YEAR_2001_US * 1_000
        or YEAR_2001_US // 1_000 <= time < YEAR_2100_US // 1_000
        or YEAR_2001_US // 1_000_000 <= time < YEAR_2100_US // 1_000_000
    )


def refuse_unit(name: str, time: int, where: str = "", *, bounds: str = "", otherwise: str = "") -> NoReturn:
    """Raise InvalidArgumentError: a number is not in microseconds since the epoch.

    Args:
        bounds: the expected range, as text.
        otherwise: alternatives to a datetime, as text.
    """
    hint = f"give an aware datetime{otherwise}"
    if time >= YEAR_2001_US * 1_000:
        hint = f"these look like nanoseconds: divide by 1,000, or {hint}"
    elif time >= YEAR_2001_US // 1_000:
        hint = f"these look like milliseconds: multiply by 1,000, or {hint}"
    elif time >= YEAR_2001_US // 1_000_000:
        hint = f"these look like seconds: multiply by 1,000,000, or {hint}"
    raise InvalidArgumentError(f"{name}: expected microseconds since the epoch{bounds}, found {time}{where}: {hint}")
