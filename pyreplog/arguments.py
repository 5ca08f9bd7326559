"""What callers give to public methods: the same checks, and the same words, everywhere."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any, SupportsIndex, TypeVar

from pyreplog.errors import WrongTypeError
from pyreplog.times import Time, moment_us

T = TypeVar("T")


def check_type(what: str, value: T, kind: type[Any], expected: str) -> T:
    """`value`, if it is of that kind. what: the argument's name; expected: the kind in words. WrongTypeError."""
    if not isinstance(value, kind):
        raise WrongTypeError(f"{what}: expected {expected}, found {type(value).__name__}")
    return value


def as_int(what: str, value: object) -> int:
    """Python's integers, numpy's and others, but no bool. WrongTypeError."""
    if type(value) is int:  # first, because the check of a protocol costs twenty times as much
        return value
    if isinstance(value, bool) or not isinstance(value, SupportsIndex):
        raise WrongTypeError(f"{what}: expected an int, found {type(value).__name__}")
    return operator.index(value)


def as_microseconds(what: str, time: Time) -> int:
    """Microseconds since 1970-01-01 UTC, of a datetime with a time zone or of an integer. WrongTypeError;
    InvalidArgumentError, a datetime has no time zone."""
    if isinstance(time, datetime):
        return moment_us(what, time)
    if isinstance(time, bool) or not isinstance(time, SupportsIndex):
        kind = type(time).__name__
        raise WrongTypeError(f"{what}: expected an int, of microseconds, or an aware datetime, found {kind}")
    return operator.index(time)


def check_bool(what: str, value: bool) -> bool:
    """Nothing else is true or false here: a text such as "no" would be true. WrongTypeError."""
    return check_type(what, value, bool, "a bool")


def check_text(what: str, value: str) -> str:
    """WrongTypeError."""
    return check_type(what, value, str, "a str")


def check_seconds(what: str, value: float) -> float:
    """A number. WrongTypeError."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise WrongTypeError(f"{what}: expected a number of seconds, found {type(value).__name__}")
    return value


def check_mapping(what: str, value: Mapping[Any, Any]) -> None:
    """Of text for text. WrongTypeError."""
    check_type(what, value, Mapping, "a mapping of text")
    for name, item in value.items():
        if not isinstance(name, str) or not isinstance(item, str):
            raise WrongTypeError(f"{what}: expected text for text, found {name!r}: {item!r}")


def as_names(what: str, values: Iterable[str]) -> list[str]:
    """Several texts, and not one. WrongTypeError."""
    if isinstance(values, str | bytes) or not isinstance(values, Iterable):
        raise WrongTypeError(f"{what}: expected several names, found {type(values).__name__}")
    return [check_text(what, value) for value in values]
