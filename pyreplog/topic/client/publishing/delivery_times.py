"""The arguments `deliver_at` and `delay`, as microseconds since the epoch."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from types import NoneType
from typing import TYPE_CHECKING, Any, NoReturn, SupportsIndex, TypeVar

import numpy as np

from pyreplog.clock import Clock
from pyreplog.errors import InvalidArgumentError
from pyreplog.times import Time, moment_us
from pyreplog.topic.model.arguments import as_delay_us
from pyreplog.topic.model.times import PLAIN_MAX_US, YEAR_2001_US, as_time_us, refuse_unit

if TYPE_CHECKING:
    from pyreplog.topic.model.times import Times

EARLIEST_US = YEAR_2001_US
"""2001-01-01 UTC. Seconds and milliseconds of any later moment up to the year 33000 are smaller numbers."""

T = TypeVar("T")


def check_delivery(deliver_at: T, delay: float | None) -> T:
    """Return `deliver_at`, unless `delay` is passed as well. Raises WrongTypeError or InvalidArgumentError."""
    if delay is not None:
        as_delay_us(delay)
        if deliver_at is not None:
            raise InvalidArgumentError("delay: expected deliver_at or delay, found both: leave one out")
    return deliver_at


def delivery_time(deliver_at: Time | None, delay: float | None, clock: Clock) -> int | None:
    """Return the delivery time of one message; None or 0: it is not delayed.

    Raises WrongTypeError; InvalidArgumentError for a datetime without a time zone, a time before 2001, nanoseconds, or
    if both are passed.
    """
    if check_delivery(deliver_at, delay) is None:
        delay_us = as_delay_us(delay)
        return None if delay_us is None else clock.now_us() + delay_us
    assert deliver_at is not None
    if isinstance(deliver_at, datetime):
        return _moment_us(deliver_at)
    if isinstance(deliver_at, SupportsIndex) and not isinstance(deliver_at, bool) and not _is_due(int(deliver_at)):
        _refuse(int(deliver_at))
    return as_time_us("deliver_at", deliver_at)


def delivery_times(deliver_at: Times | None) -> Any:
    """Return the delivery times of several messages as a column for `Messages`; None or 0: not delayed.

    A value of the wrong type is returned as it is, because `Messages` refuses it with WrongTypeError. Raises the errors
    of `delivery_time`.
    """
    if isinstance(deliver_at, np.ndarray) and deliver_at.dtype.kind in "iu":
        wrong = (deliver_at < EARLIEST_US) & (deliver_at != 0) | (deliver_at >= PLAIN_MAX_US)
        if wrong.any():
            _refuse(int(deliver_at[wrong][0]), f" for message {int(wrong.argmax())}")
        return deliver_at
    if not isinstance(deliver_at, Iterable) or isinstance(deliver_at, str | bytes):
        return deliver_at
    items: list[Any] = list(deliver_at)
    kinds = set(map(type, items))
    if any(issubclass(kind, datetime) for kind in kinds):
        items = [_moment_us(item) if isinstance(item, datetime) else item for item in items]
        kinds = set(map(type, items))
    if all(kind is NoneType or (issubclass(kind, SupportsIndex) and kind is not bool) for kind in kinds):
        times = [*filter(None, items)]
        wrong_time = next((time for time in (min(times), max(times)) if not _is_due(time)), None) if times else None
        if wrong_time is not None:
            _refuse(int(wrong_time), f" for message {items.index(wrong_time)}")
    return items


def _is_due(time: int) -> bool:
    """Return whether an integer may be a delivery time, or is 0."""
    return EARLIEST_US <= time < PLAIN_MAX_US or not time


def _moment_us(moment: datetime) -> int:
    time = moment_us("deliver_at", moment)
    if time < EARLIEST_US:
        raise InvalidArgumentError(f"deliver_at: expected a moment from 2001 on, found {moment}")
    return time


def _refuse(time: int, where: str = "") -> NoReturn:
    refuse_unit("deliver_at", time, where, bounds=", from 2001 on", otherwise=", or delay=")
