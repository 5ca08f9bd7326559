"""Event times in text, as microseconds since 1970."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from functools import lru_cache, partial

from pyreplog.errors import InvalidArgumentError

_SOME_TIME = datetime(2013, 1, 2, 15, 4, 5, 6, tzinfo=UTC)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)
_UNITS = {"s": 1_000_000, "ms": 1_000, "us": 1}
_CACHED = 1 << 16


def parser(text_format: str) -> Callable[[str], int | None]:
    """Return a function from text to microseconds since 1970; it returns None for blank text, and raises ValueError.

    text_format: `iso` (ISO 8601), `s`, `ms` or `us` (a number of them since 1970), or a strptime format. Times without
    an offset are UTC. Recent calendar times are cached, because neighbouring rows tend to share them.
    """
    if text_format in _UNITS:
        return partial(_number, unit=_UNITS[text_format])
    if text_format == "iso":
        parse = datetime.fromisoformat
    elif "%" in text_format and _is_readable(text_format):
        parse = partial(_strptime, text_format=text_format)
    else:
        raise InvalidArgumentError(
            f"event time format: expected iso, s, ms, us or a strptime format, found {text_format!r}"
        )
    return lru_cache(_CACHED)(partial(_calendar, parse=parse))


def _is_readable(text_format: str) -> bool:
    """Whether a time that is written in a format can be read; not if a directive is unknown or occurs twice."""
    try:
        _strptime(_SOME_TIME.strftime(text_format), text_format=text_format)
    except (ValueError, re.error):
        return False
    return True


def _number(text: str, *, unit: int) -> int | None:
    if not text or text.isspace():
        return None
    try:
        time = int(text) * unit if text.isdigit() else int(Decimal(text) * unit)
    except ArithmeticError:
        raise ValueError(f"{text!r} is not a number") from None
    if not -(1 << 63) < time < 1 << 63:
        raise ValueError(f"{text!r} is out of range")
    return time


def _calendar(text: str, *, parse: Callable[[str], datetime]) -> int | None:
    if not text or text.isspace():
        return None
    time = parse(text)
    if time.tzinfo is None:
        time = time.replace(tzinfo=UTC)
    return (time - _EPOCH) // _MICROSECOND


def _strptime(text: str, *, text_format: str) -> datetime:
    return datetime.strptime(text, text_format)
