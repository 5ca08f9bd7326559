"""Records that take several entry numbers: written, read, cut, copied, damaged, and refused by logs without them."""

from __future__ import annotations

import asyncio
import json
import pickle
import struct
import threading
from dataclasses import replace
from pathlib import Path
from random import Random

import numpy
import pytest

import pyreplog
from pyreplog._native.log.segment_header import COUNTED, encode_header
from pyreplog._native.system.checksum import crc32c
from pyreplog._native.tables.arrow_columns import walk
from pyreplog.config import LogConfig
from pyreplog.errors import (
    CorruptionError,
    FormatVersionError,
    InvalidArgumentError,
    OutOfRangeError,
    ReadOnlyError,
    RecordBatchesError,
    RecordTooLargeError,
    ReplicaError,
    StreamError,
    TruncatedError,
    WindowFullError,
    WrongTypeError,
)
from pyreplog.log import checkpoint as checkpoints
from pyreplog.log import names
from pyreplog.log.backup.copying import backup
from pyreplog.log.backup.restoring import restore
from pyreplog.log.commit_log import CommitLog
from pyreplog.log.fsck import check, repair
from pyreplog.log.headers import read_header
from pyreplog.offload.copying import offload
from pyreplog.tables.planning import plan
from tests import samples, twin
from tests.ha.streams import assert_same_files, copy, make_mirror, stream, take_in
from tests.record_batches import SEGMENT_BYTES, Row, check_reads, fill, open_log, rows_of
from tests.spark.reading import options_of, read_slices, read_table

DURABILITIES = ["appended", "interval", "synced"]
HEADER = 4096
PATIENCE_S = 60.0


@pytest.fixture
def rng(seed: int) -> Random:
    return Random(seed)


@pytest.fixture
def filled(tmp_path: Path, rng: Random) -> tuple[Path, list[Row]]:
    """A closed log of several segments."""
    with open_log(tmp_path / "log") as log:
        rows = fill(log, rng, 300)
        while log.tail.end < 3 * SEGMENT_BYTES:
            rows += fill(log, rng, 10)
        return log.path, rows


def versions(path: Path) -> list[int]:
    """Of the segment files, ascending."""
    return [read_header(file).version for file in samples.segments(path)]


def rewrite(path: Path, position: int, at: int, data: bytes) -> None:
    """Change bytes of the record at a position of a log, and its CRC with them."""
    base = position // SEGMENT_BYTES * SEGMENT_BYTES
    with names.segment_path(path, base).open("r+b") as file:
        file.seek(position - base)
        record = bytearray(file.read(SEGMENT_BYTES + base - position))
        record[at : at + len(data)] = data
        (length,) = struct.unpack_from("<I", record)
        struct.pack_into("<I", record, 4, crc32c(bytes(record[12 : (length + 7) & ~7]), length))
        file.seek(position - base)
        file.write(record)


def rewrite_header(path: Path, base: int, version: int) -> None:
    """Give a segment another version, in an intact header."""
    file = names.segment_path(path, base)
    uuid, _, size, first, epoch, _ = read_header(file)
    file.write_bytes(encode_header(uuid, base, size, first, epoch, version) + file.read_bytes()[HEADER:])


# ---- writing and reading -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("durability", DURABILITIES)
def test_appended_record_batches_are_read_back(tmp_path: Path, durability: str, rng: Random) -> None:
    with open_log(tmp_path / "log", durability=durability) as log:
        rows = fill(log, rng, 300)
        check_reads(log, rows, rng)
        with pyreplog.open(log.path, "r") as reader:
            check_reads(reader, rows, rng)
        assert log.sync() == log.end
    assert [Row(r.first, r.count, r.value) for r in twin.read_log(log.path) if r.kind < 3] == rows
    assert {r.kind for r in twin.read_log(log.path)} == {1, 2, 3}
    with pyreplog.open(log.path) as log:
        assert log.record_batches
        check_reads(log, rows, rng)
        rows += fill(log, rng, 20)
        check_reads(log, rows, rng)
    (log.path / names.TAIL).unlink()
    with pyreplog.open(log.path, "r") as reader:  # which finds the end by itself
        check_reads(reader, rows, rng)


