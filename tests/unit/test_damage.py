"""Damaged files: an error that names path and position, or the right entries; never wrong ones, and nothing changed."""

from __future__ import annotations

import hashlib
import shutil
import struct
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import pyreplog
from pyreplog import CorruptionError, NotALogError, ReplogError
from pyreplog._native.log.sparse import SparseIndex
from pyreplog._native.system.checksum import crc32c
from pyreplog.log import names
from pyreplog.log.fsck.locked_segment import map_locked
from tests import samples
from tests.samples import ENTRIES, SEGMENT_BYTES, first_entries, flip, position_of, value_of

HEADER_FIELDS = {
    "magic": (0, 8),
    "crc": (8, 4),
    "version": (12, 2),
    "min_reader": (14, 2),
    "uuid": (16, 16),
    "base": (32, 8),
    "size": (40, 8),
    "first_entry": (48, 8),
    "epoch": (56, 4),
    "reserved": (60, 4),
}
RECORD_FIELDS = {
    "length": (0, 4),
    "crc": (4, 4),
    "stamp": (8, 4),
    "kind": (12, 1),
    "form": (13, 1),
    "key_length": (14, 2),
    "time": (16, 8),
    "entry_delta": (24, 4),
    "synced_lag": (28, 4),
    "attributes": (32, 13),
    "key": (45, 5),
    "value": (50, 12),
}
INDEX_FIELDS = {"end": 56, "blocks": 64, "ranges": 68}
INDEX_BYTES = 96
"""Of an index file's header; behind it lie the block entries, of 8 bytes each."""
VICTIM = 452
"""An entry with event time and key, in the middle of the second segment."""


@pytest.fixture
def log(sample_log: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(sample_log, tmp_path / "log"))


@pytest.fixture(params=["with tail page", "without"])
def read_only(request, sample_log: Path, tmp_path: Path) -> Path:
    """A log to be read: as a writer of this boot left it, or without any trace of one, as after a reboot."""
    path = Path(shutil.copytree(sample_log, tmp_path / "log"))
    if request.param == "without":
        (path / names.TAIL).unlink()
    return path


def digest(path: Path) -> dict[str, str]:
    """What the files that hold entries hold."""
    return {
        file.name: hashlib.md5(file.read_bytes()).hexdigest() for file in [*path.glob("*.log"), *path.glob("*.idx")]
    }


def bits(offset: int, length: int) -> list[tuple[int, int]]:
    return [(offset + byte, bit) for byte in range(length) for bit in range(8)]


def refused(path: Path, error: type[ReplogError] = CorruptionError) -> ReplogError:
    """Neither a reader nor a writer opens the log, and nothing is changed; what the writer says."""
    before = digest(path)
    with pytest.raises(error):
        read_all(path)
    with pytest.raises(error) as caught:
        pyreplog.open(path)
    assert digest(path) == before
    return caught.value


def read_all(path: Path) -> None:
    with pyreplog.open(path, "r") as log:
        assert [record.value for batch in log.read() for record in batch] == [value_of(n) for n in range(ENTRIES)]


# ---- every bit -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("field", HEADER_FIELDS)
@pytest.mark.parametrize("which", [0, 2, 3])
def test_every_bit_of_a_segment_header(read_only, which, field):
    path = samples.segments(read_only)[which]
    for offset, bit in bits(*HEADER_FIELDS[field]):
        flip(path, offset, bit)
        with pytest.raises(CorruptionError) as caught:
            pyreplog.open(read_only, "r")
        assert Path(caught.value.path) == path and caught.value.position - which * SEGMENT_BYTES in (0, 8)
        flip(path, offset, bit)
    samples.assert_intact(read_only)


