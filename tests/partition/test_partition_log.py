"""The log of a partition's replica: byte-identical on all, whoever leads, with the epochs that its records say."""

from __future__ import annotations

import shutil
import threading
from contextlib import ExitStack
from pathlib import Path
from random import Random

import pytest

import pyreplog
from pyreplog.errors import (
    CorruptionError,
    HigherTermError,
    InvalidArgumentError,
    LockedError,
    NotALogError,
    OutOfRangeError,
    RecordTooLargeError,
    ReplicaError,
    StreamError,
    TrimmedError,
)
from pyreplog.log import names
from pyreplog.log.fsck.check import check
from pyreplog.log.runtime import COMMITTING_THREADS, PREPARING_THREADS, SYNCING_THREADS, LogRuntime
from pyreplog.partition.protocol.epochs import NO_EPOCH
from pyreplog.partition.store.epoch_record import decode_epoch, encode_epoch
from pyreplog.partition.store.partition_log import LogSlice, PartitionLog
from pyreplog.stream.log_position import LogPosition
from pyreplog.stream.terms import History, TermStart
from tests.crash.process import in_process
from tests.ha.streams import SEGMENT_BYTES, assert_same_files, config, held, kill, uncommitted
from tests.waiting import until

from .partition_logs import ALL, append, catch_up, epoch, fetch, fill_up, follow_from, open_replica


@pytest.mark.parametrize("durability", ["appended", "synced"])
def test_followers_hold_the_bytes_of_their_leader(tmp_path: Path, durability: str, seed: int) -> None:
    rng = Random(seed)
    a, b, c = (open_replica(tmp_path / name, durability=durability) for name in "abc")
    with a, b, c:
        a.lead(epoch(1))
        for number in range(60):
            appended = append(a, rng)
            assert (appended.end, appended.offsets.stop) == (a.end_mark, a.end_mark.entry)
            catch_up(a, b, rng)
            if number % 7 == 0:
                catch_up(a, c, rng)
        catch_up(a, c, rng)
        for follower in (b, c):
            assert assert_same_files(a, follower) > 4
            assert (follower.ends.end, follower.history) == (a.ends.end, a.history)
            assert uncommitted(follower) == uncommitted(a)
            assert held(follower) == []
            follower.show_high_watermark(a.end_mark)
            assert held(follower) == uncommitted(a)
            follower.sync()
            assert follower.ends.synced == follower.ends.end
    for name in "abc":
        assert not check(tmp_path / name).damages


def test_the_role_changes_in_place_and_back(tmp_path: Path, seed: int) -> None:
    """Readers and their positions stay; each leader's records go on where the other's ended."""
    rng = Random(seed)
    leader, follower = open_replica(tmp_path / "a"), open_replica(tmp_path / "b")
    with leader, follower:
        readers = [log.follow(0, timeout=0) for log in (leader, follower)]
        values: list[bytes] = []
        counts = [0, 0]
        for number in range(1, 40):
            start = leader.end_mark
            ends = leader.lead(epoch(number, "ab"[number % 2]))
            assert leader.history.starts[-1] == (epoch(number, "ab"[number % 2]), start)
            assert ends.end.entry == start.entry
            append(leader, rng)
            with pytest.raises(ReplicaError):
                follower.append_messages([b"x"])
            with pytest.raises(InvalidArgumentError, match="stop_leading"):
                leader.append_fetched(LogSlice(leader.end_mark, leader.end_mark, []))
            catch_up(leader, follower, rng)
            assert leader.history == follower.history
            for log in (leader, follower):
                log.show_high_watermark(leader.end_mark)
            values = uncommitted(leader)
            for index, reader in enumerate(readers):
                for record in reader:
                    assert record.value == values[counts[index]]
                    counts[index] += 1
            assert counts == [len(values)] * 2
            leader.stop_leading()
            leader, follower = follower, leader
        assert_same_files(leader, follower)