def test_record_has_its_entry_count(tmp_path: Path) -> None:
    with open_log(tmp_path / "log") as log:
        assert log.append_record_batches([b"a", b"b"], [3, numpy.int64(1)], [None, 5], control=b"c") == range(4)
        assert log.append(b"c") == 4
        a, b, c = (record for batch in log.read() for record in batch)
        assert [(r.kind, r.entry, r.entry_count, r.event_time) for r in (a, b, c)] == [
            (2, 2, 3, None), (2, 3, 1, 5), (1, 4, 1, None),
        ]  # fmt: skip
        assert (bytes(a.raw[32:40]), len(a.raw)) == (struct.pack("<II", 3, 0), 48)
        (control,) = log.control_records()
        assert (control.entry, control.entry_count) == (0, 0)
        assert log[0] == log[1] == log[2] == b"a" and log[-1] == b"c"
        assert log[1:4] == [b"a", b"b"] and log[2:3] == [b"a"]
        (batch,) = log.read()
        assert (batch.first, batch.end, batch.entry.tolist(), batch.entry_count.tolist()) == (
            0,
            5,
            [2, 3, 4],
            [3, 1, 1],
        )
        (batch,) = log.read(1, 2)
        assert (batch.first, batch.end) == (0, 3)
        (batch,) = log.read(3)
        assert batch.entry.tolist() == [3, 4]
        (every,) = log.read_positions(0, all_kinds=True)
        assert every.entry_count.tolist() == [0, 3, 1, 1]
        assert [b.entry.tolist() for b in log.read_event_times(5, 6)] == [[3]]


def test_entries_of_a_record_have_its_time(tmp_path: Path) -> None:
    clock = pyreplog.ManualClock(1_000_000)
    log = CommitLog(tmp_path / "log", LogConfig(), create=True, clock=clock, files=None, record_batches=True)
    with log:
        for _ in range(5):
            log.append_record_batches([b"v"], [10])
            clock.advance(1000)
        assert [log.entry_at_time(1_000_000 + us) for us in (0, 1, 1000, 1001, 9000)] == [0, 10, 10, 20, 50]


@pytest.mark.parametrize("durability", DURABILITIES)
def test_followers_go_from_record_to_record(tmp_path: Path, durability: str) -> None:
    with open_log(tmp_path / "log", durability=durability) as log:
        log.append_record_batches([b"a", b"b"], [5, 5])
        with pyreplog.open(log.path, "r") as reader:
            for handle in (log, reader):
                follower = handle.follow(7, timeout=0)
                assert next(follower).value == b"b"
        follower = log.follow(3, timeout=0)
        assert [record.entry for record in follower] == [4, 9]
        log.append_record_batches([b"c"], [2])
        assert [record.entry for record in follower] == [11]
        batches = [(b.first, b.end) for b in log.follow_batches(8, timeout=0)]
        assert batches == [(5, 12)]

        async def follow() -> list[int]:
            return [record.entry async for record in log.follow(6, timeout=0)]

        assert asyncio.run(follow()) == [9, 11]


def test_a_follower_learns_that_its_record_was_cut(tmp_path: Path) -> None:
    with open_log(tmp_path / "log") as log:
        log.append_record_batches([b"a", b"b"], [5, 5])
        follower = log.follow(0, timeout=0)
        assert [record.value for record in follower] == [b"a", b"b"]
        assert log.truncate(7) == 5
        log.append_record_batches([b"x"], [5])
        with pytest.raises(TruncatedError):
            next(follower)


def test_cursors_stand_at_any_entry(filled: tuple[Path, list[Row]]) -> None:
    path, rows = filled
    row = next(row for row in rows[150:] if row.count > 2)
    with pyreplog.open(path) as log, log.cursor("c", row.first + 1) as cursor:
        assert (cursor.entry, cursor.position) == (row.first + 1, log.position_of(row.first))
        assert next(iter(cursor.follow(timeout=0))).value == row.value
        cursor.advance(row.last + 1)
        assert [r.entry for r in cursor.follow(timeout=0)] == [r.last for r in rows if r.first > row.last]


