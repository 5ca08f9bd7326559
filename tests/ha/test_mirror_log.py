"""A mirror log appends the bytes of its master's log, and refuses all others."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest

import pyreplog
from pyreplog.errors import (
    ClosedError,
    NotALogError,
    NotAReplicaError,
    OutOfRangeError,
    ReplicaError,
    StreamError,
    TruncatedError,
)
from pyreplog.log import names, replica
from pyreplog.log.files import RealFiles
from pyreplog.log.fsck.check import check
from pyreplog.stream.mirror_log import MirrorLog
from tests.ha.streams import (
    PER_SEGMENT,
    SEGMENT_BYTES,
    assert_same_files,
    config,
    copy,
    frames_of,
    held,
    kill,
    make_mirror,
    open_master,
    stream,
    take_in,
    uncommitted,
    values,
)

ALL = 1 << 62


@pytest.mark.parametrize("durability", ["appended", "synced"])
def test_a_copy_is_byte_identical(tmp_path: Path, durability: str) -> None:
    master = open_master(tmp_path / "master", durability=durability)
    with master, make_mirror(tmp_path / "mirror", master, durability=durability) as mirror:
        for first in range(0, 5 * PER_SEGMENT, 7):
            master.append_batch(values(7, first), control=b"control")
            copy(master, mirror)
        assert assert_same_files(master, mirror) > 4
        assert uncommitted(mirror) == held(master)
        assert mirror.received_mark == (master.tail.end, master.end)


@pytest.mark.parametrize("durability", ["appended", "synced"])
def test_recycled_segments_are_equal_too(tmp_path: Path, durability: str) -> None:
    settings = {"retention_bytes": 2 * SEGMENT_BYTES, "durability": durability}
    master = open_master(tmp_path / "master", **settings)
    with master, make_mirror(tmp_path / "mirror", master, **settings) as mirror:
        rng = Random(7)
        for number in range(400):
            master.append(b"%d" % number + rng.randbytes(rng.randint(0, 3000)))
            if number % 9 == 0:
                copy(master, mirror)
            if number % 50 == 0:
                master.run_background_tasks()
                mirror.run_background_tasks()
        copy(master, mirror)
        master.run_background_tasks()
        mirror.run_background_tasks()
        assert master.start > 0
        assert_same_files(master, mirror)


def test_frames_of_any_size_and_records_cut_anywhere(tmp_path: Path) -> None:
    with open_master(tmp_path / "master") as master, make_mirror(tmp_path / "mirror", master) as mirror:
        master.append_batch(values(3 * PER_SEGMENT))
        rng, position = Random(5), 0
        for offset, body in frames_of(stream(master, 0)):
            position = offset
            if offset % SEGMENT_BYTES == 0:
                mirror.begin(body)
                continue
            while body:
                size = rng.choice((1, 31, 33, 2000))
                mirror.append_replicated(position, [body[:size]])
                position, body = position + len(body[:size]), body[size:]
                assert mirror.received_mark[0] <= mirror.received_end
        assert_same_files(master, mirror)


def test_a_cut_record_does_not_count(tmp_path: Path) -> None:
    with open_master(tmp_path / "master") as master, make_mirror(tmp_path / "mirror", master) as mirror:
        master.append_batch(values(2))
        (_, header), (offset, body) = frames_of(stream(master, 0))
        mirror.begin(header)
        mirror.append_replicated(offset, [body[:-1]])
        mirror.show(ALL, ALL)
        assert (mirror.end, mirror.received_end) == (1, master.tail.end - 1)
        mirror.append_replicated(offset + len(body) - 1, [body[-1:]])
        assert (mirror.end, held(mirror)) == (2, values(2))


def test_records_after_the_commit_point_are_not_readable(tmp_path: Path) -> None:
    with open_master(tmp_path / "master") as master, make_mirror(tmp_path / "mirror", master) as mirror:
        master.append_batch(values(10))
        copy(master, mirror)
        with pyreplog.open(mirror.path, "r") as reader:
            assert (held(mirror), held(reader)) == ([], [])
            mirror.show(master.position_of(4), 4)
            assert (held(mirror), held(reader)) == (values(4), values(4))
            mirror.show(master.position_of(2), 2)
            assert mirror.end == 4
            mirror.show(ALL, ALL)
            assert (held(mirror), held(reader)) == (values(10), values(10))
            master.append_batch(values(3, 10))
            take_in(mirror, stream(master, mirror.received_end))
            assert len(mirror) == 13
            master.append_batch(values(2, 13))
            copy(master, mirror)  # as at the beginning of another stream
            assert len(mirror) == 13
            assert [record.entry for record in mirror.follow(8, timeout=0)] == [8, 9, 10, 11, 12]


def test_a_mirror_log_refuses_appends(tmp_path: Path) -> None:
    with open_master(tmp_path / "master") as master:
        with make_mirror(tmp_path / "mirror", master) as mirror:
            master.append(b"x")
            copy(master, mirror)
            for refused in (mirror.append, mirror.submit, mirror.append_batch, mirror.submit_batch, mirror.truncate):
                with pytest.raises(ReplicaError, match="promote"):
                    refused(b"")  # type: ignore[operator]
        with pytest.raises(ReplicaError, match="is a replica"):
            pyreplog.open(tmp_path / "mirror")
        with pytest.raises(ClosedError):
            mirror.append(b"x")
        with pytest.raises(NotAReplicaError):
            MirrorLog(tmp_path / "master", config())
        with pytest.raises(NotALogError, match="holds a log already"):
            make_mirror(tmp_path / "mirror", master)


def test_mirror_log_resumes_after_being_closed_in_the_middle_of_a_record(tmp_path: Path) -> None:
    with open_master(tmp_path / "master") as master:
        make_mirror(tmp_path / "mirror", master).close()
        for first in range(0, 3 * PER_SEGMENT, 13):
            master.append_batch(values(13, first))
            with MirrorLog(tmp_path / "mirror", config()) as mirror:
                data = stream(master, mirror.resume()[0])
                frames = list(frames_of(data))
                offset, body = frames[-1]
                take_in(mirror, data[: len(data) - len(body) - 12])
                mirror.append_replicated(offset, [body[: len(body) // 2]])
        with MirrorLog(tmp_path / "mirror", config()) as mirror:
            copy(master, mirror)
            assert_same_files(master, mirror)
            mirror.show(ALL, ALL)
            assert held(mirror) == held(master)


def test_a_log_that_was_trimmed_is_copied_from_its_start(tmp_path: Path) -> None:
    with open_master(tmp_path / "master") as master:
        master.append_batch(values(4 * PER_SEGMENT))
        master.trim(2 * PER_SEGMENT + 30)
        assert master.start > PER_SEGMENT
        with make_mirror(tmp_path / "mirror", master) as mirror:
            assert (mirror.start, mirror.end, mirror.start_position) == (master.start, master.start, 2 * SEGMENT_BYTES)
            copy(master, mirror)
            mirror.show(ALL, ALL)
            assert held(mirror) == held(master)
        with MirrorLog(tmp_path / "mirror", config()) as mirror:
            assert uncommitted(mirror) == held(master)


# ---- what is refused -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("place", [4096 + 3, 4096 + 9, 4096 + 12, 4096 + 16, 4096 + 40, 4096 + 1440 * 3 + 200])
def test_a_damaged_byte_is_refused_and_nothing_behind_it_counts(tmp_path: Path, place: int) -> None:
    with open_master(tmp_path / "master") as master, make_mirror(tmp_path / "mirror", master) as mirror:
        master.append_batch(values(20))
        (_, header), (offset, body) = frames_of(stream(master, 0, transfer_bytes=1 << 20))
        damaged = bytearray(body)
        damaged[place - 4096] ^= 0x41
        mirror.begin(header)
        with pytest.raises(StreamError) as raised:
            mirror.append_replicated(offset, [damaged])
        good = (place - 4096) // 1440
        assert raised.value.position == mirror.received_end == master.position_of(good)
        assert mirror.received_mark == (master.position_of(good), good) if good else (0, 0)
        copy(master, mirror)
        assert_same_files(master, mirror)


def test_records_after_a_refused_one_do_not_come_back(tmp_path: Path) -> None:
    """A later master may have other records of the same sizes at this position."""
    with open_master(tmp_path / "master") as master:
        mirror = make_mirror(tmp_path / "mirror", master)
        master.append_batch(values(6))
        (_, header), (offset, body) = frames_of(stream(master, 0, transfer_bytes=1 << 20))
        damaged = bytearray(body)
        damaged[2 * 1440 + 100] ^= 0x41
        mirror.begin(header)
        with pytest.raises(StreamError):
            mirror.append_replicated(offset, [damaged])
        mirror.append_replicated(offset + 2 * 1440, [body[2 * 1440 : 3 * 1440]])
        mark = mirror.received_mark
        kill(mirror)
        with MirrorLog(tmp_path / "mirror", config()) as mirror:
            assert mirror.received_mark == mark == (master.position_of(3), 3)
            copy(master, mirror)
            assert_same_files(master, mirror)


def test_bytes_of_another_place_are_refused(tmp_path: Path) -> None:
    with open_master(tmp_path / "master") as master, make_mirror(tmp_path / "mirror", master) as mirror:
        master.append_batch(values(2 * PER_SEGMENT))
        frames = list(frames_of(stream(master, 0)))
        with pytest.raises(StreamError, match="the header of a segment"):
            mirror.append_replicated(*_as_bytes(frames[1], at=0))
        mirror.begin(frames[0][1])
        for offset, body in (frames[2], (frames[1][0] + 8, frames[1][1])):
            with pytest.raises(StreamError, match="bytes of position 4096"):
                mirror.append_replicated(offset, [body])
        with pytest.raises(StreamError, match="record"):
            mirror.append_replicated(4096, [bytes(64)])
        with pytest.raises(StreamError, match="bytes before 65536"):
            mirror.append_replicated(4096, [bytes(SEGMENT_BYTES)])
        mirror.resume()
        copy(master, mirror)
        assert_same_files(master, mirror)


def _as_bytes(frame: tuple[int, memoryview], at: int) -> tuple[int, list[memoryview]]:
    return at, [frame[1]]


@pytest.mark.parametrize("byte", range(64))
def test_a_damaged_header_is_refused(tmp_path: Path, byte: int) -> None:
    with open_master(tmp_path / "master") as master, make_mirror(tmp_path / "mirror", master) as mirror:
        master.append(b"x")
        header = bytearray(stream(master, 0)[12:76])
        header[byte] ^= 1
        with pytest.raises(StreamError):
            mirror.begin(header)
        assert mirror.received_end == 0


def test_headers_of_other_logs_and_places_are_refused(tmp_path: Path) -> None:
    with open_master(tmp_path / "other") as other, open_master(tmp_path / "master") as master:
        other.append(b"x")
        master.append_batch(values(2 * PER_SEGMENT))
        with make_mirror(tmp_path / "mirror", master) as mirror:
            with pytest.raises(StreamError, match="expected the header of log"):
                mirror.begin(stream(other, 0)[12:76])
            with pytest.raises(StreamError, match="at 65536"):
                mirror.begin(stream(master, SEGMENT_BYTES)[12:76])
            copy(master, mirror)
            with pytest.raises(StreamError):
                mirror.begin(stream(master, 0)[12:76])


# ---- cutting ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("entry", [0, 1, 30, PER_SEGMENT, PER_SEGMENT + 9, 2 * PER_SEGMENT + 20])
def test_a_cut_copy_goes_on_with_another_history(tmp_path: Path, entry: int) -> None:
    with open_master(tmp_path / "master") as master, make_mirror(tmp_path / "mirror", master) as mirror:
        master.append_batch(values(3 * PER_SEGMENT))
        copy(master, mirror)
        mirror.show(ALL, ALL)
        follower = mirror.follow(2 * PER_SEGMENT, timeout=0)
        last = next(iter(follower), None)
        mark = master.position_of(entry), entry
        before = names.segment_path(mirror.path, mark[0] // SEGMENT_BYTES * SEGMENT_BYTES).read_bytes()
        mirror.cut(*mark)
        assert (mirror.end, held(mirror)) == (entry, values(entry))
        assert last is not None
        if entry <= last.entry:
            with pytest.raises(TruncatedError):
                next(iter(follower))
        kept = b"".join(path.read_bytes() for path in sorted((mirror.path / "aside").glob("*/*.cut")))
        assert before[mark[0] % SEGMENT_BYTES :][:3000] in kept
        master.truncate(entry)
        master.append_batch(values(2 * PER_SEGMENT, 1000))
        copy(master, mirror)
        assert_same_files(master, mirror)
        mirror.show(ALL, ALL)
        assert held(mirror) == held(master)
    with MirrorLog(tmp_path / "mirror", config()) as mirror:
        assert uncommitted(mirror) == [*values(entry), *values(2 * PER_SEGMENT, 1000)]


@pytest.mark.parametrize("entry", [0, 1, PER_SEGMENT, PER_SEGMENT + 9])
def test_a_cut_of_a_mirror_log_survives_reopening(tmp_path: Path, entry: int) -> None:
    with open_master(tmp_path / "master") as master, make_mirror(tmp_path / "mirror", master) as mirror:
        master.append_batch(values(3 * PER_SEGMENT))
        copy(master, mirror)
        mirror.cut(master.position_of(entry), entry)
        received = mirror.received_mark
        kill(mirror)
        with MirrorLog(tmp_path / "mirror", config()) as again:
            assert again.received_mark == again.synced_mark == received
            assert uncommitted(again) == values(entry)


def test_a_cut_shows_nothing_more(tmp_path: Path) -> None:
    with open_master(tmp_path / "master") as master, make_mirror(tmp_path / "mirror", master) as mirror:
        master.append_batch(values(9))
        copy(master, mirror)
        mirror.show(master.position_of(3), 3)
        mirror.cut(master.position_of(7), 7)
        with pyreplog.open(mirror.path, "r") as reader:
            assert (len(mirror), len(reader), len(uncommitted(mirror))) == (3, 3, 7)


def test_a_segment_begun_by_one_master_goes_on_with_the_header_of_another(tmp_path: Path) -> None:
    """Two masters began this segment in different epochs: a segment with the header of one cannot hold records of the
    other."""
    with open_master(tmp_path / "master") as master, make_mirror(tmp_path / "mirror", master) as mirror:
        count = 0
        while master.tail.end < SEGMENT_BYTES:
            count = master.append(values(1)[0])
        data = stream(master, 0)
        take_in(mirror, data[: data.rindex(b"REPLOG01") + 64])
        assert mirror.received_mark == (SEGMENT_BYTES, count)
        master.truncate(count - 1)
        master.append_batch(values(4, 50))
        take_in(mirror, stream(master, mirror.resume()[0]))
        mirror.show(ALL, ALL)
        assert held(mirror)[-2:] == values(2, 52)


def test_only_a_record_boundary_is_cut_at(tmp_path: Path) -> None:
    with open_master(tmp_path / "master") as master, make_mirror(tmp_path / "mirror", master) as mirror:
        master.append_batch(values(2 * PER_SEGMENT))
        copy(master, mirror)
        position = master.position_of(5)
        for wrong in ((position + 8, 5), (position, 6), (1 << 40, 9), (-8, 0)):
            with pytest.raises(OutOfRangeError):
                mirror.cut(*wrong)
        mirror.cut(*mirror.received_mark)
        assert mirror.received_mark == (master.tail.end, master.end)


def test_partly_received_record_is_truncated_with_its_position(tmp_path: Path) -> None:
    with open_master(tmp_path / "master") as master, make_mirror(tmp_path / "mirror", master) as mirror:
        master.append_batch(values(3))
        take_in(mirror, stream(master, 0))
        master.append(b"long" * 500)
        ((offset, body),) = frames_of(stream(master, mirror.received_end, transfer_bytes=1 << 20))
        mirror.append_replicated(offset, [body[:100]])
        assert mirror.received_end == offset + 100
        mirror.cut(offset, 3)
        assert mirror.received_end == offset
        copy(master, mirror)
        assert_same_files(master, mirror)


# ---- syncing and the end ---------------------------------------------------------------------------------------


def test_synced_mark_follows_sync(tmp_path: Path) -> None:
    with open_master(tmp_path / "master") as master, make_mirror(tmp_path / "mirror", master) as mirror:
        master.append_batch(values(PER_SEGMENT + 5))
        copy(master, mirror)
        assert mirror.synced_mark < mirror.received_mark
        assert mirror.sync() == PER_SEGMENT + 5
        assert mirror.synced_mark == mirror.received_mark == (master.tail.end, master.end)


def test_no_append_of_the_log_reaches_a_mirror(tmp_path: Path) -> None:
    """Neither one without segments yet, nor one that has some: each way of appending refuses, and the bytes stay."""
    ways = [name for name in dir(MirrorLog) if name.startswith(("append", "submit")) and name != "append_replicated"]
    with open_master(tmp_path / "master") as master, make_mirror(tmp_path / "mirror", master) as mirror:
        for _ in range(2):
            marks = mirror.received_mark, mirror.end
            for way in ways:
                with pytest.raises(ReplicaError, match="promote"):
                    getattr(mirror, way)(b"x", 1)
            assert (mirror.received_mark, mirror.end) == marks
            master.append(b"x")
            copy(master, mirror)
    assert {"append_pending", "append_batch_pending", "append_record_batch_pending"} <= {*ways}


def test_a_promoted_copy_is_a_log_of_its_own(tmp_path: Path) -> None:
    with open_master(tmp_path / "master") as master:
        mirror = make_mirror(tmp_path / "mirror", master)
        master.append_batch(values(PER_SEGMENT + 5))
        copy(master, mirror)
        master.append(b"late" * 100)
        ((offset, body),) = frames_of(stream(master, mirror.received_end))
        mirror.append_replicated(offset, [body[:60]])
        mirror.promote()
        with pytest.raises(NotAReplicaError):
            MirrorLog(tmp_path / "mirror", config())
        with pyreplog.open(tmp_path / "mirror") as log:
            assert (log.uuid, held(log)) == (master.uuid, values(PER_SEGMENT + 5))
            assert log.append(b"mine") == PER_SEGMENT + 5
            assert not (log.path / "aside").exists()


def test_a_log_of_its_own_becomes_a_copy(tmp_path: Path) -> None:
    """A master that failed follows the one that was promoted in its place, and cuts the records that only it had."""
    with open_master(tmp_path / "old") as old, make_mirror(tmp_path / "new", old) as mirror:
        old.append_batch(values(PER_SEGMENT + 5))
        copy(old, mirror)
        mirror.promote()
        old.append_batch(values(9, 1000))
    replica.mark(tmp_path / "old", RealFiles(), mirror.uuid)
    with open_master(tmp_path / "new") as new, MirrorLog(tmp_path / "old", config()) as again:
        new.append_batch(values(2 * PER_SEGMENT, 5000))
        again.cut(new.position_of(PER_SEGMENT + 5), PER_SEGMENT + 5)
        copy(new, again)
        assert_same_files(new, again)
        assert uncommitted(again) == held(new)


def test_a_copy_of_a_copy(tmp_path: Path) -> None:
    master = open_master(tmp_path / "master")
    with master, make_mirror(tmp_path / "one", master) as mirror, make_mirror(tmp_path / "two", mirror) as two:
        for first in range(0, 3 * PER_SEGMENT, 11):
            master.append_batch(values(11, first))
            copy(master, mirror)
            copy(mirror, two)
        assert_same_files(master, two)


def test_a_copy_passes_fsck(tmp_path: Path) -> None:
    with open_master(tmp_path / "master") as master, make_mirror(tmp_path / "mirror", master) as mirror:
        master.append_batch(values(2 * PER_SEGMENT))
        copy(master, mirror)
    report = check(tmp_path / "mirror")
    assert (report.damages, report.notes, report.entries) == ((), (), 2 * PER_SEGMENT)


def test_claims_of_the_master_are_not_believed(tmp_path: Path) -> None:
    """A record says how much the master had synced when it was appended. This replica may have lost some of that in a
    power cut."""
    with open_master(tmp_path / "master", durability="synced") as master:
        mirror = make_mirror(tmp_path / "mirror", master)
        for value in values(20):
            master.append(value)
        copy(master, mirror)
        place = master.position_of(10) + 100
        kill(mirror)
        path = names.segment_path(mirror.path, 0)
        data = bytearray(path.read_bytes())
        data[place] ^= 1
        path.write_bytes(data)
        (mirror.path / "tail").unlink()
        with pyreplog.open(mirror.path, "r") as reader:
            assert len(reader) == 10
        with MirrorLog(mirror.path, config()) as again:
            assert again.received_mark == (master.position_of(10), 10)
            copy(master, again)
            assert_same_files(master, again)
