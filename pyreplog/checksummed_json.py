"""JSON that says what it is, of which version, and by a CRC-32C whether it is as it was written: manifests."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from pyreplog._native.system.checksum import crc32c
from pyreplog.errors import FormatVersionError


def dump_checksummed(format: str, version: int, content: dict[str, Any]) -> bytes:
    """To be read by `load_checksummed`, and by people."""
    whole = {"format": format, "version": version, "crc32c": crc32c(_canonical(content)), "content": content}
    return json.dumps(whole, indent=1).encode() + b"\n"


def load_checksummed(data: bytes, format: str, version: int, place: str | Path) -> dict[str, Any]:
    """The content of what `dump_checksummed` made, up to this version of the format. place: where it lies, for the
    error.

    Errors: ValueError says what is wrong with the data; FormatVersionError, it is of a newer version.
    """
    try:
        whole = json.loads(data)
        stored_version, content = whole["version"], whole["content"]
        if whole["format"] != format:
            raise ValueError(f"format {whole['format']!r}")
        if stored_version > version:
            raise FormatVersionError(place, stored_version, version)
        if type(content) is not dict or whole["crc32c"] != crc32c(_canonical(content)):
            raise ValueError("a wrong CRC-32C")
    except (TypeError, KeyError, RecursionError) as error:
        raise ValueError(f"{type(error).__name__}: {error}") from error
    return content


def _canonical(content: dict[str, Any]) -> bytes:
    return json.dumps(content, sort_keys=True, separators=(",", ":")).encode()
