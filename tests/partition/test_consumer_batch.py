"""Records of consecutive batches as columns, and the hash of keys."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from random import Random

import pytest

from pyreplog._native.kafka.murmur2 import key_hash, partitions_of_keys
from pyreplog._native.kafka.record_batch import encode_batch, encode_records
from pyreplog._native.kafka.record_set import ConsumerBatch, batches_of_frames, read_record_set
from pyreplog.errors import InvalidArgumentError, InvalidMessageError, InvalidRecordBatchError
from pyreplog.partition.protocol.record_batch import end_marker, stamped
from pyreplog.partition.protocol.transactions import TransactionMarker
from pyreplog.record_batches.batches import build_batch
from pyreplog.record_batches.compression import decompress

TIME_MS = 1_700_000_000_000


@dataclass
class Row:
    offset: int
    value: bytes | None
    key: bytes | None
    headers: list[tuple[bytes, bytes | None]]


def rows_of(batch: ConsumerBatch) -> list[Row]:
    return [Row(each.offset, each.value, each.key, each.headers) for each in batch]


def transactional(offset: int, values: list[bytes], producer_id: int) -> bytes:
    body = encode_records(values, None, [TIME_MS] * len(values), None)
    return encode_batch(
        body, len(values), base_timestamp=TIME_MS, max_timestamp=TIME_MS, base_offset=offset, producer_id=producer_id,
        producer_epoch=0, base_sequence=0, transactional=True,
    )  # fmt: skip


def marker(offset: int, producer_id: int, *, commit: bool) -> bytes:
    return bytes(stamped(end_marker(TransactionMarker(producer_id, 0, 1, commit), TIME_MS), offset, 1))


def test_batches_of_all_kinds_are_read(seed: int) -> None:
    """Any codec that needs no package, any keys and headers, from any offset on, in any pieces."""
    random = Random(seed)

    def some() -> bytes | None:
        return None if random.random() < 0.2 else random.randbytes(random.randrange(30))

    rows: list[Row] = []
    batches: list[bytes] = []
    offset = first = random.randrange(1000)
    for _ in range(random.randrange(1, 8)):
        count = random.randrange(1, 40)
        new = [
            Row(offset + i, some(), some(), [(b"h%d" % n, some()) for n in range(random.randrange(3))])
            for i in range(count)
        ]
        batch = build_batch(
            [row.value for row in new], keys=[row.key for row in new], headers=[row.headers for row in new],
            timestamps_ms=[TIME_MS + i for i in range(count)], codec=random.choice([0, 1]), base_offset=offset,
        )  # fmt: skip
        rows += new
        batches.append(batch)
        offset += count + random.randrange(3)
    pieces = batches if random.random() < 0.5 else [b"".join(batches)]
    start = random.randrange(first, offset + 2)
    read = read_record_set(pieces, decompress, start=start)
    wanted = [row for row in rows if row.offset >= start]
    assert rows_of(read) == wanted and read.end == max(rows[-1].offset + 1, start)
    assert read.keys() == [row.key for row in wanted] and read.values() == [row.value for row in wanted]
    assert read.offsets.tolist() == [row.offset for row in wanted] and len(read.timestamps_ms) == len(wanted)
    bounds, data = read.value_column()
    assert [bytes(data[a:b]) for a, b in itertools.pairwise(bounds)] == [row.value or b"" for row in wanted]


def test_aborted_transactions_and_markers_are_left_out() -> None:
    batches = [
        transactional(0, [b"a0", b"a1"], 1), transactional(2, [b"b2"], 2), build_batch([b"c3"], timestamps_ms=[1], base_offset=3),
        marker(4, 1, commit=False), transactional(5, [b"a5"], 1), marker(6, 2, commit=True), marker(7, 1, commit=True),
    ]  # fmt: skip
    read = read_record_set(batches, decompress, aborted=[(1, 0)], committed_only=True)
    assert read.values() == [b"b2", b"c3", b"a5"] and read.end == 8
    assert read_record_set(batches, decompress).values() == [b"a0", b"a1", b"b2", b"c3", b"a5"]
    late = read_record_set(batches[1:], decompress, start=2, aborted=[(1, 0)], committed_only=True)
    assert late.values() == [b"b2", b"c3", b"a5"]


def test_a_damaged_record_set_is_refused(seed: int) -> None:
    """Of a whole batch every byte but base offset and leader epoch is checked."""
    random = Random(seed)
    batch = bytearray(build_batch([random.randbytes(20) for _ in range(5)], timestamps_ms=[TIME_MS] * 5))
    at = random.choice([*range(8, 12), *range(16, len(batch))])
    batch[at] ^= 1 << random.randrange(8)
    with pytest.raises(InvalidRecordBatchError):
        read_record_set([bytes(batch)], decompress)
    with pytest.raises(InvalidRecordBatchError):
        read_record_set([bytes(batch[: random.randrange(1, len(batch))])], decompress)


def test_batches_whose_offsets_do_not_ascend_are_refused() -> None:
    batches = [build_batch([b"x"], timestamps_ms=[1], base_offset=at) for at in (5, 5)]
    with pytest.raises(InvalidRecordBatchError, match="offsets from 6 on"):
        read_record_set(batches, decompress)


def test_uncompressed_bytes_are_bounded() -> None:
    batch = build_batch([bytes(1 << 16)], timestamps_ms=[1], codec=1)
    with pytest.raises(InvalidRecordBatchError, match="at most 1000"):
        read_record_set([batch], decompress, max_uncompressed=1000)


def test_a_batch_is_a_sequence() -> None:
    batch = read_record_set([build_batch([b"a", b"b", b"c"], timestamps_ms=[1] * 3)], decompress)
    assert len(batch) == 3 and batch[-1].value == b"c" and [record.value for record in batch[1:]] == [b"b", b"c"]
    with pytest.raises(IndexError):
        batch[3]
    with pytest.raises(InvalidArgumentError):
        batch.headers(3)
    assert not len(read_record_set([], decompress, start=7)) and read_record_set([], decompress, start=7).end == 7


def test_frames_that_are_no_records_are_refused(seed: int) -> None:
    with pytest.raises(InvalidMessageError):
        batches_of_frames([(0, bytes(Random(seed).randrange(1, 32)))], 0, lambda *_: b"")
    with pytest.raises(InvalidMessageError):
        batches_of_frames([(0, (40).to_bytes(4, "little") + bytes(28))], 0, lambda *_: b"")


@pytest.mark.parametrize(
    ("key", "hashed"),
    [
        (b"21", -973932308), (b"foobar", -790332482), (b"a-little-bit-long-string", -985981536),
        (b"a-little-bit-longer-string", -1486304829), (b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8", -58897971),
        (b"abc", 479470107),
    ],
)  # fmt: skip
def test_keys_hash_as_at_kafkas_clients(key: bytes, hashed: int) -> None:
    """The values of Kafka's own test."""
    assert key_hash(key) == hashed == key_hash(memoryview(key))
    assert partitions_of_keys([key, None, bytearray(key)], 7) == [
        (hashed & 0x7FFFFFFF) % 7,
        -1,
        (hashed & 0x7FFFFFFF) % 7,
    ]
    with pytest.raises(InvalidArgumentError):
        partitions_of_keys([key], 0)
