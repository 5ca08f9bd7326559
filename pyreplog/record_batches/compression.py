"""The codecs of record batches. Decompressing stops at a limit: a small batch cannot fill the memory.

gzip needs nothing; snappy (cramjam), lz4 and zstd (lz4, zstandard) come with `pip install pyreplog[kafka]`.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from typing import Any

from pyreplog._native.kafka.record_batch import INVALID_RECORD, MESSAGE_TOO_LARGE, UNSUPPORTED_COMPRESSION_TYPE
from pyreplog.errors import InvalidRecordBatchError, MissingExtraError

CODECS = {"none": 0, "gzip": 1, "snappy": 2, "lz4": 3, "zstd": 4}
"""Kafka's numbers, by name."""

_XERIAL = b"\x82SNAPPY\0"
_XERIAL_HEAD = len(_XERIAL) + 8
_XERIAL_BLOCK = 32 << 10
_ZSTD_WINDOW = 128 << 20
_STEP = 1 << 20  # bytes that are decompressed before the limit is looked at again
_FIRST_PIECE = 1 << 10  # compressed bytes that a stream of gzip or lz4 gets first; each further piece is twice as large


def _refused(expected: str, found: str) -> InvalidRecordBatchError:
    return InvalidRecordBatchError(INVALID_RECORD, -1, 61, expected, found)


def _too_large(limit: int) -> InvalidRecordBatchError:
    return InvalidRecordBatchError(MESSAGE_TOO_LARGE, -1, 61, f"at most {limit} bytes of uncompressed records", "more")


def _module(name: str) -> Any:
    try:
        if name == "cramjam":
            import cramjam

            return cramjam
        if name == "zstandard":
            import zstandard

            return zstandard
        import lz4.frame

        return lz4.frame
    except ImportError:
        raise MissingExtraError(f"{name} is not installed: pip install pyreplog[kafka]") from None


def _gunzip(data: bytes, limit: int) -> bytes:
    """Decompress members, one behind the other. What follows a member is copied in pieces of its own size at most, so
    that the work does not grow with the square of the number of members."""
    view, parts, left, at = memoryview(data), list[bytes](), limit, 0
    while at < len(data):
        member, piece = zlib.decompressobj(wbits=31), _FIRST_PIECE
        while not member.eof:
            if at >= len(data):
                raise _refused("a whole gzip member", "one that is cut off")
            part = member.decompress(view[at : at + piece], left + 1)
            left -= len(part)
            if left < 0:
                raise _too_large(limit)
            parts.append(part)
            at = min(at + piece, len(data)) - len(member.unused_data) - len(member.unconsumed_tail)
            piece = min(2 * piece, _STEP)
    return b"".join(parts)


def _snappy_size(data: bytes) -> int:
    """Return the size that a snappy block says in front; the decompressor allocates it."""
    size = 0
    for number, byte in enumerate(data[:5]):
        size |= (byte & 127) << 7 * number
        if byte < 128:
            return size
    raise _refused("the size of a snappy block", "other bytes")


def _unsnap_block(data: bytes, left: int) -> bytes:
    size = _snappy_size(data)
    if size > left:
        raise _too_large(left)
    if size > 64 * len(data):  # an element of 3 bytes makes at most 64
        raise _refused(f"at most {64 * len(data)} bytes of a snappy block of {len(data)}", str(size))
    return bytes(_module("cramjam").snappy.decompress_raw(data))


def _unsnap(data: bytes, limit: int) -> bytes:
    """Decompress one block, or blocks with the head and the sizes of snappy-java, which most clients send."""
    if not data.startswith(_XERIAL):
        return _unsnap_block(data, limit)
    parts, at, left = [], _XERIAL_HEAD, limit
    while at < len(data):
        if data.startswith(_XERIAL, at):  # several streams, one behind the other
            at += _XERIAL_HEAD
            continue
        size = int.from_bytes(data[at : at + 4], "big")
        if at + 4 + size > len(data):
            raise _refused(f"a snappy block of {size} bytes", str(len(data) - at - 4))
        part = _unsnap_block(data[at + 4 : at + 4 + size], left)
        left -= len(part)
        parts.append(part)
        at += 4 + size
    return b"".join(parts)


