"""JSON objects as values of keys: whatever lies there, and however large or deep it is, is one or a ValueError."""

from __future__ import annotations

import json
from typing import Any, TypeVar

T = TypeVar("T")


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
