"""Scrub: every flipped bit of a segment is found, mended and reported; the pace; the place that is kept."""

from __future__ import annotations

import errno
import json
import os
import random
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from pyreplog._native.ledger_log.entries import CONTROL
from pyreplog._native.log.segment import HEADER_BYTES
from pyreplog.bookie import segment_check
from pyreplog.bookie.collector import Collector
from pyreplog.bookie.config import BookieConfig
from pyreplog.bookie.controls import ControlCode, load_controls
from pyreplog.bookie.local_bookie import LocalBookie
from pyreplog.bookie.node import BookieNode
from pyreplog.bookie.protocol import Flag, ReplyStatus
from pyreplog.bookie.registration import Availability, availability_key
from pyreplog.bookie.scrub_state import NAME
from pyreplog.clock import ManualClock
from pyreplog.errors import ClosedError, CorruptionError, MetadataUnavailableError
from pyreplog.log import names
from pyreplog.log.files import RealFiles
from pyreplog.metadata.memory import MemoryStore
from tests.bookie.asking import ANY_SPACE, KEY, Facts, add, entries_in, last, read
from tests.bookie.test_collector import Ledgers
from tests.bookie.test_local import ask
from tests.thorough import one_in
from tests.waiting import until

SEGMENT = 64 << 10
DAY_S = 86_400.0
DAY_MS = 86_400_000
START_US = 1_700_000_000_000_000
SETTINGS: dict[str, Any] = {"durability": "appended", "segment_bytes": SEGMENT, **ANY_SPACE}
LEDGERS = (1, 2, 3)


class Unreadable(RealFiles):
    """A disk that cannot read some blocks of one file."""

    def __init__(self) -> None:
        self.path: Path | None = None
        self.blocks: set[int] = set()

    def read(self, fd: int, buffer: memoryview, offset: int) -> int:
        stop = offset + buffer.nbytes
        is_hit = any(offset < block + 4096 and block < stop for block in self.blocks)
        if is_hit and self.path is not None and os.path.samestat(os.fstat(fd), self.path.stat()):
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return super().read(fd, buffer, offset)


class Lab:
    """A bookie with entries of three ledgers in several sealed segments, its collector, and the notes that it makes."""

    def __init__(
        self, path: Path, *, files: RealFiles | None = None, clock: ManualClock | None = None, **settings: Any
    ) -> None:
        self.path, self.ledgers = path, Ledgers(*LEDGERS)
        self.notes: list[tuple[int, int]] = []
        self.note_fails = False
        self.on_note: Callable[[], object] = lambda: None
        self.config = BookieConfig.of({**SETTINGS, **settings})
        self.bookie = LocalBookie(path, self.config, files=files, clock=clock, note=self.note)
        self.scrubber = self.bookie.scrubber
        self.collector = Collector(
            self.bookie.log, self.config, self.ledgers, self.bookie.with_bookie, damaged=self.scrubber.damaged
        )
        self.log = self.bookie.log.log

    def note(self, ledger: int, entries: Sequence[int]) -> None:
        if self.note_fails:
            raise MetadataUnavailableError("out of reach")
        self.on_note()
        self.notes += [(ledger, entry) for entry in entries]

    def fill(self, entries: range, *, size: int = 700) -> None:
        for entry in entries:
            for ledger in LEDGERS:
                request = add(entry, ledger=ledger, mark=b"." * (size + 13 * ledger), flags=Flag.RECOVERY)
                assert ask(self.bookie, request).status == ReplyStatus.OK
        self.settle()

    def settle(self) -> None:
        """Until all sealed segments are on the disk, with their index files."""
        self.log.commit_log.sync()
        self.log.commit_log.run_background_tasks()

    @property
    def sealed(self) -> list[int]:
        return [base for base, shares in self.log.segments() if shares]

    def file(self, base: int) -> Path:
        return names.segment_path(self.log.path, base)

    def offset_of(self, base: int, ledger: int, entry: int) -> int:
        rows = self.log.commit_log.rows_of(base)
        (at,) = ((rows.ledger == ledger) & (rows.entry == entry)).nonzero()[0].tolist()
        return int(rows.offset[at])

    def place_of(self, ledger: int, entry: int) -> tuple[Path, int]:
        """Where the newest record of an entry lies: its file and the offset in it."""
        (part,) = self.log.commit_log.locations(ledger, entry, entry + 1)
        return self.file(part.base), int(part.offset[0])

    def damage(self, ledger: int, entry: int, at: int = 70) -> Path:
        path, offset = self.place_of(ledger, entry)
        flip(path, offset + at)
        return path

    def readable(self, ledger: int) -> list[int]:
        return entries_in(ask(self.bookie, read(0, 1000, ledger=ledger)))

    def repair(self) -> None:
        """Write what was noted again, as `LedgerCluster.repair` does with another bookie's copies."""
        for ledger, entry in self.notes:
            again = add(entry, ledger=ledger, mark=b"." * (700 + 13 * ledger), flags=Flag.RECOVERY)
            assert ask(self.bookie, again).status == ReplyStatus.OK
        self.notes.clear()

    def scrub(self) -> None:
        self.scrubber.run()

    def close(self) -> None:
        self.bookie.close()


