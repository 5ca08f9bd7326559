"""The sparse index of a segment, at each moment of its life, beside the one that the twin makes from the records."""

from __future__ import annotations

import os
import struct
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from crc32c import crc32c
from hypothesis import example, given
from hypothesis import strategies as st

from pyreplog._native.log.segment import HEADER_BYTES, SIZE_MAX, SIZE_MIN, Segment
from pyreplog._native.log.segment_header import COUNTED, encode_header
from pyreplog._native.log.sparse import SparseIndex
from pyreplog.errors import InvalidArgumentError
from tests import twin

UUID, FIRST_ENTRY = bytes(range(16)), 1 << 40
HEAD, NUMBER, COUNT = struct.Struct("<IIIBBHq"), struct.Struct("<II"), struct.Struct("<II")
BATCH, CONTROL, BLANK = 2, 3, 5
VERSION, HAS_ATTRIBUTES, HAS_COUNT = 0x01, 0x20, 0x80
BLANK_BYTES, NUMBERS_MAX = 32, 2**32 - 1
TIMES = (-(2**63) + 1, -1, 0, 1, 2**63 - 1)


@dataclass(frozen=True)
class Run:
    """Records of one length, one behind the other.

    stride: bytes of each. count: entry numbers that each takes; 0: a control record, 1: an entry, else a batch.
    """

    stride: int
    count: int
    event_time: int | None
    records: int


