"""JSON objects as values of keys. Any bytes, however large or deeply nested, decode to an object or raise ValueError.

A value that processes of other versions rewrite has the versions that may read it, and a reader that rewrites it keeps
the fields that it does not know: FORMAT.md, "Metadata values".
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, ClassVar, Self, TypeVar

from pyreplog.errors import ConfigError, InvalidMetadataError, MetadataVersionError

T = TypeVar("T")

VERSION_MAX = (1 << 31) - 1
NUMBER_MAX = 1 << 62


def decode_object(data: bytes | memoryview) -> dict[str, Any]:
    """Decode a JSON object.

    Raises ValueError if the bytes are not a JSON object, or have a string that is no text (half of a surrogate pair).
    """
    try:
        value = json.loads(bytes(data))
        json.dumps(value, ensure_ascii=False).encode()
    except RecursionError as error:
        raise ValueError("nested too deeply") from error
    if type(value) is not dict:
        raise ValueError(f"expected an object, found {type(value).__name__}")
    return value


def field(found: dict[str, Any], name: str, kind: type[T]) -> T:
    """Return a field of an object. Raises ValueError if it is missing or not exactly of type `kind`."""
    value = found.get(name)
    if type(value) is not kind:
        raise ValueError(f"{name}: expected {kind.__name__}, found {str(value)[:80]!r}")
    return value


def number(fields: dict[str, Any], name: str) -> int:
    """Return an integer field of an object. Raises ValueError if it is no integer from 0 to NUMBER_MAX."""
    value = field(fields, name, int)
    if not 0 <= value <= NUMBER_MAX:
        raise ValueError(f"{name}: expected 0 to {NUMBER_MAX}, found {str(value)[:80]}")
    return value


@dataclass(frozen=True, slots=True)
class UnknownFields:
    """The part of a value that its reader does not interpret, and writes back unchanged.

    Attributes:
        version: the highest version that wrote the value, if it is above that of this build; else 0.
        fields: the fields that this build does not know.
    """

    version: int = 0
    fields: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    def encode(self, fields: Mapping[str, Any], supported: int) -> bytes:
        """Return the value with `fields` and the unknown fields. supported: the version of this build."""
        versions = {"version": max(self.version, supported), "min_reader": supported}
        return json.dumps({**versions, **fields, **self.fields}, separators=(",", ":")).encode()


def check_reader(kind: str, value: Mapping[str, Any], supported: int) -> tuple[int, int]:
    """Return (version, min_reader) of a value, if this build may read it.

    Args:
        kind: name of this kind of value, for the error.
        value: the object. Without `version` it is of version 1; without `min_reader`, that is the version.
        supported: the highest version that this build knows.

    Raises:
        MetadataVersionError: the value needs a newer reader.
        ValueError: a version is not an integer of 1 or more.
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
) -> tuple[dict[str, Any], UnknownFields]:
    """Decode a value that has a version.

    Args:
        kind: name of this kind of value, for the error.
        data: the value.
        known: names of the fields that this build knows.
        supported: the highest version that this build knows.

    Returns:
        The known fields of the value, and an `UnknownFields` with its other fields.

    Raises:
        MetadataVersionError: the value needs a newer reader.
        ValueError: the value is no JSON object, or has no version.
    """
    value = decode_object(data)
    if "version" not in value:
        raise ValueError("expected a version")
    version, _ = check_reader(kind, value, supported)
    del value["version"]
    value.pop("min_reader", None)
    unknown = {name: value.pop(name) for name in list(value) if name not in known}
    return value, UnknownFields(version if version > supported else 0, unknown)


@dataclass(frozen=True)
class MetadataValue:
    """Base of frozen dataclasses that are values of keys: JSON objects with a version.

    The fields of a subclass are those of the object. A field of a type that JSON does not have is converted in
    `_encode_fields`; `_decode_fields` checks all fields, and converts them back.

    Attributes:
        kept: versions and fields of newer builds, which every change writes back unchanged.
    """

    KIND: ClassVar[str]
    """Name of this kind of value, for errors."""
    VERSION: ClassVar[int] = 1
    """The highest version of the value that this build knows. Values that it writes need a reader of this version."""
    UNSTORED: ClassVar[frozenset[str]] = frozenset()
    """Fields of the class that are not stored in the object."""
    STORED_NAMES: ClassVar[Mapping[str, str]] = {}
    """Names in the object by names in the class, for fields where the two differ."""

    kept: UnknownFields = dataclasses.field(default=UnknownFields(), kw_only=True, repr=False)

    def encode(self) -> bytes:
        """Return the value of the key."""
        return self.kept.encode(self._encode_fields(), self.VERSION)

    @classmethod
    def decode(cls, data: bytes | memoryview) -> Self:
        """Decode the value of a key.

        Raises:
            MetadataVersionError: the value needs a newer reader.
            InvalidMetadataError: the value is malformed, or contradicts itself.
        """
        try:
            fields, kept = split_object(cls.KIND, data, field_names(cls), cls.VERSION)
            decoded = cls._decode_fields(fields)
            for name, stored in cls.STORED_NAMES.items():
                decoded[name] = decoded.pop(stored)
            return cls(**{**decoded, "kept": kept})
        except (ValueError, TypeError, KeyError, AttributeError, ConfigError) as error:
            raise InvalidMetadataError(f"{cls.KIND}: {bytes(data[:80])!r}: {error}") from error

    def _encode_fields(self) -> dict[str, Any]:
        names = {stored: name for name, stored in self.STORED_NAMES.items()}
        return {stored: getattr(self, names.get(stored, stored)) for stored in field_names(type(self))}

    @classmethod
    def _decode_fields(cls, fields: dict[str, Any]) -> dict[str, Any]:
        return fields


def _field_names(value_type: type[MetadataValue]) -> tuple[str, ...]:
    unstored = {"kept", *value_type.UNSTORED}
    names = [item.name for item in dataclasses.fields(value_type) if item.name not in unstored]
    return tuple(value_type.STORED_NAMES.get(name, name) for name in names)


field_names: Callable[[type], tuple[str, ...]] = cache(_field_names)
"""Return the names of the fields in the stored object of a subclass of MetadataValue."""
