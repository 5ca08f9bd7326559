"""Cursors of a log: named, durable places from which on retention keeps entries."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from pathlib import Path
from typing import Any

import pytest

import pyreplog
from pyreplog.errors import (
    ClosedError,
    ConfigError,
    CorruptionError,
    FormatVersionError,
    InvalidArgumentError,
    LockedError,
    OutOfRangeError,
    TrimmedError,
    TruncatedError,
    UnnumberedError,
    WrongTypeError,
)
from pyreplog.log import log_cursor
from pyreplog.log.log_cursor import SLOT_BYTES, CursorPlace

SEGMENT = 64 << 10
VALUE = b"v" * 1000


def filled(path: Path, entries: int = 300, **settings: Any) -> pyreplog.CommitLog:
    """A log of several segments, 62 entries each."""
    log = pyreplog.open(path, segment_bytes=SEGMENT, **settings)
    log.append_batch([VALUE] * entries)
    return log


def test_reading_goes_on_where_the_cursor_stands(tmp_path: Path) -> None:
    with filled(tmp_path / "log", 10) as log:
        with pyreplog.open(log.path, "r") as reader, reader.cursor("billing") as cursor:
            assert (cursor.entry, cursor.lag) == (0, 10)
            records = cursor.follow(timeout=0)
            assert [next(iter(records)).entry for _ in range(4)] == [0, 1, 2, 3]
            assert cursor.entry == 0, "reading moved it"
            cursor.advance(4)
        with pyreplog.open(log.path, "r") as reader, reader.cursor("billing", "latest") as cursor:
            assert (cursor.entry, cursor.lag, cursor.position) == (4, 6, reader.position_of(4))
            assert [record.entry for record in cursor.follow(timeout=0)] == [*range(4, 10)]
            assert [(batch.first, batch.end) for batch in cursor.follow_batches(timeout=0)] == [(4, 10)]
        with log.cursor("billing") as cursor:
            cursor.advance(10)
            assert cursor.lag == 0
            log.append(b"more")
            assert [record.value for record in cursor.follow(timeout=0)] == [b"more"]
        assert log.cursors() == {"billing": 10}


@pytest.mark.parametrize(("start", "entry"), [("earliest", 0), ("latest", 10), (0, 0), (7, 7), (10, 10)])
def test_a_new_cursor_begins_at_its_start(tmp_path: Path, start: Any, entry: int) -> None:
    with filled(tmp_path / "log", 10) as log, log.cursor("c", start) as cursor:
        assert cursor.entry == entry and log.cursors() == {"c": entry}


def test_a_cursor_at_an_impossible_start_is_refused(tmp_path: Path) -> None:
    with filled(tmp_path / "log") as log:
        first = log.trim(100)
        for start, error in ((first - 1, TrimmedError), (301, OutOfRangeError), ("soon", InvalidArgumentError)):
            with pytest.raises(error):
                log.cursor("c", start)
        with pytest.raises(WrongTypeError):
            log.cursor("c", 1.5)  # type: ignore[arg-type]
        assert log.cursors() == {}
        with log.cursor("c") as cursor:
            assert cursor.entry == first > 0


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "../a", "-a", ".new", "a b", "ä", "x" * 101])
def test_malformed_names_of_cursors_are_refused(tmp_path: Path, name: str) -> None:
    with filled(tmp_path / "log", 1) as log, pytest.raises(InvalidArgumentError):
        log.cursor(name)


def test_second_handle_of_a_cursor_raises_locked_error(tmp_path: Path) -> None:
    with filled(tmp_path / "log", 3) as log, pyreplog.open(log.path, "r") as reader:
        with log.cursor("c"), pytest.raises(LockedError, match="one reader at a time"):
            reader.cursor("c")
        with reader.cursor("c") as cursor, log.cursor("d"):
            cursor.advance(2)
        assert log.cursors() == reader.cursors() == {"c": 2, "d": 0}


# ---- what is kept ----------------------------------------------------------------------------------------------


def test_trim_keeps_what_a_cursor_holds(tmp_path: Path) -> None:
    with filled(tmp_path / "log") as log:
        log.cursor("slow", 100).close()
        log.cursor("fast", 250).close()
        first = log.trim(300)
        assert 0 < first <= 100
        with log.cursor("slow") as cursor:
            assert next(iter(cursor.follow(timeout=0))).entry == 100
            cursor.delete()
        assert log.cursors() == {"fast": 250}
        assert 100 < log.trim(300) <= 250


def test_a_segment_goes_when_the_cursor_is_past_it_and_not_before(tmp_path: Path) -> None:
    """At the boundary: the last entry of the first segment, and the first of the second."""
    with filled(tmp_path / "log") as log:
        second = next(entry for entry in range(300) if log.position_of(entry) >= SEGMENT)
        with log.cursor("c", second - 1) as cursor:
            assert log.trim(300) == 0
            cursor.advance(second)
            assert log.trim(300) == second


def test_retention_keeps_what_a_cursor_holds(tmp_path: Path) -> None:
    with filled(tmp_path / "log", retention_bytes=SEGMENT) as log:
        with log.cursor("c") as cursor:
            held = cursor.entry
            log.append_batch([VALUE] * 600)
            log.run_background_tasks()
            assert log.start <= held
            cursor.advance(800)
        log.run_background_tasks()
        assert held + 400 < log.start <= 800


def test_a_cursor_holds_so_many_bytes_at_most(tmp_path: Path) -> None:
    with filled(tmp_path / "log", retention_bytes=SEGMENT, cursor_hold_bytes=4 * SEGMENT) as log:
        with log.cursor("c", "latest") as cursor:
            behind = cursor.entry
            log.append_batch([VALUE] * 150)
            log.run_background_tasks()
            assert log.start <= behind, "it is not further behind than that"
            log.append_batch([VALUE] * 600)
            log.run_background_tasks()
            assert log.start > behind
            with pytest.raises(TrimmedError, match="go on with seek"):
                cursor.follow()
            cursor.seek(log.start)
            assert next(iter(cursor.follow(timeout=0))).entry == log.start


@pytest.mark.parametrize("wrong", [-1, True, "1"])
def test_an_impossible_cursor_hold_bytes_is_refused(wrong: Any) -> None:
    with pytest.raises(ConfigError):
        pyreplog.LogConfig(cursor_hold_bytes=wrong)


def test_a_cursor_of_another_log_holds_nothing(tmp_path: Path) -> None:
    with filled(tmp_path / "other") as other:
        other.cursor("c").close()
    with filled(tmp_path / "log") as log:
        (log.path / "cursors").mkdir()
        (log.path / "cursors" / "c.cursor").write_bytes((tmp_path / "other" / "cursors" / "c.cursor").read_bytes())
        assert log.cursors() == {} and log.trim(300) > 0
        with pytest.raises(CorruptionError, match="remove the file"):
            log.cursor("c")


def test_damaged_cursor_stops_trimming_and_retention(tmp_path: Path) -> None:
    with filled(tmp_path / "log", retention_bytes=SEGMENT) as log:
        log.cursor("c", "latest").close()
        (log.path / "cursors" / "c.cursor").write_bytes(bytes(2 * SLOT_BYTES))
        log.append_batch([VALUE] * 300)
        start = log.start
        for call in (lambda: log.trim(600), log.cursors, lambda: log.cursor("c")):
            with pytest.raises(CorruptionError, match=r"c\.cursor"):
                call()
        log.run_background_tasks()
        assert "c.cursor" in log.stats().trouble and log.start == start
        (log.path / "cursors" / "c.cursor").unlink()
        assert log.trim(600) > start


def test_nothing_is_removed_while_a_cursor_is_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who makes it has looked where the log begins; what lies behind is there when it can be read."""
    with filled(tmp_path / "log", retention_bytes=SEGMENT) as log, pyreplog.open(log.path, "r") as reader:
        monkeypatch.setattr(log_cursor, "HELD_S", 0.01)
        with log_cursor.retention_held(log.path, 1.0):  # before more is appended: threads of the log may trim at once
            log.append_batch([VALUE] * 300)
            start = log.start
            log.run_background_tasks()
            assert log.start == start
            with pytest.raises(LockedError):
                log.trim(600)
            with pytest.raises(LockedError):
                reader.cursor("c")
        log.run_background_tasks()
        assert log.start > start