def flip(path: Path, offset: int, bit: int = 0) -> None:
    with path.open("r+b") as file:
        file.seek(offset)
        byte = file.read(1)[0]
        file.seek(offset)
        file.write(bytes([byte ^ 1 << bit]))


@pytest.fixture
def lab(ram_path: Path) -> Iterator[Lab]:
    with closing(Lab(ram_path / "b")) as peer:
        peer.fill(range(60))
        yield peer


# ---- what is found ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("piece", [4096, 8192, 1 << 20])
@pytest.mark.parametrize("durability", ["appended", "synced"])
def test_an_intact_log_has_nothing_to_mend(
    durability: str, piece: int, ram_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also when index files and records are longer than a piece that is read at a time."""
    monkeypatch.setattr(segment_check, "PIECE_BYTES", piece)
    with closing(Lab(ram_path / "b", durability=durability)) as lab:
        lab.fill(range(60))
        ask(lab.bookie, last(ledger=2, fence=True))
        before = {path: path.read_bytes() for path in lab.log.path.iterdir() if path.suffix in (".log", ".idx", ".led")}
        lab.scrub()
        assert {path: path.read_bytes() for path in before} == before
        progress = lab.scrubber.progress()
        assert (lab.notes, progress.last_bad_records, lab.scrubber.mended, progress.damaged_segments) == ([], 0, 0, 0)
        assert lab.scrubber.verified_bytes > 2 * SEGMENT


def test_every_flipped_bit_of_a_sealed_segment_is_found_and_mended(lab: Lab, seed: int) -> None:
    """Of any byte of the file: header block, records, blank, the zeros behind it. What surrounds the records is written
    again as it was; of a damaged record its entry is noted, and stays noted until there is a newer copy."""
    rng = random.Random(seed)
    base = lab.sealed[1]
    path, rows = lab.file(base), lab.log.commit_log.rows_of(base)
    whole, end = path.read_bytes(), int(lab.log.commit_log.hold(base)[1].end)
    stride = 3 * one_in(31)
    offsets = {*range(seed % stride, SEGMENT, stride), 0, 8, 64, HEADER_BYTES - 1, end, end + 8, end + 31, SEGMENT - 1}
    for offset in sorted(offsets):
        flip(path, offset, rng.randrange(8))
        lab.scrub()
        if HEADER_BYTES <= offset < end:
            at = int((rows.offset <= offset).nonzero()[0][-1])
            assert lab.notes == [(rows.ledger[at], rows.entry[at])], offset
            assert [*lab.scrubber.damaged()] == [base]
            assert lab.scrubber.progress().last_bad_records == 1
            path.write_bytes(whole)
            lab.notes.clear()
        else:
            assert (path.read_bytes() == whole, lab.notes) == (True, []), offset
    lab.scrub()
    assert (lab.notes, lab.scrubber.damaged()) == ([], {})


@pytest.mark.parametrize("kind", [".idx", ".led"])
def test_every_flipped_bit_of_an_index_file_is_found_and_mended(kind: str, lab: Lab, seed: int) -> None:
    rng = random.Random(seed)
    path = lab.file(lab.sealed[1]).with_suffix(kind)
    whole = path.read_bytes()
    mended, stride = lab.scrubber.mended, one_in(53)
    for offset in range(seed % stride, len(whole), stride):
        flip(path, offset, rng.randrange(8))
        lab.scrub()
        mended += 1
        assert (path.read_bytes() == whole, lab.scrubber.mended) == (True, mended), offset
    path.unlink()
    lab.scrub()
    assert path.read_bytes() == whole
    assert lab.notes == []
    assert lab.readable(2) == [*range(60)]


def test_an_index_file_that_is_cut_or_another_ones_is_made_again(lab: Lab) -> None:
    first, second = lab.sealed[:2]
    for kind in (".idx", ".led"):
        path = lab.file(second).with_suffix(kind)
        whole = path.read_bytes()
        for other in (whole[:-1], whole + b"\0", b"", lab.file(first).with_suffix(kind).read_bytes()):
            path.write_bytes(other)
            lab.scrub()
            assert path.read_bytes() == whole


def test_damage_over_several_records_names_each(lab: Lab) -> None:
    base = lab.sealed[0]
    rows = lab.log.commit_log.rows_of(base)
    with lab.file(base).open("r+b") as file:
        file.seek(int(rows.offset[5]) + 30)
        file.write(os.urandom(int(rows.offset[9] - rows.offset[5])))
    lab.scrub()
    expected = sorted(zip(rows.ledger[5:10].tolist(), rows.entry[5:10].tolist(), strict=True))
    assert sorted(lab.notes) == expected
    assert lab.scrubber.bad_records == 5


def test_the_durable_part_of_the_active_segment_is_verified_too(ram_path: Path) -> None:
    with closing(Lab(ram_path / "b", segment_bytes=1 << 20)) as lab:
        lab.fill(range(60))
        assert not lab.sealed
        lab.damage(2, 17)
        lab.scrub()
        assert lab.notes == [(2, 17)]
        lab.repair()
        lab.settle()
        lab.scrub()
        assert lab.notes == []
        assert lab.readable(2) == [*range(60)]


def test_records_longer_than_a_piece(ram_path: Path) -> None:
    with closing(Lab(ram_path / "b", segment_bytes=16 << 20)) as lab:
        for entry in range(8):
            assert ask(lab.bookie, add(entry, ledger=1, mark=b"." * (3 << 20))).status == ReplyStatus.OK
        lab.settle()
        lab.scrub()
        assert (lab.notes, len(lab.sealed)) == ([], 1)
        for entry, at in ((1, 2_000_000), (3, 0), (6, 3 << 20)):
            lab.damage(1, entry, at)
        lab.scrub()
        assert sorted(lab.notes) == [(1, 1), (1, 3), (1, 6)]


# ---- mending ---------------------------------------------------------------------------------------------------


def test_a_new_copy_replaces_a_damaged_one_and_the_segment_is_collected(lab: Lab) -> None:
    base = lab.sealed[1]
    (entry, *_) = lab.log.commit_log.rows_of(base).entry.tolist()
    for ledger in LEDGERS:
        lab.damage(ledger, entry + 1)
    lab.scrub()
    assert sorted(lab.notes) == [(ledger, entry + 1) for ledger in LEDGERS]
    lab.collector.collect()
    assert base in lab.sealed, "the only copy that is here is not thrown away"
    lab.repair()
    lab.settle()
    lab.scrub()
    assert (lab.notes, lab.scrubber.progress().last_bad_records) == ([], 0), "all live entries are intact"
    lab.collector.collect()
    assert base not in lab.sealed
    lab.scrub()
    assert lab.scrubber.damaged() == {}
    for ledger in LEDGERS:
        assert lab.readable(ledger) == [*range(60)]
    lab.close()
    with closing(Lab(lab.path)) as again:
        assert [again.readable(ledger) for ledger in LEDGERS] == [[*range(60)]] * 3
        again.scrub()
        assert again.notes == []


def test_the_duplicate_check_does_not_take_a_damaged_record_for_the_entry(lab: Lab) -> None:
    """An ADD of the same bytes is stored once more, however the record is damaged; a later one is not."""
    for at in (0, 5, 9, 12, 25, 33, 63, 64, 90):
        lab.damage(1, 3, at)
        end = lab.log.end_position
        same = add(3, ledger=1, mark=b"." * (700 + 13), flags=Flag.RECOVERY)
        assert ask(lab.bookie, same).status == ReplyStatus.OK
        assert lab.log.end_position > end, at
        end = lab.log.end_position
        assert ask(lab.bookie, same).status == ReplyStatus.OK
        assert lab.log.end_position == end, at
        assert entries_in(ask(lab.bookie, read(3, 3, ledger=1))) == [3]


def test_a_damaged_copy_that_the_metadata_do_not_ask_for_does_not_hinder_collection(lab: Lab) -> None:
    base = lab.sealed[0]
    lab.damage(3, 2)
    lab.scrub()
    lab.ledgers.held[3] = [range(0, 60, 5), range(1, 60, 5)]
    lab.collector.collect()
    assert base not in lab.sealed
    assert lab.readable(3) == [0, 1, *range(3, 60)]


def test_damage_in_what_was_superseded_is_not_noted(lab: Lab) -> None:
    lab.damage(1, 3)
    lab.scrub()
    lab.repair()
    lab.settle()
    lab.damage(1, 3)  # of the new copy
    lab.scrub()
    assert lab.notes == [(1, 3)], "once, and for the newest"


@pytest.mark.parametrize("cached", [True, False])
def test_damaged_control_records_are_written_again(cached: bool, ram_path: Path) -> None:
    with closing(Lab(ram_path / "b", ledger_states_max=16384 if cached else 1)) as lab:
        lab.fill(range(2))
        ask(lab.bookie, last(ledger=2, fence=True))
        lab.bookie.with_bookie(lambda bookie: bookie.limbo.enter([3]))
        lab.fill(range(2, 60)) if cached else lab.fill(range(2, 3))
        for ledger, code in ((2, ControlCode.FENCE), (3, ControlCode.LIMBO), (1, ControlCode.KEY)):
            lab.damage(ledger + CONTROL, code, 20)
        if not cached:
            for entry in range(40):  # other states take the place of these three
                ask(lab.bookie, add(0, ledger=100 + entry))
        lab.settle()
        lab.scrub()
        assert lab.scrubber.mended >= 2
        assert load_controls(lab.bookie.log, 2).fenced
        assert load_controls(lab.bookie.log, 3).limbo
        assert load_controls(lab.bookie.log, 1).key == (KEY if cached else None)
        assert ask(lab.bookie, add(99, ledger=2)).status == ReplyStatus.FENCED
        assert ask(lab.bookie, add(99, ledger=3)).status == ReplyStatus.UNKNOWN
        assert ask(lab.bookie, add(99, ledger=1)).status == ReplyStatus.OK
        assert lab.notes == []
        lab.settle()
        lab.scrub()
        assert lab.scrubber.progress().last_bad_records == 0


def test_a_header_of_a_segment_that_is_not_mapped_is_restored(ram_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pyreplog.log.commit_log.MAPPED_MAX", 1)
    with closing(Lab(ram_path / "b")) as lab:
        lab.fill(range(100))
        base = lab.sealed[0]
        whole = lab.file(base).read_bytes()
        for also in (None, HEADER_BYTES + 8):
            flip(lab.file(base), 20)
            if also is not None:
                flip(lab.file(base), also)  # the stamp of the first record tells the epoch; else the index does
            lab.settle()
            with pytest.raises(CorruptionError):
                lab.log.commit_log.hold(base)
            lab.scrub()
            assert lab.file(base).read_bytes()[:HEADER_BYTES] == whole[:HEADER_BYTES]
        assert (lab.notes, lab.scrubber.bad_records) == ([], 1), "the record is the key of a ledger"


def test_blocks_that_the_disk_cannot_read(ram_path: Path) -> None:
    files = Unreadable()
    with closing(Lab(ram_path / "b", files=files)) as lab:
        lab.fill(range(60))
        base = lab.sealed[1]
        rows = lab.log.commit_log.rows_of(base)
        files.path, files.blocks = lab.file(base), {3 * 4096, 4 * 4096}
        lab.scrub()
        with lab.file(base).open("r+b") as file:  # what touches them from now on gets other bytes
            file.seek(3 * 4096)
            file.write(b"!" * 8192)
        ends = [*rows.offset[1:].tolist(), int(lab.log.commit_log.hold(base)[1].end)]
        hit = [i for i, start in enumerate(rows.offset.tolist()) if start < 5 * 4096 and ends[i] > 3 * 4096]
        assert sorted(lab.notes) == sorted((int(rows.ledger[i]), int(rows.entry[i])) for i in hit)
        lab.repair()
        lab.settle()
        lab.collector.collect()
        assert base not in lab.sealed, "its intact entries were moved, and none of the blocks was touched"


def test_blocks_behind_the_records_that_cannot_be_read_cost_the_segment(ram_path: Path) -> None:
    files = Unreadable()
    with closing(Lab(ram_path / "b", files=files)) as lab:
        lab.fill(range(15), size=3000)
        base = lab.sealed[0]
        files.path, files.blocks = lab.file(base), {SEGMENT - 4096}
        before = lab.file(base).read_bytes()
        lab.scrub()
        if int(lab.log.commit_log.hold(base)[1].end) + 32 <= SEGMENT - 4096:
            assert lab.notes == []
        assert [*lab.scrubber.damaged()] == [base]
        assert lab.file(base).read_bytes() == before


def test_a_bad_record_is_read_again_before_it_counts(ram_path: Path) -> None:
    class Flaky(RealFiles):
        flips = 0

        def read(self, fd: int, buffer: memoryview, offset: int) -> int:
            done = super().read(fd, buffer, offset)
            if self.flips and offset == HEADER_BYTES:
                self.flips -= 1
                buffer[5000] ^= 1
            return done

    files = Flaky()
    with closing(Lab(ram_path / "b", files=files)) as lab:
        lab.fill(range(60))
        files.flips = 1
        lab.scrub()
        assert (files.flips, lab.notes, lab.scrubber.damaged()) == (0, [], {})


def test_records_and_index_damaged_at_once_are_reported_and_the_scrub_goes_on(
    ram_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with closing(Lab(ram_path / "b", segment_bytes=256 << 10)) as lab:
        for start in range(0, 6000, 100):
            for ledger in LEDGERS:
                ask(lab.bookie, add(*range(start, start + 100), ledger=ledger))
        lab.settle()
        base, other = lab.sealed[:2]
        for of in (base, other):
            lab.damage(2, int(lab.log.commit_log.rows_of(of).entry[-400]))
        index = lab.file(base).with_suffix(".led")
    flip(index, 4096 + 4096 + 100)
    flip(index, 4096 + 8192 + 100)
    with closing(Lab(ram_path / "b", segment_bytes=256 << 10)) as again:
        again.scrub()
        assert [*again.scrubber.damaged()] == [base, other]
        assert len(again.notes) == 1
        assert "restart this bookie" in caplog.text
        assert again.scrubber.progress().since_complete_s is not None


def test_a_blank_is_missed_without_an_index_as_well(ram_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with closing(Lab(ram_path / "b", segment_bytes=256 << 10)) as lab:
        for start in range(0, 6000, 100):
            for ledger in LEDGERS:
                ask(lab.bookie, add(*range(start, start + 100), ledger=ledger))
        lab.settle()
        base = lab.sealed[0]
        _pin, segment = lab.log.commit_log.hold_segment(base)
        blank = segment.end
        index = lab.file(base).with_suffix(".led")
    flip(index, 4096 + 4096 + 100)
    flip(index, 4096 + 8192 + 100)
    flip(lab.file(base), blank + 8)
    with closing(Lab(ram_path / "b", segment_bytes=256 << 10)) as again:
        again.scrub()
        assert f"{base + (256 << 10)}: expected an end-of-segment blank, found none" in caplog.text


# ---- metadata, removal -----------------------------------------------------------------------------------------


def test_a_note_that_cannot_be_made_is_made_later_and_the_scrub_waits(
    lab: Lab, caplog: pytest.LogCaptureFixture
) -> None:
    lab.damage(2, 3)
    lab.note_fails = True
    with pytest.raises(MetadataUnavailableError):
        lab.scrub()
    assert lab.scrubber.step() == 60.0
    assert "out of reach" in caplog.text
    lab.close()
    with closing(Lab(lab.path)) as again:
        again.scrub()
        assert again.notes == [(2, 3)]


@pytest.mark.parametrize("left", [1, 2, 3])
def test_segments_that_are_removed_meanwhile_are_left_alone(
    left: int, ram_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Recycled ones hold other records, hollow ones none: neither is damage. One of the ledgers stays, so that the
    first segments are removed and others made hollow."""
    monkeypatch.setattr(segment_check, "PIECE_BYTES", 8192)
    clock = ManualClock(START_US)
    with closing(Lab(ram_path / "b", clock=clock, scrub_bytes_per_s=8192)) as lab:
        for ledger in LEDGERS:
            for entry in range(120):
                ask(lab.bookie, add(entry, ledger=ledger, mark=b"." * 1000))
        lab.settle()
        lab.scrubber.scrub_now()
        before, steps = lab.sealed, 0
        while lab.scrubber.progress().asked:
            lab.scrubber.step()
            clock.advance(1_000_000)
            steps += 1
            if steps == 4 + left:
                lab.ledgers.there.intersection_update({left})
                lab.collector.collect()
                for entry in range(120, 240):  # in files of segments that were removed
                    ask(lab.bookie, add(entry, ledger=left, mark=b"." * 1000))
                lab.settle()
            assert steps < 1000
        assert steps > 20
        assert (lab.notes, lab.scrubber.damaged()) == ([], {})
        assert len({*before} - {*lab.sealed}) >= 2


# ---- pace ------------------------------------------------------------------------------------------------------


def run_for(lab: Lab, clock: ManualClock, seconds: float) -> None:
    """Step when steps are due, for a while."""
    end_us = clock.monotonic_us() + int(seconds * 1e6)
    while clock.monotonic_us() < end_us:
        wait_us = int(lab.scrubber.step() * 1e6)
        clock.advance(max(wait_us, 1_000_000))


def test_all_is_verified_within_the_days_and_not_much_sooner(ram_path: Path) -> None:
    clock = ManualClock(START_US)
    with closing(Lab(ram_path / "b", clock=clock, scrub_interval_ms=2 * DAY_MS, durability="synced")) as lab:
        lab.fill(range(200))
        total = lab.log.end_position
        run_for(lab, clock, 1.3 * DAY_S)
        assert lab.scrubber.progress().since_complete_s is None, "spread over the days"
        assert 0.6 * total < lab.scrubber.verified_bytes
        run_for(lab, clock, 0.6 * DAY_S)
        assert lab.scrubber.progress().since_complete_s is not None
        for _ in range(10):
            run_for(lab, clock, 0.5 * DAY_S)
            assert lab.scrubber.oldest_s() < 2 * DAY_S
        verified = lab.scrubber.verified_bytes
        assert verified < 5 * total, "and no more often than needed"


def test_new_segments_are_verified_in_time_too(ram_path: Path) -> None:
    clock = ManualClock(START_US)
    with closing(Lab(ram_path / "b", clock=clock, scrub_interval_ms=2 * DAY_MS, durability="synced")) as lab:
        for day in range(12):
            lab.fill(range(20 * day, 20 * day + 20))
            run_for(lab, clock, 0.4 * DAY_S)
            assert lab.scrubber.oldest_s() < 2 * DAY_S


class Unsteady(ManualClock):
    """A wall clock that is set a little every time, as clocks of machines are."""

    calls = 0

    def now_us(self) -> int:
        self.calls += 1
        return super().now_us() + self.calls * 7919 % 2_000_000


def test_verified_since_us_changes_about_hourly(ram_path: Path) -> None:
    """It is stored in the registration, which all clients read: it must not change with each look."""
    clock = Unsteady(START_US)
    with closing(Lab(ram_path / "b", clock=clock, scrub_interval_ms=2 * DAY_MS, durability="synced")) as lab:
        assert lab.scrubber.verified_since_us() == 0, "there is no segment"
        lab.fill(range(60))
        said, looks, changes, end_us = 0, 0, 0, clock.now_us() + 6 * DAY_S * 1_000_000
        while clock.now_us() < end_us:
            clock.advance(max(int(lab.scrubber.step() * 1e6), 1_000_000))
            before, said = said, lab.scrubber.verified_since_us(said)
            looks, changes = looks + 1, changes + (said != before)
            assert abs(said - (clock.now_us() - lab.scrubber.oldest_s() * 1e6)) <= 3_605_000_000 or not said
        assert 1 < changes < 30 < looks / 20
        assert 0 < clock.now_us() - said < 2.1 * DAY_S * 1e6


def test_a_look_at_the_age_waits_for_no_step(lab: Lab) -> None:
    """Writers look at the bookies of an embedded cluster; a step may wait for a slow disk meanwhile."""
    waits: list[bool] = []

    def on_note() -> None:
        look = threading.Thread(target=lab.scrubber.verified_since_us)
        look.start()
        look.join(5.0)
        waits.append(look.is_alive())

    lab.on_note = on_note
    lab.damage(1, 2)
    lab.scrub()
    assert waits and not any(waits)


def test_the_rate_of_a_scrub_is_capped(ram_path: Path) -> None:
    clock = ManualClock(START_US)
    rate = 20_000
    with closing(Lab(ram_path / "b", clock=clock, scrub_bytes_per_s=rate, durability="synced")) as lab:
        lab.fill(range(200))
        lab.scrubber.scrub_now()
        run_for(lab, clock, 10)
        assert 5 * rate <= lab.scrubber.verified_bytes <= 10 * rate + SEGMENT


class Running(ManualClock):
    """A clock that goes on at each look."""

    def __init__(self, look_us: int) -> None:
        super().__init__(START_US)
        self.look_us = look_us

    def monotonic_us(self) -> int:
        self.advance(self.look_us)
        return super().monotonic_us()


def test_a_step_verifies_all_that_is_due(ram_path: Path) -> None:
    """Segment after segment: not one piece each time that the thread is woken."""
    clock = Running(1)
    with closing(Lab(ram_path / "b", clock=clock, scrub_bytes_per_s=1 << 20, durability="synced")) as lab:
        lab.fill(range(200))
        lab.scrubber.scrub_now()
        clock.advance(10_000_000)
        assert lab.scrubber.step() > 0, "the pass is over, and nothing is due"
        assert lab.scrubber.verified_bytes > 4 * SEGMENT
        assert not lab.scrubber.progress().asked


def test_a_step_ends_though_more_is_due(ram_path: Path) -> None:
    """A step ends within its time limit: its caller does not wait for a whole pass."""
    clock = Running(50_000)
    with closing(Lab(ram_path / "b", clock=clock, scrub_bytes_per_s=64 << 20, durability="synced")) as lab:
        lab.fill(range(400))
        lab.scrubber.scrub_now()
        assert lab.scrubber.step() == 0.0, "the next one is due"
        assert 0 < lab.scrubber.verified_bytes < 8 * SEGMENT < lab.log.end_position
        assert lab.scrubber.progress().asked
        while lab.scrubber.progress().asked:
            lab.scrubber.step()
        assert lab.scrubber.verified_bytes > 8 * SEGMENT


def test_a_pass_verifies_each_segment_once_by_a_clock_that_stands(ram_path: Path) -> None:
    """Also one that is asked for right after another: the times of all segments are the same."""
    clock = ManualClock(START_US)
    with closing(Lab(ram_path / "b", clock=clock, scrub_bytes_per_s=1 << 20, durability="synced")) as lab:
        lab.fill(range(200))
        lab.scrubber.scrub_now()
        clock.advance(10_000_000)  # a step may verify more than there is, and then the clock stands
        lab.scrubber.step()
        assert not lab.scrubber.progress().asked
        verified = lab.scrubber.verified_bytes
        assert 4 * SEGMENT < verified <= lab.log.end_position
        lab.damage(1, 2)
        lab.scrub()
        assert lab.scrubber.verified_bytes == 2 * verified
        assert lab.notes == [(1, 2)]


def test_an_interval_of_0_verifies_nothing_unless_asked(ram_path: Path) -> None:
    clock = ManualClock(START_US)
    with closing(Lab(ram_path / "b", clock=clock, scrub_interval_ms=0, durability="synced")) as lab:
        lab.fill(range(60))
        run_for(lab, clock, DAY_S)
        assert lab.scrubber.verified_bytes == 0
        lab.scrubber.scrub_now()
        run_for(lab, clock, 60)
        progress = lab.scrubber.progress()
        assert (progress.asked, lab.scrubber.verified_bytes > 2 * SEGMENT) == (False, True)


def test_a_clock_that_is_set_does_not_change_a_running_scrub(ram_path: Path) -> None:
    clock = ManualClock(START_US)
    with closing(
        Lab(ram_path / "b", clock=clock, scrub_interval_ms=2 * DAY_MS, scrub_bytes_per_s=1000, durability="synced")
    ) as lab:
        lab.fill(range(200))
        run_for(lab, clock, 0.5 * DAY_S)
        verified = lab.scrubber.verified_bytes
        for days in (100.0, -200.0):
            clock.set(START_US + int(days * DAY_S * 1e6))
            run_for(lab, clock, 0.1 * DAY_S)
        assert lab.scrubber.verified_bytes - verified < lab.log.end_position / 4


# ---- the place -------------------------------------------------------------------------------------------------


def test_scrub_resumes_at_its_stored_position(ram_path: Path) -> None:
    clock = ManualClock(START_US)
    path = ram_path / "b"
    with closing(Lab(path, clock=clock, scrub_interval_ms=2 * DAY_MS, durability="synced")) as lab:
        lab.fill(range(300))
        total = lab.log.end_position
        verified = 0
    for _ in range(12):
        with closing(Lab(path, clock=clock, scrub_interval_ms=2 * DAY_MS, durability="synced")) as lab:
            run_for(lab, clock, 0.15 * DAY_S)
            verified += lab.scrubber.verified_bytes
    assert total * 0.8 < verified < total * 1.25
    with closing(Lab(path, clock=clock, scrub_interval_ms=2 * DAY_MS, durability="synced")) as lab:
        lab.scrubber.step()
        assert lab.scrubber.progress().since_complete_s is not None
    content = json.loads((path / NAME).read_text())["content"]
    assert all(verified for _, _, verified in content["segments"])


def test_a_restart_keeps_the_time_at_which_the_last_pass_ended(ram_path: Path) -> None:
    clock, settings = ManualClock(START_US), {"scrub_interval_ms": 2 * DAY_MS, "durability": "synced"}
    with closing(Lab(ram_path / "b", clock=clock, **settings)) as lab:
        lab.fill(range(30))
        lab.scrubber.scrub_now()
        run_for(lab, clock, DAY_S)
        last = lab.scrubber.report().last
        assert last is not None and START_US <= last.ended_us <= clock.now_us()
    clock.advance(3600 * 1_000_000)
    with closing(Lab(ram_path / "b", clock=clock, **settings)) as lab:
        again = lab.scrubber.report().last
        assert again is not None and abs(again.ended_us - last.ended_us) < 1_000_000


@pytest.mark.parametrize("how", ["missing", "damaged", "another log's", "newer"])
def test_a_scrub_without_its_file_begins_anew(how: str, ram_path: Path) -> None:
    path = ram_path / "b"
    with closing(Lab(path)) as lab:
        lab.fill(range(60))
        lab.scrub()
    file = path / NAME
    data = file.read_bytes()
    if how == "missing":
        file.unlink()
    elif how == "damaged":
        file.write_bytes(data.replace(b'"segments"', b'"segmentz"'))
    elif how == "newer":
        file.write_bytes(data.replace(b'"version": 1', b'"version": 2'))
    else:
        with closing(Lab(ram_path / "c")) as other:
            other.fill(range(10))
            other.scrub()
        file.write_bytes((ram_path / "c" / NAME).read_bytes())
    with closing(Lab(path)) as lab:
        lab.scrubber.step()
        assert lab.scrubber.progress().since_complete_s is None
        lab.scrub()
        assert lab.scrubber.progress().since_complete_s is not None
        assert lab.notes == []


def test_damage_found_by_a_scrub_is_known_after_a_restart(lab: Lab) -> None:
    base = lab.sealed[0]
    lab.damage(2, 3)
    lab.scrub()
    lab.repair()
    lab.close()
    with closing(Lab(lab.path)) as again:
        assert [*again.scrubber.damaged()] == [base]
        again.collector.collect()
        assert base not in again.sealed
        assert again.readable(2) == [*range(60)]


def test_a_scrub_reports_its_progress(lab: Lab) -> None:
    lab.scrubber.step()
    progress = lab.scrubber.progress()
    assert (progress.asked, progress.since_complete_s) == (False, None)
    assert progress.total_bytes >= 2 * SEGMENT > progress.done_bytes
    lab.damage(1, 2)
    lab.scrubber.scrub_now()
    assert lab.scrubber.progress().asked
    lab.scrub()
    progress = lab.scrubber.progress()
    assert (progress.asked, progress.last_bad_records, progress.damaged_segments) == (False, 1, 1)


def test_a_closed_bookie_is_not_verified(lab: Lab) -> None:
    lab.close()
    file = lab.path / NAME
    file.unlink()
    assert lab.scrubber.step() == 60.0
    lab.scrubber.close()
    assert not file.exists()


# ---- in a process of its own -----------------------------------------------------------------------------------


def test_a_node_verifies_in_keep_and_notes_what_is_damaged(tmp_path: Path) -> None:
    facts = Facts()
    with MemoryStore() as store, BookieNode(
        tmp_path / "b", "b", store, BookieConfig.of(SETTINGS), ledgers=facts
    ) as node:  # fmt: skip
        for entry in range(100):
            ask(node.bookie, add(entry, mark=b"." * 1000))
        log = node.bookie.log.log.commit_log
        log.sync()
        log.run_background_tasks()
        (part,) = log.locations(7, 5, 6)
        flip(names.segment_path(log.path, part.base), int(part.offset[0]) + 70)
        node.maintain()
        assert node.scrub_progress().since_complete_s is None
        node.scrub_now()
        until(lambda: node.maintain() or node.scrub_progress().since_complete_s is not None)
        assert ({*facts.noted}, node.scrub_progress().last_bad_records) == ({(7, 5)}, 1)
        samples_by_name = {metric.name: metric.samples[0][1] for metric in node.metrics() if "scrub" in metric.name}
        assert samples_by_name["pyreplog_bookie_scrub_bad_records"] == len(facts.noted) <= 2
        assert samples_by_name["pyreplog_bookie_scrub_damaged_segments"] == 1
        assert samples_by_name["pyreplog_bookie_scrub_bytes"] > 64 << 10
        assert 0 <= samples_by_name["pyreplog_bookie_scrub_oldest_seconds"] < 60
        said = Availability.decode(store.get(availability_key(node.identity.id)).value)  # type: ignore[union-attr]
        assert abs(said.verified_since_us - time.time() * 1e6) < 60e6
    with pytest.raises(ClosedError):
        node.scrub_now()
    with pytest.raises(ClosedError):
        node.scrub_progress()
