"""Checks of the arguments of public methods, with the same messages everywhere."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any, SupportsIndex, TypeVar

from pyreplog.errors import WrongTypeError
from pyreplog.times import Time, moment_us

T = TypeVar("T")


def check_type(what: str, value: T, kind: type[Any], expected: str) -> T:
    """Return a value if it is an instance of `kind`. Raises WrongTypeError otherwise.

    what: name of the argument. expected: description of the kind, for the message.
    """
    if not isinstance(value, kind):
        raise WrongTypeError(f"{what}: expected {expected}, found {type(value).__name__}")
    return value


def as_int(what: str, value: object) -> int:
    """Return an integer of Python, numpy or another library as an int. Raises WrongTypeError for others, also bool."""
    if type(value) is int:  # first, because the check of a protocol costs twenty times as much
        return value
    if isinstance(value, bool) or not isinstance(value, SupportsIndex):
        raise WrongTypeError(f"{what}: expected an int, found {type(value).__name__}")
    return operator.index(value)


def as_microseconds(what: str, time: Time) -> int:
    """Return a time, a datetime with a time zone or an integer, as microseconds since 1970-01-01 UTC.

    Raises WrongTypeError if it is neither, InvalidArgumentError if the datetime has no time zone.
    """
    if isinstance(time, datetime):
        return moment_us(what, time)
    if isinstance(time, bool) or not isinstance(time, SupportsIndex):
        kind = type(time).__name__
        raise WrongTypeError(f"{what}: expected an int, of microseconds, or an aware datetime, found {kind}")
    return operator.index(time)


def check_bool(what: str, value: bool) -> bool:
    """Return a bool. Raises WrongTypeError for other types, whose truth may mislead: the text "no" is true."""
    return check_type(what, value, bool, "a bool")


def check_text(what: str, value: str) -> str:
    """Return a str. Raises WrongTypeError for other types."""
    return check_type(what, value, str, "a str")


def check_seconds(what: str, value: float) -> float:
    """Return a number of seconds. Raises WrongTypeError if it is no int or float."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise WrongTypeError(f"{what}: expected a number of seconds, found {type(value).__name__}")
    return value


def check_mapping(what: str, value: Mapping[Any, Any]) -> None:
    """Check that a value is a mapping from str to str. Raises WrongTypeError otherwise."""
    check_type(what, value, Mapping, "a mapping of text")
    for name, item in value.items():
        if not isinstance(name, str) or not isinstance(item, str):
            raise WrongTypeError(f"{what}: expected text for text, found {name!r}: {item!r}")


def as_names(what: str, values: Iterable[str]) -> list[str]:
    """Return an iterable of str as a list. Raises WrongTypeError for other types, and for a single str."""
    if isinstance(values, str | bytes) or not isinstance(values, Iterable):
        raise WrongTypeError(f"{what}: expected several names, found {type(values).__name__}")
    return [check_text(what, value) for value in values]
