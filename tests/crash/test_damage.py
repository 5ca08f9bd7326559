"""Torn or corrupt: damage to what was proven is an error that names path and position; a torn tail is cut and kept aside."""

from __future__ import annotations

from pathlib import Path
from random import Random
from typing import Literal

import pytest

import pyreplog
from pyreplog.errors import CorruptionError
from pyreplog.log import housekeeper, names
from pyreplog.log.fsck import check as fsck
from pyreplog.log.fsck.repair import repair
from tests import running

from .process import in_process

SEGMENT_BYTES = 64 << 10
VALUES = [b"%d," % n + b"v" * (37 * n % 200) for n in range(20)]


def closed_log(path: Path) -> None:
    """A log of VALUES, closed: all of it is proven."""
    with pyreplog.open(path, segment_bytes=SEGMENT_BYTES) as log:
        log.append_batch(VALUES)


def abandoned_log(path: Path, values: list[bytes], durability: str = "appended") -> None:
    """A log whose process ended without closing it; every append by itself. Its checkpoint lies in front of them: what
    the log's threads sync and prove, if they come to it, they do not."""

    def write() -> None:
        housekeeper.THREADS = False
        log = pyreplog.open(path, segment_bytes=SEGMENT_BYTES, durability=durability)
        for value in values:
            log.append(value)

    in_process(write, path.with_suffix(".report"))


def positions_of(path: Path) -> list[int]:
    with pyreplog.open(path, "r") as log:
        return [log.position_of(n) for n in range(log.end + 1)]


def reboot(path: Path) -> None:
    """Nothing says any more how far the log was appended to."""
    (path / names.TAIL).unlink()


def flip(path: Path, position: int, bit: int = 0) -> None:
    with path.open("r+b") as file:
        file.seek(position)
        byte = file.read(1)[0]
        file.seek(position)
        file.write(bytes([byte ^ 1 << bit]))


def refused(path: Path, mode: Literal["a", "r"] = "a") -> CorruptionError:
    """What opening says, or reading all: a reader trusts what the writer published since the machine booted."""
    with pytest.raises(CorruptionError) as caught, pyreplog.open(path, mode) as log:
        list(log.read())
    return caught.value


# ---- corrupt ---------------------------------------------------------------------------------------------------------


def test_any_flipped_bit_of_a_closed_log_is_refused_with_its_position(tmp_path: Path, seed: int) -> None:
    closed_log(tmp_path / "log")
    positions = positions_of(tmp_path / "log")
    segment = names.segment_path(tmp_path / "log", 0)
    rng = Random(seed)
    for at in range(positions[0], positions[-1]):
        bit = rng.randrange(8)
        flip(segment, at, bit)
        error = refused(tmp_path / "log", "a" if rng.random() < 0.5 else "r")
        record = max(position for position in positions if position <= at)
        assert (error.path, error.position) == (segment, record), f"bit {bit} of byte {at}"
        flip(segment, at, bit)
    with pyreplog.open(tmp_path / "log") as log:
        assert log[:] == VALUES


def test_any_flipped_bit_of_a_segment_header_is_refused(tmp_path: Path) -> None:
    closed_log(tmp_path / "log")
    segment = names.segment_path(tmp_path / "log", 0)
    for at in range(64):
        flip(segment, at, at % 8)
        with pytest.raises((CorruptionError, pyreplog.FormatVersionError)) as caught:
            pyreplog.open(tmp_path / "log")
        assert str(segment) in str(caught.value)
        flip(segment, at, at % 8)