@dataclass
class Records:
    """A segment in the making: its bytes, and the offsets at which a record ends."""

    size: int
    data: bytearray = field(init=False)
    ends: list[int] = field(default_factory=lambda: [HEADER_BYTES])
    entries: int = 0

    def __post_init__(self) -> None:
        self.data = bytearray(encode_header(UUID, 0, self.size, FIRST_ENTRY, 0, COUNTED))
        self.stamp = twin.read_header(self.data).stamp

    def append(self, run: Run) -> None:
        for _ in range(run.records):
            left = self.size - BLANK_BYTES - len(self.data)
            count = min(run.count, NUMBERS_MAX - self.entries)
            record = self._record(min(run.stride, left), count, run.event_time)
            if len(record) > left:
                return
            self.data += record
            self.entries += count
            self.ends.append(len(self.data))

    def _record(self, stride: int, count: int, event_time: int | None) -> bytes:
        form, kind, body = VERSION, BATCH if count else CONTROL, b""
        if count > 1:
            form, body = form | HAS_COUNT, COUNT.pack(count, 0)
        if event_time is not None:
            form, body = form | HAS_ATTRIBUTES, body + struct.pack("<HBHq", 11, 1, 8, event_time)
        length = max(stride, 32 + len(body))
        number = NUMBER.pack(self.entries + max(count - 1, 0), NUMBERS_MAX)
        return self._sealed(length, (kind, form, 0, len(self.ends)), number + body)

    def _sealed(self, length: int, head: tuple[int, int, int, int], rest: bytes) -> bytes:
        record = bytearray(HEAD.pack(length, 0, self.stamp, *head) + rest)
        if head[0] != BLANK:
            record += bytes((length + 7) // 8 * 8 - len(record))
        struct.pack_into("<I", record, 4, crc32c(bytes(record[12:]), length))
        return bytes(record)

    def ended_at(self, end: int) -> bytes:
        """Return the segment with a blank in place of the records from `end` on."""
        blank = self._sealed(self.size - end, (BLANK, VERSION, 0, len(self.ends)), NUMBER.pack(0, NUMBERS_MAX))
        return (bytes(self.data[:end]) + blank).ljust(self.size, b"\0")


@contextmanager
def file_of(data: bytes) -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / f"{0:020d}.log"
        path.write_bytes(data)
        yield path


def segment_of(path: Path) -> Segment:
    return Segment(os.open(path, os.O_RDONLY), str(path), writable=False)


def image_of(index: SparseIndex, segment: Segment) -> bytes:
    times = segment.head_at(HEADER_BYTES)[3], segment.head_at(index.end)[3]
    return index.to_bytes(segment.uuid, segment.base, segment.first_entry, segment.stamp, *times)


def load(path: Path, segment: Segment) -> SparseIndex:
    return SparseIndex.load(str(path), segment.size, UUID, 0, FIRST_ENTRY, segment.stamp)[0]


def answers_of(index: SparseIndex, offsets: list[int]) -> list[object]:
    return [
        index.end,
        index.entries,
        [index.block(i) for i in range(len(index))],
        [index.before(offset) for offset in offsets],
        [index.event_time_blocks(low, high) for low in TIMES for high in TIMES],
    ]


strides = st.sampled_from([32, 40, 64, 1000, 4056, 4064, 4088, 4096, 4104, 8192, SIZE_MIN]) | st.integers(32, 6000)
runs = st.builds(
    Run, strides, st.sampled_from([0, 1, 1, 1, 2, 1000, 2**31, NUMBERS_MAX]), st.none() | st.sampled_from(TIMES),
    st.sampled_from([1, 1, 2, 5, 20, SIZE_MIN]),
)  # fmt: skip


@given(
    size=st.sampled_from([SIZE_MIN, 3 * SIZE_MIN]), drawn=st.lists(runs, min_size=1, max_size=8),
    stops=st.lists(st.integers(0, 5000), max_size=4),
)  # fmt: skip
@example(SIZE_MIN, [Run(40, 1, None, 3), Run(48, 1, None, 3)], [2])
@example(SIZE_MIN, [Run(4096, 1, 0, 14), Run(4064, 1, 0, 1)], [14])  # a block for each page, up to the blank
@example(SIZE_MIN, [Run(32, 1, None, SIZE_MIN)], [1, 1919])
@example(SIZE_MIN, [Run(64, NUMBERS_MAX, None, 1), Run(64, 1, 0, SIZE_MIN)], [])  # controls, when numbers are used up
def test_an_index_can_be_written_at_any_time(size: int, drawn: list[Run], stops: list[int]) -> None:
    """What is written is what the records say so far; it changes nothing, and loads, and is written again as it was."""
    records = Records(size)
    for run in drawn:
        records.append(run)
    index = SparseIndex(size)
    for number in sorted({min(stop, len(records.ends) - 1) for stop in [*stops, len(records.ends)]}):
        end = records.ends[number]
        with file_of(records.ended_at(end)) as path:
            segment = segment_of(path)
            assert segment.verify(index, index.end, end) == (end, 0)
            image = image_of(index, segment)
            assert image == image_of(index, segment)
            if number:
                assert image == twin.make_index(path)
            stored = path.with_suffix(".idx")
            stored.write_bytes(image)
            loaded = load(stored, segment)
            assert answers_of(loaded, records.ends) == answers_of(index, records.ends)
            assert image_of(loaded, segment) == image
            with pytest.raises(InvalidArgumentError, match="mapped from a file"):
                segment.verify(loaded, end, end)


def test_the_index_of_another_size_takes_no_records() -> None:
    """It has memory for the blocks of a segment of its own size."""
    records = Records(2 * SIZE_MIN)
    records.append(Run(4096, 1, 0, 30))
    with file_of(records.ended_at(len(records.data))) as path:
        for size in (SIZE_MIN, SIZE_MAX):
            index = SparseIndex(size)
            with pytest.raises(InvalidArgumentError, match=f"of {size}"):
                segment_of(path).verify(index, HEADER_BYTES, len(records.data))
            assert (len(index), index.end) == (0, HEADER_BYTES)


@pytest.mark.parametrize("size", [-(2**63), -8192, 0, SIZE_MIN - 1, SIZE_MAX + 1, 2**63 - 1])
def test_sizes_that_no_segment_has_are_refused(size: int) -> None:
    with pytest.raises(InvalidArgumentError, match=f"found {size}"):
        SparseIndex(size)


def test_an_index_is_made_once() -> None:
    records = Records(SIZE_MIN)
    records.append(Run(4096, 1, 0, 14))
    index = SparseIndex(SIZE_MIN)
    with file_of(records.ended_at(len(records.data))) as path:
        segment = segment_of(path)
        segment.verify(index, HEADER_BYTES, len(records.data))
        image = image_of(index, segment)
        stored = path.with_suffix(".idx")
        stored.write_bytes(image)
        for made in (index, load(stored, segment)):
            with pytest.raises(InvalidArgumentError, match="made before"):
                made.__init__(SIZE_MIN)  # type: ignore[misc]
            assert image_of(made, segment) == image


@pytest.mark.parametrize("uuid", [b"", UUID[:-1], UUID + b"\0"])
def test_a_uuid_has_16_bytes(uuid: bytes) -> None:
    with pytest.raises(InvalidArgumentError, match=f"found {len(uuid)}"):
        SparseIndex(SIZE_MIN).to_bytes(uuid, 0, 0, 0, 0, 0)