def test_cursors_made_while_the_log_is_trimmed_hold(tmp_path: Path) -> None:
    """Each that is made finds its first entry, however soon after."""
    with filled(tmp_path / "log", 3000) as log:
        over = threading.Event()

        def trim() -> None:
            for entry in range(0, 3000, 62):
                log.trim(entry)
            over.set()

        trimming = threading.Thread(target=trim)
        with pyreplog.open(log.path, "r") as reader:
            trimming.start()
            number = 0
            while not over.is_set():
                with reader.cursor(f"c{number}") as cursor:
                    assert next(iter(cursor.follow(timeout=0))).entry == cursor.entry
                    cursor.delete()
                number += 1
            trimming.join()
            assert number and log.trim(3000) > 2000


# ---- moving it -------------------------------------------------------------------------------------------------


def test_advance_moves_a_cursor_forward_and_only_seek_moves_it_back(tmp_path: Path) -> None:
    with filled(tmp_path / "log") as log, log.cursor("c", 50) as cursor:
        cursor.advance(50)
        cursor.advance(60)
        with pytest.raises(InvalidArgumentError, match=r"60.*found 59"):
            cursor.advance(59)
        with pytest.raises(OutOfRangeError):
            cursor.advance(301)
        cursor.seek(10)
        assert cursor.entry == 10
        cursor.advance(300)
        log.trim(300)
        with pytest.raises(TrimmedError):
            cursor.seek(10)
        assert cursor.entry == 300 == log.cursors()["c"]