def test_columns_of_record_batches_are_read_by_headers_alone(filled: tuple[Path, list[Row]]) -> None:
    path, rows = filled
    read = []
    for file in samples.segments(path):
        with pyreplog.open(path, "r") as log:
            _, segment = log.hold_segment(int(file.stem))
            stop = min(segment.size, log.end_position - segment.base)
            batch = walk(segment, HEADER, stop, until=stop, limit=1 << 20)
            read += zip(batch.entry.tolist(), batch.entry_count.tolist(), strict=True)
            del segment, batch
    assert read == [(row.last, row.count) for row in rows]


# ---- what is refused -----------------------------------------------------------------------------------------------


def test_logs_of_single_entries_refuse_record_batches(tmp_path: Path) -> None:
    with pyreplog.open(tmp_path / "log", segment_bytes=SEGMENT_BYTES) as log:
        for call in (log.append_record_batches, log.append_record_batches_pending):
            with pytest.raises(RecordBatchesError, match="record_batches") as caught:
                call([b"v"], [1])
        assert caught.value.path == log.path
        assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)
        assert not log.record_batches and log.end == 0
        assert log.append_record_batches([], []) == range(0)
    assert versions(tmp_path / "log") == [1]
    with pyreplog.open(tmp_path / "log", "r") as reader, pytest.raises(ReadOnlyError):
        reader.append_record_batches([b"v"], [1])


def test_impossible_counts_of_record_batches_are_refused(tmp_path: Path) -> None:
    with open_log(tmp_path / "log") as log:
        for counts, error in (
            ([0], InvalidArgumentError), ([-1], InvalidArgumentError), ([1 << 31], InvalidArgumentError),
            ([1 << 70], InvalidArgumentError), ([1, 1], InvalidArgumentError), ([], InvalidArgumentError),
            ([1.0], WrongTypeError), ([True], WrongTypeError), (1, WrongTypeError), ("1", WrongTypeError),
        ):  # fmt: skip
            with pytest.raises(error):
                log.append_record_batches([b"v"], counts)
        with pytest.raises(InvalidArgumentError, match="in all"):
            log.append_record_batches([b"v", b"w"], [(1 << 31) - 1, 1])
        room = SEGMENT_BYTES - HEADER - 32 - 40
        with pytest.raises(RecordTooLargeError, match=f"at most {room} bytes"):
            log.append_record_batches([bytes(room + 1)], [1])
        assert log.end == 0
        log.append_record_batches([bytes(room), bytes(room)], [3, 4])
        assert rows_of(log) == [Row(0, 3, bytes(room)), Row(3, 4, bytes(room))]


@pytest.mark.parametrize("durability", ["appended", "synced"])
def test_numbers_of_a_segment_fit_into_32_bits(tmp_path: Path, durability: str, rng: Random) -> None:
    """A segment is full when its numbers are, and the next one begins."""
    most = (1 << 31) - 1
    with open_log(tmp_path / "log", durability=durability) as log:
        rows = []
        for value in (b"a", b"b", b"c", b"d", b"e"):
            first = log.append_record_batches([value], [most]).start
            rows.append(Row(first, most, value))
        rows.append(Row(log.append(b"f"), 1, b"f"))
        check_reads(log, rows, rng)
    assert samples.first_entries(log.path) == [most * n for n in range(5)]
    with pyreplog.open(log.path) as log:
        check_reads(log, rows, rng)
        assert log.truncate(3 * most + 5) == 3 * most
        check_reads(log, rows[:3], rng)
    assert check.check(log.path).clean