@pytest.mark.parametrize("field", RECORD_FIELDS)
def test_every_bit_of_a_sealed_record(read_only, field):
    position = position_of(read_only, VICTIM)
    path = samples.segments(read_only)[position // SEGMENT_BYTES]
    for offset, bit in bits(*RECORD_FIELDS[field]):
        flip(path, position % SEGMENT_BYTES + offset, bit)
        with pyreplog.open(read_only, "r") as log:
            with pytest.raises(CorruptionError) as caught:
                log.get(VICTIM)
            assert (Path(caught.value.path), caught.value.position) == (path, position)
            for n in range(VICTIM - 60, VICTIM):
                assert log[n] == value_of(n)
            for n in range(VICTIM + 1, VICTIM + 60):
                try:
                    assert log[n] == value_of(n)
                except CorruptionError as error:
                    assert error.position == position, error
            assert_scan_stops_at(log, VICTIM, position)
        flip(path, position % SEGMENT_BYTES + offset, bit)
    samples.assert_intact(read_only)


def assert_scan_stops_at(log: pyreplog.LogReader, entry: int, position: int) -> None:
    """Scans give all before a bad record and then name it; from behind it, they give all behind it."""
    for batch_bytes in (1000, 1 << 20):
        seen: list[bytes] = []
        with pytest.raises(CorruptionError) as caught:
            for batch in log.read(entry - 20, batch_bytes=batch_bytes):
                seen += batch.values()
        assert caught.value.position == position
        assert seen == [value_of(n) for n in range(entry - 20, entry)]


@pytest.mark.parametrize("field", RECORD_FIELDS)
def test_every_bit_of_a_proven_record_in_the_active_segment(log, field):
    entry = ENTRIES - 10
    position = position_of(log, entry)
    path = samples.segments(log)[3]
    (log / names.TAIL).unlink()
    for offset, bit in bits(*RECORD_FIELDS[field])[::5]:
        flip(path, position % SEGMENT_BYTES + offset, bit)
        error = refused(log)
        assert isinstance(error, CorruptionError)
        assert (Path(error.path), error.position) == (path, position)
        flip(path, position % SEGMENT_BYTES + offset, bit)


def test_every_bit_of_a_blank(read_only):
    path, last = samples.segments(read_only)[1], first_entries(read_only)[2] - 1
    with pyreplog.open(read_only, "r") as log:
        blank = log.position_of(last) + len(log.get(last).raw)
    for offset, bit in bits(0, 32):
        flip(path, blank % SEGMENT_BYTES + offset, bit)
        with pyreplog.open(read_only, "r") as log:
            with pytest.raises(CorruptionError) as caught:
                list(log.read(last))
            assert Path(caught.value.path) == path and caught.value.position == blank
            assert log[last] == value_of(last) and log[last + 1] == value_of(last + 1)
        flip(path, blank % SEGMENT_BYTES + offset, bit)


@pytest.mark.parametrize("change", [-8, 8, None])
def test_a_blank_whose_checksum_is_right_and_whose_length_is_not(read_only, change):
    """It ends its segment only if it covers the rest of the file; None: less than its own header."""
    path, last = samples.segments(read_only)[1], first_entries(read_only)[2] - 1
    with pyreplog.open(read_only, "r") as log:
        blank = log.position_of(last) + len(log.get(last).raw)
    length = 16 if change is None else SEGMENT_BYTES - blank % SEGMENT_BYTES + change
    rewrite(path, blank % SEGMENT_BYTES, "<I", 0, length, sealed_bytes=32)
    with pyreplog.open(read_only, "r") as log:
        with pytest.raises(CorruptionError) as caught:
            list(log.read(last))
        assert Path(caught.value.path) == path and caught.value.position == blank
        assert log[last] == value_of(last) and log[last + 1] == value_of(last + 1)


@pytest.mark.parametrize("entry", [VICTIM, VICTIM + 1])
@pytest.mark.parametrize("change", [-1, 1])
def test_a_record_whose_checksum_is_right_and_whose_number_is_not(read_only, entry, change):
    """A disk wrote it in the wrong place of its segment: it was given for the entry that should be there, or as a second
    one of its number. With and without a key."""
    path, position = samples.segments(read_only)[1], position_of(read_only, entry)
    with pyreplog.open(read_only, "r") as log:
        size = len(log.get(entry).raw)
    rewrite(path, position % SEGMENT_BYTES, "<I", 24, entry - first_entries(read_only)[1] + change, sealed_bytes=size)
    with pyreplog.open(read_only, "r") as log:
        assert_scan_stops_at(log, entry, position)
        with pytest.raises(CorruptionError, match="expected the next entry number, found"):
            read_to_end(log, entry - 20)
        for follow in (follow_entries, follow_batches):
            seen = list[int]()
            with pytest.raises(CorruptionError) as caught:
                follow(log, entry - 20, seen)
            assert caught.value.position == position and seen == list(range(entry - 20, entry))


def read_to_end(log: pyreplog.LogReader, start: int) -> None:
    for _ in log.read(start):
        pass


def follow_entries(log: pyreplog.LogReader, start: int, seen: list[int]) -> None:
    seen.extend(record.entry for record in log.follow(start, timeout=0.0))


def follow_batches(log: pyreplog.LogReader, start: int, seen: list[int]) -> None:
    for batch in log.follow_batches(start, timeout=0.0, batch_bytes=1000):
        seen.extend(batch.entry.tolist())


def rewrite(path: Path, offset: int, form: str, at: int, value: int, *, sealed_bytes: int) -> None:
    """Change a field of the record at `offset`, and make its checksum, which covers so many of its bytes, right again."""
    data = bytearray(path.read_bytes())
    struct.pack_into(form, data, offset + at, value)
    (length,) = struct.unpack_from("<I", data, offset)
    struct.pack_into("<I", data, offset + 4, crc32c(bytes(data[offset + 12 : offset + sealed_bytes]), length))
    path.write_bytes(data)


@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_a_flipped_bit_never_gives_wrong_entries(sample_log, data):
    """Wherever it lies: also in an index, the checkpoint, or space that nobody reads."""
    files = [*samples.segments(sample_log), *samples.indexes(sample_log), sample_log / names.CHECKPOINT]
    path = data.draw(st.sampled_from(files))
    offset, bit = data.draw(st.integers(0, path.stat().st_size - 1)), data.draw(st.integers(0, 7))
    flip(path, offset, bit)
    try:
        with pyreplog.open(sample_log, "r") as log:
            assert log.end == ENTRIES
            for n in range(0, ENTRIES, 7):
                try:
                    assert log[n] == value_of(n)
                except CorruptionError as error:
                    assert Path(error.path) == path and path.suffix == ".log"
    except CorruptionError as error:
        assert Path(error.path) == path and path.suffix == ".log"
    finally:
        flip(path, offset, bit)


# ---- whole segments ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("which", [0, 1, 2, 3])
def test_opening_a_log_names_a_missing_segment(log, which):
    path = samples.segments(log)[which]
    path.unlink()
    (log / names.TAIL).unlink()
    error = refused(log)
    assert isinstance(error, CorruptionError)
    assert (Path(error.path), error.position) == (path, which * SEGMENT_BYTES)


@pytest.mark.parametrize("which", [0, 1, 2, 3])
@pytest.mark.parametrize("how", ["empty", "one byte", "header only", "short", "long", "zeroed", "noise", "zero header"])
def test_a_segment_of_wrong_content(log, which, how):
    path = samples.segments(log)[which]
    data = path.read_bytes()
    (log / names.TAIL).unlink()
    path.write_bytes(
        {
            "empty": b"",
            "one byte": data[:1],
            "header only": data[:4096],
            "short": data[:-8],
            "long": data + bytes(8),
            "zeroed": bytes(len(data)),
            "noise": bytes(byte ^ 0xA5 for byte in data),
            "zero header": bytes(4096) + data[4096:],
        }[how]
    )
    error = refused(log)
    assert isinstance(error, CorruptionError) and Path(error.path) == path


@pytest.mark.parametrize(("a", "b"), [(0, 1), (1, 2), (2, 3), (0, 3)])
def test_opening_a_log_names_swapped_segments(log, a, b):
    first, second = samples.segments(log)[a], samples.segments(log)[b]
    (log / names.TAIL).unlink()
    first.rename(log / "x"), second.rename(first), (log / "x").rename(second)
    error = refused(log)
    assert isinstance(error, CorruptionError)
    assert Path(error.path) == first and f"that at {b * SEGMENT_BYTES}" in error.found


@pytest.mark.parametrize("which", [0, 1, 2, 3])
def test_a_segment_of_another_log(log, tmp_path, which):
    samples.make_log(tmp_path / "other")
    (log / names.TAIL).unlink()
    shutil.copy(samples.segments(tmp_path / "other")[which], samples.segments(log)[which])
    error = refused(log)
    assert isinstance(error, CorruptionError)
    assert Path(error.path) == samples.segments(log)[which] and "of log" in error.expected and "of log" in error.found


def test_records_of_another_log_behind_an_own_header(log, tmp_path):
    """As if only the first block of a segment had reached the disk: the stamps tell."""
    samples.make_log(tmp_path / "other")
    path, position = samples.segments(log)[1], SEGMENT_BYTES + 4096
    foreign = samples.segments(tmp_path / "other")[1].read_bytes()
    path.write_bytes(path.read_bytes()[:4096] + foreign[4096:])
    with pyreplog.open(log, "r") as reader, pytest.raises(CorruptionError, match="stamp") as caught:
        reader.get(first_entries(log)[1])
    assert caught.value.position == position


def test_log_with_only_its_checkpoint_left_is_refused(log):
    for path in (*samples.segments(log), *samples.indexes(log), log / names.TAIL):
        path.unlink()
    refused(log)
    (log / names.CHECKPOINT).unlink()
    with pytest.raises(NotALogError):
        pyreplog.open(log, "r")


# ---- beside the segments -------------------------------------------------------------------------------------------


def index_changes(log: Path, other: Path) -> dict[str, bytes]:
    """Contents that an index file of the second segment should not have."""
    data = samples.indexes(log)[1].read_bytes()
    changes = {
        "empty": b"",
        "short header": data[:50],
        "short": data[:-8],
        "long": data + bytes(8),
        "zeroed": bytes(len(data)),
        "of the segment before": samples.indexes(log)[0].read_bytes(),
        "of the segment behind": samples.indexes(log)[2].read_bytes(),
        "of another log": samples.indexes(other)[1].read_bytes(),
        "text": b"index\n" * 100,
    }
    for offset, bit in bits(0, len(data))[::11]:
        changes[f"bit {bit} of byte {offset}"] = bytes(b ^ (1 << bit) * (i == offset) for i, b in enumerate(data))
    return changes


@pytest.mark.parametrize("mode", ["a", "r"])
def test_lookups_with_damaged_index_files_are_right(log, tmp_path, mode):
    """Whatever is wrong with one, lookups give what the segment holds."""
    samples.make_log(tmp_path / "other")
    path = samples.indexes(log)[1]
    wanted = range(*first_entries(log)[1:3], 29)
    for how, data in index_changes(log, tmp_path / "other").items():
        path.write_bytes(data)
        with pyreplog.open(log, mode) as handle:
            assert [handle[n] for n in wanted] == [value_of(n) for n in wanted], how


@pytest.mark.parametrize("mode", ["a", "r"])
def test_intact_index_of_half_a_segment_gives_right_entries(log, mode):
    """No damage that a CRC could show: it is that of the first half of its segment."""
    segment = map_locked(log, 0)
    index = SparseIndex(segment.size)
    segment.verify(index, 4096, position_of(log, 150))
    samples.indexes(log)[0].write_bytes(index.to_bytes(segment.uuid, 0, 0, segment.stamp, 0, 0))
    with pyreplog.open(log, mode) as handle:
        assert [handle[n] for n in range(0, ENTRIES, 13)] == [value_of(n) for n in range(0, ENTRIES, 13)]


@pytest.mark.parametrize(
    ("field", "change"), [("end", SEGMENT_BYTES), ("blocks", 1), ("blocks", -1), ("ranges", 1), ("ranges", -1)]
)
@pytest.mark.parametrize("mode", ["a", "r"])
def test_an_index_whose_checksums_are_right_and_whose_sizes_are_not(log, mode, field, change):
    """By a bug, or by who can write files: nothing is read past the file, and lookups give what the segment holds."""
    path, offset = samples.indexes(log)[1], INDEX_FIELDS[field]
    data = bytearray(path.read_bytes())
    (value,) = struct.unpack_from("<I", data, offset)
    struct.pack_into("<I", data, offset, value + change)
    struct.pack_into("<I", data, 8, crc32c(bytes(data[12:96])))
    path.write_bytes(data)
    segment = map_locked(log, SEGMENT_BYTES)
    with pytest.raises(CorruptionError):
        SparseIndex.load(str(path), segment.size, segment.uuid, segment.base, segment.first_entry, segment.stamp)
    wanted = range(*first_entries(log)[1:3], 29)
    with pyreplog.open(log, mode) as handle:
        assert [handle[n] for n in wanted] == [value_of(n) for n in wanted]


@pytest.mark.parametrize(
    ("block", "entries", "place"),
    [
        (0, 1 << 30, 0),
        (0, 0, -512),
        (1, 0, -512),
        (1, 0, -(1 << 9)),
        (2, -(1 << 20), 0),
        (2, 0, 1 << 28),
        (-1, 1 << 20, 0),
    ],
)
@pytest.mark.parametrize("mode", ["a", "r"])
def test_an_index_whose_checksums_are_right_and_whose_blocks_are_not(log, mode, block, entries, place):
    """Of a block entry, the entries before it and its place / 8 are changed: no lookup computes an address from them."""
    path = samples.indexes(log)[1]
    data = bytearray(path.read_bytes())
    (blocks,) = struct.unpack_from("<I", data, INDEX_FIELDS["blocks"])
    offset = INDEX_BYTES + block % blocks * 8
    before, word = struct.unpack_from("<II", data, offset)
    struct.pack_into("<II", data, offset, (before + entries) % (1 << 32), (word + place) % (1 << 32))
    struct.pack_into("<I", data, 88, crc32c(bytes(data[INDEX_BYTES:])))
    struct.pack_into("<I", data, 8, crc32c(bytes(data[12:INDEX_BYTES])))
    path.write_bytes(data)
    segment = map_locked(log, SEGMENT_BYTES)
    with pytest.raises(CorruptionError, match="ascend") as caught:
        SparseIndex.load(str(path), segment.size, segment.uuid, segment.base, segment.first_entry, segment.stamp)
    assert caught.value.position in (offset, offset + 8), "the block entry, or the one that does not follow it"
    wanted = range(*first_entries(log)[1:3], 29)
    with pyreplog.open(log, mode) as handle:
        assert [handle[n] for n in wanted] == [value_of(n) for n in wanted]


@pytest.mark.parametrize("mode", ["a", "r"])
def test_lookups_without_index_files_are_right(log, mode):
    for path in samples.indexes(log):
        path.unlink()
    with pyreplog.open(log, mode) as handle:
        assert [handle[n] for n in range(ENTRIES)] == [value_of(n) for n in range(ENTRIES)]


def test_a_segment_that_is_damaged_and_has_no_index(log):
    position = position_of(log, VICTIM)
    flip(samples.segments(log)[1], position % SEGMENT_BYTES + 60)
    samples.indexes(log)[1].unlink()
    for mode in ("a", "r"):
        with pyreplog.open(log, mode) as handle:
            assert handle[0] == value_of(0) and handle[ENTRIES - 1] == value_of(ENTRIES - 1)
            with pytest.raises(CorruptionError) as caught:
                handle.get(VICTIM)
            assert caught.value.position == position
    with pyreplog.open(log, "r") as reader:
        assert reader[VICTIM - 1] == value_of(VICTIM - 1)


@pytest.mark.parametrize("content", [None, b"", b"x", bytes(4096), bytes(8192), b"RPCHKP01" * 1024])
def test_a_lost_checkpoint_costs_a_verification(log, content):
    path = log / names.CHECKPOINT
    path.unlink() if content is None else path.write_bytes(content)
    samples.assert_intact(log)
    with pyreplog.open(log) as writer:
        assert writer.append(b"on") == ENTRIES
    flip(samples.segments(log)[1], 20_000)
    with pyreplog.open(log) as writer:  # proven and sealed: not looked at before somebody reads it
        assert writer.end == ENTRIES + 1
    path.unlink()
    (log / names.TAIL).unlink()
    refused(log)


@pytest.mark.parametrize("slot", [0, 1])
def test_log_opens_with_one_torn_checkpoint_slot(log, slot):
    with (log / names.CHECKPOINT).open("r+b") as file:
        file.seek(slot * 4096 + 30)
        file.write(bytes(20))
    samples.assert_intact(log)
    with pyreplog.open(log) as writer:
        assert writer.end == ENTRIES


@pytest.mark.parametrize("content", [None, b"", bytes(4096), bytes(5000), b"RPTAIL01" * 512, b"\xff" * 4096])
def test_missing_or_blank_tail_page_gives_right_entries(log, content):
    path = log / names.TAIL
    path.unlink() if content is None else path.write_bytes(content)
    samples.assert_intact(log)
    with pyreplog.open(log) as writer:
        assert writer.append(b"on") == ENTRIES


@pytest.mark.parametrize("content", [b"", b"nonsense", b"00000000 {}\n", b'ffffffff {"position": 1}\n'])
def test_a_damaged_truncation_marker_is_refused_unchanged(log, content):
    (log / names.TRUNCATION).write_bytes(content)
    before = digest(log)
    with pytest.raises(CorruptionError, match="an intact truncation marker") as caught:
        pyreplog.open(log)
    assert Path(caught.value.path) == log / names.TRUNCATION and digest(log) == before


def test_a_lock_file_that_is_damaged(log):
    (log / names.LOCK).write_bytes(b"not a number")
    pyreplog.open(log).close()
    (log / names.LOCK).unlink()
    (log / names.LOCK).mkdir()
    with pytest.raises(CorruptionError, match="expected a file, found a directory"):
        pyreplog.open(log)
