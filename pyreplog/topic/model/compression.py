"""Codecs of entries: their names and numbers, compression and decompression.

The libraries come with the extra `compression`; the first entry that needs one loads it.
"""

from __future__ import annotations

import importlib
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from pyreplog.errors import MissingExtraError
from pyreplog.topic.model.config import COMPRESSIONS, Compression

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

NONE, ZSTD, LZ4 = range(3)
"""Numbers of codecs in an entry's header: their indexes in COMPRESSIONS."""

ZSTD_LEVEL = 3
RAW_BYTES_MAX = 64 << 20
"""The largest body that is decompressed."""
LZ4_RATIO_MAX = 255
"""Most bytes that one byte of a compressed block stands for."""

Compress = Callable[["ReadableBuffer"], bytes]


class _Contexts(threading.local):
    """The zstd contexts of a thread: they must not be shared, and are expensive to create."""

    compressor: Any = None
    decompressor: Any = None


_contexts = _Contexts()


def codec_number(name: Compression) -> int:
    """Return the number of a codec in an entry's header."""
    return COMPRESSIONS.index(name)


def compressor(name: Compression) -> Compress | None:
    """Return the function that compresses with a codec, for any thread; None for "none".

    Raises:
        MissingExtraError: the library of the codec is not installed.
    """
    if name == "none":
        return None
    _library(codec_number(name))
    return _zstd_compress if name == "zstd" else _lz4_compress


def decompress(codec: int, body: ReadableBuffer, raw_size: int) -> bytes:
    """Decompress a body of `raw_size` bytes. Never allocates more.

    Raises:
        ValueError: the body is damaged, or has another size or codec; `decode_messages` adds the place.
        MissingExtraError: the library of the codec is not installed.
    """
    if not 0 <= raw_size <= RAW_BYTES_MAX:
        raise ValueError(f"expected a body of at most {RAW_BYTES_MAX} bytes, found {raw_size}")
    if codec == ZSTD:
        return _zstd_decompress(body, raw_size)
    if codec == LZ4:
        return _lz4_decompress(body, raw_size)
    raise ValueError(f"expected a codec of {', '.join(COMPRESSIONS)}, found number {codec}")


def _library(codec: int) -> Any:
    module = "zstandard" if codec == ZSTD else "lz4.block"
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise MissingExtraError(
            f"compression {COMPRESSIONS[codec]!r} needs {module.partition('.')[0]}: pip install 'pyreplog[compression]'"
        ) from error


def _zstd_compress(body: ReadableBuffer) -> bytes:
    if _contexts.compressor is None:
        _contexts.compressor = _library(ZSTD).ZstdCompressor(level=ZSTD_LEVEL)
    compressed: bytes = _contexts.compressor.compress(body)
    return compressed


def _zstd_decompress(body: ReadableBuffer, raw_size: int) -> bytes:
    zstandard = _library(ZSTD)
    if _contexts.decompressor is None:
        _contexts.decompressor = zstandard.ZstdDecompressor()
    try:
        # The library allocates what the frame claims, whatever the limit is.
        claimed = zstandard.frame_content_size(body)
        if claimed != raw_size:
            raise ValueError(f"zstd: expected a frame of {raw_size} bytes, found one of {claimed}")
        raw: bytes = _contexts.decompressor.decompress(body, max_output_size=raw_size, allow_extra_data=False)
    except zstandard.ZstdError as error:
        raise ValueError(f"zstd: expected a frame of {raw_size} bytes, found: {error}") from None
    return raw


def _lz4_compress(body: ReadableBuffer) -> bytes:
    compressed: bytes = _library(LZ4).compress(body, store_size=False)
    return compressed


def _lz4_decompress(body: ReadableBuffer, raw_size: int) -> bytes:
    lz4 = _library(LZ4)
    packed = memoryview(body).nbytes
    if raw_size > LZ4_RATIO_MAX * packed:
        raise ValueError(f"lz4: expected at most {LZ4_RATIO_MAX * packed} bytes from {packed}, found {raw_size}")
    try:
        raw: bytes = lz4.decompress(body, uncompressed_size=raw_size)
    except lz4.LZ4BlockError as error:
        raise ValueError(f"lz4: expected a block of {raw_size} bytes, found: {error}") from None
    if len(raw) != raw_size:
        raise ValueError(f"lz4: expected a block of {raw_size} bytes, found one of {len(raw)}")
    return raw
