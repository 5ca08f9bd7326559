"""The clusters to which the publisher of a message lets it be replicated: FORMAT.md, "Replicate-to attribute"."""

from __future__ import annotations

import struct
from collections.abc import Sequence, Set
from functools import lru_cache

from pyreplog.errors import InvalidArgumentError, InvalidEntryError, WrongTypeError
from pyreplog.topic_names import NAME_BYTES_MAX, check_name

TAG_REPLICATE_TO = 6
NAMES_MAX = 16
"""Most names in a list."""

_TAGGED = struct.Struct("<BH")
ATTRIBUTE_HEAD = _TAGGED.size
"""Bytes of an attribute before its value."""
VALUE_BYTES_MAX = NAMES_MAX * (1 + NAME_BYTES_MAX)


def check_replicate_to(names: Sequence[str] | Set[str]) -> frozenset[str]:
    """Return a list of clusters that a caller passes.

    Raises WrongTypeError; InvalidArgumentError if it has more than NAMES_MAX names, or one is no name of a cluster.
    """
    if not isinstance(names, tuple | list | Set):
        raise WrongTypeError(f"replicate_to: expected a sequence of names of clusters, found {names!r}")
    if len(names) > NAMES_MAX:
        raise InvalidArgumentError(f"replicate_to: expected at most {NAMES_MAX} names of clusters, found {len(names)}")
    return frozenset([check_name(name, "replicate_to") for name in names])


def attribute_of(names: Sequence[str] | Set[str] | None) -> bytes | None:
    """Return the attribute of an entry, with tag and length, for what a caller passes; None: the entry has none.

    Raises the errors of `check_replicate_to`.
    """
    return None if names is None else encode_attribute(check_replicate_to(names))


@lru_cache(maxsize=1024)
def encode_attribute(names: frozenset[str]) -> bytes:
    """Encode a list as an attribute, with tag and length."""
    value = encode_names(names)
    return _TAGGED.pack(TAG_REPLICATE_TO, len(value)) + value


@lru_cache(maxsize=1024)
def encode_names(names: frozenset[str]) -> bytes:
    """Encode a list, without tag and length."""
    return b"".join([bytes((len(name),)) + name for name in sorted([name.encode() for name in names])])


@lru_cache(maxsize=1024)
def decode_names(value: bytes) -> frozenset[str]:
    """Decode a list, without tag and length. Raises InvalidEntryError if it is malformed."""
    names: list[str] = []
    at = 0
    while at < len(value):
        size = value[at]
        name = value[at + 1 : at + 1 + size]
        if len(name) != size or len(names) == NAMES_MAX:
            raise InvalidEntryError(
                f"replicate-to attribute: expected at most {NAMES_MAX} whole names, found {value[:80]!r}"
            )
        try:
            names.append(check_name(name.decode(), "replicate_to"))
        except (UnicodeDecodeError, InvalidArgumentError) as error:
            raise InvalidEntryError(f"replicate-to attribute: expected names of clusters, found {name!r}") from error
        at += 1 + size
    return frozenset(names)
