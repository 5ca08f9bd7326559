"""fsck finds every damage, says what it costs, and repairs what can be repaired without losing an entry."""

from __future__ import annotations

import hashlib
import os
import shutil
import struct
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import pyreplog
from pyreplog._native.log.segment_header import encode_header
from pyreplog.log import checkpoint as checkpoints
from pyreplog.log import headers, names, truncation
from pyreplog.log.files import RealFiles
from pyreplog.log.fsck import check as fsck
from pyreplog.log.fsck import locked_segment as holding
from pyreplog.log.fsck import survey
from pyreplog.log.fsck.damage import CHECKPOINT, HEADER, INDEX, MARKER, RECORD, SEGMENT
from pyreplog.log.fsck.repair import repair
from pyreplog.log.lock import writer_of
from tests import samples
from tests.samples import ENTRIES, SEGMENT_BYTES, first_entries, flip, position_of

BLANK = 32


@pytest.fixture
def log(sample_log: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(sample_log, tmp_path / "log"))


def digest(path: Path) -> dict[str, str]:
    return {str(f.relative_to(path)): hashlib.md5(f.read_bytes()).hexdigest() for f in path.rglob("*") if f.is_file()}


def only(report: fsck.FsckReport):
    assert len(report.damages) == 1, report.damages
    return report.damages[0]


# ---- what is fine --------------------------------------------------------------------------------------------------


def test_an_intact_log_is_clean_and_untouched(log):
    before = digest(log)
    report = fsck.check(log)
    assert report.clean and report.notes == ()
    assert (report.start, report.end, report.entries, report.lost) == (0, ENTRIES, ENTRIES, 0)
    assert (report.segments, report.indexes, report.writer, report.torn_bytes) == (4, 3, None, 0)
    assert digest(log) == before


def test_every_used_byte_is_verified(log):
    used = sum(index_end(path) for path in samples.indexes(log)) + position_of(log, ENTRIES) % SEGMENT_BYTES
    assert fsck.check(log).verified_bytes == used - 4 * 4096


def index_end(path: Path) -> int:
    return struct.unpack_from("<I", path.read_bytes(), 56)[0]


def test_fsck_reports_progress_after_each_segment(log):
    seen: list[tuple[int, int]] = []
    report = fsck.check(log, progress=lambda done, entries: seen.append((done, entries)))
    assert len(seen) == 4 and seen == sorted(seen) and seen[-1] == (report.verified_bytes, ENTRIES)


def test_an_empty_log_and_one_made_half_are_clean(tmp_path):
    with pyreplog.open(tmp_path / "log", segment_bytes=SEGMENT_BYTES):
        pass
    report = fsck.check(tmp_path / "log")
    assert report.clean and (report.start, report.end, report.entries) == (0, 0, 0)
    names.segment_path(tmp_path / "log", 0).unlink()
    checkpoint = checkpoints.load(tmp_path / "log")
    assert checkpoint is not None and checkpoint.position == 4096
    assert only(fsck.check(tmp_path / "log")).part == SEGMENT


def test_a_trimmed_log_is_clean(log):
    with pyreplog.open(log) as writer:
        writer.trim(first_entries(log)[2])
    report = fsck.check(log)
    assert report.clean and report.start == first_entries(log)[0] > 0 and report.end == ENTRIES


def test_a_truncated_log_is_clean(log):
    with pyreplog.open(log) as writer:
        writer.truncate(500)
        writer.append_batch([b"x" * 1000] * 300)
    report = fsck.check(log)
    assert report.clean and report.end == 800


@pytest.mark.parametrize("durability", ["appended", "interval", "synced"])
def test_fsck_checks_a_log_that_is_open_for_writing(tmp_path, durability):
    path = tmp_path / "log"
    with pyreplog.open(path, segment_bytes=SEGMENT_BYTES, durability=durability) as writer:
        for _ in range(10):
            writer.append_batch([b"x" * 500] * 37)
            report = fsck.check(path)
            assert report.clean, report.damages
            assert report.entries == report.end == writer.end
            assert report.writer == writer_of(path) is not None


def test_beside_a_writer_damage_shows(tmp_path):
    path = tmp_path / "log"
    with pyreplog.open(path, segment_bytes=SEGMENT_BYTES) as writer:
        writer.append_batch([b"x" * 500] * 37)
        flip(names.segment_path(path, 0), writer.position_of(5) + 40)
        damage = only(fsck.check(path))
        assert (damage.part, damage.entry, damage.resumes) == (RECORD, 5, 6)