def test_an_event_loop_does_not_wait_where_numbers_need_the_next_segment(tmp_path: Path) -> None:
    most = (1 << 31) - 1

    async def append(log: CommitLog) -> None:
        log.append_record_batches_pending([b"a"], [most])
        with pytest.raises(WindowFullError):
            log.append_record_batches_pending([b"b"], [most])
        await log.room()
        assert log.append_record_batches_pending([b"b"], [most])[0] == range(most, 2 * most)

    with open_log(tmp_path / "log", durability="synced") as log:
        asyncio.run(append(log))
        assert log.sync() == 2 * most and log[most] == b"b"
    assert check.check(log.path).clean


# ---- versions ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("durability", DURABILITIES)
def test_a_log_begins_to_hold_record_batches(tmp_path: Path, durability: str, rng: Random) -> None:
    """Segments of before keep their bytes, and the log stays one that holds record batches."""
    with pyreplog.open(tmp_path / "log", segment_bytes=SEGMENT_BYTES, durability=durability) as log:
        log.append_batch([b"v" * 1000] * 100)
        rows, end = rows_of(log), log.tail.end
    before = [path.read_bytes() for path in samples.segments(log.path)]
    with open_log(log.path, durability=durability) as log:
        rows += fill(log, rng, 100)
        check_reads(log, rows, rng)
    after = [path.read_bytes() for path in samples.segments(log.path)]
    assert after[0] == before[0] and after[1][: end - SEGMENT_BYTES] == before[1][: end - SEGMENT_BYTES]
    found = versions(log.path)
    assert found[:3] == [1, 1, COUNTED] and set(found[2:]) == {COUNTED}
    with pyreplog.open(log.path, durability=durability) as log:
        rows += fill(log, rng, 300)
        check_reads(log, rows, rng)
        assert log.truncate(50) == 50  # into a segment of before: the next one holds them again
        rows = rows[:50] + fill(log, rng, 30)
        check_reads(log, rows, rng)
    assert check.check(log.path).clean and versions(log.path)[:2] == [1, COUNTED]


@pytest.mark.parametrize("durability", DURABILITIES)
def test_a_log_that_only_begins_to_hold_them_is_synced_and_cut(tmp_path: Path, durability: str) -> None:
    """Opening began a segment, and nothing was appended to it."""
    with pyreplog.open(tmp_path / "log", segment_bytes=SEGMENT_BYTES, durability=durability) as log:
        log.append_batch([b"v" * 1000] * 10)
    log = open_log(log.path, durability=durability)
    outcomes: list[int] = []
    thread = threading.Thread(target=lambda: outcomes.extend((log.sync(), log.truncate(4))), daemon=True)
    thread.start()
    thread.join(PATIENCE_S)
    assert outcomes == [10, 4]
    assert log.append_record_batches([b"w"], [3]) == range(4, 7)
    log.close()
    assert check.check(log.path).clean


def test_an_empty_log_begins_to_hold_record_batches(tmp_path: Path, rng: Random) -> None:
    """A reader that has the segment mapped goes on."""
    pyreplog.open(tmp_path / "log", segment_bytes=SEGMENT_BYTES).close()
    with pyreplog.open(tmp_path / "log", "r") as reader:
        assert rows_of(reader) == []
        held = reader.hold_segment(0)
        with open_log(tmp_path / "log") as log:
            rows = fill(log, rng, 5)
            check_reads(reader, rows, rng)
        del held
    assert set(versions(log.path)) == {COUNTED}


def test_single_entries_have_the_same_bytes_in_both_versions(tmp_path: Path) -> None:
    contents = []
    for name, record_batches in (("one", False), ("other", True)):
        clock = pyreplog.ManualClock(1_000_000)
        config = LogConfig(segment_bytes=SEGMENT_BYTES, spare_segments=1)
        with CommitLog(
            tmp_path / name, config, create=True, clock=clock, files=None, record_batches=record_batches
        ) as log:
            for n in range(300):
                clock.advance(10)
                log.append_batch([b"%d" % n * 99], [b"k"], [n], control=b"c")
            log.run_background_tasks()
            contents.append([bytes(record.raw)[12:] for b in log.read_positions(0, all_kinds=True) for record in b])
    assert contents[0] == contents[1]
    one, other = ([path.read_bytes() for path in samples.indexes(tmp_path / name)] for name in ("one", "other"))
    assert one and [data[12:16] for data in one] == [data[12:16] for data in other] == [b"\1\0\1\0"] * len(one)


