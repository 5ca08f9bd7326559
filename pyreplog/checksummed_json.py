"""JSON files with the name of their format, a version, and a CRC-32C, for manifests."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from pyreplog._native.system.checksum import crc32c
from pyreplog.errors import FormatVersionError


def dump_checksummed(format: str, version: int, content: dict[str, Any]) -> bytes:
    """Encode a JSON object with its format, version and CRC-32C, indented. `load_checksummed` decodes it."""
    whole = {"format": format, "version": version, "crc32c": crc32c(_canonical(content)), "content": content}
    return json.dumps(whole, indent=1).encode() + b"\n"


def load_checksummed(data: bytes, format: str, version: int, place: str | Path) -> dict[str, Any]:
    """Decode an object that `dump_checksummed` has encoded.

    data: the bytes. format: name of the format. version: newest version that this build knows. place: path or key of
    the data, for the error.

    Raises ValueError if the data is damaged or of another format, FormatVersionError if it has a newer version.
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
