"""Native code believes no length, offset or count before it has compared it with the bytes that are there.

What used to end the process runs in a process of its own.
"""

from __future__ import annotations

import random
from functools import partial
from typing import Any

import numpy as np
import pytest

import pyreplog
from pyreplog._native.kafka.record_batch import encode_batch, encode_records
from pyreplog._native.kafka.record_set import read_record_set
from pyreplog._native.ledger_log.entries import encode_entries, merge_entries
from pyreplog._native.topic.ack_set import AckSet
from pyreplog._native.topic.message_encoder import compress_entry, encode_messages
from pyreplog._native.topic.messages import decode_messages
from pyreplog.errors import InvalidArgumentError, InvalidRecordBatchError, InvalidRecordsError
from pyreplog.record_batches.compression import compress, decompress
from tests.native.guarded import GuardedBuffer, run_alone
from tests.topic.entries import records_of


def batch_of(value: bytes, headers: list[tuple[bytes, bytes]]) -> bytes:
    body = encode_records([value], None, [1], [headers])
    return encode_batch(body, 1, base_timestamp=1, max_timestamp=1)


# ---- columns ---------------------------------------------------------------------------------------------------


def test_ends_of_strings_whose_difference_wraps_are_not_alike() -> None:
    code = """
import numpy as np
from pyreplog._native.tables.column_runs import are_strings_alike
print(are_strings_alike(np.array([0, 2**31 - 1, -2], np.int32), b"ab", 0, 2))
"""
    assert run_alone(code) == "False"


class Column:
    """A binary column as pyarrow describes it, of `count` rows."""

    type, null_count, offset = "binary", 0, 0

    def __init__(self, count: int, offsets: Any) -> None:
        self.count, self.offsets = count, offsets

    def __len__(self) -> int:
        return self.count

    def buffers(self) -> list[Any]:
        return [None, self.offsets, b""]


def test_columns_without_offsets_append_nothing(tmp_path: Any) -> None:
    with pyreplog.open(tmp_path / "log") as log:
        for offsets in (None, b""):
            assert log.append_columns(Column(0, offsets)) == range(0)
        assert log.append_columns(Column(1, np.zeros(2, np.int32))) == range(1)


def test_columns_with_fewer_offsets_than_rows_are_refused(tmp_path: Any) -> None:
    with pyreplog.open(tmp_path / "log") as log:
        with pytest.raises(InvalidArgumentError, match="expected 3 offsets, found 2"):
            log.append_columns(Column(2, np.zeros(2, np.int32)))
        assert log.end == 0


class Indices:
    """An array that says that it is longer than it is."""

    def __len__(self) -> int:
        return 2

    def __array__(self, dtype: Any = None, copy: Any = None) -> Any:
        return np.zeros(1, np.int64)


def test_select_counts_the_indices_that_are_there() -> None:
    indices: Any = Indices()
    assert len(records_of([b"value"], None).select(indices)) == 1


# ---- records ---------------------------------------------------------------------------------------------------


def test_a_fault_of_a_record_that_was_zeroed_since_is_described() -> None:
    code = """
import tempfile
import pyreplog
with tempfile.TemporaryDirectory() as folder, pyreplog.open(folder + "/log") as log:
    log.append(b"value")
    _, segment = log.hold_segment(0)
    CRC = -4
    print(segment.fault(65536, CRC).found)
"""
    assert "length 0" in run_alone(code)


def test_merged_entries_are_no_records_of_impossible_lengths() -> None:
    whole = bytes(encode_entries([b"value"], ledger=1, first=3, lac=-1, time=1).view)
    assert list(merge_entries([whole], last=9).entry) == [3]
    for length in (63, 8, 0):
        forged = length.to_bytes(4, "little") + whole[4:]
        assert len(merge_entries([forged + forged], last=9)) == 0
    key_length = (60_000).to_bytes(2, "little")
    assert len(merge_entries([whole[:14] + key_length + whole[16:]], last=9)) == 0