def test_earlier_builds_refuse_the_log(filled: tuple[Path, list[Row]]) -> None:
    """They go by the lowest reader in the header of each segment, and in that of each index."""
    path, _ = filled
    for file in samples.segments(path):
        assert struct.unpack_from("<HH", file.read_bytes(), 12) == (2, 2)
    assert {struct.unpack_from("<HH", file.read_bytes(), 12) for file in samples.indexes(path)} <= {(2, 2), (1, 1)}
    rewrite_header(path, 0, 3)
    for mode in ("a", "r"):
        with pytest.raises(FormatVersionError) as caught:
            pyreplog.open(path, mode)
        assert (caught.value.found, caught.value.supported) == (3, 2)


# ---- cutting -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("durability", DURABILITIES)
def test_truncation_removes_a_record_whole(tmp_path: Path, durability: str, rng: Random) -> None:
    with open_log(tmp_path / "log", durability=durability) as log:
        rows = fill(log, rng, 200)
        while len(rows) > 20:
            row = rng.choice(rows[-30:])
            entry = rng.randint(row.first, row.last)
            assert log.truncate(entry) == row.first
            rows = [other for other in rows if other.last < row.first]
            assert log.end == row.first
            check_reads(log, rows, rng)
            if rng.random() < 0.3:
                rows += fill(log, rng, 5)
        with pytest.raises(OutOfRangeError):
            log.truncate(log.end + 1)
        assert log.truncate(log.end) == log.end
    with pyreplog.open(log.path) as log:
        check_reads(log, rows, rng)


@pytest.mark.parametrize("durability", ["appended", "synced"])
def test_a_torn_record_is_cut_whole(tmp_path: Path, durability: str, rng: Random) -> None:
    with open_log(tmp_path / "log", durability=durability) as log:
        rows = fill(log, rng, 15)
        log.sync()
        position, base = log.tail.end, log.tail.end // SEGMENT_BYTES * SEGMENT_BYTES
    with open_log(tmp_path / "log", durability=durability) as log:
        log.append_record_batches([b"torn" * 20], [9])
        data = names.segment_path(log.path, base).read_bytes()
    checkpoint = log.path / names.CHECKPOINT
    last = checkpoints.load(log.path)
    assert last is not None
    before = replace(last, position=position, entry=rows[-1].last + 1, clean=False)
    for cut in (8, 24, 36, 48, 112):
        at = position - base
        names.segment_path(log.path, base).write_bytes(data[: at + cut] + bytes(len(data) - at - cut))
        (log.path / names.TAIL).unlink(missing_ok=True)
        checkpoint.write_bytes(before.encode().ljust(8192, b"\0"))
        with pyreplog.open(log.path) as opened:
            check_reads(opened, rows, rng)


# ---- damage --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("at", "data", "expected"),
    [
        (32, struct.pack("<I", 0), "known flags"),
        (32, struct.pack("<I", 0xFFFFFFFF), "known flags"),
        (32, struct.pack("<I", 4), "entry number"),
        (32, struct.pack("<I", 6), "entry number"),
        (12, b"\1", "known flags"),  # a data record with a count
        (13, b"\x91", "known flags"),  # the long form
        (13, b"\x01", "entry number"),  # a batch record that takes one number
    ],
)
def test_a_wrong_count_is_damage(tmp_path: Path, at: int, data: bytes, expected: str) -> None:
    with open_log(tmp_path / "log") as log:
        log.append_batch([b"v"] * 20)
        log.append_record_batches([b"batch " * 9], [5])
        log.append_batch([b"w"] * 20)
        position = log.position_of(22)
    rewrite(log.path, position, at, data)
    with pyreplog.open(log.path, "r") as reader:
        with pytest.raises(CorruptionError, match=expected) as caught:
            reader.get(22)
        assert caught.value.position == position
        with pytest.raises(CorruptionError):
            list(reader.read())
    report = check.check(log.path)
    assert not report.clean and report.damages[0].position == position
    with pytest.raises(CorruptionError):
        pyreplog.open(log.path)


