"""Checks of keys and values: a metadata store accepts those that ZooKeeper accepts, without names that need quoting."""

from __future__ import annotations

import re

from pyreplog.errors import InvalidArgumentError, WrongTypeError

KEY_MAX = 1024
"""Longest key, characters."""

VALUE_MAX = (1 << 20) - 4096
"""Largest value, bytes: a ZooKeeper request, with its key and header, has at most 1 MiB (jute.maxbuffer)."""

VERSION_MAX = (1 << 63) - 1

ROOT = "/"

_NAME = re.compile(r"[!-.0-~]{1,255}")
_RESERVED = "/zookeeper"


def check_key(key: str) -> None:
    """Check that a key is "/name/name...".

    A name has 1 to 255 printable ASCII characters other than "/" and space, and is neither "." nor "..".

    Raises WrongTypeError if the key is not a str, InvalidArgumentError if it has another form.
    """
    if not isinstance(key, str):
        raise WrongTypeError(f"key: expected a str, found {type(key).__name__}")
    if len(key) > KEY_MAX:
        raise InvalidArgumentError(f"key: expected at most {KEY_MAX} characters, found {len(key)}: {key[:40]!r}...")
    first, *names = key.split("/")
    if first or not names or not all(_NAME.fullmatch(name) and name not in (".", "..") for name in names):
        raise InvalidArgumentError(
            f"key: expected /name/name... with names of printable ASCII characters, found {key!r}"
        )
    if key == _RESERVED or key.startswith(_RESERVED + "/"):
        raise InvalidArgumentError(f"key: expected a key outside {_RESERVED}, which ZooKeeper reserves, found {key!r}")


def check_value(value: bytes | bytearray | memoryview) -> bytes:
    """Return a value as bytes.

    Raises WrongTypeError if it is not bytes-like, InvalidArgumentError if it has more than VALUE_MAX bytes.
    """
    if not isinstance(value, bytes | bytearray | memoryview):
        raise WrongTypeError(f"value: expected bytes-like, found {type(value).__name__}")
    data = bytes(value)
    if len(data) > VALUE_MAX:
        raise InvalidArgumentError(f"value: expected at most {VALUE_MAX} bytes, found {len(data)}")
    return data


def check_version(version: int) -> None:
    """Check a version. ZooKeeper takes -1 for "any version", which is refused here: every write compares versions.

    Raises WrongTypeError if it is not an int, InvalidArgumentError if it is out of range.
    """
    if not isinstance(version, int) or isinstance(version, bool):
        raise WrongTypeError(f"version: expected an int, found {type(version).__name__}")
    if not 0 <= version <= VERSION_MAX:
        raise InvalidArgumentError(f"version: expected one that a read or a write returned, found {version}")


def parent_of(key: str) -> str:
    """Return the parent of a key; ROOT for a key of one name."""
    return key[: key.rindex("/")] or ROOT


def name_of(key: str) -> str:
    """Return the last name of a key."""
    return key[key.rindex("/") + 1 :]
