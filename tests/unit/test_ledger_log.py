"""A log of many ledgers: what it says is here, is not here, or cannot be told; and what it refuses."""

from __future__ import annotations

import errno
import itertools
import os
import shutil
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import pyreplog
from pyreplog._native.ledger_log.entries import CONTROL
from pyreplog._native.ledger_log.index import LedgerIndex
from pyreplog._native.ledger_log.intake import append_entries, copy_entries, index_entries
from pyreplog._native.log.disk import Steps
from pyreplog.bookie.ledger_log import LedgerLog
from pyreplog.bookie.ledger_map import LedgerExtent
from pyreplog.bookie.multi_ledger_log import MultiLedgerLog
from pyreplog.cli.app import main
from pyreplog.config import LogConfig
from pyreplog.errors import (
    ClosedError,
    ConfigError,
    CorruptionError,
    DiskError,
    DiskFullError,
    ForkedError,
    InvalidArgumentError,
    InvalidRecordsError,
    NotALogError,
    PoisonedError,
    RecordTooLargeError,
    TrimmedError,
    UnnumberedError,
    WrongTypeError,
)
from pyreplog.log import housekeeper, names
from pyreplog.log.backup.copying import backup
from pyreplog.log.backup.restoring import restore
from pyreplog.log.files import RealFiles
from pyreplog.log.fsck.check import check
from pyreplog.log.fsck.repair import repair
from pyreplog.log.housekeeper import Housekeeper
from pyreplog.log.segments import SegmentPool
from tests import running, samples, twin
from tests.ledgers import (
    SEGMENT_BYTES,
    control_of,
    open_log,
    read_all,
    record_of,
    records_of,
    split,
    unstamped,
    without_stamp,
)

DURABILITIES = ["appended", "interval", "synced"]
ROOM = SEGMENT_BYTES - 4096 - 32


def fill(log: LedgerLog, *ledgers: int, count: int = 120) -> None:
    """`count` entries of each, interleaved, over several segments."""
    for entry in range(0, count, 5):
        for ledger in ledgers:
            log.append(records_of(ledger, *range(entry, entry + 5), size=300))


def killed(log: LedgerLog, to: Path) -> Path:
    """The directory as it is when the process ends now, but for work files."""
    return running.copied(log.commit_log, log.path, to)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "log"


# ---- what is here ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("durability", DURABILITIES)
def test_entries_come_back_before_and_after_reopening(durability: str, path: Path) -> None:
    expected = {ledger: {n: without_stamp(record_of(ledger, n, 300)) for n in range(120)} for ledger in (3, 9)}
    with open_log(path, durability) as log:
        fill(log, 3, 9)
        assert {ledger: read_all(log, ledger) for ledger in log.ledgers()} == expected
    with open_log(path, durability) as log:
        assert {ledger: read_all(log, ledger) for ledger in log.ledgers()} == expected
        assert (log.last_entry(3), log.last_entry(4)) == (119, None)
        assert [base for base, _ in log.segments()] == sorted({share.base for share in log.shares(3)})[:-1]


@pytest.mark.parametrize("durability", ["appended", "synced"])
def test_twin_and_reader_see_the_same_bytes(durability: str, path: Path) -> None:
    with open_log(path, durability) as log:
        fill(log, 3, 9)
        log.append(control_of(3, 1, b"fenced"))
        with pyreplog.open(path, "r") as reader:
            mine = [r for batch in reader.read_positions(reader.start_position, all_kinds=True) for r in batch]
            assert reader.end_position == log.end_position
            assert [r.value for r in reader.control_records()] == [b"fenced"]
        assert b"".join(unstamped(r) for r in mine if r.ledger == 9) == b"".join(read_all(log, 9).values())
    told = twin.read_log(path)
    assert [
        (r.position, r.kind, r.time, r.ledger, r.entry, r.synced, r.key, r.value, list(r.attributes)) for r in told
    ] == [(r.position, r.kind, r.timestamp, r.ledger, r.entry, r.lac, r.key, r.value, list(r.attributes)) for r in mine]


@pytest.mark.parametrize("bytes_max", [1, 64, 700, 1000, 5000, 1 << 30])
def test_a_read_keeps_to_its_bytes(bytes_max: int, path: Path) -> None:
    with open_log(path) as log:
        fill(log, 3, 9, count=300)
        at = 7
        while at <= 250:
            records, after = log.read(3, at, 251, bytes_max)
            actual_records = split(records, 3, at, after - 1)
            assert list(actual_records) == list(range(at, after))
            assert len(records) <= bytes_max or len(actual_records) == 1
            at = after
        assert at == 251


def test_read_end_distinguishes_gaps_from_entries_not_read(path: Path) -> None:
    with open_log(path) as log:
        log.append(records_of(3, 4, 0, 1000, 2))
        records, after = log.read(3, 0, 1000, 1 << 20)
        assert (list(split(records, 3, 0, 999)), after) == ([0, 2, 4], 1000)
        assert log.read(3, 5, 11, 64) == (b"", 7)  # as far as 64 bytes might have reached
        assert log.read(8, 0, 11, 1 << 20) == (b"", 11)
        records, after = log.read(3, 1000, (1 << 64), 1 << 20)
        assert list(split(records, 3, 1000, after)) == [1000]