def test_a_segment_taken_while_headers_are_read(tmp_path, monkeypatch):
    """Its header said "prepared" when it was read, and by now there are entries in it."""
    path, identity = tmp_path / "log", survey._identity
    with pyreplog.open(path, segment_bytes=SEGMENT_BYTES) as writer:
        writer.append(b"x")
        while not writer.stats().ready_segments:
            writer.run_background_tasks()

        def roll_first(*args):
            writer.append_batch([b"x" * 1000] * 64)
            return identity(*args)

        monkeypatch.setattr(survey, "_identity", roll_first)
        report = fsck.check(path)
        assert report.clean and report.end == 1


def test_segments_removed_while_the_log_is_checked(tmp_path, monkeypatch):
    path, map_locked = tmp_path / "log", fsck.map_locked
    with pyreplog.open(path, segment_bytes=SEGMENT_BYTES) as writer:
        writer.append_batch([b"x" * 1000] * 400)

        def trim_first(directory: Path, base: int):
            if base == SEGMENT_BYTES:
                writer.trim(200)
            return map_locked(directory, base)

        monkeypatch.setattr(fsck, "map_locked", trim_first)
        report = fsck.check(path)
        assert report.clean and report.end == 400 and "was removed" in report.notes[0]


@pytest.mark.parametrize("change", ["truncate", "open"])
def test_a_log_that_changes_while_it_is_checked_is_checked_again(log, monkeypatch, change):
    seen, verify = [], fsck.verify

    def verify_and_change(*args):
        report = verify(*args)
        if not seen:
            writer = pyreplog.open(log)
            if change == "truncate":
                writer.truncate(1000)
                writer.close()
            seen.append(writer)
        seen.append(report)
        return report

    monkeypatch.setattr(fsck, "verify", verify_and_change)
    report = fsck.check(log)
    assert report.clean and len(seen) == 3 and report.end == (1000 if change == "truncate" else ENTRIES)
    seen[0].close()


def test_a_recycled_file_is_not_taken_for_its_earlier_life(log, monkeypatch):
    """Opened by its old name, and locked only when it had become another segment."""
    path, share = names.segment_path(log, 0), holding.share

    def recycle_first(fd: int) -> bool:
        uuid, _, size, _, epoch, _ = headers.read_header(path)
        path.rename(log / "spare-1.seg")
        with (log / "spare-1.seg").open("r+b") as file:
            file.write(encode_header(uuid, 8 * size, size, -2, epoch))
        return share(fd)

    monkeypatch.setattr(holding, "share", recycle_first)
    with pytest.raises(pyreplog.TrimmedError):
        holding.map_locked(log, 0)


def test_a_torn_tail_is_no_damage(log):
    end = position_of(log, ENTRIES)
    with pyreplog.open(log) as writer:  # not closed: what follows the checkpoint is not proven
        writer.append(b"z" * 100)
        shutil.copytree(
            log, log.with_name("killed"), ignore=shutil.ignore_patterns("fresh-*", "spare-*", "*.new")
        )  # these come and go
    killed = log.with_name("killed")
    flip(samples.segments(killed)[3], end % SEGMENT_BYTES + 50)
    assert not fsck.check(killed).clean  # of this boot: the record was there, and no kill takes it away
    (killed / names.TAIL).unlink()
    report = fsck.check(killed)
    assert report.clean and report.end == ENTRIES and report.torn_bytes == 32 + 100
    pyreplog.open(killed).close()
    report = fsck.check(killed)
    assert report.torn_bytes == 0 and report.notes == ("aside/: keeps 1 set of bytes that were cut or replaced",)


def test_fsck_names_leftover_files(log):
    for name in ("spare-1.seg", "fresh-00000000000000262144.seg", "checkpoint.new", "notes.txt"):
        (log / name).write_bytes(b"")
    (log / f"{1 << 30:020d}.idx").write_bytes(b"")
    report = fsck.check(log)
    assert report.clean and len(report.notes) == 5
    assert "notes.txt: not a file of this log" in report.notes


def test_a_pending_truncation_is_named(log):
    position = position_of(log, 100)
    truncation.announce(log, RealFiles(), truncation.Truncation(position, 100, 1))
    report = fsck.check(log)
    assert report.clean and report.end == 100 and "cuts the log at position" in report.notes[0]


def test_a_directory_without_a_log(tmp_path):
    with pytest.raises(pyreplog.NotALogError):
        fsck.check(tmp_path)
    with pytest.raises(pyreplog.NotALogError):
        repair(tmp_path)
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(pyreplog.NotALogError):
        fsck.check(tmp_path / "nowhere")


# ---- damage --------------------------------------------------------------------------------------------------------


