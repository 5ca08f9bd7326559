"""A bookie whose segments are damaged or gone starts, serves the rest, and says what is gone before it serves."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from pathlib import Path

import pytest

from pyreplog._native.log.segment import HEADER_BYTES
from pyreplog.bookie.config import BookieConfig
from pyreplog.bookie.controls import load_controls
from pyreplog.bookie.identity import LOG
from pyreplog.bookie.local_bookie import LocalBookie
from pyreplog.bookie.opening import open_bookie
from pyreplog.bookie.protocol import Flag, ReplyStatus
from pyreplog.bookie.salvage import NAME, LostSegments
from pyreplog.errors import CorruptionError, WrongLogError
from pyreplog.log import names
from pyreplog.log.files import Files, RealFiles
from pyreplog.metadata.sqlite import SQLiteStore
from tests.bookie.asking import ANY_SPACE, Facts, add, last, read
from tests.bookie.test_local import ask
from tests.bookie.test_scrub import flip
from tests.crash.disk import PowerCutFiles
from tests.crash.operation import Operation, Report, cut_at_every_step

SEGMENT = 64 << 10
OPEN, CLOSED = 7, 8
COUNT = 120
CONFIG = BookieConfig.of({"durability": "synced", "segment_bytes": SEGMENT, **ANY_SPACE})

Damage = Callable[[Path, list[int]], object]
"""Of a log: its directory, and the bases of its segments that have records."""


def facts() -> Facts:
    return Facts(OPEN, held={CLOSED: [range(COUNT)], 9: [range(0)]})


def opened(home: Path, known: Facts, files: Files | None = None) -> tuple[SQLiteStore, LocalBookie]:
    store = SQLiteStore(home / "metadata.sqlite")
    try:
        return store, open_bookie(home / "b", "b", store, CONFIG, ledgers=known, files=files)[1]
    except BaseException:
        store.close()
        raise


def close(store: SQLiteStore, bookie: LocalBookie) -> None:
    bookie.close()
    store.close()


def make(home: Path) -> list[int]:
    """A bookie with entries of two ledgers in several segments; the bases of these."""
    home.mkdir(exist_ok=True)
    store, bookie = opened(home, facts())
    for entry in range(COUNT):
        for ledger in (OPEN, CLOSED):
            assert ask(bookie, add(entry, ledger=ledger, mark=b"." * 1000)).status == ReplyStatus.OK
    log = bookie.log.log.commit_log
    log.run_background_tasks()
    bases = [base for base, _ in log.durable_segments()]
    close(store, bookie)
    return bases


@pytest.fixture
def home(ram_path: Path) -> Iterator[Path]:
    yield ram_path / "home"


def intact(bookie: LocalBookie, ledger: int) -> list[int]:
    """The entries that can be read one by one."""
    entries = []
    for entry in range(COUNT):
        with suppress(CorruptionError):
            if bookie.log.read(ledger, entry, entry + 1, 1)[0]:
                entries.append(entry)
    return entries


def segment(log: Path, base: int) -> Path:
    return names.segment_path(log, base)


def both(log: Path, base: int, kind: str) -> None:
    """A damaged record, and an index that is missing."""
    flip(segment(log, base), 20_000)
    names.ledgers_path(log, base).unlink()
    if kind == "all":
        names.index_path(log, base).unlink()


def exchange(log: Path, base: int, other: int) -> None:
    shutil.copy(segment(log, other), segment(log, base))


DAMAGES: dict[str, tuple[Damage, bool]] = {
    "first missing": (lambda log, bases: segment(log, bases[0]).unlink(), True),
    "middle missing": (lambda log, bases: segment(log, bases[1]).unlink(), True),
    "last missing": (lambda log, bases: segment(log, bases[-1]).unlink(), True),
    "several missing": (lambda log, bases: [segment(log, base).unlink() for base in (*bases[:2], bases[3])], True),
    "header damaged": (lambda log, bases: flip(segment(log, bases[1]), 20), False),
    "header and first stamp damaged": (
        lambda log, bases: [flip(segment(log, bases[1]), at) for at in (20, HEADER_BYTES + 8)],
        True,
    ),
    "header block gone": (lambda log, bases: zero(segment(log, bases[1]), 0, 64), False),
    "cut short": (lambda log, bases: os.truncate(segment(log, bases[1]), 30_000), True),
    "cut to nothing": (lambda log, bases: os.truncate(segment(log, bases[1]), 0), True),
    "grown": (lambda log, bases: os.truncate(segment(log, bases[1]), SEGMENT + 4096), True),
    "another in its place": (lambda log, bases: exchange(log, bases[1], bases[2]), True),
    "record and ledger index": (lambda log, bases: both(log, bases[1], "led"), True),
    "record and both indexes": (lambda log, bases: both(log, bases[1], "all"), True),
    "blank and both indexes": (lambda log, bases: blank(log, bases[1]), True),
    "active damaged": (lambda log, bases: flip(segment(log, bases[-1]), HEADER_BYTES + 100), True),
    "checkpoint gone": (lambda log, bases: (log / names.CHECKPOINT).unlink(), False),
    "checkpoint gone, record damaged": (
        lambda log, bases: [(log / names.CHECKPOINT).unlink(), flip(segment(log, bases[1]), 20_000)],
        True,
    ),
    "checkpoint gone, middle missing": (
        lambda log, bases: [(log / names.CHECKPOINT).unlink(), segment(log, bases[1]).unlink()],
        True,
    ),
    "ledger index missing": (lambda log, bases: names.ledgers_path(log, bases[1]).unlink(), False),
    "both indexes missing": (
        lambda log, bases: [path(log, bases[1]).unlink() for path in (names.ledgers_path, names.index_path)],
        False,
    ),
}


def zero(path: Path, start: int, stop: int) -> None:
    with path.open("r+b") as file:
        file.seek(start)
        file.write(bytes(stop - start))


def blank(log: Path, base: int) -> None:
    data = segment(log, base).read_bytes()
    end = len(data.rstrip(b"\0")) - 16
    zero(segment(log, base), end & ~7, SEGMENT)
    for path in (names.ledgers_path, names.index_path):
        path(log, base).unlink()


@pytest.mark.parametrize("name", DAMAGES)
def test_bookie_starts_with_damaged_segments_and_notes_the_lost_entries(
    name: str, home: Path, caplog: pytest.LogCaptureFixture
) -> None:
    damage, loses = DAMAGES[name]
    bases = make(home)
    damage(home / "b" / LOG, bases)
    known = facts()
    store, bookie = opened(home, known)
    held = {ledger: bookie.log.held_entries(ledger, 0, COUNT).tolist() for ledger in (OPEN, CLOSED)}
    gone = [entry for entry in range(COUNT) if entry not in held[CLOSED]]
    assert held == {ledger: intact(bookie, ledger) for ledger in held}, "what the index has can be read"
    assert known.noted == [(CLOSED, gone[0])] if gone else known.noted == []
    if not loses:
        assert (gone, bookie.lost_segments, bookie.gauges().limbo) == ([], 0, 0)
    else:
        assert bookie.lost_segments >= 1
        assert len(gone) < COUNT, "the rest is served"
        assert bookie.with_bookie(lambda machine: machine.limbo.ledgers) == [OPEN]
        missing = next((entry for entry in range(COUNT) if entry not in held[OPEN]), COUNT)
        assert ask(bookie, read(missing, missing, ledger=OPEN)).status == ReplyStatus.LIMBO
        assert ask(bookie, add(COUNT, ledger=OPEN)).status == ReplyStatus.UNKNOWN
        assert load_controls(bookie.log, CLOSED).fenced, "its fence may have been lost"
        assert ask(bookie, add(COUNT, ledger=CLOSED)).status == ReplyStatus.FENCED
        assert "noted for repair" in caplog.text
        for entry in gone:
            again = add(entry, ledger=CLOSED, mark=b"." * 1000, flags=Flag.RECOVERY)
            assert ask(bookie, again).status == ReplyStatus.OK
        assert intact(bookie, CLOSED) == [*range(COUNT)]
    bookie.scrubber.run()
    assert bookie.scrubber.progress().last_bad_records == 0
    close(store, bookie)
    after = facts()
    store, bookie = opened(home, after)
    assert (after.noted, bookie.lost_segments) == ([], 0), "it was said once"
    if loses:
        bookie.with_bookie(lambda machine: machine.limbo.load([OPEN, CLOSED]))
        assert bookie.with_bookie(lambda machine: machine.limbo.ledgers) == [OPEN]
    close(store, bookie)


def test_damaged_segment_is_moved_aside_unchanged(home: Path) -> None:
    bases = make(home)
    log = home / "b" / LOG
    os.truncate(segment(log, bases[1]), 30_000)
    before = segment(log, bases[1]).read_bytes()
    close(*opened(home, facts()))
    kept = [path.read_bytes() for path in (log / names.ASIDE).rglob(segment(log, bases[1]).name)]
    assert kept == [before]


def test_damage_that_only_a_scrub_can_find_is_salvaged_at_the_next_start(home: Path) -> None:
    """Of a record, and of a part of its index that no opening reads."""
    home.mkdir()
    config = BookieConfig.of({"durability": "synced", "segment_bytes": 256 << 10, **ANY_SPACE})
    count = 6000
    known = Facts(held={CLOSED: [range(count)]})
    with SQLiteStore(home / "metadata.sqlite") as store:

        def start() -> LocalBookie:
            return open_bookie(home / "b", "b", store, config, ledgers=known)[1]

        with closing(start()) as bookie:
            for first in range(0, count, 100):
                ask(bookie, add(*range(first, first + 100), ledger=CLOSED))
            log = bookie.log.log.commit_log
            log.run_background_tasks()
            rows = log.rows_of(0)
        flip(segment(log.path, 0), int(rows.offset[50]) + 66)
        flip(names.ledgers_path(log.path, 0), 2 * 4096 + 100)
        with closing(start()) as bookie:
            bookie.scrubber.run()
            assert (known.noted, bookie.lost_segments) == ([], 0)
            assert [item.settled for item in LostSegments(home / "b", RealFiles()).load()] == [False]
            bookie.scrubber.run()
            assert len(LostSegments(home / "b", RealFiles()).load()) == 1, "it is noted once"
        with closing(start()) as bookie:
            assert (known.noted, bookie.lost_segments) == ([(CLOSED, int(rows.entry[50]))], 1)
            bookie.scrubber.run()
            progress = bookie.scrubber.progress()
            assert (progress.last_bad_records, progress.damaged_segments) == (0, 0)


@pytest.mark.parametrize("how", ["all missing", "another log's checkpoint"])
def test_log_that_cannot_be_salvaged_raises_wrong_log_error_with_advice(how: str, home: Path) -> None:
    bases = make(home)
    log = home / "b" / LOG
    if how == "all missing":
        for path in log.glob("*.log"):
            path.unlink()
    else:
        other = make(home.with_name("other"))
        assert other
        shutil.copy(home.with_name("other") / "b" / LOG / names.CHECKPOINT, log / names.CHECKPOINT)
    before = {path.name for path in log.iterdir()}
    with pytest.raises(WrongLogError, match="--replace"):
        opened(home, facts())
    assert {path.name for path in log.iterdir()} >= before - {names.TAIL}, "nothing is removed"
    assert bases
    assert not (home / "b" / NAME).exists()


def test_a_list_that_is_damaged_is_an_error(home: Path) -> None:
    make(home)
    (home / "b" / NAME).write_bytes(b"{}")
    with pytest.raises(CorruptionError, match="list of lost segments"):
        opened(home, facts())


class Lost(Operation):
    """The opening of a bookie that lacks a segment, and has a damaged one. The metadata are on another disk."""

    def prepare(self, home: Path) -> None:
        bases = make(home)
        log = home / "b" / LOG
        segment(log, bases[1]).unlink()
        both(log, bases[2], "all")

    def act(self, home: Path, files: PowerCutFiles, report: Report) -> None:
        known = facts()
        opened(home, known, files)
        assert known.noted == [(CLOSED, known.noted[0][1])]
        report(f"serves {known.noted[0][1]}")

    def verify(self, left: Path, reports: list[str]) -> None:
        known = facts() if not reports else Facts()
        store, bookie = opened(left, known, RealFiles())
        if not reports:
            gone = [e for e in range(COUNT) if e not in bookie.log.held_entries(CLOSED, 0, COUNT).tolist()]
            assert gone
            assert known.noted in ([(CLOSED, gone[0])], [])
            settled = LostSegments(left / "b", RealFiles()).load()
            assert settled
            assert all(item.settled for item in settled)
        bookie.with_bookie(lambda machine: machine.limbo.load([OPEN]))
        assert bookie.with_bookie(lambda machine: machine.limbo.ledgers) == [OPEN]
        assert load_controls(bookie.log, CLOSED).fenced
        assert ask(bookie, last(ledger=OPEN)).status == ReplyStatus.LIMBO
        close(store, bookie)


def test_power_cut_at_every_step(ram_path: Path, seed: int) -> None:
    assert cut_at_every_step(Lost(), ram_path, seed) > 30
