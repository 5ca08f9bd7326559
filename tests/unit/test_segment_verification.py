"""verify_records and ledger_index_fault: what they say of bytes that are cut, damaged, or of another segment."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

import pyreplog
from pyreplog._native.ledger_log.verification import BLANK, CUT, INTACT, ledger_index_fault, verify_records
from pyreplog._native.log.segment import HEADER_BYTES, Segment
from pyreplog._native.log.segment_header import compute_stamp
from pyreplog.errors import InvalidArgumentError
from pyreplog.log import names
from pyreplog.log.files import RealFiles
from tests.ledgers import SEGMENT_BYTES, control_of, open_log, records_of

STAMP, ABSENT = -3, -1


def sealed(path: Path) -> tuple[Segment, list[int]]:
    """A sealed segment of entries and control records, and the offsets where its records begin and end."""
    with open_log(path) as log:
        for entry in range(400):
            log.append(records_of(1 + entry % 3, entry) + control_of(entry % 3, 1, b""))
        log.commit_log.sync()
        log.commit_log.run_background_tasks()
        rows = log.commit_log.rows_of(0)
    file = names.segment_path(path, 0)
    segment = Segment(RealFiles().open(file, writable=False), str(file), writable=False)
    end = segment.find_blank(HEADER_BYTES)
    offsets, at = [], HEADER_BYTES
    while at < end:
        offsets.append(at)
        at += (segment.head_at(at)[4] + 7) & ~7
    assert {*rows.offset.tolist()} <= {*offsets}
    return segment, [*offsets, end]


def test_a_whole_segment_and_all_its_ends(tmp_path: Path) -> None:
    segment, ends = sealed(tmp_path)
    data = segment.bytes_at(HEADER_BYTES, SEGMENT_BYTES - HEADER_BYTES)
    space, stamp = len(data), segment.stamp
    assert verify_records(data, stamp=stamp, space=space) == (ends[-1] - HEADER_BYTES, BLANK)
    for length in range(0, 3000, 8):
        done, status = verify_records(data[:length], stamp=stamp, space=space)
        assert done == max(end - HEADER_BYTES for end in ends if end - HEADER_BYTES <= length)
        assert status == (INTACT if done == length else CUT)
    for start in ends[:50]:
        at = start - HEADER_BYTES
        assert verify_records(data[at:], stamp=stamp, space=space - at)[0] == ends[-1] - start
    with pytest.raises(InvalidArgumentError):
        verify_records(data, stamp=stamp, space=space - 1)


def test_every_flipped_bit_stops_the_walk_at_its_record(tmp_path: Path, seed: int) -> None:
    segment, ends = sealed(tmp_path)
    rng, data = random.Random(seed), bytearray(segment.bytes_at(HEADER_BYTES, SEGMENT_BYTES - HEADER_BYTES))
    for offset in range(seed % 7, ends[60] - HEADER_BYTES, 7):
        bit = 1 << rng.randrange(8)
        data[offset] ^= bit
        done, status = verify_records(data, stamp=segment.stamp, space=len(data))
        assert done == max(end - HEADER_BYTES for end in ends if end - HEADER_BYTES <= offset)
        assert status < 0
        assert status != BLANK
        data[offset] ^= bit


def test_records_of_another_life_do_not_count(tmp_path: Path) -> None:
    segment, _ = sealed(tmp_path)
    data = segment.bytes_at(HEADER_BYTES, SEGMENT_BYTES - HEADER_BYTES)
    other = compute_stamp(segment.uuid, segment.base, segment.size, segment.epoch + 1)
    assert compute_stamp(segment.uuid, segment.base, segment.size, segment.epoch) == segment.stamp
    assert verify_records(data, stamp=other, space=len(data)) == (0, STAMP)
    assert verify_records(bytes(200), stamp=other, space=len(data)) == (0, ABSENT)
    with pytest.raises(InvalidArgumentError):
        compute_stamp(b"short", 0, SEGMENT_BYTES, 0)


def test_junk_is_never_taken_for_records(tmp_path: Path, seed: int) -> None:
    segment, _ = sealed(tmp_path)
    rng = random.Random(seed)
    for _ in range(2000):
        junk = rng.randbytes(rng.randrange(0, 400) & ~7)
        done, status = verify_records(junk, stamp=segment.stamp, space=SEGMENT_BYTES - HEADER_BYTES)
        assert (done, status) == (0, INTACT if not junk else CUT if len(junk) < 64 else status)
        assert status != BLANK


def test_every_byte_of_an_index_file_counts(tmp_path: Path, seed: int) -> None:
    sealed(tmp_path)
    rng, data = random.Random(seed), bytearray(names.ledgers_path(tmp_path, 0).read_bytes())
    assert ledger_index_fault(data) is None
    for offset in range(len(data)):
        bit = 1 << rng.randrange(8)
        data[offset] ^= bit
        assert ledger_index_fault(data) is not None, offset
        data[offset] ^= bit
    for size in (0, 1, 4095, 4096, len(data) - 1, len(data) - 4096):
        assert ledger_index_fault(data[:size]) is not None
    assert ledger_index_fault(data + bytes(4096)) is not None


def test_bytes_outside_of_a_segment_are_refused(tmp_path: Path) -> None:
    with pyreplog.open(tmp_path / "log", segment_bytes=1 << 16) as log:
        log.append(b"abc")
        _pin, segment = log.hold_segment(0)
        size, content = segment.size, names.segment_path(log.path, 0).read_bytes()
        for read in (segment.bytes_at, segment.view):
            for offset, length in ((0, size), (0, 0), (size, 0), (size - 3, 3), (100, 50)):
                assert bytes(read(offset, length)) == content[offset : offset + length]
            for offset, length in (
                (-1, 1),
                (0, -1),
                (0, size + 1),
                (size, 1),
                (size - 3, 4),
                (size + 1, 0),
                (size // 2, size),
                ((1 << 63) - 1, 1),  # their sum overflows
                (1, (1 << 63) - 1),
            ):
                with pytest.raises(InvalidArgumentError, match=f"{length} bytes at {offset}: outside of the segment's"):
                    read(offset, length)