def test_a_record_in_the_middle(log):
    position = position_of(log, 700)
    flip(samples.segments(log)[position // SEGMENT_BYTES], position % SEGMENT_BYTES + 60)
    report = fsck.check(log)
    damage = only(report)
    assert (damage.part, damage.position, damage.entry, damage.resumes) == (RECORD, position, 700, 701)
    assert (damage.intact_before, damage.intact_after) == (700, ENTRIES - 701)
    assert "CRC-32C" in damage.expected and "0x" in damage.found
    assert (report.entries, report.lost, report.end) == (ENTRIES - 1, 1, ENTRIES)


def test_a_zeroed_stretch_and_a_second_damage(log):
    first, last = position_of(log, 400), position_of(log, 420)
    with samples.segments(log)[first // SEGMENT_BYTES].open("r+b") as file:
        file.seek(first % SEGMENT_BYTES + 16)
        file.write(bytes(last - first - 16))
    other = position_of(log, 440)
    flip(samples.segments(log)[other // SEGMENT_BYTES], other % SEGMENT_BYTES + 12)
    damages = fsck.check(log).damages
    assert [(d.position, d.entry, d.resumes) for d in damages] == [(first, 400, 420), (other, 440, 441)]
    assert [(d.intact_before, d.intact_after) for d in damages] == [(400, ENTRIES - 421), (419 + 1, ENTRIES - 441)]


def test_a_copy_of_a_record_inside_a_value_is_not_taken_for_one(tmp_path):
    path = tmp_path / "log"
    with pyreplog.open(path, segment_bytes=SEGMENT_BYTES) as writer:
        writer.append_batch([b"a" * 64] * 10)
        inner = bytes(writer.get(3).raw)
        writer.append(inner * 5)
        writer.append(b"behind")
    position = position_of(path, 10)
    flip(names.segment_path(path, 0), position + 20)
    report = fsck.check(path)
    assert (only(report).entry, only(report).resumes, report.lost) == (10, 11, 1)


def test_fsck_finds_damage_in_the_blank_of_a_segment(log):
    end = index_end(samples.indexes(log)[1])
    flip(samples.segments(log)[1], end + 9)
    report = fsck.check(log)
    damage = only(report)
    assert damage.position == SEGMENT_BYTES + end and damage.costs_entries
    assert damage.entry == damage.resumes == first_entries(log)[2] and report.lost == 0


@pytest.mark.parametrize("which", [0, 1, 2])
def test_fsck_counts_entries_of_a_missing_segment(log, which):
    firsts = first_entries(log)
    samples.segments(log)[which].unlink()
    report = fsck.check(log)
    damage = only(report)
    assert (damage.part, damage.position) == (SEGMENT, which * SEGMENT_BYTES)
    assert (damage.entry, damage.resumes) == (firsts[which], firsts[which + 1])
    assert report.lost == firsts[which + 1] - firsts[which]


def test_fsck_names_a_missing_last_segment(log):
    firsts = first_entries(log)
    samples.segments(log)[3].unlink()
    damage = only(fsck.check(log))
    assert (damage.part, damage.position, damage.entry, damage.resumes) == (SEGMENT, 3 * SEGMENT_BYTES, firsts[3], None)


def test_fsck_names_swapped_segments(log):
    a, b = samples.segments(log)[1:3]
    a.rename(log / "x"), b.rename(a), (log / "x").rename(b)
    damages = fsck.check(log).damages
    assert [(d.part, d.position) for d in damages] == [(SEGMENT, SEGMENT_BYTES), (SEGMENT, 2 * SEGMENT_BYTES)]
    assert f"that at {2 * SEGMENT_BYTES}" in damages[0].found


def test_a_segment_of_another_log(log, tmp_path):
    samples.make_log(tmp_path / "other")
    shutil.copy(samples.segments(tmp_path / "other")[1], samples.segments(log)[1])
    damage = only(fsck.check(log))
    assert damage.part == SEGMENT and "log" in damage.found and damage.intact_after > 0


def test_fsck_names_a_short_segment(log):
    with samples.segments(log)[1].open("r+b") as file:
        file.truncate(20_000)
    damage = only(fsck.check(log))
    assert (damage.expected, damage.found) == (f"a file of {SEGMENT_BYTES} bytes", "20000 bytes")


@pytest.mark.parametrize("number", [0, 1, 3])
@pytest.mark.parametrize("length", [64, 4096, 20_000, SEGMENT_BYTES - 8, SEGMENT_BYTES + 4096])
def test_fsck_counts_intact_records_of_a_segment_of_a_wrong_size(log, number, length):
    path, firsts = samples.segments(log)[number], [*first_entries(log), ENTRIES]
    with pyreplog.open(log, "r") as reader:
        records = [reader.get(entry) for entry in range(firsts[number], firsts[number + 1])]
        whole = sum(record.position % SEGMENT_BYTES + len(record.raw) <= length for record in records)
    os.truncate(path, length)
    report = fsck.check(log)
    damage = only(report)
    assert damage.found == f"{length} bytes" and damage.intact_before == firsts[number] + whole
    lost = firsts[number + 1] - firsts[number] - whole
    assert report.entries == ENTRIES - lost and damage.intact_after == ENTRIES - firsts[number + 1]
    assert report.lost == (0 if number == 3 else lost)


def test_a_segment_that_is_an_older_copy_with_other_numbers(log):
    """A header that is intact and does not follow on the segment before it."""
    path = samples.segments(log)[2]
    data = path.read_bytes()
    uuid, base, size, first, epoch, _ = headers.read_header(path)
    path.write_bytes(encode_header(uuid, base, size, first + 5, epoch) + data[4096:])
    damages = fsck.check(log).damages
    assert damages[0].part == HEADER and damages[0].found == str(first + 5)


def test_two_headers_in_a_row(log):
    firsts = first_entries(log)
    for path in samples.segments(log)[1:3]:
        flip(path, 30)
    damages = fsck.check(log).damages
    assert [(d.part, d.entry, d.resumes) for d in damages] == [(HEADER, firsts[1], firsts[3])] * 2


def test_damaged_index_files_cost_no_entries(log):
    first, second, third = samples.indexes(log)
    flip(first, 100)
    shutil.copy(third, second)
    third.unlink()
    report = fsck.check(log)
    assert [(d.part, Path(d.path)) for d in report.damages] == [(INDEX, first), (INDEX, second)]
    assert not any(d.costs_entries for d in report.damages) and report.entries == ENTRIES


def test_intact_index_that_differs_from_its_segment_is_damage(log):
    """Right CRC, right segment, and yet not what the segment holds."""
    from pyreplog._native.log.sparse import SparseIndex
    from pyreplog.log.fsck.locked_segment import map_locked

    segment, path = map_locked(log, 0), samples.indexes(log)[0]
    index = SparseIndex(segment.size)
    segment.verify(index, 4096, 30_000)
    path.write_bytes(index.to_bytes(segment.uuid, 0, 0, segment.stamp, 0, 0))
    assert only(fsck.check(log)).part == INDEX


def test_checkpoint_missing_broken_foreign_or_impossible(log, tmp_path):
    path = log / names.CHECKPOINT
    good = path.read_bytes()
    path.unlink()
    assert only(fsck.check(log)).part == CHECKPOINT
    path.write_bytes(bytes([1]) + good[1:4096] + bytes([1]) + good[4097:])
    assert only(fsck.check(log)).part == CHECKPOINT
    samples.make_log(tmp_path / "other")
    shutil.copy(tmp_path / "other" / names.CHECKPOINT, path)
    assert [d.part for d in fsck.check(log).damages] == [CHECKPOINT]

    path.write_bytes(good)
    checkpoint = checkpoints.load(log)
    assert checkpoint is not None
    for changed in ({"position": position_of(log, 700) + 8}, {"entry": 17}):
        new_checkpoint = checkpoints.Checkpoint(**{**vars(checkpoint), "clean": False, "sequence": 99, **changed})
        path.write_bytes(new_checkpoint.encode().ljust(8192, b"\0"))
        assert only(fsck.check(log)).part == CHECKPOINT, changed


def test_one_torn_checkpoint_slot_is_noted_by_fsck(log):
    flip(log / names.CHECKPOINT, 20)
    report = fsck.check(log)
    assert report.clean and report.notes == ("checkpoint: slot 0 is not intact; the other one is used",)


def test_fsck_names_a_broken_truncation_marker(log):
    (log / names.TRUNCATION).write_bytes(b"00000000 {}\n")
    assert only(fsck.check(log)).part == MARKER


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_any_flipped_bit_in_use_is_found(sample_log, data):
    path = data.draw(st.sampled_from(samples.segments(sample_log)))
    size = position_of(sample_log, ENTRIES) % SEGMENT_BYTES
    if path != samples.segments(sample_log)[-1]:
        size = index_end(path.with_suffix(".idx")) + BLANK
    offset, bit = data.draw(st.integers(0, size - 1)), data.draw(st.integers(0, 7))
    flip(path, offset, bit)
    try:
        report = fsck.check(sample_log)
        assert not report.clean
        assert all(Path(damage.path) == path for damage in report.damages)
        assert report.entries + report.lost == ENTRIES or report.end is None
        assert report.damages[0].position <= int(path.stem) + offset
    finally:
        flip(path, offset, bit)
