"""The native kernel of compaction against a model in plain Python: random batches, keys, codecs, tombstones."""

from __future__ import annotations

import contextlib
from random import Random
from typing import NamedTuple

import pytest

from pyreplog._native.kafka.log_cleaner import OffsetMap, clean_batch, hash_key, without_records
from pyreplog._native.kafka.record_batch import (
    HEADER_BYTES,
    RecordBatchHeader,
    encode_batch,
    encode_records,
    peek_header,
    stamp_batch,
)
from pyreplog.errors import InvalidArgumentError, InvalidRecordBatchError
from pyreplog.record_batches.batches import read_batch
from pyreplog.record_batches.compression import compress, decompress

_HORIZON = 64
_LIMIT = 1 << 20


class _Record(NamedTuple):
    offset: int
    time_ms: int
    key: bytes | None
    value: bytes | None
    headers: list[tuple[bytes, bytes | None]]


def _make(rng: Random, base: int, keys: list[bytes], *, codec: int, nulls: bool = False) -> tuple[bytes, list[_Record]]:
    records = []
    for number in range(rng.randrange(1, 12)):
        value = None if rng.random() < 0.2 else rng.randbytes(rng.randrange(40))
        key = None if nulls and rng.random() < 0.1 else rng.choice(keys)
        headers: list[tuple[bytes, bytes | None]] = [(b"h", rng.choice([None, b"x"]))] if rng.random() < 0.2 else []
        records.append(_Record(base + number, 10_000 + rng.randrange(-500, 500), key, value, headers))
    times = [record.time_ms for record in records]
    body = encode_records(
        [record.value for record in records], [record.key for record in records], times,
        [record.headers for record in records],
    )  # fmt: skip
    batch = bytearray(
        encode_batch(
            compress(codec, body), len(records), base_timestamp=times[0], max_timestamp=max(times), codec=codec,
            producer_id=7, producer_epoch=1, base_sequence=base,
        )
    )  # fmt: skip
    stamp_batch(batch, base, 3)
    return bytes(batch), records


def _body(batch: bytes) -> bytes | memoryview:
    head = _head(batch)
    return decompress(head.attributes & 7, memoryview(batch)[HEADER_BYTES:], _LIMIT)


def _head(batch: bytes) -> RecordBatchHeader:
    head = peek_header(batch)
    assert head is not None
    return head


def _records(batch: bytes) -> list[_Record]:
    header, columns = read_batch(batch)
    numbers, times, keys, values = columns.number.tolist(), columns.timestamp.tolist(), columns.keys(), columns.values()
    return [
        _Record(header.base_offset + numbers[i], times[i], keys[i], values[i], list(columns.headers(i)))
        for i in range(len(columns))
    ]


@pytest.mark.parametrize("codec", [0, 1, 2, 3, 4])
def test_cleaned_batches_equal_those_of_a_model(codec: int, seed: int) -> None:
    rng = Random(seed)
    keys = [rng.randbytes(rng.randrange(20)) for _ in range(12)]
    batches, base = [], 0
    for _ in range(20):
        batches.append(_make(rng, base, keys, codec=codec, nulls=True))
        base += len(batches[-1][1]) + rng.randrange(2)
    mapped = rng.randrange(len(batches) // 2)
    offsets, latest = OffsetMap(4096), dict[bytes, int]()
    for batch, records in batches[:mapped]:
        assert offsets.add_batch(batch, _body(batch))
        latest.update((record.key, record.offset) for record in records if record.key is not None)
    assert {key: offsets.get(key) for key in latest} == latest
    stop = offsets.latest
    left = [batch for batch, _ in batches]
    for now_ms in (50_000, 50_900, 51_000):  # a horizon is set, not reached, reached
        for index, batch in enumerate(left):
            cleaned = clean_batch(batch, _body(batch), offsets, compress, now_ms=now_ms, retention_ms=1000)
            if cleaned is not None:
                _check_same_place(batch, cleaned)
                left[index] = cleaned
            wanted = [
                record
                for record in batches[index][1]
                if record.offset >= stop
                or (
                    record.key is not None
                    and latest[record.key] == record.offset
                    and (record.value is not None or now_ms < 51_000)
                )
            ]
            assert _records(left[index]) == wanted
            has_tombstone = any(record.value is None for record in wanted)
            assert not has_tombstone or _head(left[index]).attributes & _HORIZON
            assert (
                clean_batch(left[index], _body(left[index]), offsets, compress, now_ms=now_ms, retention_ms=9) is None
            )


def _check_same_place(before: bytes, after: bytes) -> None:
    old, new = _head(before), _head(after)
    assert (new.base_offset, new.last_offset_delta, new.leader_epoch) == (
        old.base_offset, old.last_offset_delta, old.leader_epoch,
    )  # fmt: skip
    assert (new.producer_id, new.producer_epoch, new.base_sequence) == (7, 1, old.base_sequence)
    assert new.count == 0 or new.attributes & 7 == old.attributes & 7


def test_the_hash_is_siphash_of_128_bits() -> None:
    secret = bytes(range(16))
    assert hash_key(b"", secret).hex() == "a3817f04ba25a8e66df67214c7550293"
    assert hash_key(bytes(range(15)), secret).hex() == "5493e99933b0a8117e08ec0f97cfc3d9"


def test_a_map_that_is_full_takes_no_key_of_a_batch(seed: int) -> None:
    rng = Random(seed)
    for _ in range(30):
        offsets, base = OffsetMap(1024), 0
        while True:
            batch, records = _make(rng, base, [rng.randbytes(8) for _ in range(64)], codec=0)
            taken, latest = len(offsets), offsets.latest
            if not offsets.add_batch(batch, _body(batch)):
                break
            base += len(records)
            assert len(offsets) <= 1024 // 24 * 9 // 10
        assert (len(offsets), offsets.latest) == (taken, latest)
    with pytest.raises(InvalidArgumentError, match="max_bytes"):
        OffsetMap(1)


def test_a_batch_without_records_keeps_its_place(seed: int) -> None:
    batch, records = _make(Random(seed), 100, [b"k"], codec=1)
    empty = without_records(batch)
    _check_same_place(batch, empty)
    assert _records(empty) == []
    assert (_head(empty).max_timestamp, len(empty)) == (max(record.time_ms for record in records), HEADER_BYTES)


def test_damaged_batches_are_refused(seed: int) -> None:
    """No byte of a body may lead the walk outside of it."""
    rng, offsets = Random(seed), OffsetMap(4096)
    for _ in range(300):
        batch, _ = _make(rng, 0, [b"a", b"b"], codec=0)
        broken = bytearray(batch)
        broken[rng.randrange(HEADER_BYTES, len(broken))] ^= 1 << rng.randrange(8)
        broken[60] = rng.choice([broken[60], rng.randrange(256)])
        for act in (
            lambda data: offsets.add_batch(data, data[HEADER_BYTES:]),
            lambda data: clean_batch(data, data[HEADER_BYTES:], offsets, compress, now_ms=0, retention_ms=0),
        ):
            with contextlib.suppress(InvalidRecordBatchError):
                act(bytes(broken))
