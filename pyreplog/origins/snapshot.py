"""Encodes the gates of a topic; FORMAT.md, "Origins snapshot", has the bytes."""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence

from pyreplog.errors import InvalidEntryError, InvalidMetadataError
from pyreplog.metadata.snapshot_header import HEADER_BYTES, decode_header, encode_header
from pyreplog.origins.attribute import decode_gaps, encode_gaps
from pyreplog.origins.gate import ORIGINS_MAX, GateState
from pyreplog.origins.origin import TOKEN_BYTES_MAX, LastEntry, Origin

VERSION = 1

_ORIGIN = struct.Struct("<16sHHHHqqqqqI4x")


def encode(states: Sequence[GateState]) -> bytes:
    """Encode gates."""
    parts = [encode_header(VERSION, len(states))]
    for state in states:
        token, gaps = state.origin.token.encode(), encode_gaps(state.gaps)
        last = state.last or LastEntry(-1, -1, 0, 0)
        parts += (
            _ORIGIN.pack(
                state.origin.cluster, _ORIGIN.size, len(token), len(gaps), 0, state.session, state.stored, last.first,
                last.end, last.publish_time_us, last.value_crc,
            ),
            token, gaps,
        )  # fmt: skip
    return b"".join(parts)


def decode(data: bytes) -> list[GateState]:
    """Decode gates. Raises InvalidMetadataError if malformed, MetadataVersionError if a newer reader is needed."""
    count = decode_header("origins snapshot", data, VERSION)
    try:
        states = list(_read(data))
    except (struct.error, UnicodeDecodeError, InvalidEntryError) as error:
        raise InvalidMetadataError(f"origins snapshot of {len(data)} bytes: {error}") from error
    if len(states) != count or len({state.origin for state in states}) != count or count > ORIGINS_MAX:
        raise InvalidMetadataError(f"origins snapshot: expected {count} different origins, found {len(states)}")
    return states


def _read(data: bytes) -> Iterator[GateState]:
    at = HEADER_BYTES
    while at < len(data):
        cluster, size, token_size, gaps_size, _, session, stored, first, end, time_us, crc = _ORIGIN.unpack_from(
            data, at
        )
        token_at = at + size  # a later version may have more fields
        gaps_at = token_at + token_size
        start, at = at, gaps_at + gaps_size
        if size < _ORIGIN.size or at > len(data) or token_size > TOKEN_BYTES_MAX:
            raise InvalidMetadataError(f"expected an origin up to byte {len(data)}, found one from {start} to {at}")
        if session < 0 or stored < 0 or not (first == end == -1 or 0 <= first < end <= stored):
            raise InvalidMetadataError(
                f"expected an entry up to offset {stored}, found {first} to {end}, session {session}"
            )
        gaps = tuple(decode_gaps(data[gaps_at:at]))
        if gaps and gaps[-1].end > stored:
            raise InvalidMetadataError(f"expected gaps up to offset {stored}, found {gaps[-1]}")
        last = None if first < 0 else LastEntry(first, end, crc, time_us)
        yield GateState(Origin(cluster, data[token_at:gaps_at].decode()), session, stored, last, gaps)