def test_frames_of_a_log_end_where_their_records_end() -> None:
    code = """
import struct
from pyreplog._native.kafka.record_set import batches_of_frames
from pyreplog.errors import InvalidMessageError
from tests.native.guarded import GuardedBuffer
LONG_WITH_ATTRIBUTES = 0x31
record = struct.pack("<IIIBBHqII", 32, 0, 0, 1, LONG_WITH_ATTRIBUTES, 0, 0, 0, 0)
try:
    batches_of_frames([(0, GuardedBuffer(32).holding(record))], 0, print)
except InvalidMessageError:
    print("refused")
"""
    assert run_alone(code) == "refused"


def test_a_consumer_batch_keeps_the_memory_of_its_pieces() -> None:
    data = bytearray(batch_of(b"value", []))
    records = read_record_set([data], lambda *_: b"")
    with pytest.raises(BufferError):
        del data[:]
    assert records.values() == [b"value"]


def test_a_consumer_batch_outlives_released_pieces() -> None:
    data = bytearray(batch_of(b"value", []))
    piece = memoryview(data)
    records = read_record_set([piece], lambda *_: b"")
    piece.release()
    with pytest.raises(BufferError):
        data.clear()
    assert records.values() == [b"value"]


def test_headers_that_were_changed_behind_a_batch_are_refused() -> None:
    data = bytearray(batch_of(b"value", [(b"name", b"content")]))
    records = read_record_set([data], lambda *_: b"")
    at = data.index(b"name") - 1
    data[at] = 0x7E
    with pytest.raises(InvalidRecordBatchError, match="changed"):
        records.headers(0)


def test_a_consumer_batch_ends_where_its_batches_would_be_too_large() -> None:
    """Each batch is one that a broker takes. If all of them together were refused, no consumer would come behind them."""
    bodies = [encode_records([b"v" * 5000], None, [1], None) for _ in range(3)]
    batches = [
        encode_batch(compress(1, body), 1, base_timestamp=1, max_timestamp=1, codec=1, base_offset=at)
        for at, body in enumerate(bodies)
    ]
    data, size = b"".join(batches), len(bodies[0])
    for most, end in ((3 * size, 3), (3 * size - 1, 2), (2 * size - 1, 1), (size, 1)):
        records = read_record_set([data], decompress, max_uncompressed=most)
        assert (records.end, records.values()) == (end, [b"v" * 5000] * end)
        rest = read_record_set([data], decompress, start=records.end, max_uncompressed=3 * size)
        assert len(rest) == 3 - end
    with pytest.raises(InvalidRecordBatchError, match="at most"):
        read_record_set([data], decompress, max_uncompressed=size - 1)
    damaged = batches[0] + encode_batch(b"no gzip", 1, base_timestamp=1, max_timestamp=1, codec=1, base_offset=1)
    with pytest.raises(InvalidRecordBatchError, match="compressed records"):
        read_record_set([damaged], decompress, max_uncompressed=3 * size)


# ---- messages --------------------------------------------------------------------------------------------------


def numbered(number: int, body: Any) -> bytes:
    return bytes([number])


def test_compressed_bodies_are_decoded_up_to_a_limit() -> None:
    plain = [encode_messages([b"v" * 1000]) for _ in range(5)]
    size = len(plain[0]) - 32  # of a body
    bodies = {bytes([number]): entry[32:] for number, entry in enumerate(plain)}
    packed = [compress_entry(entry, 1, partial(numbered, number)) for number, entry in enumerate(plain)]
    called = []

    def decompress(codec: int, body: memoryview, raw_size: int) -> bytes:
        called.append(bytes(body))
        return bodies[bytes(body)]

    def decoded(raw_max: int) -> Any:
        called.clear()
        records = records_of(packed, [1] * 5)
        return decode_messages(records, offset=0, entries=0, size=0, decompress=decompress, raw_max=raw_max)

    for raw_max, entries in ((0, 1), (size, 1), (2 * size - 1, 1), (2 * size, 2), (4 * size + 1, 4), (5 * size, 5)):
        batch = decoded(raw_max)
        assert (batch.entries, batch.end, batch.last_entry) == (entries, entries, entries - 1)
        assert (len(batch), len(called)) == (entries, entries)
        assert batch.values() == [b"v" * 1000] * entries