def test_the_role_changes_under_load(tmp_path: Path, seed: int) -> None:
    """Threads append to whichever leads. All that was appended is on both, once and in order."""
    rng, logs = Random(seed), [open_replica(tmp_path / name) for name in "ab"]
    done, counts = threading.Event(), [0, 0]

    def append_on(thread: int) -> None:
        while not done.is_set():
            for log in logs:
                try:
                    log.append_messages([b"%d,%d," % (thread, counts[thread]) + bytes(200)])
                    counts[thread] += 1
                except ReplicaError:
                    continue

    with logs[0], logs[1]:
        threads = [threading.Thread(target=append_on, args=(thread,)) for thread in range(2)]
        for thread in threads:
            thread.start()
        try:
            for number in range(1, 30):
                leader, follower = logs[number % 2], logs[1 - number % 2]
                leader.lead(epoch(number))
                begun = sum(counts)
                until(lambda begun=begun: sum(counts) > begun + 20)  # type: ignore[misc]
                for _ in range(5):
                    fetch(leader, follower, rng.choice((1, 5000, 100_000)))
                leader.stop_leading()
                catch_up(leader, follower)
        finally:
            done.set()
            for thread in threads:
                thread.join()
        assert_same_files(*logs)
        numbers: list[list[int]] = [[], []]
        for value in uncommitted(logs[0]):
            thread_number, number, _ = value.split(b",", 2)
            numbers[int(thread_number)].append(int(number))
        assert numbers == [list(range(count)) for count in counts]


@pytest.mark.parametrize("left", [32, 72, 96, 104, 112, 136, 2000])
@pytest.mark.parametrize("tail", [0, 1, 40])
def test_an_unclean_tail_is_cut(tmp_path: Path, left: int, tail: int, seed: int) -> None:
    """Wherever in a segment the next epoch begins: also where its record does not fit into it any more."""
    a, b = open_replica(tmp_path / "a"), open_replica(tmp_path / "b")
    with a, b:
        a.lead(epoch(1))
        append(a, Random(seed))
        fill_up(a, left)
        catch_up(a, b)
        for number in range(tail):  # which the other one never gets
            a.append_messages([b"lost %d" % number + bytes(2000 if tail > 1 else 0)])
        start = b.end_mark
        b.lead(epoch(2, "b"))
        assert b.history.starts[-1].start == start
        for _ in range(3):
            append(b, Random(seed))
        a.stop_leading()
        assert a.history.common_point(a.end_mark, b.history, b.end_mark) == start
        follow_from(b, a)
        assert_same_files(b, a)
        assert a.history == b.history and not any(value.startswith(b"lost") for value in uncommitted(a))
        history = a.history
    for name in "ab":
        with open_replica(tmp_path / name) as log:
            assert log.history == history


