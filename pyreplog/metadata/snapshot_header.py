"""The header of snapshots in system cursors; FORMAT.md has a section for each kind of snapshot."""

from __future__ import annotations

import struct

from pyreplog.errors import InvalidMetadataError, MetadataVersionError

_HEADER = struct.Struct("<HHI")  # version, min_reader, number of items
HEADER_BYTES = _HEADER.size


def encode_header(version: int, count: int) -> bytes:
    """Return the header of a snapshot of `count` items, which readers of `version` and later ones can read."""
    return _HEADER.pack(version, 0, count)


def decode_header(kind: str, data: bytes, supported: int) -> int:
    """Return the number of items of a snapshot.

    Args:
        kind: name of this kind of snapshot, for errors.
        data: the snapshot.
        supported: the highest version that this build knows.

    Raises:
        InvalidMetadataError: the header is malformed.
        MetadataVersionError: a newer reader is needed.
    """
    if len(data) < HEADER_BYTES:
        raise InvalidMetadataError(f"{kind}: expected {HEADER_BYTES} bytes or more, found {len(data)}")
    version, min_reader, count = _HEADER.unpack_from(data)
    if (min_reader or version) > supported:
        raise MetadataVersionError(kind, min_reader or version, supported)
    if version < 1:
        raise InvalidMetadataError(f"{kind}: expected a version from 1 on, found {version}")
    return int(count)