@pytest.mark.parametrize("bytes_max", [1, 1000, 1 << 20])
def test_every_third_entry_is_lent(bytes_max: int, path: Path) -> None:
    """Of several segments; the bytes are those of what is given out."""
    with open_log(path) as log:
        fill(log, 3, 9, count=300)
        at, numbers = 5, list[int]()
        while at <= 290:
            records, after = log.lend(3, at, 291, bytes_max, 3)
            numbers += split(records, 3, at, after - 1)
            assert after > at and len(records) <= max(bytes_max, 600)
            at += (after - at + 2) // 3 * 3
        assert numbers == list(range(5, 291, 3))
        assert log.lend(3, 5, 11, 64, 3) == (record_as_stored(log, 3, 5), 8)


def record_as_stored(log: LedgerLog, ledger: int, entry: int) -> bytes:
    return log.read(ledger, entry, entry + 1, 1)[0]


@pytest.mark.parametrize("arguments", [(-1, 0, 1, 1), (0, -1, 1, 1), (0, 1, 1, 1), (0, 1, 0, 1), (0, 0, 1, 0)])
def test_reads_that_make_no_sense_are_refused(arguments: tuple[int, ...], path: Path) -> None:
    with open_log(path) as log, pytest.raises(InvalidArgumentError):
        log.read(*arguments)


def test_control_records_of_a_code_the_newest_counts(path: Path) -> None:
    with open_log(path) as log:
        log.append(control_of(3, 1, b"old") + control_of(3, 2, b"other") + record_of(3, 1))
        fill(log, 9)
        log.append(control_of(3, 1, b"new"))
        records = read_all(log, 3 + CONTROL)
        assert records == {1: without_stamp(control_of(3, 1, b"new")), 2: without_stamp(control_of(3, 2, b"other"))}
        assert list(read_all(log, 3)) == [1]
        assert log.ledgers() == [3, 9, 3 + CONTROL]


# ---- what is not durable yet -----------------------------------------------------------------------------------------


def test_unsynced_entries_of_a_synced_log_are_not_readable(path: Path) -> None:
    with open_log(path, "synced") as log:
        log.append(records_of(3, 0, 1))
        append_entries(log.commit_log, records_of(3, 2, 3) + records_of(4, 0))
        assert (list(read_all(log, 3)), log.last_entry(3)) == ([0, 1], 1)
        assert (read_all(log, 4), log.last_entry(4)) == ({}, None)
        log.sync()
        assert (list(read_all(log, 3)), log.last_entry(4)) == ([0, 1, 2, 3], 0)


@pytest.mark.parametrize("wide", [False, True])
def test_a_copy_that_is_not_synced_does_not_hide_the_one_that_is(wide: bool, path: Path) -> None:
    """wide: the range asked for is larger than the ledger has records."""
    with open_log(path, "synced") as log:
        log.append(records_of(3, 5, 6) + control_of(3, 1, b"old"))
        append_entries(log.commit_log, records_of(3, 6, 5, 7) + control_of(3, 1, b"new"))
        records, after = log.read(3, 0 if wide else 5, 1001 if wide else 7, 1 << 20)
        assert (list(split(records, 3, 0, after)), log.last_entry(3)) == ([5, 6], 6)
        assert read_all(log, 3 + CONTROL) == {1: without_stamp(control_of(3, 1, b"old"))}
        log.sync()
        assert read_all(log, 3 + CONTROL) == {1: without_stamp(control_of(3, 1, b"new"))}


def test_submitted_entries_are_acknowledged_when_synced(path: Path) -> None:
    with open_log(path, "synced") as log:
        futures = [log.submit(records_of(3, n)) for n in range(20)]
        ends = [future.result(30) for future in futures]
        assert ends == sorted(ends) and ends[-1] == log.end_position
        assert list(read_all(log, 3)) == list(range(20))
        assert log.submit(b"").result(30) == ends[-1]