def test_a_log_that_was_cut_is_another_history(tmp_path: Path) -> None:
    with filled(tmp_path / "log", 100) as log:
        with log.cursor("c", 80) as cursor, log.cursor("low", 20) as low:
            log.truncate(50)
            with pytest.raises(TruncatedError, match="go on with seek"):
                cursor.follow()
            assert cursor.lag == 0
            log.append_batch([b"another"] * 50)
            with pytest.raises(TruncatedError):  # an entry of that number is there again
                cursor.follow()
            cursor.seek(50)
            assert [record.value for record in cursor.follow(timeout=0)] == [b"another"] * 50
            assert next(iter(low.follow(timeout=0))).entry == 20


def test_the_newer_of_two_slots_counts_and_a_torn_one_leaves_the_other(tmp_path: Path) -> None:
    with filled(tmp_path / "log", 10) as log:
        path = log.path / "cursors" / "c.cursor"
        with log.cursor("c") as cursor:
            for entry in (3, 5):
                cursor.advance(entry)
        data = bytearray(path.read_bytes())
        assert len(data) == 2 * SLOT_BYTES and log.cursors() == {"c": 5}
        slots = [CursorPlace.decode(data[at : at + SLOT_BYTES], path) for at in (0, SLOT_BYTES)]
        newest = max((0, 1), key=lambda slot: slots[slot].sequence)  # type: ignore[union-attr]
        data[newest * SLOT_BYTES + 40] ^= 1
        path.write_bytes(data)
        assert log.cursors() == {"c": 3}
        with log.cursor("c") as cursor:
            assert cursor.entry == 3
            cursor.advance(4)
        assert log.cursors() == {"c": 4}


def test_a_newer_version_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with filled(tmp_path / "log", 10) as log:
        with monkeypatch.context() as newer:
            newer.setattr(log_cursor, "VERSION", 2)
            log.cursor("c").close()
        with pytest.raises(FormatVersionError):
            log.cursor("c")
        with pytest.raises(FormatVersionError):
            log.trim(10_000) if log.start else log.cursors()


def _advance(path: Path, ready: Any) -> None:
    with pyreplog.open(path, "r") as log, log.cursor("c") as cursor:
        for batch in cursor.follow_batches(timeout=10):
            cursor.advance(batch.end)
            ready.set()
            signal.pause()


def test_cursor_position_survives_kill_9(tmp_path: Path) -> None:
    with filled(tmp_path / "log", 10) as log:
        spawn = multiprocessing.get_context("spawn")
        ready = spawn.Event()
        process = spawn.Process(target=_advance, args=(log.path, ready))
        process.start()
        assert ready.wait(60) and process.pid is not None
        os.kill(process.pid, signal.SIGKILL)
        process.join()
        with log.cursor("c") as cursor:
            assert cursor.entry == 10


# ---- the end ---------------------------------------------------------------------------------------------------


def test_a_cursor_that_is_closed(tmp_path: Path) -> None:
    log = filled(tmp_path / "log", 3)
    cursor, kept = log.cursor("c"), log.cursor("d")
    cursor.close()
    cursor.close()
    for call in (lambda: cursor.entry, cursor.follow, lambda: cursor.advance(1), cursor.delete):
        with pytest.raises(ClosedError):
            call()
    log.close()
    with pytest.raises(ClosedError):
        kept.advance(1)
    kept.close()
    assert cursor, "a handle is true"


def test_a_log_without_numbers_has_no_cursors(tmp_path: Path) -> None:
    from pyreplog.bookie.ledger_log import LedgerLog

    LedgerLog(tmp_path / "log", pyreplog.LogConfig()).close()
    with pyreplog.open(tmp_path / "log", "r") as log, pytest.raises(UnnumberedError):
        log.cursor("c")