# ---- acknowledgements ------------------------------------------------------------------------------------------


def columns(*rows: list[int]) -> Any:
    return (np.array(row, np.int64) for row in rows)


def test_sizes_of_entries_add_up_within_64_bits() -> None:
    acks = AckSet((0, 0, 0))
    with pytest.raises(InvalidArgumentError, match="impossible"):
        acks.note_entries(*columns([1, 2], [1, 1], [1 << 62, 1 << 62], [1, 2], [0, 0]))
    acks.note_entries(*columns([1, 2], [1, 1], [1 << 40, 1 << 40], [1, 2], [0, 0]))
    assert not len(acks.acknowledge(np.array([1, 2]), 10))
    copy = AckSet((0, 0, 0))
    copy.apply(acks.snapshot())
    assert copy.acked_bytes == 1 << 41


def test_a_mark_within_a_range_is_refused_before_it_counts() -> None:
    acks = AckSet((0, 0, 0))
    acks.note_entries(*columns([5], [10], [1], [5], [5]))
    assert not len(acks.acknowledge(np.arange(5, 15), 100))
    for mark in (5, 8, 14):
        before = acks.snapshot()
        with pytest.raises(InvalidRecordsError):
            acks.apply(AckSet((mark, 1, 1)).changes())
        assert acks.mark == (0, 0, 0)
        assert acks.snapshot() == before
    acks.apply(AckSet((15, 6, 6)).changes())
    assert (acks.mark, acks.ranges) == ((15, 6, 6), 0)


# ---- any bytes -------------------------------------------------------------------------------------------------

READERS = """
from random import Random
from pyreplog._native.bookie.inspect_records import inspect_controls, inspect_entries
from pyreplog._native.ha.client_batch import encode_record, parse_records
from pyreplog._native.kafka.fetch_gather import gather_batches
from pyreplog._native.kafka.record_batch import encode_batch, encode_records, take_produced
from pyreplog._native.kafka.record_set import batches_of_frames, read_record_set
from pyreplog._native.ledger_log.digest import holdings_digest
from pyreplog._native.ledger_log.entries import compare_entries, encode_control, encode_entries, merge_entries, parse_entries
from pyreplog._native.ledger_log.verification import ledger_index_fault, verify_records
from pyreplog._native.system.checksum import crc32c
from pyreplog._native.topic.ack_set import AckSet
from pyreplog._native.topic.message_encoder import encode_messages
from pyreplog._native.topic.messages import decode_messages
from pyreplog._native.topic.range_set import RangeSet
from pyreplog.errors import ReplogError
from tests.native.guarded import GuardedBuffer

def repaired(data):
    "Give a record the checksum of its bytes, so that a reader looks further."
    length = int.from_bytes(data[:4], "little")
    stride = (length + 7) & ~7
    if 16 <= stride <= len(data):
        data[4:8] = crc32c(bytes(data[12:stride]), length).to_bytes(4, "little")
    return data

def rows(batch):
    batch.values(), batch.keys(), batch.packed(), batch.event_time, batch.kind, batch.entry_count
    return [record.properties for record in batch]

def messages(data):
    batch = decode_messages(parse_entries(data, ledger=1, first=0, last=99), offset=0, entries=0, size=0)
    batch.values(), batch.keys(), batch.packed(), batch.sequence, batch.event_time, batch.key_hash(), batch.entry_producer
    return [batch.properties(at) for at in range(len(batch))]

def kafka(data):
    batch = read_record_set([data], lambda codec, body, most: bytes(body)[:most])
    return batch.values(), batch.keys(), [batch.headers(at) for at in range(len(batch))]

READERS = {
    "entries": (rows, lambda data: parse_entries(data, ledger=1, first=0, last=99)),
    "merged": (rows, lambda data: merge_entries([data, data], last=99)),
    "log": (rows, lambda data: parse_records(data, 4096, 5)),
    "inspected": (repr, lambda data: inspect_entries(data, ledger=1, first=0, last=99)),
    "controls": (repr, inspect_controls),
    "verified": (repr, lambda data: verify_records(data, stamp=0, space=len(data))),
    "index": (repr, ledger_index_fault),
    "digest": (repr, holdings_digest),
    "compared": (repr, lambda data: compare_entries(data, data)),
    "gathered": (repr, lambda data: [bytes(piece) for piece in gather_batches([(0, data)], 0)]),
    "frames": (repr, lambda data: batches_of_frames([(0, data)], 0, lambda *_: b"")),
    "messages": (repr, messages),
    "kafka": (repr, kafka),
    "produced": (repr, lambda data: take_produced(data, decompress=lambda codec, body, most: bytes(body)[:most])),
    "ranges": (repr, RangeSet.load),
    "acks": (repr, lambda data: AckSet((0, 0, 0)).apply(data)),
}
"""