@pytest.mark.parametrize("durability", DURABILITIES)
def test_writers_and_readers_at_once(durability: str, path: Path) -> None:
    """Whoever was told that an entry is here finds it, whatever rolls meanwhile."""
    wrong: list[str] = []

    def work(ledger: int) -> None:
        for n in range(150):
            log.append(record_of(ledger, n, 1000))
            records, after = log.read(ledger, max(n - 3, 0), n + 1, 1 << 20)
            if list(split(records, ledger, 0, n)) != list(range(max(n - 3, 0), n + 1)) or log.last_entry(ledger) != n:
                wrong.append(f"ledger {ledger}, entry {n}: {len(records)} bytes, next {after}")

    with open_log(path, durability) as log:
        threads = [threading.Thread(target=work, args=(ledger,)) for ledger in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert not wrong
        assert len(log.segments()) > 5


@pytest.mark.parametrize("when", ["before the shares are looked up", "after", "before they are read"])
@pytest.mark.parametrize("how", ["trim", "punch_hole"])
@pytest.mark.parametrize("durability", ["appended", "synced"])
def test_a_segment_that_goes_while_it_is_read(
    durability: str, how: str, when: str, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was appended once more, and synced, before its segment went is never "not here"."""
    with open_log(path, durability) as log:
        fill(log, 3, 9, count=300)
        base = log.segments()[0][0]
        going = list(read_all(log, 3))[: log.shares(3)[0].entries]
        copies = log.read(3, 0, going[-1] + 1, 1 << 20)[0]
        moves: list[object] = []

        def move() -> None:
            if not moves:
                moves.append(copies)
                log.append(copies)
                log.sync()
                log.punch_hole(base) if how == "punch_hole" else log.trim(log.segments()[1][0])

        def between(name: str) -> Callable[..., object]:
            method = getattr(MultiLedgerLog, name)

            def called(*arguments: object) -> object:
                if when != "after":
                    move()
                actual_method = method(*arguments)
                move()
                return actual_method

            return called

        name = "query_index" if when == "before they are read" else "shares"
        monkeypatch.setattr(MultiLedgerLog, name, between(name))
        assert list(split(log.read(3, 0, going[-1] + 1, 1 << 20)[0], 3, 0, going[-1])) == going
        assert moves


@pytest.mark.parametrize("how", ["trim", "punch_hole"])
def test_the_last_entry_of_a_segment_that_goes(how: str, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with open_log(path) as log:
        log.append(record_of(3, 7))
        fill(log, 9, count=500)
        shares = MultiLedgerLog.shares
        moved: list[int] = []

        def move(many: MultiLedgerLog, ledger: int) -> list[LedgerExtent]:
            if not moved:
                moved.append(log.append(record_of(3, 7)))
                log.punch_hole(log.segments()[0][0]) if how == "punch_hole" else log.trim(log.segments()[1][0])
            return shares(many, ledger)

        monkeypatch.setattr(MultiLedgerLog, "shares", move)
        assert log.last_entry(3) == 7 and moved


def test_read_share_returns_the_entries_of_one_segment(path: Path) -> None:
    """The copy that lies there, whatever lies behind; nothing when it went."""
    with open_log(path) as log:
        fill(log, 3, 9)
        share = log.shares(3)[0]
        numbers, at = list[int](), share.first + 2
        while at <= share.last:
            records, after = log.read_share(share, 3, at, 1000)
            numbers += split(records, 3, at, after - 1)
            at = after
        assert numbers == list(range(share.first + 2, share.last + 1))
        log.punch_hole(share.base)
        with pytest.raises(TrimmedError):
            log.read_share(share, 3, share.first, 1000)


def test_staged_records_wait_for_a_sync(path: Path) -> None:
    with open_log(path, "synced") as log:
        end = log.stage(records_of(3, 0, 1))
        assert (log.end_position < end, read_all(log, 3)) == (True, {})
        log.sync()
        assert (log.end_position, list(read_all(log, 3))) == (end, [0, 1])


# ---- all or nothing --------------------------------------------------------------------------------------------------

BAD = {
    "a flipped bit": record_of(3, 2)[:70] + bytes([record_of(3, 2)[70] ^ 1]) + record_of(3, 2)[71:],
    "half of a record": record_of(3, 2)[:-8],
    "a few bytes": b"\1" * 40,
    "zeros": bytes(64),
    "an absurd length": b"\xff" * 64,
}


@pytest.mark.parametrize("durability", ["appended", "synced"])
@pytest.mark.parametrize("before", [1, 400])
@pytest.mark.parametrize("bad", BAD)
def test_batch_with_a_damaged_record_is_not_appended(bad: str, before: int, durability: str, path: Path) -> None:
    """before: records in front of it; many, and the batch goes on in another segment. Nor is it found after a crash."""
    good = records_of(3, *range(10, 10 + before), size=400)
    with open_log(path, durability) as log:
        log.append(records_of(3, 0, 1))
        end = log.end_position
        with pytest.raises(InvalidRecordsError) as caught:
            log.append(good + BAD[bad])
        assert caught.value.offset == len(good)
        log.sync()
        assert (list(read_all(log, 3)), log.last_entry(3), log.end_position) == ([0, 1], 1, end)
        with open_log(killed(log, path.with_name("killed"))) as after:
            assert (list(read_all(after, 3)), after.cut_records) == ([0, 1], 0)
        log.append(record_of(3, 2))
        assert list(read_all(log, 3)) == [0, 1, 2]


def test_records_of_a_bare_log_are_refused(path: Path) -> None:
    with pyreplog.open(path.with_name("bare")) as bare:
        bare.append(b"v" * 60)
        raw = bytes(bare.get(0).raw)
    with open_log(path) as log, pytest.raises(InvalidRecordsError, match="flags"):
        log.append(raw)


@pytest.mark.parametrize("durability", ["appended", "synced"])
def test_a_record_is_as_long_as_a_segment_at_most(durability: str, path: Path) -> None:
    with open_log(path, durability) as log:
        log.append(record_of(3, 0))
        overhead = len(record_of(3, 3, 1000)) - 1000
        log.append(record_of(3, 3, ROOM - overhead))
        with pytest.raises(RecordTooLargeError):
            log.append(record_of(3, 2) + record_of(3, 6, ROOM - overhead + 8))
        assert list(read_all(log, 3)) == [0, 3]
        with pytest.raises(WrongTypeError):
            log.append("text")  # type: ignore[arg-type]


@pytest.mark.parametrize("durability", ["appended", "synced"])
def test_a_full_disk_refuses_the_whole_batch(durability: str, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise DiskFullError(28, "full")

    with open_log(path, durability) as log:
        log.append(record_of(3, 0))
        with monkeypatch.context() as patched:
            patched.setattr(SegmentPool, "prepare", full)
            with pytest.raises(DiskFullError):
                log.append(records_of(3, *range(1, 400), size=1000))
        assert list(read_all(log, 3)) == [0]
        log.append(records_of(3, *range(1, 400), size=1000))
        assert list(read_all(log, 3)) == list(range(400))


def test_caller_that_changes_its_buffer_during_append_does_not_damage_the_log(path: Path) -> None:
    """What counts is the copy; the rest of the log stays as it is."""
    data = bytearray(records_of(3, *range(2000), size=900))
    stop = threading.Event()

    def meddle() -> None:
        at = 0
        while not stop.is_set():
            at = (at + 8 * 4999) % len(data)
            data[at : at + 4] = b"\xff\xff\xff\x7f"

    with open_log(path) as log:
        thread = threading.Thread(target=meddle)
        thread.start()
        for _ in range(20):
            try:
                log.append(data)
            except (InvalidRecordsError, RecordTooLargeError):
                data[:] = records_of(3, *range(2000), size=900)
        stop.set()
        thread.join()
        log.append(record_of(4, 0))
        assert list(read_all(log, 4)) == [0]
    assert check(path).damages == ()


# ---- numbers, and other logs -----------------------------------------------------------------------------------------

BY_NUMBER = {
    "get": lambda log: log.get(0),
    "[]": lambda log: log[0],
    "[-1]": lambda log: log[-1],
    "[:]": lambda log: log[:],
    "read": lambda log: log.read(),
    "read_event_times": lambda log: log.read_event_times(0, 1),
    "follow": lambda log: log.follow(0, timeout=0),
    "follow_batches": lambda log: log.follow_batches(0, timeout=0),
    "position_of": lambda log: log.position_of(0),
    "entry_at_time": lambda log: log.entry_at_time(0),
}
BY_WRITERS = {
    "append": lambda log: log.append(b"v"),
    "append keyed": lambda log: log.append(b"v", b"k"),
    "append_batch": lambda log: log.append_batch([b"v"]),
    "append_columns": lambda log: log.append_columns(([0, 1], b"v")),
    "submit": lambda log: log.submit(b"v"),
    "submit_batch": lambda log: log.submit_batch([b"v"]),
    "truncate": lambda log: log.truncate(0),
    "trim": lambda log: log.trim(0),
}


@pytest.mark.parametrize("durability", ["appended", "synced"])
def test_numbers_are_refused_with_the_reason(durability: str, path: Path) -> None:
    with open_log(path, durability) as log:
        fill(log, 3)
        for call in (*BY_NUMBER.values(), *BY_WRITERS.values()):
            with pytest.raises(UnnumberedError, match="many ledgers"):
                call(log.commit_log)
        assert len(read_all(log, 3)) == 120
        with pyreplog.open(path, "r") as reader:
            for call in BY_NUMBER.values():
                with pytest.raises(UnnumberedError, match="many ledgers"):
                    call(reader)
    with pyreplog.open(path, "r") as reader:
        for call in BY_NUMBER.values():
            with pytest.raises(UnnumberedError):
                call(reader)
        assert (reader.start, reader.end) == (0, 0)
        assert sum(len(batch) for batch in reader.read_positions(reader.start_position)) == 120


def test_each_kind_of_log_refuses_to_be_opened_as_the_other(path: Path) -> None:
    samples.make_log(path.with_name("bare"))
    with pytest.raises(NotALogError, match="expected the log of a bookie, found a commit log"):
        open_log(path.with_name("bare"))
    samples.assert_intact(path.with_name("bare"))
    with open_log(path) as log:
        fill(log, 3)
    with pytest.raises(NotALogError, match="LedgerLog"):
        pyreplog.open(path)
    with open_log(path) as log:
        assert len(read_all(log, 3)) == 120


def test_encoded_entries_are_not_for_a_bare_log(path: Path) -> None:
    with pyreplog.open(path) as log:
        with pytest.raises(InvalidArgumentError, match="many ledgers"):
            append_entries(log, record_of(0, 0))
        assert log.append(b"v") == 0


def test_a_ledger_log_refuses_retention(path: Path) -> None:
    for setting in ({"retention_bytes": 1}, {"retention_ms": 1}):
        with pytest.raises(ConfigError):
            LedgerLog(path, LogConfig.of(setting))


# ---- index files -----------------------------------------------------------------------------------------------------


def ledger_files(path: Path) -> list[Path]:
    return sorted(path.glob("*.led"))


def test_sealed_segments_found_at_open_get_their_index_files(path: Path) -> None:
    with open_log(path) as log:
        fill(log, 3, 9)
        killed(log, path.with_name("killed"))
    for file in (*path.with_name("killed").glob("*.led"), *path.with_name("killed").glob("*.idx")):
        file.unlink()
    with open_log(path.with_name("killed")) as log:
        log.sync()
        expected = [names.ledgers_path(log.path, base) for base, _ in log.segments()]
        assert ledger_files(log.path) == expected and len(expected) > 0
        assert sorted(log.path.glob("*.idx")) == [file.with_suffix(".idx") for file in expected]
        assert len(read_all(log, 9)) == 120


def test_a_bare_log_gets_its_index_files_too(path: Path) -> None:
    samples.make_log(path)
    for file in (*samples.indexes(path), path / names.CHECKPOINT):
        file.unlink()
    with pyreplog.open(path) as log:
        log.sync()
        assert len(samples.indexes(path)) == 3
    samples.assert_intact(path)


def test_index_files_are_made_again(path: Path) -> None:
    with open_log(path) as log:
        fill(log, 3, 9, count=300)
    files = ledger_files(path)
    files[0].unlink()
    files[1].write_bytes(files[2].read_bytes())
    files[2].write_bytes(files[2].read_bytes()[:-4096])
    new_bytes = [file.read_bytes() for file in files if file.exists()]
    with open_log(path) as log:
        assert [len(read_all(log, ledger)) for ledger in (3, 9)] == [300, 300]
    again = ledger_files(path)
    assert again[:3] == files[:3] and [file.read_bytes() for file in again[:3]] != new_bytes[:3]
    assert check(path).damages == ()


@pytest.fixture
def few_holds(monkeypatch: pytest.MonkeyPatch) -> None:
    """A read that tries for ever fails."""
    hold, holds = MultiLedgerLog.hold, itertools.count()

    def holding(log: MultiLedgerLog, base: int) -> Any:
        assert next(holds) < 5000
        return hold(log, base)

    monkeypatch.setattr(MultiLedgerLog, "hold", holding)


def index_files(path: Path) -> list[Path]:
    return sorted([*path.glob("*.idx"), *path.glob("*.led")])


@pytest.mark.usefixtures("few_holds")
def test_index_files_from_before_segments_were_hollow(path: Path, tmp_path: Path) -> None:
    """A copy of the directory from before was laid over it, without what is large."""
    with open_log(path) as log:
        for ledger in (3, 9):
            log.append(records_of(ledger, *range(150), size=1000))
    kept = tmp_path / "kept"
    shutil.copytree(path, kept)
    with open_log(path) as log:
        for share in log.shares(3)[:-1]:
            log.punch_hole(share.base)
        left = read_all(log, 3)
        assert 0 < len(left) < 150
    for file in index_files(kept):
        shutil.copy(file, path)
    for _ in range(2):
        with open_log(path) as log:
            assert read_all(log, 3) == left and log.last_entry(3) == 149
            assert len(read_all(log, 9)) == 150
            with pytest.raises(TrimmedError):
                log.read_share(log.shares(9)[0]._replace(base=log.start_position), 3, 0, 1000)
    assert not any(damage.costs_entries for damage in check(path).damages)


@pytest.mark.usefixtures("few_holds")
def test_index_files_of_another_log(path: Path, tmp_path: Path) -> None:
    """Of another bookie: made again. Of one that was a copy of this once, and went another way: no wrong bytes, and an
    end."""
    other, twin_path = tmp_path / "other", tmp_path / "twin"
    for at, ledgers in ((path, (3, 9)), (other, (5, 9))):
        with open_log(at) as log:
            fill(log, *ledgers, count=300)
    shutil.copytree(path, twin_path)
    with open_log(path) as log:
        wanted = read_all(log, 3)
    for file in index_files(other):
        shutil.copy(file, path)
    with open_log(path) as log:
        assert read_all(log, 3) == wanted and log.ledgers() == [3, 9]
    assert not any(damage.costs_entries for damage in check(path).damages)
    for at, ledger in ((path, 4), (twin_path, 7)):
        with open_log(at) as log:
            fill(log, ledger, count=600)
            log.punch_hole(log.segments()[ledger - 4][0])
    for file in index_files(twin_path):
        shutil.copy(file, path)
    with open_log(path) as log:
        try:
            records = read_all(log, 4)
        except CorruptionError as error:
            assert error.path.parent == path
        else:
            assert all(raw == without_stamp(record_of(4, entry, 300)) for entry, raw in records.items())


def test_an_index_of_records_that_are_not_there_ends_reads(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever brought that about."""
    with open_log(path) as log:
        fill(log, 3)
        refused: list[int] = []

        def gone(_: MultiLedgerLog, base: int) -> Any:
            refused.append(base)
            assert len(refused) < 10
            raise TrimmedError(f"the segment at {base} was removed")

        monkeypatch.setattr(MultiLedgerLog, "hold", gone)
        for read in (log.read, log.lend):
            with pytest.raises(
                CorruptionError, match=r"expected ledger indexes.*the segment at 0 was removed"
            ) as caught:
                read(3, 0, 9, 1000)
            assert caught.value.path == path
        log.append(record_of(3, 120))  # nothing is locked


@pytest.mark.parametrize("block", [1, 2])
def test_an_index_block_that_is_damaged_is_made_again_when_it_is_met(block: int, path: Path) -> None:
    """Block 1: the directory and items; block 2: the table of CRCs."""
    with open_log(path) as log:
        fill(log, 3, 9)
    samples.flip(ledger_files(path)[0], 4096 * block + 100)
    samples.flip(ledger_files(path)[0], 4096 * block + 1)
    assert [damage.part for damage in check(path).damages] == ["index"]
    with open_log(path) as log:
        assert [len(read_all(log, ledger)) for ledger in (3, 9)] == [120, 120]
    assert check(path).damages == ()


def test_damage_met_by_an_open_log(path: Path) -> None:
    with open_log(path) as log:
        fill(log, 3, 9)
    with open_log(path) as log:
        file = ledger_files(path)[0]
        samples.flip(file, 4096 + 48 * 2 + 5)  # mapped by the log; its directory's block was read, and is trusted
        base = log.segments()[0][0]
        _, segment = log.commit_log.hold_segment(base)
        segment.ledgers = None
        assert len(read_all(log, 3)) == 120
    assert check(path).damages == ()


def test_an_index_file_without_its_segment_is_removed(path: Path) -> None:
    with open_log(path) as log:
        fill(log, 3, 9)
    stray = names.ledgers_path(path, SEGMENT_BYTES * 77)
    stray.write_bytes(ledger_files(path)[0].read_bytes())
    with open_log(path) as log:
        assert not stray.exists()
        assert len(read_all(log, 3)) == 120


def test_an_index_that_points_elsewhere_is_corruption(path: Path) -> None:
    with open_log(path) as log:
        log.append(records_of(3, 0, 1))
        segment = running.active_segment(log.commit_log)
        index = segment.ledgers
        entry, offset = index.entries(3, 0, 2)
        with pytest.raises(CorruptionError, match="ids of the ledger"):
            copy_entries(segment, 3, entry, offset[::-1].copy(), 1 << 20, at_least_one=True)
        with pytest.raises(CorruptionError):
            copy_entries(segment, 4, entry, offset, 1 << 20, at_least_one=True)
        with pytest.raises(CorruptionError):
            copy_entries(segment, 3, entry, offset + 8, 1 << 20, at_least_one=True)
        for locations in (offset - 4096, offset + 1, offset + SEGMENT_BYTES, offset[:1]):
            with pytest.raises(InvalidArgumentError):
                copy_entries(segment, 3, entry, locations, 1 << 20, at_least_one=True)
        with pytest.raises(InvalidArgumentError):
            index_entries(segment, LedgerIndex(), 0, 8192)


def test_a_damaged_entry_is_unknown_and_its_neighbours_are_not(path: Path) -> None:
    with open_log(path) as log:
        fill(log, 3, 9)
    segment = names.segment_path(path, 0)
    samples.flip(segment, 4096 + 100)
    with open_log(path) as log:
        with pytest.raises(CorruptionError) as caught:
            log.read(3, 0, 6, 1 << 20)
        assert (Path(caught.value.path), caught.value.position) == (segment, 4096)
        assert list(read_all(log, 3, 1)) == list(range(1, 120))
        assert len(read_all(log, 9)) == 120


# ---- torn tails ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("later", [3, 300])
def test_intact_records_behind_a_torn_one_are_counted(later: int, path: Path) -> None:
    """later: so many entries behind the torn one; many of them lie in segments of their own."""
    with open_log(path) as log:
        log.append(records_of(3, 0, 1, size=500))
        torn = log.end_position
        log.append(records_of(3, 2, size=500))
        log.append(records_of(3, *range(3, 3 + later), size=500))
        killed(log, path.with_name("killed"))
    samples.flip(names.segment_path(path.with_name("killed"), 0), torn + 100)
    (path.with_name("killed") / names.CHECKPOINT).unlink()  # which may have been moved at a roll
    with open_log(path.with_name("killed")) as log:
        assert (list(read_all(log, 3)), log.cut_records) == ([0, 1], later)
    with open_log(path.with_name("killed")) as log:
        assert log.cut_records == 0


@pytest.mark.parametrize("boot", ["this", "another"])
def test_a_tail_without_intact_records(boot: str, path: Path) -> None:
    """It counts none, if its writer may have been at it; one, if a writer of this boot had said that it was there."""
    with open_log(path) as log:
        log.append(records_of(3, 0, 1, size=500))
        torn = log.end_position
        log.append(records_of(3, 2, size=500))
        killed(log, path.with_name("killed"))
    samples.flip(names.segment_path(path.with_name("killed"), 0), torn + 100)
    if boot == "another":
        (path.with_name("killed") / names.TAIL).unlink()
    with open_log(path.with_name("killed")) as log:
        assert (list(read_all(log, 3)), log.cut_records) == ([0, 1], int(boot == "this"))


# ---- removing, copying, looking at -----------------------------------------------------------------------------------


@pytest.mark.parametrize("durability", ["appended", "synced"])
def test_trim_removes_whole_segments(durability: str, path: Path) -> None:
    with open_log(path, durability) as log:
        fill(log, 3, 9, count=300)
        bases = [base for base, _ in log.segments()]
        assert log.trim(bases[2] + 1) == bases[2]
        left = list(read_all(log, 3))
        assert left == list(range(left[0], 300)) and left[0] > 0
        assert log.trim(1 << 62) == log.start_position > bases[-1]
        assert log.segments() == []
        log.append(record_of(3, 300))
    assert ledger_files(path) == []
    with open_log(path, durability) as log:
        assert log.last_entry(3) == 300


def test_a_ledger_log_is_checked_and_repaired(path: Path) -> None:
    with open_log(path) as log:
        fill(log, 3, 9)
    report = check(path)
    assert (report.damages, report.entries, report.notes) == ((), 240, ())
    samples.flip(ledger_files(path)[0], 5000)
    assert [damage.part for damage in check(path).damages] == ["index"]
    assert repair(path).after.damages == ()
    with open_log(path) as log:
        assert len(read_all(log, 9)) == 120


def test_a_ledger_log_is_backed_up_and_restored(path: Path) -> None:
    with open_log(path) as log:
        fill(log, 3, 9)
        log.append(control_of(3, 1, b"fenced"))
        new_backup = backup(path, path.with_name("backup"))
        fill(log, 5)
    assert (new_backup.entries, new_backup.start, new_backup.end) == (240, 0, 0)
    restore(path.with_name("backup"), path.with_name("restored"))
    with open_log(path.with_name("restored")) as log:
        assert log.ledgers() == [3, 9, 3 + CONTROL]
        assert len(read_all(log, 3)) == 120
        log.append(record_of(3, 120))
        assert log.last_entry(3) == 120
    assert check(path.with_name("restored")).damages == ()


def test_commands_read_a_ledger_log(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with open_log(path) as log:
        fill(log, 3, 9)
    assert main(["fsck", str(path)]) == 0
    assert main(["stat", str(path)]) == 0
    assert main(["dump", str(path), "--position", "4096"]) == 0
    assert main(["dump", str(path), "--segment", "0"]) == 0
    assert "records of many ledgers" in capsys.readouterr().out
    assert main(["cat", str(path)]) == UnnumberedError.exit_code
    assert "many ledgers" in capsys.readouterr().err


# ---- closing ---------------------------------------------------------------------------------------------------------

CALLS = {
    "append": lambda log: log.append(record_of(3, 0)),
    "submit": lambda log: log.submit(record_of(3, 0)),
    "read": lambda log: log.read(77, 0, 2, 1),
    "last_entry": lambda log: log.last_entry(77),
    "ledgers": lambda log: log.ledgers(),
    "shares": lambda log: log.shares(77),
    "segments": lambda log: log.segments(),
    "end_position": lambda log: log.end_position,
    "trim": lambda log: log.trim(0),
    "punch_hole": lambda log: log.punch_hole(0),
    "sync": lambda log: log.sync(),
}


@pytest.mark.parametrize("durability", DURABILITIES)
def test_calls_of_a_closed_ledger_log_raise_closed_error(durability: str, path: Path) -> None:
    with open_log(path, durability) as log:
        fill(log, 3)
    for call in CALLS.values():
        with pytest.raises(ClosedError):
            call(log)
    log.close()


@pytest.mark.parametrize("durability", DURABILITIES)
def test_a_forked_child_is_refused(durability: str, path: Path) -> None:
    with open_log(path, durability) as log:
        fill(log, 3)
        if not (child := os.fork()):
            refused = 0
            for call in CALLS.values():
                try:
                    call(log)
                except ForkedError:
                    refused += 1
            os._exit(refused)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == len(CALLS)
        assert len(read_all(log, 3)) == 120


@pytest.mark.parametrize("durability", DURABILITIES)
def test_a_segment_is_found_though_its_index_was_written_at_once(
    durability: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The thread that writes the indexes of a sealed segment may be done before the log goes on in the next one. The
    segment was in no map then: its entries counted as not here until the log was opened again, and a trim removed it."""

    logs: list[MultiLedgerLog] = []

    def step_at_once(keeper: Housekeeper[Any]) -> None:
        """In place of waking the thread."""
        for log in logs:
            keeper.step(log)

    monkeypatch.setattr(housekeeper, "THREADS", False)
    monkeypatch.setattr(Housekeeper, "wake_preparing", step_at_once)
    with open_log(tmp_path / "log", durability) as log:
        logs.append(log.commit_log)
        for entry in range(40):
            log.append(records_of(3, entry, size=ROOM // 4))
        log.sync()
        assert len(log.segments()) > 8
        assert sorted(read_all(log, 3)) == list(range(40))
        assert [base for base, _ in log.segments()] == sorted({share.base for share in log.shares(3)})[:-1]


# ---- segments that are verified and mended ---------------------------------------------------------------------


class Refusing(RealFiles):
    """`refuses`: the call for a segment's file that fails."""

    refuses = ""

    def _check(self, name: str) -> None:
        if name == self.refuses:
            raise OSError(errno.EIO, os.strerror(errno.EIO))

    def open(self, path: Path, *, writable: bool) -> int:
        if path.suffix == ".log":
            self._check("open")
        return super().open(path, writable=writable)

    def write(self, fd: int, data: bytes | memoryview, offset: int) -> None:  # type: ignore[override]
        self._check("write")
        RealFiles.write(fd, data, offset)

    def sync(self, fd: int) -> None:
        self._check("sync")
        super().sync(fd)

    def run(self, steps: Steps) -> None:
        self._check("run")
        super().run(steps)


def descriptors() -> int:
    return len([*Path("/proc/self/fd").iterdir()])


def sealed_base(log: LedgerLog) -> int:
    """The second sealed segment of a log with some, which are on the disk, with their index files."""
    fill(log, 1, 2, count=500)
    log.commit_log.sync()
    log.commit_log.run_background_tasks()
    return [base for base, shares in log.segments() if shares][1]


@pytest.mark.parametrize(
    ("refuses", "kind", "told"),
    [
        ("open", DiskError, "cannot be opened"),
        ("write", DiskError, "cannot be rewritten"),
        ("sync", PoisonedError, "rewriting what surrounds a segment"),
    ],
)
def test_a_frame_that_cannot_be_rewritten(
    refuses: str, kind: type[Exception], told: str, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The log goes on, unless a sync has failed: then nobody knows what is on the disk."""
    monkeypatch.setattr(housekeeper, "THREADS", False)
    files = Refusing()
    log = open_log(path, files=files)
    base = sealed_base(log)
    file = names.segment_path(path, base)
    whole = file.read_bytes()
    with file.open("r+b") as content:
        content.seek(40)
        content.write(bytes([whole[40] ^ 1]))
    before, files.refuses = descriptors(), refuses
    with pytest.raises(kind, match=told):
        log.commit_log.rewrite_frame(base)
    files.refuses = ""
    assert descriptors() == before
    if refuses == "sync":
        with pytest.raises(PoisonedError):
            log.append(record_of(1, 999))
        log.close()
        return
    log.commit_log.rewrite_frame(base)
    assert (file.read_bytes(), descriptors()) == (whole, before)
    log.append(record_of(1, 999))
    log.close()


def test_index_files_that_cannot_be_written(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(housekeeper, "THREADS", False)
    files = Refusing()
    with open_log(path, files=files) as log:
        base = sealed_base(log)
        before = names.ledgers_path(path, base).read_bytes()
        files.refuses = "run"
        with pytest.raises(DiskError, match=r"the indexes of .* cannot be written"):
            log.commit_log.remake_indexes(base)
        files.refuses = ""
        assert len(read_all(log, 1)) == 500
        log.commit_log.remake_indexes(base)
        assert names.ledgers_path(path, base).read_bytes() == before


def test_a_segment_that_is_not_there_is_trimmed(path: Path) -> None:
    with open_log(path) as log:
        base = sealed_base(log)
        inner = log.commit_log
        log.punch_hole(base)
        with pytest.raises(TrimmedError, match=f"the segment at {base} was removed"):
            inner.hold(base)
        assert len(inner.rows_of(base).offset) == 0, "its place in the log stays"
        log.trim(base + SEGMENT_BYTES)
        for call in (inner.rewrite_frame, inner.remake_indexes, inner.rows_of, inner.hold):
            with pytest.raises(TrimmedError):
                call(base)


@pytest.mark.parametrize("durability", DURABILITIES)
def test_segments_are_durable_as_far_as_they_were_synced(durability: str, path: Path) -> None:
    with open_log(path, durability) as log:
        assert log.commit_log.durable_segments() == []
        fill(log, 1, 2, count=500)
        log.commit_log.sync()
        end = log.commit_log.tail.synced_end
        bases = [base for base, _ in log.segments()]
        assert len(bases) > 2 and end > bases[-1] + SEGMENT_BYTES, "those are sealed; another one is active"
        active = bases[-1] + SEGMENT_BYTES
        expected = [*((base, SEGMENT_BYTES) for base in bases), (active, end - active)]
        assert log.commit_log.durable_segments() == expected
    with pytest.raises(ClosedError):
        log.commit_log.durable_segments()


def test_the_rows_of_a_segment_are_its_records_in_order(path: Path) -> None:
    with open_log(path) as log:
        base = sealed_base(log)
        rows = log.commit_log.rows_of(base)
        assert (np.diff(rows.offset) > 0).all() and {*rows.ledger.tolist()} == {1, 2}
        _pin, segment = log.commit_log.hold(base)
        stored = [segment.head_at(offset)[1] for offset in rows.offset.tolist()]
        assert stored == rows.entry.tolist()
        everything = [log.commit_log.rows_of(each) for each, _ in log.commit_log.durable_segments()]
        for ledger in (1, 2):
            entries = np.concatenate([each.entry[each.ledger == ledger] for each in everything])
            assert entries.tolist() == [*range(500)] == log.commit_log.held_entries(ledger, 0, 1 << 40).tolist()
            assert log.commit_log.held_entries(ledger, 7, 9).tolist() == [7, 8]
            newest = rows.entry[rows.ledger == ledger]
            assert log.commit_log.newest_in(base, ledger, 0, 1 << 40).tolist() == sorted(newest.tolist())
        assert log.commit_log.held_entries(3, 0, 9).tolist() == log.commit_log.newest_in(base, 3, 0, 9).tolist() == []


@pytest.mark.parametrize(("step", "run"), [(1, 1), (3, 1), (3, 2), (7, 7), (120, 119)])
def test_entries_are_located_by_step_and_run(step: int, run: int, path: Path) -> None:
    with open_log(path) as log:
        fill(log, 1, 2)
        parts = [*log.commit_log.locations(1, 4, 111, step, run)]
        expected = [entry for entry in range(4, 111) if (entry - 4) % step < run]
        assert [entry for part in parts for entry in part.entry.tolist()] == expected
        for part in parts:
            _pin, segment = log.commit_log.hold(part.base)
            assert [segment.head_at(offset)[1] for offset in part.offset.tolist()] == part.entry.tolist()
