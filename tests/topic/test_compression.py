"""Codecs of entries."""

from __future__ import annotations

import random
import sys
import threading
import tracemalloc
from pathlib import Path

import pytest

from pyreplog._native.topic.message_encoder import compress_entry, encode_messages
from pyreplog.cluster import Cluster
from pyreplog.errors import InvalidEntryError, MissingExtraError
from pyreplog.topic.model import compression
from pyreplog.topic.model.compression import LZ4, RAW_BYTES_MAX, ZSTD, codec_number, compressor, decompress
from pyreplog.topic.model.config import COMPRESSIONS, Compression
from pyreplog.topic.owner.managed import chain_reader
from pyreplog.topic.owner.topic import Topic
from tests.topic.entries import decoded

CODECS: tuple[Compression, ...] = ("zstd", "lz4")
RAW = b"what repeats itself is small " * 200


def packed(codec: Compression, raw: bytes) -> bytes:
    compress = compressor(codec)
    assert compress is not None
    return compress(raw)


def test_numbers_are_those_of_the_header() -> None:
    assert [codec_number(name) for name in COMPRESSIONS] == [compression.NONE, ZSTD, LZ4] == [0, 1, 2]
    assert compressor("none") is None


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("raw", [b"", b"a", RAW, random.Random(1).randbytes(1000)])
def test_decompress_reverses_compress(codec: Compression, raw: bytes) -> None:
    body = packed(codec, raw)
    assert decompress(codec_number(codec), body, len(raw)) == raw
    assert decompress(codec_number(codec), memoryview(body), len(raw)) == raw


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("change", [-1, 1, -len(RAW)])
def test_decompress_checks_the_size_in_the_header(codec: Compression, change: int) -> None:
    with pytest.raises(ValueError, match=f"expected .*{len(RAW) + change}"):
        decompress(codec_number(codec), packed(codec, RAW), len(RAW) + change)


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("body", [b"", b"garbage that was never compressed", packed("zstd", RAW)[:-3]])
def test_damaged_compressed_entries_are_refused(codec: Compression, body: bytes) -> None:
    with pytest.raises(ValueError, match="expected"):
        decompress(codec_number(codec), body, len(RAW))


@pytest.mark.parametrize("size", [-1, RAW_BYTES_MAX + 1])
def test_no_size_is_believed_that_cannot_be(size: int) -> None:
    with pytest.raises(ValueError, match="at most"):
        decompress(ZSTD, packed("zstd", RAW), size)


def test_a_codec_is_one_of_these() -> None:
    with pytest.raises(ValueError, match="found number 3"):
        decompress(3, b"", 0)


@pytest.mark.parametrize("codec", CODECS)
def test_nothing_large_is_allocated_for_a_small_lie(codec: Compression) -> None:
    """The compressed frame names a large size and the header a small one, or the other way round."""
    body, small = packed(codec, bytes(32 << 20)), packed(codec, b"small")
    tracemalloc.start()
    try:
        for step, size in ((body, 100), (small, 32 << 20)):
            with pytest.raises(ValueError, match="expected"):
                decompress(codec_number(codec), step, size)
        assert tracemalloc.get_traced_memory()[1] < 8 << 20  # allocations of other threads of this process count, too
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("codec", CODECS)
def test_entries_are_read_by_what_they_say(codec: Compression) -> None:
    noise = random.Random(2).randbytes(500)
    plain = encode_messages([noise], producer=b"p")
    large = encode_messages([RAW, RAW], producer=b"p")
    compress = compressor(codec)
    assert compress is not None
    compressed = compress_entry(large, codec_number(codec), compress)
    assert len(compressed) < len(large) // 4
    assert compress_entry(plain, codec_number(codec), compress) == plain, "it does not become smaller"
    batch = decoded([plain, compressed, large], [1, 2, 2], decompress=decompress)
    assert batch.values() == [noise, RAW, RAW, RAW, RAW]
    damaged = compressed[:-9] + bytes(8) + compressed[-1:]
    with pytest.raises(InvalidEntryError, match="ledger 9, entry 1"):
        decoded([plain, damaged], [1, 2], decompress=decompress)


def test_a_read_of_an_owner_decompresses_a_bounded_number_of_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(chain_reader, "RAW_BYTES_MAX", 3 * len(RAW))
    with Cluster.embedded(tmp_path, bookies=1) as cluster:
        topic = cluster.topic("t", ensemble=1, compression="zstd")
        assert isinstance(topic, Topic)
        for _ in range(5):
            topic.publish_batch([RAW])
        read = [topic.managed.read(0).result(30.0)]
        while read[-1].end < 5:
            read.append(topic.managed.read(read[-1].end).result(30.0))
        assert [batch.entries for batch in read] == [2, 2, 1]
        assert [message.value for message in topic.read_at(0).result(30.0)] == [RAW] * 2
        with topic.subscribe("s", start="earliest") as consumer:
            assert [consumer.receive(30.0).value for _ in range(5)] == [RAW] * 5


@pytest.mark.parametrize(("codec", "library"), [("zstd", "zstandard"), ("lz4", "lz4.block")])
def test_a_missing_library_is_named(codec: Compression, library: str, monkeypatch: pytest.MonkeyPatch) -> None:
    body = packed(codec, RAW)
    monkeypatch.setitem(sys.modules, library, None)
    with pytest.raises(MissingExtraError, match=r"pyreplog\[compression\]"):
        compressor(codec)
    with pytest.raises(MissingExtraError, match=r"pyreplog\[compression\]"):
        decompress(codec_number(codec), body, len(RAW))


def test_threads_have_contexts_of_their_own() -> None:
    contexts: set[int] = set()
    keep = []

    def work() -> None:
        packed("zstd", RAW)
        keep.append(compression._contexts.compressor)
        contexts.add(id(compression._contexts.compressor))

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(contexts) == 3