FUZZ = """
rng = Random(SEED)
guarded = GuardedBuffer(1 << 16)
plain = bytes(encode_entries([b"one", b"two" * 9, b""], [b"k", None, b""], [5, None, 6], ledger=1, first=0, lac=-1, time=1).view)
filled = encode_messages([b"v", b"w" * 30], [b"k", None], properties=[{"a": "b"}, None], event_times=[1, None], deliver_at=[0, 5], sequences=[3, 9], producer=b"p")
batches = bytes(encode_entries([filled], ledger=1, first=0, lac=-1, time=1, messages=[2]).view)
control = encode_control(1, 2, b"value", lac=-1, time=1)
produced = encode_batch(encode_records([b"v", None, b"x" * 40], [b"k", None, b""], [1, 2, 3], [[(b"h", None)], [], [(b"i", b"j")]]), 3, base_timestamp=1, max_timestamp=3)
ranges, acks = RangeSet(), AckSet((0, 0, 0))
ranges.add_ranges([5, 1 << 40], [9, 1 << 41])
acks.note_entries([5, 900], [10, 7], [1, 2], [5, 6], [5, 9])
acks.acknowledge([*range(5, 15), *range(900, 907)], 1000)
short = encode_record(b"value", b"key", 5, {"a": "b"})
seeds = [plain, batches, control, produced, short, ranges.dump(), acks.snapshot()]
def repaired_batch(data):
    data[17:21] = crc32c(bytes(data[21:])).to_bytes(4, "big")
    return data
reached = set()
for turn in range(TURNS):
    data = bytearray(rng.choice(seeds))
    is_kafka = data[:8] == bytes(8)
    for _ in range(rng.randrange(4)):
        at = rng.randrange(min(len(data), 80) if rng.random() < 0.7 else len(data))
        data[at] = rng.choice((0, 1, 2, 7, 8, 31, 0x31, 63, 64, 0x7F, 0x80, 0xFF, data[at] ^ 1 << rng.randrange(8)))
    if rng.random() < 0.3:
        del data[rng.randrange(1, len(data)):]
    if rng.random() < 0.8:
        data = repaired_batch(data) if is_kafka and len(data) >= 61 else repaired(data)
    view = guarded.holding(bytes(data))
    for name, (look, read) in READERS.items():
        try:
            look(read(view))
            reached.add(name)
        except (ReplogError, ValueError, UnicodeDecodeError):
            pass
missing = set(READERS) - reached - {"index"}
assert not missing, missing
print("sound")
"""


@pytest.mark.parametrize("seed", range(2))
def test_readers_of_any_bytes_stay_within_their_buffer(seed: int) -> None:
    assert run_alone(f"{READERS}\nSEED, TURNS = {seed}, 3000\n{FUZZ}") == "sound"


def test_a_guarded_buffer_ends_at_its_last_byte() -> None:
    data = random.Random(1).randbytes(5000)
    view = GuardedBuffer(5000).holding(data)
    assert bytes(view) == data
    code = """
import ctypes
from tests.native.guarded import GuardedBuffer
view = GuardedBuffer(10).holding(bytes(10))
ctypes.string_at(ctypes.addressof(ctypes.c_char.from_buffer(view)), 11)
"""
    with pytest.raises(AssertionError, match="status -11"):
        run_alone(code)
