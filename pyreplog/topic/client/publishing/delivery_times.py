"""`deliver_at` and `delay` as callers give them, as microseconds since the epoch."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from types import NoneType
from typing import TYPE_CHECKING, Any, SupportsIndex, TypeVar

import numpy as np

from pyreplog.arguments import as_int
from pyreplog.clock import Clock
from pyreplog.errors import InvalidArgumentError, WrongTypeError
from pyreplog.topic.model.arguments import as_delay_us
from pyreplog.topic.model.positions import time_us

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

    DeliveryTimes = Iterable[int | datetime | None] | ArrayLike

DeliveryTime = int | datetime
"""Microseconds since the epoch, or a datetime with a time zone."""

EARLIEST_US = 978_307_200_000_000
"""2001-01-01 UTC. Seconds and milliseconds of any later moment are less, up to the year 33000."""

T = TypeVar("T")


def check_delivery(deliver_at: T, delay: float | None) -> T:
    """`deliver_at`, if it is not given beside `delay`. Errors: WrongTypeError; InvalidArgumentError."""
    if delay is not None:
        as_delay_us(delay)
        if deliver_at is not None:
            raise InvalidArgumentError("delay: expected deliver_at or delay, found both: leave one out")
    return deliver_at


def delivery_time(deliver_at: DeliveryTime | None, delay: float | None, clock: Clock) -> int | None:
    """Of one message; None, 0: it is not delayed.

    Errors: WrongTypeError; InvalidArgumentError, a datetime without a time zone, a moment before 2001, or both are
    given.
    """
    if check_delivery(deliver_at, delay) is None:
        delay_us = as_delay_us(delay)
        return None if delay_us is None else clock.now_us() + delay_us
    if isinstance(deliver_at, datetime):
        return _moment_us(deliver_at)
    if isinstance(deliver_at, bool) or not isinstance(deliver_at, SupportsIndex):
        found = type(deliver_at).__name__
        raise WrongTypeError(f"deliver_at: expected an int, of microseconds, or an aware datetime, found {found}")
    time = as_int("deliver_at", deliver_at)
    return time if time >= EARLIEST_US or not time else _refuse(time)


def delivery_times(deliver_at: DeliveryTimes | None) -> Any:
    """Of several messages: a column that `Messages` takes, or refuses with WrongTypeError. None, 0: not delayed.
    Errors: as delivery_time."""
    if isinstance(deliver_at, np.ndarray) and deliver_at.dtype.kind in "iu":
        early = (deliver_at < EARLIEST_US) & (deliver_at != 0)
        if early.any():
            _refuse(int(deliver_at[early][0]), f" for message {int(early.argmax())}")
        return deliver_at
    if not isinstance(deliver_at, Iterable) or isinstance(deliver_at, str | bytes):
        return deliver_at
    items: list[Any] = list(deliver_at)
    kinds = set(map(type, items))
    if any(issubclass(kind, datetime) for kind in kinds):
        items = [_moment_us(item) if isinstance(item, datetime) else item for item in items]
        kinds = set(map(type, items))
    if all(kind is NoneType or (issubclass(kind, SupportsIndex) and kind is not bool) for kind in kinds):
        lowest = min(filter(None, items), default=EARLIEST_US)
        if lowest < EARLIEST_US:
            _refuse(int(lowest), f" for message {items.index(lowest)}")
    return items


def _moment_us(moment: datetime) -> int:
    if moment.utcoffset() is None:
        raise InvalidArgumentError(
            f"deliver_at: expected a datetime with a time zone, found {moment!r}: give it one, as in "
            f"datetime.now(UTC) or moment.astimezone()"
        )
    time = time_us(moment, "deliver_at")
    if time < EARLIEST_US:
        raise InvalidArgumentError(f"deliver_at: expected a moment from 2001 on, found {moment}")
    return time


def _refuse(time: int, where: str = "") -> int:
    """It was to be µs since the epoch."""
    hint = "give an aware datetime, or delay="
    if time >= EARLIEST_US // 1_000:
        hint = f"these look like milliseconds: multiply by 1,000, or {hint}"
    elif time >= EARLIEST_US // 1_000_000:
        hint = f"these look like seconds: multiply by 1,000,000, or {hint}"
    raise InvalidArgumentError(
        f"deliver_at: expected microseconds since the epoch, from 2001 on, found {time}{where}: {hint}"
    )