def test_damage_in_a_sealed_segment_is_met_where_it_is_read(tmp_path: Path) -> None:
    with pyreplog.open(tmp_path / "log", segment_bytes=SEGMENT_BYTES) as log:
        log.append_batch([b"%d," % n + bytes(1000) for n in range(200)])
        damaged = log.position_of(70)
    segment = names.segment_path(tmp_path / "log", damaged // SEGMENT_BYTES * SEGMENT_BYTES)
    flip(segment, damaged % SEGMENT_BYTES + 100)
    with pyreplog.open(tmp_path / "log") as log:
        for reading in (lambda: log[70], lambda: log.get(70), lambda: list(log.read()), lambda: list(log.read(70))):
            with pytest.raises(CorruptionError) as caught:
                reading()
            assert (caught.value.path, caught.value.position) == (segment, damaged)
        assert len(log.get(69).value) > 1000 and len(log.get(71).value) > 1000
        assert sum(len(batch) for batch in log.read(71)) == 129


@pytest.mark.parametrize("place", [0, 7, len(VALUES) - 2])
def test_damage_that_a_later_synced_claim_covers_is_corruption(place: int, tmp_path: Path) -> None:
    abandoned_log(tmp_path / "log", VALUES, "synced")
    reboot(tmp_path / "log")
    positions = positions_of(tmp_path / "log")
    segment = names.segment_path(tmp_path / "log", 0)
    flip(segment, positions[place] + 33)
    for error in (refused(tmp_path / "log", "r"), refused(tmp_path / "log")):
        assert (error.path, error.position) == (segment, positions[place])


def test_missing_sector_under_a_synced_claim_is_corruption(tmp_path: Path) -> None:
    abandoned_log(tmp_path / "log", VALUES, "synced")
    reboot(tmp_path / "log")
    positions = positions_of(tmp_path / "log")
    segment = names.segment_path(tmp_path / "log", 0)
    with segment.open("r+b") as file:
        file.seek(4096 + 512)
        file.write(bytes(512))
    assert refused(tmp_path / "log").position == max(p for p in positions if p <= 4096 + 512)


@pytest.mark.parametrize("durability", ["appended", "interval", "synced"])
@pytest.mark.parametrize("place", [0, 7, len(VALUES) - 1])
def test_damage_to_records_of_a_writer_killed_in_this_boot_is_not_truncated(
    place: int, durability: str, tmp_path: Path
) -> None:
    """A kill takes nothing from the page cache: a record that its callers were told of, and that is not intact, is
    damage. What lies before it can still be read, and fsck counts what lies behind."""
    path = tmp_path / "log"
    abandoned_log(path, VALUES, durability)
    position, segment = positions_of(path)[place], names.segment_path(path, 0)
    flip(segment, position + 33)
    assert refused(path).position == position
    with pyreplog.open(path, "r") as reader:
        assert reader.end == len(VALUES) and reader[:place] == VALUES[:place]
        with pytest.raises(CorruptionError) as caught:
            reader.get(place)
        assert caught.value.position == position
    report = fsck.check(path)
    assert not report.clean and report.entries == len(VALUES) - 1
    done = repair(path, truncate_at_damage=True)
    assert done.after.clean and done.after.end == place
    with pyreplog.open(path, durability=durability) as log:
        assert log[:] == VALUES[:place]


def test_fsck_counts_what_the_next_writer_would_set_aside(tmp_path: Path) -> None:
    """After a reboot nobody knows what was appended: a writer may cut the log there. Whoever looks first is told."""
    path, place = tmp_path / "log", 3
    abandoned_log(path, VALUES)
    reboot(path)
    position = positions_of(path)[place]
    flip(names.segment_path(path, 0), position + 33)
    report, behind = fsck.check(path), len(VALUES) - place - 1
    assert not report.clean and report.entries == len(VALUES) - 1 and report.damages[0].intact_after == behind
    assert any(f"position {position}, and keeps {behind} intact records" in note for note in report.notes)
    with pyreplog.open(path) as log:
        assert log.end == place and log.cut_records == behind
    assert fsck.check(path).clean


# ---- torn ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("durability", ["appended", "interval", "synced"])
@pytest.mark.parametrize("torn_byte", [0, 4, 12, 20, 31, 32, 40])
def test_torn_last_record_is_cut_and_kept_aside(durability: str, torn_byte: int, tmp_path: Path) -> None:
    """In a synced log too: no later record says that the last one was synced."""
    path = tmp_path / "log"
    abandoned_log(path, VALUES, durability)
    reboot(path)
    torn, end = positions_of(path)[-2:]
    flip(names.segment_path(path, 0), torn + torn_byte)
    was = names.segment_path(path, 0).read_bytes()[torn:end]
    with pyreplog.open(path, durability=durability) as log:
        assert log[:] == VALUES[:-1] and log.end_position == torn
    (kept,) = (path / names.ASIDE).rglob("*.cut")
    assert kept.read_bytes().rstrip(b"\0") == was.rstrip(b"\0")
    assert not any(names.segment_path(path, 0).read_bytes()[torn:])


def test_cut_records_never_come_back(tmp_path: Path) -> None:
    """A record of the same length goes where the torn one was: intact records lie behind it no more."""
    path, place = tmp_path / "log", 5
    abandoned_log(path, VALUES)
    reboot(path)
    positions = positions_of(path)
    flip(names.segment_path(path, 0), positions[place] + 33)

    def append_in_its_place() -> None:
        log = pyreplog.open(path)
        assert log[:] == VALUES[:place]
        log.append(VALUES[place][::-1])

    in_process(append_in_its_place, tmp_path / "report")
    with pyreplog.open(path) as log:
        assert log[:] == [*VALUES[:place], VALUES[place][::-1]]
    (kept,) = (path / names.ASIDE).rglob("*.cut")
    assert len(kept.read_bytes()) == positions[-1] - positions[place]


def test_segments_behind_a_torn_one_are_cut_and_kept_aside(tmp_path: Path) -> None:
    path = tmp_path / "log"
    values = [b"%d," % n + bytes(1000) for n in range(200)]
    abandoned_log(path, values)
    reboot(path)
    torn = positions_of(path)[50]
    base = torn // SEGMENT_BYTES * SEGMENT_BYTES
    flip(names.segment_path(path, base), torn - base + 40)
    with pyreplog.open(path) as log:
        assert log[:] == values[:50]
    kept = {file.name: file.read_bytes() for file in (path / names.ASIDE).rglob("*") if file.is_file()}
    assert f"{base + SEGMENT_BYTES:020d}.log" in kept
    assert values[199] in b"".join(kept.values())
    with pyreplog.open(path) as log:
        assert log.append(b"next") == 50 and log[:] == [*values[:50], b"next"]


def test_a_place_has_another_stamp_after_a_truncation(tmp_path: Path) -> None:
    """So that what lay there before never counts as a record."""
    with pyreplog.open(tmp_path / "log", segment_bytes=SEGMENT_BYTES) as log:
        stamps = []
        for _ in range(2):
            log.append_batch([bytes(1000)] * 80)
            segment = running.active_segment(log)
            stamps.append((segment.base, segment.stamp))
            log.truncate(10)
        (base, first), (again, second) = stamps
        assert base == again == SEGMENT_BYTES and first != second


def test_segments_that_were_trimmed_do_not_come_back(tmp_path: Path) -> None:
    """A power cut may undo the removal of some files of a trim: then there is a gap behind them."""
    path, values = tmp_path / "log", [b"%d," % n + bytes(1000) for n in range(250)]
    first = names.segment_path(path, 0)
    with pyreplog.open(path, segment_bytes=SEGMENT_BYTES) as log:
        log.append_batch(values)
        was = first.read_bytes()
        start = log.trim(200)
        assert start > 2 * SEGMENT_BYTES // 1032
    first.write_bytes(was)
    with pyreplog.open(path, "r") as reader:
        assert reader.start == start and reader[start:] == values[start:]
    with pyreplog.open(path) as log:
        assert log.start == start and log[start:] == values[start:]
    assert not first.exists()