def test_a_count_in_a_segment_of_version_1_is_damage(tmp_path: Path) -> None:
    with open_log(tmp_path / "log") as log:
        log.append(b"v")
        position = log.tail.end
        log.append_record_batches([b"batch"], [5])
    rewrite_header(log.path, 0, 1)
    damage = check.check(log.path).damages[0]
    assert (damage.position, damage.entry) == (position, 1)
    with pytest.raises(CorruptionError, match="known flags"):
        pyreplog.open(log.path)


def test_damage_costs_the_entries_of_its_record(filled: tuple[Path, list[Row]]) -> None:
    path, rows = filled
    row = next(row for row in rows[100:] if row.count == 1000 and len(row.value) > 100)
    with pyreplog.open(path, "r") as reader:
        record = reader.get(row.first)
        position = record.position
    samples.flip(names.segment_path(path, position // SEGMENT_BYTES * SEGMENT_BYTES), position % SEGMENT_BYTES + 50)
    report = check.check(path)
    (damage,) = report.damages
    assert (damage.position, damage.entry, damage.resumes) == (position, row.first, row.last + 1)
    assert (report.lost, report.entries, report.end) == (1000, rows[-1].last + 1 - 1000, rows[-1].last + 1)
    with pyreplog.open(path, "r") as reader:
        with pytest.raises(CorruptionError) as caught:
            reader.get(row.first + 500)
        assert caught.value.position == position
        assert reader.get(row.first - 1).entry == row.first - 1 and reader.position_of(row.last + 1) > position


def test_index_files_of_record_batches_are_made_again(filled: tuple[Path, list[Row]], rng: Random) -> None:
    path, rows = filled
    for index in samples.indexes(path):
        data = index.read_bytes()
        assert data == twin.make_index(index.with_suffix(".log"))
        index.unlink()
    with pyreplog.open(path, "r") as reader:
        check_reads(reader, rows, rng)


def test_records_of_one_length_are_looked_up(tmp_path: Path, rng: Random) -> None:
    """A block entry tells that their places can be computed, if each takes one number."""
    with open_log(tmp_path / "log") as log:
        rows: list[Row] = []
        for counts in ([1] * 1500, rng.choices((1, 3), (9, 1), k=1500), [2] * 1500):
            values, first = [b"%08d" % (len(rows) + i) for i in range(len(counts))], log.end
            log.append_record_batches(values, counts)
            for value, count in zip(values, counts, strict=True):
                rows.append(Row(first, count, value))
                first += count
        check_reads(log, rows, rng)
    for index in samples.indexes(log.path):
        assert index.read_bytes() == twin.make_index(index.with_suffix(".log"))
    with pyreplog.open(log.path, "r") as reader:
        check_reads(reader, rows, rng)


def test_a_header_is_made_again(filled: tuple[Path, list[Row]], rng: Random) -> None:
    """With the version that its records need."""
    path, rows = filled
    victim = samples.segments(path)[1]
    intact = victim.read_bytes()
    samples.flip(victim, 20)
    assert not check.check(path).clean
    repair.repair(path)
    assert victim.read_bytes() == intact and check.check(path).clean
    with pyreplog.open(path) as log:
        check_reads(log, rows, rng)


# ---- copies --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("durability", ["appended", "synced"])
def test_a_replica_is_byte_identical(tmp_path: Path, durability: str, rng: Random) -> None:
    with open_log(tmp_path / "master", durability=durability) as master:
        rows = fill(master, rng, 60)
        with make_mirror(tmp_path / "mirror", master, durability=durability) as mirror:
            for _ in range(4):
                copy(master, mirror)
                mirror.show(*mirror.received_mark)
                check_reads(mirror, rows, rng)
                rows += fill(master, rng, 60)
            while master.tail.end < 3 * SEGMENT_BYTES:
                rows += fill(master, rng, 60)
            copy(master, mirror)
            mirror.show(*mirror.received_mark)
            assert assert_same_files(master, mirror) > 2
            with pytest.raises(ReplicaError):
                mirror.append_record_batches([b"v"], [1])
            row = rng.choice(rows[:-1])
            with pytest.raises(OutOfRangeError):
                mirror.cut(master.position_of(row.first), row.first + 1)
            mirror.cut(master.position_of(row.first), row.first)
            assert mirror.received_mark.entry == row.first
            copy(master, mirror)
            assert_same_files(master, mirror)
            mirror.promote()
    with pyreplog.open(tmp_path / "mirror") as log:
        assert log.record_batches
        rows += fill(log, rng, 10)
        check_reads(log, rows, rng)


def test_a_replica_refuses_a_wrong_count(tmp_path: Path) -> None:
    with open_log(tmp_path / "master") as master, make_mirror(tmp_path / "mirror", master) as mirror:
        master.append_record_batches([b"a"], [5])
        copy(master, mirror)
        position = master.tail.end
        master.append_record_batches([b"b"], [5])
        master.sync()
        sent = bytearray(stream(master, position))
        record = sent[12:]
        struct.pack_into("<I", record, 32, 4)
        struct.pack_into("<I", record, 4, crc32c(bytes(record[12:]), struct.unpack_from("<I", record)[0]))
        with pytest.raises(StreamError, match="entry number"):
            take_in(mirror, bytes(sent[:12] + record))
        copy(master, mirror)
        assert mirror.received_mark.entry == 10


def test_a_log_of_record_batches_is_backed_up_and_restored(
    filled: tuple[Path, list[Row]], tmp_path: Path, rng: Random
) -> None:
    path, rows = filled
    manifest = backup(path, tmp_path / "copy")
    assert (manifest.start, manifest.end, manifest.entries) == (0, rows[-1].last + 1, rows[-1].last + 1)
    restore(tmp_path / "copy", tmp_path / "restored")
    assert set(versions(tmp_path / "restored")) == {COUNTED}
    with pyreplog.open(tmp_path / "restored") as log:
        check_reads(log, rows, rng)
        check_reads(log, rows + (more := fill(log, rng, 5)), rng)
        assert more


def test_rows_of_tables_are_records_with_their_last_number(filled: tuple[Path, list[Row]], rng: Random) -> None:
    """Each in one task, whatever the range of offsets."""
    path, rows = filled
    for _ in range(10):
        low, high = sorted(rng.randint(0, rows[-1].last + 1) for _ in range(2))
        options = options_of(
            path, maxPartitionBytes=rng.choice((1000, 50_000)), startingOffsets=low, endingOffsets=high,
            columns="offset,value",
        )  # fmt: skip
        read = read_slices(options, plan(options)).to_pylist()
        assert sorted((row["offset"], row["value"]) for row in read) == [
            (row.last, row.value) for row in rows if low <= row.last < high
        ]  # fmt: skip


def test_an_offloaded_log_has_the_same_rows(filled: tuple[Path, list[Row]], tmp_path: Path) -> None:
    """Its manifest has version 2; that of a log of single entries has version 1."""
    path, rows = filled
    copied = offload(path, f"file://{tmp_path}/archive")
    end = copied.manifest.end
    assert len(copied.manifest.segments) > 1 and {item.version for item in copied.manifest.segments} == {COUNTED}
    assert json.loads(copied.manifest.encode())["version"] == 2
    for options in ({}, {"startingOffsets": rows[40].first + 1, "endingOffsets": rows[120].last}):
        wanted = read_table(path, columns="offset,value", **{"endingOffsets": end, **options})
        assert read_table(f"file://{tmp_path}/archive", columns="offset,value", **options).equals(wanted) and len(
            wanted
        )
    samples.make_log(tmp_path / "singles")
    single = offload(tmp_path / "singles", f"file://{tmp_path}/other").manifest
    assert json.loads(single.encode())["version"] == 1 and b'"time_high"' in single.encode()
    assert all("version" not in item for item in json.loads(single.encode())["content"]["segments"])
