"""What the segment fuzzers do with bytes: put them where records go, and read them in every way there is."""

from __future__ import annotations

import contextlib
import os
import struct
import tempfile
from pathlib import Path

from crc32c import crc32c

import pyreplog
from pyreplog._native.ledger_log.entries import encode_entries
from pyreplog._native.log.record import Record
from pyreplog._native.log.segment import HEADER_BYTES, SIZE_MIN, Segment
from pyreplog._native.log.segment_header import COUNTED, encode_header
from pyreplog._native.log.sparse import SparseIndex
from pyreplog.errors import CorruptionError
from tests import twin
from tests.record_batches import open_log

UUID = bytes(range(16))
_HEAD = struct.Struct("<IIIBBHq")


def look_at(record: Record) -> int:
    """Touch all that a record tells; the bytes in all."""
    sizes = [len(record.value), len(record.value_view), len(record.key or b""), len(record.raw), record.size]
    told = (record.entry, record.position, record.timestamp, record.event_time, record.kind, record.ledger, record.lac)
    return sum(sizes) + len(told) + len(record.attributes) + len(record.properties)


def repair_records(data: bytearray, stamp: int) -> None:
    """Give what looks like records the right stamp, padding and CRC, so that the fuzzer gets behind these checks."""
    at = 0
    while at + 32 <= len(data):
        length = _HEAD.unpack_from(data, at)[0] % 4096
        stride = (length + 7) & ~7
        if length < 32 or at + stride > len(data):
            return
        data[at + length : at + stride] = bytes(stride - length)
        struct.pack_into("<I", data, at, length)
        struct.pack_into("<I", data, at + 8, stamp)
        struct.pack_into("<I", data, at + 4, crc32c(bytes(data[at + 12 : at + stride]), length))
        at += stride


def exercise(data: bytes, *, mended: bool, first_entry: int = 0, version: int = 1) -> int:
    """Read a segment that holds `data` behind its header. Returns how many records were found; raises nothing that a
    reader of the log may not see."""
    with tempfile.TemporaryFile() as file:
        os.posix_fallocate(file.fileno(), 0, SIZE_MIN)
        os.pwrite(file.fileno(), encode_header(UUID, 0, SIZE_MIN, first_entry, 0, version), 0)
        segment = Segment(os.dup(file.fileno()), "fuzzed", writable=True)
        body = bytearray(data[: SIZE_MIN - HEADER_BYTES])
        if mended:
            repair_records(body, segment.stamp)
        os.pwrite(file.fileno(), body, HEADER_BYTES)
        twin_of(segment)
        return _read_all(segment)


def seeds() -> list[bytes]:
    """The first byte of a fuzzer's data, and records of each form behind each other."""
    with tempfile.TemporaryDirectory() as folder:
        with pyreplog.open(f"{folder}/log", segment_bytes=SIZE_MIN) as log:
            for number in range(6):
                log.append(b"v" * number, b"key" if number & 1 else None, event_time=number if number & 2 else None)
            log.append(b"", properties={"a": "b", "c": ""})
            log.append_batch([], control=b"control")
            records = b"".join(bytes(log.get(n).raw) for n in range(log.end))
        with open_log(Path(folder) / "batches") as log:
            log.append_record_batches([b"v", b"", b"w" * 9], [1, 3, 200], [None, 5, None])
            log.append(b"v")
            counted = b"".join(bytes(record.raw) for batch in log.read() for record in batch)
    ledger = bytes(encode_entries([b"v", b"", b"w" * 9], [b"k", None, b""], ledger=7, first=0, lac=-1, time=5).view)
    seeds = [bytes((flags,)) + data for data in (records, ledger) for flags in (0, 1, 2, 3)]
    return seeds + [bytes((flags,)) + counted for flags in (4, 5)]


def twin_of(segment: Segment) -> int:
    """Where the records end that follow each other from the front on, going by the twin: libFuzzer sees its branches. It
    minds more (padding, attributes within attributes), and less (numbers, times)."""
    data = bytes(segment.view(0, segment.size))
    header, at = twin.read_header(data), HEADER_BYTES
    try:
        while at + 32 <= len(data):
            record, stride = twin.read_record(data, at, header)
            if record is None:
                break
            at += stride
    except (AssertionError, struct.error):
        pass
    return at


def _read_all(segment: Segment) -> int:
    actual, offset = 0, HEADER_BYTES
    while (offset := segment.find_intact(offset, segment.size)) >= 0:
        actual += 1
        look_at(segment.read(offset, segment.size))
        offset += 8
    index = SparseIndex(segment.size)
    end, _ = segment.verify(index, HEADER_BYTES, segment.size)
    assert HEADER_BYTES <= end <= segment.size
    assert index.entries <= actual or segment.version == COUNTED
    with contextlib.suppress(CorruptionError):
        batch = segment.scan(HEADER_BYTES, segment.size, all_kinds=True)
        assert HEADER_BYTES <= batch.next_position <= segment.size
        assert sum(map(look_at, batch)) >= 0
        columns = (batch.entry, batch.size, batch.key_size, batch.event_time, batch.ledger, batch.stride, batch.kind)
        assert {len(column) for column in columns} <= {len(batch)}
        assert [len(value) for value in batch.values()] == batch.size.tolist()
        assert batch.packed()[0][-1] == batch.size.sum()
    return actual
