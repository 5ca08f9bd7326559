"""JSON objects as values of keys: whatever lies there, and however large or deep it is, is one or a ValueError.

A value that processes of other versions rewrite says which versions may read it, and a reader that rewrites it keeps
the fields that it does not know: FORMAT.md, "Metadata values".
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from dataclasses import field as dataclass_field
from typing import Any, TypeVar

from pyreplog.errors import MetadataVersionError

T = TypeVar("T")

VERSION_MAX = (1 << 31) - 1


def decode_object(data: bytes | memoryview) -> dict[str, Any]:
    """ValueError: it is none, or holds what no text is made of (half of a surrogate pair)."""
    try:
        found = json.loads(bytes(data))
        json.dumps(found, ensure_ascii=False).encode()
    except RecursionError as error:
        raise ValueError("nested too deeply") from error
    if type(found) is not dict:
        raise ValueError(f"expected an object, found {type(found).__name__}")
    return found


def field(found: dict[str, Any], name: str, kind: type[T]) -> T:
    """Of an object, exactly of this type. ValueError."""
    value = found.get(name)
    if type(value) is not kind:
        raise ValueError(f"{name}: expected {kind.__name__}, found {str(value)[:80]!r}")
    return value


@dataclass(frozen=True, slots=True)
class Kept:
    """The part of a value that its reader does not interpret, and writes back as it was.

    Attributes:
        version: the highest version that wrote the value.
        min_reader: the lowest version of a reader that may read it.
        fields: the fields that this build does not know.
    """

    version: int
    min_reader: int
    fields: Mapping[str, Any] = dataclass_field(default_factory=dict)

    def encode(self, body: Mapping[str, Any]) -> bytes:
        """Return the value: the fields of `body`, and those kept."""
        versions = {"version": self.version, "min_reader": self.min_reader}
        return json.dumps({**versions, **body, **self.fields}, separators=(",", ":")).encode()


def check_reader(kind: str, value: Mapping[str, Any], supported: int) -> tuple[int, int]:
    """Return (version, min_reader) of a value, if this build may read it.

    Args:
        kind: what it is the value of, for the error.
        value: the object. Without `version` it is of version 1; without `min_reader`, that is the version.
        supported: the highest version that this build knows.

    Raises:
        MetadataVersionError: the value needs a newer reader.
        ValueError: a version is no number from 1 on.
    """
    version = value.get("version", 1)
    min_reader = value.get("min_reader", version)
    for number in (version, min_reader):
        if type(number) is not int or not 1 <= number <= VERSION_MAX:
            raise ValueError(f"expected a version from 1 to {VERSION_MAX}, found {str(number)[:80]!r}")
    if min_reader > supported:
        raise MetadataVersionError(kind, min_reader, supported)
    return version, min_reader


def split_object(
    kind: str, data: bytes | memoryview, known: Collection[str], supported: int
) -> tuple[dict[str, Any], Kept]:
    """Decode a value that has a version.

    Args:
        kind: what it is the value of, for the error.
        data: the value.
        known: names of the fields that this build knows.
        supported: the highest version that this build knows.

    Returns:
        The known fields of the value, and a `Kept` with its other fields.

    Raises:
        MetadataVersionError: the value needs a newer reader.
        ValueError: it is no object, or has no version.
    """
    value = decode_object(data)
    if "version" not in value:
        raise ValueError("expected a version")
    version, min_reader = check_reader(kind, value, supported)
    del value["version"]
    value.pop("min_reader", None)
    unknown = {name: value.pop(name) for name in list(value) if name not in known}
    return value, Kept(max(version, supported), max(min_reader, supported), unknown)
