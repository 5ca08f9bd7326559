"""Encodes the positions of one closed ledger; FORMAT.md, "Position page", has the bytes."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator, Mapping
from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from pyreplog._native.system.checksum import crc32c
from pyreplog.errors import InvalidMetadataError, MetadataVersionError
from pyreplog.origins.origin import TOKEN_BYTES_MAX, Origin

VERSION = 1
PAGE_BYTES_MAX = 64 << 10
"""Most bytes of a page."""
BODY_BYTES_MAX = 4 << 20
"""Most bytes of its body before it was compressed."""

_MAGIC = b"RPPP"
_HEADER = struct.Struct("<4sHHIIQQQQQQ16sHHI")
_CRC_AT, _COVERED_FROM = 8, 12
_ORIGIN = struct.Struct("<16sHBBBBHI")
_REACH_MAX = float(1 << 62)

_Offsets: TypeAlias = NDArray[np.int64]
Runs: TypeAlias = tuple[_Offsets, _Offsets, _Offsets]
"""Runs of neighbouring messages: int64[n] offsets at the origin, offsets in the topic, and messages."""


class SealedLedger(NamedTuple):
    """A closed ledger of a topic, as the topic's metadata describe it.

    Attributes:
        ledger: id of the ledger.
        first: offset in the topic of its first message.
        end: offset behind its last message.
        entries: number of entries.
        size: bytes of their values.
        closed_us: when it was closed, microseconds since 1970.
    """

    ledger: int
    first: int
    end: int
    entries: int
    size: int
    closed_us: int


def encode(own: Origin, ledger: SealedLedger, runs: Mapping[Origin, Runs]) -> bytes | None:
    """Encode a page; None: it would be too large.

    Args:
        own: the topic as an origin.
        ledger: the ledger.
        runs: its messages of other origins, of each at least one run, ascending.
    """
    body = b"".join([part for origin, columns in runs.items() for part in _encode_origin(origin, columns, ledger)])
    if len(body) > BODY_BYTES_MAX:
        return None
    token = own.token.encode()
    fields = (len(runs), *ledger, own.cluster, len(token), 0, len(body))
    page = bytearray(_HEADER.pack(_MAGIC, VERSION, 0, 0, *fields) + token + zlib.compress(body, 1))
    struct.pack_into("<I", page, _CRC_AT, crc32c(memoryview(page)[_COVERED_FROM:]))
    return bytes(page) if len(page) <= PAGE_BYTES_MAX else None


def _encode_origin(origin: Origin, runs: Runs, ledger: SealedLedger) -> Iterator[bytes]:
    firsts, offsets, counts = runs
    columns = [
        firsts - np.append(0, (firsts + counts)[:-1]),
        offsets - np.append(ledger.first, (offsets + counts)[:-1]),
        counts,
    ]
    widths = [next(width for width in (1, 2, 4, 8) if int(column.max()) < 1 << 8 * width) for column in columns]
    token = origin.token.encode()
    yield _ORIGIN.pack(origin.cluster, len(token), *widths, 0, 0, len(firsts))
    yield token
    for width, column in zip(widths, columns, strict=True):
        yield column.astype(f"<u{width}").tobytes()


def decode(data: bytes, own: Origin, ledger: SealedLedger) -> dict[Origin, Runs]:
    """Decode a page.

    Args:
        data: the bytes.
        own: the topic as an origin.
        ledger: the ledger.

    Returns:
        The runs of each origin, as they were encoded.

    Raises:
        InvalidMetadataError: the page is malformed, or of another ledger or topic.
        MetadataVersionError: a newer reader is needed.
    """
    if not _HEADER.size <= len(data) <= PAGE_BYTES_MAX:
        raise InvalidMetadataError(
            f"position page: expected {_HEADER.size} to {PAGE_BYTES_MAX} bytes, found {len(data)}"
        )
    magic, version, min_reader, crc, count, *facts, cluster, token_size, _, body_size = _HEADER.unpack_from(data)
    if magic != _MAGIC or version < 1:
        raise InvalidMetadataError(f"position page: expected {_MAGIC!r} and a version from 1 on, found {data[:6]!r}")
    if (min_reader or version) > VERSION:
        raise MetadataVersionError("position page", min_reader or version, VERSION)
    if crc32c(memoryview(data)[_COVERED_FROM:]) != crc:
        raise InvalidMetadataError(f"position page: expected bytes with CRC {crc:08x}, found others")
    token = data[_HEADER.size : _HEADER.size + token_size]
    described = SealedLedger(*facts)
    if (cluster, token, described) != (own.cluster, own.token.encode(), ledger):
        raise InvalidMetadataError(f"position page: expected {ledger} of {own.token}, found {described} of {token!r}")
    if body_size > BODY_BYTES_MAX:
        raise InvalidMetadataError(
            f"position page: expected a body of at most {BODY_BYTES_MAX} bytes, found {body_size}"
        )
    try:
        inflate = zlib.decompressobj()
        body = inflate.decompress(data[_HEADER.size + token_size :], body_size + 1)
        if len(body) != body_size or not inflate.eof or inflate.unused_data:
            raise InvalidMetadataError(f"expected {body_size} bytes, deflated, found {len(body)} or more")
        runs = dict(_read(body, ledger))
    except (zlib.error, struct.error, UnicodeDecodeError, InvalidMetadataError) as error:
        raise InvalidMetadataError(f"position page of ledger {ledger.ledger}: {error}") from error
    if len(runs) != count or own in runs:
        raise InvalidMetadataError(f"position page: expected {count} different, other origins, found {len(runs)}")
    _check_apart(runs)
    return runs


def _read(body: bytes, ledger: SealedLedger) -> Iterator[tuple[Origin, Runs]]:
    at = 0
    while at < len(body):
        cluster, token_size, *widths, _, _, count = _ORIGIN.unpack_from(body, at)
        token_at = at + _ORIGIN.size
        begin = token_at + token_size
        start, at = at, begin + sum(widths) * count
        if at > len(body) or not count or token_size > TOKEN_BYTES_MAX or not {*widths} <= {1, 2, 4, 8}:
            raise InvalidMetadataError(f"expected an origin up to byte {len(body)}, found one from {start} to {at}")
        columns: list[_Offsets] = []
        for width in widths:
            columns.append(np.frombuffer(body, f"<u{width}", count, begin).astype(np.int64))
            begin += width * count
        skipped, between, counts = columns
        # sums in floating point: those of int64 may wrap around
        messages, reach = (
            counts.sum(dtype=np.float64),
            max(skipped.sum(dtype=np.float64), between.sum(dtype=np.float64)),
        )
        if min(int(skipped.min()), int(between.min()), int(counts.min()) - 1) < 0 or messages + reach > _REACH_MAX:
            raise InvalidMetadataError(f"expected runs of 1 message or more each, found others at byte {start}")
        before = np.cumsum(counts) - counts
        offsets = np.cumsum(between) + before + ledger.first
        if offsets[-1] + counts[-1] > ledger.end:
            raise InvalidMetadataError(f"expected runs up to offset {ledger.end}, found one at {offsets[-1]}")
        origin = Origin(cluster, body[token_at : token_at + token_size].decode())
        yield origin, (np.cumsum(skipped) + before, offsets, counts)


def _check_apart(runs: Mapping[Origin, Runs]) -> None:
    """Raise InvalidMetadataError if a message would be of two origins."""
    if not runs:
        return
    starts = np.concatenate([offsets for _, offsets, _ in runs.values()])
    order = np.argsort(starts)
    starts, counts = starts[order], np.concatenate([counts for _, _, counts in runs.values()])[order]
    if (starts[1:] < (starts + counts)[:-1]).any():
        raise InvalidMetadataError("position page: expected each message to be of one origin, found some of two")