@pytest.mark.parametrize("max_bytes", [1, 33, 1000, 10_000, 1 << 20])
def test_a_slice_ends_behind_a_record(tmp_path: Path, max_bytes: int, seed: int) -> None:
    """Never between a segment and the next: a follower would be where no other log ends, with none of an epoch that may
    begin there."""
    rng = Random(seed)
    with open_replica(tmp_path / "a") as log:
        log.lead(epoch(1))
        marks = {LogPosition(0, 0)}
        for _ in range(60):
            append(log, rng)
        for batch in log.read_positions(0, all_kinds=True, committed=False):
            for record in batch:
                stop = record.position + -(-len(record.raw) // 8) * 8
                marks.add(
                    LogPosition(stop, record.entry + 1 if record.kind <= 2 else log.history.starts[0].start.entry)
                )
        positions = {mark.position for mark in marks}
        at = LogPosition(0, 0)
        while at != log.end_mark:
            part = log.read_frames(at, max_bytes)
            assert part.position == at and part.end.position in positions
            records = [body for position, body in part.frames if position % SEGMENT_BYTES]
            size = sum(len(memoryview(body)) for body in records if len(memoryview(body)) != 32)
            one = part.end.position == min(position for position in positions if position > at.position)
            assert size > 0 and (
                size <= max_bytes + 200 or one or at.position // SEGMENT_BYTES != part.end.position // SEGMENT_BYTES
            )
            at = part.end
        assert log.read_frames(at, max_bytes) == LogSlice(at, at, [])


def test_readers_of_other_processes_stop_at_the_high_watermark(tmp_path: Path) -> None:
    def reads(entries: int) -> None:
        def read() -> None:
            for name in "ab":
                with pyreplog.open(tmp_path / name, "r") as reader:
                    assert held(reader) == [b"%d" % number for number in range(entries)]

        in_process(read, tmp_path / "report")

    a, b = open_replica(tmp_path / "a"), open_replica(tmp_path / "b")
    with a, b:
        a.lead(epoch(1))
        ends = [a.append_messages([b"%d" % number]).end for number in range(4)]
        catch_up(a, b)
        reads(0)
        for log in (a, b):
            log.show_high_watermark(ends[1])
        reads(2)
        for log in (a, b):
            log.show_high_watermark(ends[0])
        reads(2)
        b.lead(epoch(2, "b"))
        b.append_messages([b"4"])
        reads(2)
        a.stop_leading()
        catch_up(b, a)
        for log in (a, b):
            log.show_high_watermark(ALL)
        assert a.high_watermark == a.end_mark
        reads(5)
        assert [a.mark_of(offset) for offset in range(1, 3)] == ends[:2]


def test_the_epoch_record_is_below_a_high_watermark_that_is_a_position(tmp_path: Path) -> None:
    with open_replica(tmp_path / "a") as log:
        log.lead(epoch(1))
        log.append_messages([b"x"])
        log.show_high_watermark(ALL)
        before = log.high_watermark
        after = log.lead(epoch(2)).end
        assert log.high_watermark == before and after.entry == before.entry
        log.show_high_watermark(after)
        assert log.high_watermark == after
        assert len(list(log.control_records())) == 2


def test_epochs_are_rebuilt_from_the_records(tmp_path: Path, seed: int) -> None:
    rng, path = Random(seed), tmp_path / "a"
    log = open_replica(path)
    for number in range(1, 30):
        log.lead(epoch(number, rng.choice("abc")))
        for _ in range(rng.choice((0, 1, 12))):
            append(log, rng)
        if number % 5 == 0:
            history, end = log.history, log.end_mark
            if number % 2:
                log.close()
            else:
                kill(log)
            log = open_replica(path)
            assert (log.history, log.end_mark, log.leading_epoch) == (history, end, None)
    with log:
        history = log.history
        assert [start.term.number for start in history.starts] == list(range(1, 30))
        assert log.epoch_end(7)[1] == history.starts[7].start
        assert log.epoch_end(99) == (history.last, log.end_mark)
        assert log.epoch_end(0) == (NO_EPOCH, log.start_mark)
        log.show_high_watermark(ALL)
        log.trim_to(LogPosition(log.end_mark.position - 4 * SEGMENT_BYTES, 0))
        start = log.start_mark
        assert start.position > 0
    with open_replica(path) as log:
        assert log.start_mark == start
        assert log.history.starts == history.starts[-len(log.history.starts) :]
        assert len(log.history.up_to(LogPosition(start.position + 1, start.entry)).starts) == 1
        with pytest.raises(TrimmedError):
            log.read_frames(LogPosition(0, 0), 1)


def test_a_log_without_its_epoch_record_is_refused(tmp_path: Path) -> None:
    with open_replica(tmp_path / "a") as log:
        log.lead(epoch(1))
        log.append_messages([b"x"])
    path = names.segment_path(tmp_path / "a", 0)
    data = bytearray(path.read_bytes())
    data[4096 + 40] ^= 1
    path.write_bytes(data)
    with pytest.raises(CorruptionError):
        open_replica(tmp_path / "a")


@pytest.mark.parametrize("damage", ["flipped", "deleted", "truncated", "older", "missing"])
def test_damaged_epoch_records_are_refused(tmp_path: Path, damage: str, seed: int) -> None:
    """In any segment. In place of the last one's end there may be a shorter log: a torn write looks like that."""
    rng, path = Random(f"{seed} {damage}"), tmp_path / "a"
    with open_replica(path) as log:
        for number in range(1, 9):
            log.lead(epoch(number))
            for _ in range(4):
                append(log, rng)
            log.append_messages([bytes(9000)] * 3)
            if number == 4:
                log.sync()
                shutil.copytree(path, tmp_path / "older", ignore=shutil.ignore_patterns("fresh-*"))  # being made
        history = log.history
        bases = [base for base in names.segment_bases(path) if base < log.end_mark.position]
    assert len(bases) > 3
    refused = 0
    for number, base in enumerate(bases):
        copy = tmp_path / f"{number}"
        shutil.copytree(path, copy)
        file, record = names.segment_path(copy, base), 4096
        data = bytearray(file.read_bytes())
        if damage == "flipped":
            data[record + rng.choice((0, 5, 12, 33, 60))] ^= 1 << rng.randrange(8)
        elif damage == "deleted":
            data[record : record + 72] = bytes(72)
        elif damage == "truncated":
            del data[rng.randrange(record + 72) :]
        elif damage == "older" and (older := names.segment_path(tmp_path / "older", base)).exists():
            data = bytearray(older.read_bytes())
        file.write_bytes(data)
        if damage == "missing":
            file.unlink()
        try:
            log = open_replica(copy)
        except CorruptionError:
            refused += 1
            continue
        with log:
            assert damage == "older" and log.history == history, base
    assert refused >= (1 if damage == "older" else len(bases))


def test_a_log_begins_anew_at_another_place(tmp_path: Path, seed: int) -> None:
    rng = Random(seed)
    a, b = open_replica(tmp_path / "a"), open_replica(tmp_path / "b")
    with a, b:
        a.lead(epoch(1))
        for _ in range(60):
            append(a, rng)
        a.lead(epoch(2))
        a.show_high_watermark(ALL)
        a.trim_to(LogPosition(3 * SEGMENT_BYTES + 1, 0))
        assert a.start_mark.position == 3 * SEGMENT_BYTES
        b.lead(epoch(1, "b"))  # of which the leader knows nothing
        append(b, rng)
        b.stop_leading()
        follow_from(a, b)
        assert (b.start_mark, b.end_mark, b.history.last) == (a.start_mark, a.end_mark, epoch(2))
        assert_same_files(a, b)
        b.show_high_watermark(a.high_watermark)
        assert held(b) == held(a)
        kill(b)
        with open_replica(tmp_path / "b") as b:
            assert (b.start_mark, b.end_mark, b.history) == (a.start_mark, a.end_mark, a.history)
            b.reset(LogPosition(SEGMENT_BYTES, 7), History((TermStart(epoch(1), LogPosition(0, 0)),)))
            assert (b.start_mark, b.end_mark) == (LogPosition(SEGMENT_BYTES, 7),) * 2
            assert (b.start, b.end, b.history.last) == (7, 7, epoch(1))
            b.lead(epoch(5, "b"))
            assert b.append_messages([b"x", b"y"]).offsets == range(7, 9)
        with open_replica(tmp_path / "b") as b:
            assert uncommitted(b) == [b"x", b"y"]


@pytest.mark.parametrize("durability", ["appended", "synced"])
def test_many_logs_share_threads_and_have_segments_when_they_need_them(tmp_path: Path, durability: str) -> None:
    before, count = threading.active_count(), 60
    with LogRuntime(idle_ms=2_000) as runtime, ExitStack() as stack:
        logs = [
            stack.enter_context(open_replica(tmp_path / str(number), runtime, durability=durability))
            for number in range(count)
        ]
        for log in logs:
            assert not names.segment_bases(log.path)
            assert sum(file.stat().st_blocks * 512 for file in log.path.iterdir()) <= 64 << 10
        for leader, follower in zip(logs[::2], logs[1::2], strict=True):
            leader.lead(epoch(1))
            leader.append_messages([leader.path.name.encode()])
            catch_up(leader, follower)
            follower.sync()
        until(lambda: runtime.preparing.is_idle and runtime.syncing.is_idle)
        assert threading.active_count() - before <= PREPARING_THREADS + SYNCING_THREADS + COMMITTING_THREADS
        assert all(names.segment_bases(log.path) == [0] for log in logs)
        for log in logs[:2]:  # what is full is synced, and the next segment is made ahead
            if log.leading_epoch is not None:
                log.append_messages([bytes(1000)] * 100)
            catch_up(logs[0], log)
            until(lambda log=log: log.stats().ready_segments == log.config.spare_segments)  # type: ignore[misc]
    assert threading.active_count() == before
    for number in range(0, count, 20):
        with open_replica(tmp_path / str(number + 1)) as log:
            assert uncommitted(log)[0] == b"%d" % number and log.history.last == epoch(1)


# ---- what is refused -------------------------------------------------------------------------------------------


def test_damaged_slices_are_refused_and_leave_nothing_behind(tmp_path: Path, seed: int) -> None:
    """Any byte of the records, any frame that is missing or cut: what counts is the leader's, and a log opened again
    is as long as it was."""
    rng = Random(seed)
    a, b = open_replica(tmp_path / "a"), open_replica(tmp_path / "b")
    with a:
        a.lead(epoch(1))
        for number in range(80):
            append(a, rng)
            part = a.read_frames(b.end_mark, 1 << 20)
            frames = [(at, bytearray(body)) for at, body in part.frames]
            index = rng.randrange(len(frames))
            at, body = frames[index]
            kind = rng.choice(("flip", "cut", "drop", "repeat", "end"))
            if kind == "repeat" and at % b.segment_bytes == 0:
                kind = "drop"  # the header of an empty segment may come again
            end = part.end
            if kind == "flip":
                body[rng.randrange(len(body))] ^= 1 << rng.randrange(8)
            elif kind == "cut":
                del body[rng.randrange(len(body)) :]
            elif kind == "drop":
                del frames[index]
            elif kind == "repeat":
                frames.insert(index, frames[index])
            else:
                end = LogPosition(end.position, end.entry + 1)
            before = b.end_mark
            with pytest.raises((StreamError, CorruptionError)):
                b.append_fetched(LogSlice(part.position, end, frames))
            assert before <= b.end_mark <= a.end_mark
            mark = b.end_mark
            if rng.random() < 0.5:
                kill(b)
                b = open_replica(tmp_path / "b")
            assert b.end_mark == mark, kind
            if number % 3 == 0:
                catch_up(a, b, rng)
                assert_same_files(a, b)
                assert b.history == a.history
        b.close()


def test_a_refused_record_is_not_taken_up_behind_a_later_one(tmp_path: Path) -> None:
    """Behind the damaged record lies an intact one. Another leader's record takes the place of the first, exactly."""
    a, b = open_replica(tmp_path / "a"), open_replica(tmp_path / "b")
    with a:
        a.lead(epoch(1))
        catch_up(a, b)
        a.append_messages([b"first...", b"second.."])
        (at, body), *_ = (part := a.read_frames(b.end_mark, 1 << 20)).frames
        damaged = bytearray(body)
        damaged[33] ^= 1
        with pytest.raises(StreamError):
            b.append_fetched(LogSlice(part.position, part.end, [(at, damaged)]))
        b.append_fetched(LogSlice(part.position, a.mark_of(1), [(at, bytes(body)[: a.mark_of(1).position - at])]))
        kill(b)
        with open_replica(tmp_path / "b") as b:
            assert uncommitted(b) == [b"first..."]


def test_positions_where_no_record_begins_are_refused(tmp_path: Path) -> None:
    with open_replica(tmp_path / "a") as log:
        log.lead(epoch(1))
        end = log.append_messages([b"0" * 100, b"1" * 100]).end
        for position, offset in ((end.position + 8, 2), (end.position - 8, 1), (end.position - 136, 0), (8000, 5)):
            with pytest.raises(OutOfRangeError):
                log.read_frames(LogPosition(position, offset), 100)
        log.stop_leading()
        for mark in (LogPosition(end.position - 8, 1), LogPosition(end.position - 136, 0)):
            with pytest.raises(OutOfRangeError):
                log.truncate_to(mark)
        with pytest.raises(OutOfRangeError):
            log.reset(LogPosition(4096, 0), History())
        with pytest.raises(OutOfRangeError):
            log.mark_of(3)


def test_a_partition_log_refuses_lower_leader_epochs(tmp_path: Path) -> None:
    with open_replica(tmp_path / "a") as log:
        log.lead(epoch(3))
        for other in (epoch(3), epoch(2, "b")):
            with pytest.raises(HigherTermError):
                log.lead(other)
        assert log.leading_epoch == epoch(3)
        log.lead(epoch(3, "b"))
        assert [start.term for start in log.history.starts] == [epoch(3), epoch(3, "b")]
    with pytest.raises(NotALogError, match="expected log"):
        PartitionLog.open_or_create(tmp_path / "a", config(), uuid=bytes(16))
    with open_replica(tmp_path / "a"), pytest.raises(LockedError):
        open_replica(tmp_path / "a")


def test_the_largest_record_leaves_room_for_the_epoch_record(tmp_path: Path) -> None:
    with open_replica(tmp_path / "a") as log:
        log.lead(epoch(1, "leader" * 9))
        front = log.end_mark.position - 4096
        most = SEGMENT_BYTES - 4096 - front - 32 - 32
        with pytest.raises(RecordTooLargeError):
            log.append_messages([b"x", bytes(most + 1)])
        assert log.end_mark.entry == 0
        assert log.append_messages([b"x", bytes(most), b"y"]).offsets == range(3)
        assert [len(value) for value in uncommitted(log)] == [1, most, 1]
        with pytest.raises(RecordTooLargeError):
            log.append_records([bytes(most)], [5])
        assert len(log.history.starts) == 1


def test_epoch_records_are_decoded_as_encoded(tmp_path: Path) -> None:
    start = TermStart(epoch(7, "broker-2"), LogPosition(4096, 5))
    assert decode_epoch(encode_epoch(start)) == start
    assert decode_epoch(encode_epoch(start) + b"later fields") == start
    assert decode_epoch(b"RPTERM" + bytes(30)) is None
    for length in range(8, len(encode_epoch(start))):
        with pytest.raises(pyreplog.errors.InvalidMessageError):
            decode_epoch(encode_epoch(start)[:length])
    with pytest.raises(pyreplog.errors.InvalidMessageError):
        decode_epoch(encode_epoch(TermStart(NO_EPOCH, LogPosition(0, 0))))