def _unlz4(data: bytes, limit: int) -> bytes:
    """Decompress frames, one behind the other, in pieces as `_gunzip` does."""
    view, parts, left, at = memoryview(data), list[bytes](), limit, 0
    while at < len(data):
        frame, piece = _module("lz4").LZ4FrameDecompressor(), _FIRST_PIECE
        while not frame.eof:
            if not frame.needs_input:
                part = frame.decompress(b"", max_length=_STEP)
            elif at >= len(data):
                raise _refused("a whole lz4 frame", "one that is cut off")
            else:
                part = frame.decompress(view[at : at + piece], max_length=_STEP)
                at, piece = min(at + piece, len(data)), min(2 * piece, _STEP)
            left -= len(part)
            if left < 0:
                raise _too_large(limit)
            parts.append(part)
        at -= len(frame.unused_data or b"")
    return b"".join(parts)


def _unzstd(data: bytes, limit: int) -> bytes:
    decompressor = _module("zstandard").ZstdDecompressor(max_window_size=_ZSTD_WINDOW)
    parts, left = [], limit
    with decompressor.stream_reader(data, read_across_frames=True) as reader:
        while part := reader.read(_STEP):
            left -= len(part)
            if left < 0:
                raise _too_large(limit)
            parts.append(part)
    return b"".join(parts)


_DECOMPRESSORS: dict[int, Callable[[bytes, int], bytes]] = {1: _gunzip, 2: _unsnap, 3: _unlz4, 4: _unzstd}


def decompress(codec: int, data: bytes | memoryview, max_bytes: int) -> bytes | memoryview:
    """Return the uncompressed records of a batch.

    Args:
        codec: its number, of the attributes of the batch. 0: `data` itself is returned.
        data: the compressed records.
        max_bytes: uncompressed, at most.

    Raises:
        InvalidRecordBatchError: the bytes are damaged, or more than `max_bytes`; the codec is unknown.
        MissingExtraError: the package with the codec is not installed.
    """
    if codec == 0:
        if len(data) > max_bytes:
            raise _too_large(max_bytes)
        return data
    if codec not in _DECOMPRESSORS:
        raise InvalidRecordBatchError(UNSUPPORTED_COMPRESSION_TYPE, -1, 21, "a codec of 0 to 4", str(codec))
    try:
        return _DECOMPRESSORS[codec](bytes(data), max_bytes)
    except (InvalidRecordBatchError, MissingExtraError):
        raise
    except Exception as error:  # each library has its own
        raise _refused("compressed records", f"{type(error).__name__}: {error}") from error


def compress(codec: int, data: bytes) -> bytes:
    """Compress records with a codec of this number.

    Raises:
        InvalidRecordBatchError: the codec is unknown.
        MissingExtraError: the package with the codec is not installed.
    """
    if codec == 0:
        return data
    if codec == 1:
        gzip = zlib.compressobj(wbits=31)
        return gzip.compress(data) + gzip.flush()
    if codec == 2:
        blocks = [data[at : at + _XERIAL_BLOCK] for at in range(0, len(data), _XERIAL_BLOCK)]
        parts = [bytes(_module("cramjam").snappy.compress_raw(block)) for block in blocks]
        head = _XERIAL + b"\0\0\0\1\0\0\0\1"
        return head + b"".join(len(part).to_bytes(4, "big") + part for part in parts)
    if codec == 3:
        return bytes(_module("lz4").compress(data))
    if codec == 4:
        return bytes(_module("zstandard").ZstdCompressor().compress(data))
    raise InvalidRecordBatchError(UNSUPPORTED_COMPRESSION_TYPE, -1, 21, "a codec of 0 to 4", str(codec))
