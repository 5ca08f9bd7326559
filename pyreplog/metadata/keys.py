"""Which keys and values a metadata store accepts: what ZooKeeper does, and nothing that needs care elsewhere."""

from __future__ import annotations

import re

from pyreplog.errors import InvalidArgumentError, WrongTypeError

KEY_MAX = 1024
"""Characters of a key."""

VALUE_MAX = (1 << 20) - 4096
"""Bytes of a value: a ZooKeeper request is at most 1 MiB, its key and the rest included (jute.maxbuffer)."""

VERSION_MAX = (1 << 63) - 1

ROOT = "/"

_NAME = re.compile(r"[!-.0-~]{1,255}")
_RESERVED = "/zookeeper"


def check_key(key: str) -> None:
    """`key` is "/name/name...": names of 1 to 255 printable ASCII characters but "/" and space, "." and ".." excepted.

    Errors: WrongTypeError, InvalidArgumentError.
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
    """The value as bytes. Errors: WrongTypeError; InvalidArgumentError, over VALUE_MAX bytes."""
    if not isinstance(value, bytes | bytearray | memoryview):
        raise WrongTypeError(f"value: expected bytes-like, found {type(value).__name__}")
    data = bytes(value)
    if len(data) > VALUE_MAX:
        raise InvalidArgumentError(f"value: expected at most {VALUE_MAX} bytes, found {len(data)}")
    return data


def check_version(version: int) -> None:
    """ZooKeeper takes -1 for "any version"; here it is refused, as every write is to be compared."""
    if not isinstance(version, int) or isinstance(version, bool):
        raise WrongTypeError(f"version: expected an int, found {type(version).__name__}")
    if not 0 <= version <= VERSION_MAX:
        raise InvalidArgumentError(f"version: expected one that a read or a write returned, found {version}")


def parent_of(key: str) -> str:
    """The key above; ROOT is above the keys of one name."""
    return key[: key.rindex("/")] or ROOT


def name_of(key: str) -> str:
    """The last name of a key."""
    return key[key.rindex("/") + 1 :]
