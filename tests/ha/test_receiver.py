"""A small frame that arrives alone is applied and reported on a fast path, which does what the other way does."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from random import Random

import pytest

from pyreplog._native.ha.reports import ReplicaReportsBase, decode_report, encode_report
from pyreplog._native.ha.stream_receiver_base import ProgressReporter
from pyreplog._native.net.frame import CONTROL_OFFSET, FrameBatch, FrameParser, encode
from pyreplog._native.net.send_queue import FrameSendQueue
from pyreplog.errors import PoisonedError, ReplogError, StreamError
from pyreplog.log import names
from pyreplog.log.commit_log import CommitLog
from pyreplog.log.files import RealFiles
from pyreplog.stream.frame_feed import FrameFeed
from pyreplog.stream.log_position import LogPosition
from pyreplog.stream.mirror_log import MirrorLog
from pyreplog.stream.receiver import StreamReceiver
from tests.ha.streams import SEGMENT_BYTES, make_mirror, open_master
from tests.tracing import python_calls

Report = tuple[LogPosition, LogPosition]


class Wire:
    """The connection of a receiver, as far as it uses it; `arrived` gives what has left."""

    error = None
    unread_bytes = 0

    def __init__(self) -> None:
        near, self._far = socket.socketpair()
        near.setblocking(False)
        self._far.setblocking(False)
        self.send_queue = FrameSendQueue(near, lambda: None)
        self._near = near
        self.sends = 0

    def send(self, *buffers: bytes) -> bool:
        """Send what did not leave on the fast path."""
        self.sends += 1
        with self.send_queue.lock:
            self.send_queue.send(buffers, sum(map(len, buffers)))
        return True

    def send_frame(self, offset: int, body: tuple[bytes, ...], size: int) -> bool:
        return self.send(encode(offset, b"".join(body)))

    def close(self, error: ReplogError | None = None) -> None:
        self._near.close()
        self._far.close()

    def arrived(self) -> bytes:
        data = b""
        with pytest.raises(BlockingIOError):
            while True:
                data += self._far.recv(1 << 16)
        return data


class Copy:
    """A mirror log, its receiver and the machine that decides its reports."""

    def __init__(self, mirror: MirrorLog, *, is_fast: bool = True) -> None:
        self.mirror, self.wire = mirror, Wire()
        self.machine, self.lock = ReplicaReportsBase(), threading.RLock()
        self.machine.is_streaming = True
        self.reporter = ProgressReporter(self.machine, self.lock)
        self.reporter.floor_due_at = 1 << 62
        self.landings = self.other_reports = 0
        self.receiver = StreamReceiver(
            on_opened=_nothing, on_control=_nothing, on_closed=_nothing, on_landed=self._landed,
            on_progress=self._report, reporter=self.reporter if is_fast else None,
        )  # fmt: skip
        self.receiver.opened(self.wire)  # type: ignore[arg-type]
        self.receiver.stream(mirror, syncs=False)

    def _landed(self) -> None:
        self.landings += 1

    def _report(self) -> None:
        self.other_reports += 1
        with self.lock:
            report = self.machine.progressed(*self.mirror.progress)
            if report is not None:
                self.receiver.send(encode_report(*report))

    def take_fast(self, offset: int, body: bytes) -> bytes | None:
        return self.receiver.fast_path(self.wire, batch(offset, body))

    def take(self, frames: FrameBatch) -> ReplogError | None:
        """Take frames as a connection does; return the error that would close it."""
        try:
            if len(frames) != 1 or self.receiver.fast_path(self.wire, frames) is None:
                self.receiver.frames(self.wire, frames)  # type: ignore[arg-type]
        except ReplogError as error:
            return error
        return None

    def lock_is_held(self) -> bool:
        """Return whether another thread could not take the lock."""
        free = list[bool]()

        def look() -> None:
            free.append(self.lock.acquire(blocking=False))
            if free == [True]:
                self.lock.release()

        thread = threading.Thread(target=look)
        thread.start()
        thread.join()
        return free == [False]

    def reports(self) -> list[Report]:
        """Return the reports that have left since the last call."""
        return [report for _, body in FrameParser().feed(self.wire.arrived()) if (report := decode_report(body))]


class Pair:
    """A master's log and its copy."""

    def __init__(self, master: CommitLog, mirror: MirrorLog) -> None:
        self.master, self.copy, self.mirror = master, Copy(mirror), mirror
        self._feed = FrameFeed(master, 0)

    def appended(self, *values: bytes) -> list[tuple[int, bytes]]:
        """Append to the master; return offset and body of each frame that it sends."""
        self.master.append_batch(list(values))
        frames, _ = self._feed.take(1 << 20)
        return [(offset, bytes(body)) for offset, body in FrameParser().feed(b"".join(frames))]


def _nothing(*_: object) -> None:
    """Do nothing: this test does not use the call."""


def batch(offset: int, body: bytes) -> FrameBatch:
    return FrameParser().feed(encode(offset, body))


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[Pair]:
    with open_master(tmp_path / "a") as master, make_mirror(tmp_path / "b", master) as mirror:
        pair = Pair(master, mirror)
        header, (offset, body) = pair.appended(b"the first one")
        assert pair.copy.take_fast(*header) is None, "the header of a segment takes the other way"
        for frame in (header, (offset, body)):
            assert pair.copy.take(batch(*frame)) is None
        pair.copy.reports()
        pair.copy.other_reports = pair.copy.landings = pair.copy.wire.sends = 0
        yield pair
        pair.copy.wire.close()


# ---- the ordinary case -------------------------------------------------------------------------------------------


def test_each_small_record_is_applied_and_reported(pair: Pair) -> None:
    for number in range(3):
        (frame,) = pair.appended(b"%d" % number)
        assert pair.copy.take_fast(*frame) == b""
        assert [received for received, _ in pair.copy.reports()] == [(pair.master.tail.end, number + 2)]
        assert pair.mirror.received_end == pair.master.tail.end
    assert pair.copy.landings == 3 and not pair.copy.other_reports


def test_several_records_in_one_frame_are_applied_with_one_report(pair: Pair) -> None:
    (frame,) = pair.appended(b"one", b"two", b"three")
    assert pair.copy.take_fast(*frame) == b""
    assert [received for received, _ in pair.copy.reports()] == [(pair.master.tail.end, 4)]
    pair.mirror.show(pair.master.tail.end, 4)
    assert pair.mirror[1:4] == [b"one", b"two", b"three"]


def test_an_append_to_a_replica_calls_no_function_of_python(pair: Pair) -> None:
    (frame,) = pair.appended(b"one")
    calls = python_calls(partial(pair.copy.receiver.fast_path, pair.copy.wire, batch(*frame)))
    assert calls == ["Copy._landed"], "of what the test brings"
    assert pair.copy.reports()


# ---- frames that take the other way ------------------------------------------------------------------------------


def refused(pair: Pair, offset: int, body: bytes) -> bool:
    """Return whether the fast path refuses a frame, and has changed nothing."""
    before = pair.mirror.received_end, pair.mirror.tail.end, pair.copy.receiver.received_bytes
    answer = pair.copy.take_fast(offset, body)
    after = pair.mirror.received_end, pair.mirror.tail.end, pair.copy.receiver.received_bytes
    return answer is None and before == after and not pair.copy.reports() and not pair.copy.lock_is_held()


def test_a_damaged_record_is_refused_before_anything_changes(pair: Pair) -> None:
    ((offset, body),) = pair.appended(b"one", b"two")
    damaged = body[:-8] + bytes(byte ^ 1 for byte in body[-8:])
    assert refused(pair, offset, damaged)
    with pytest.raises(StreamError):
        pair.copy.receiver.frames(pair.copy.wire, batch(offset, damaged))  # type: ignore[arg-type]
    assert [received for received, _ in pair.copy.reports()] == [(offset + len(body) // 2, 2)]


@pytest.mark.parametrize(
    ("shape", "why"),
    [
        (lambda offset, body: (offset + len(body), body), "a gap"),
        (lambda offset, body: (offset - 8, body), "bytes that it has"),
        (lambda offset, body: (offset, body[:-8]), "a part of a record"),
        (lambda offset, body: (offset, body + body[:16]), "a record and a part of one"),
        (lambda offset, body: (offset, body + body), "a record twice"),
        (lambda offset, body: (offset, b""), "a heartbeat"),
        (lambda offset, body: (CONTROL_OFFSET, b"\6" + bytes(24)), "a message of the master"),
        (lambda offset, body: (offset, body + bytes(5000)), "much: not each frame is reported"),
    ],
    ids=["gap", "overlap", "part", "more", "twice", "heartbeat", "control", "much"],
)
def test_other_frames_take_the_other_way(
    pair: Pair, shape: Callable[[int, bytes], tuple[int, bytes]], why: str
) -> None:
    (frame,) = pair.appended(b"x" * 100)
    assert refused(pair, *shape(*frame)), why
    assert pair.copy.take_fast(*frame) == b"", "the record itself is ordinary still"


def test_two_frames_take_the_other_way(pair: Pair) -> None:
    (one,), (two,) = pair.appended(b"1"), pair.appended(b"2")
    both = FrameParser().feed(encode(*one) + encode(*two))
    assert pair.copy.receiver.fast_path(pair.copy.wire, both) is None
    assert pair.copy.take(both) is None and pair.mirror.received_end == pair.master.tail.end


def test_a_frame_behind_a_partial_record_takes_the_other_way(pair: Pair) -> None:
    ((offset, body),) = pair.appended(b"x" * 1000)
    assert pair.copy.take(batch(offset, body[:500])) is None
    assert refused(pair, offset, body), "the log has the first half already"
    assert pair.copy.take(batch(offset + 500, body[500:])) is None
    assert pair.mirror.received_end == pair.master.tail.end


def test_nothing_is_applied_without_a_stream(pair: Pair) -> None:
    """Another term was promised, or the connection ended: `is_streaming` is false, or the receiver was stopped."""
    (frame,) = pair.appended(b"late")
    pair.copy.machine.is_streaming = False
    assert refused(pair, *frame)
    pair.copy.machine.is_streaming = True
    pair.copy.receiver.stop()
    assert refused(pair, *frame)


def test_while_another_thread_reports_the_other_way_is_taken(pair: Pair) -> None:
    """It waits for the lock, so that no older report follows a newer one."""
    (frame,) = pair.appended(b"one")
    taken, done = threading.Event(), threading.Event()

    def hold() -> None:
        with pair.copy.lock:
            taken.set()
            done.wait(60)

    thread = threading.Thread(target=hold)
    thread.start()
    assert taken.wait(60)
    answer = pair.copy.take_fast(*frame)
    done.set()
    thread.join()
    assert answer is None and refused(pair, frame[0] + 8, frame[1])
    assert pair.mirror.received_end == frame[0]


def test_where_the_retention_floor_is_due_the_other_way_is_taken(pair: Pair) -> None:
    ((offset, body),) = pair.appended(b"one")
    pair.copy.reporter.floor_due_at = offset + len(body)
    assert refused(pair, offset, body)
    pair.copy.reporter.floor_due_at += 1
    assert pair.copy.take_fast(offset, body) == b""


def test_a_report_claims_as_synced_only_what_is(tmp_path: Path) -> None:
    with (
        open_master(tmp_path / "a") as master,
        make_mirror(tmp_path / "b", master, durability="synced") as mirror,
    ):
        pair = Pair(master, mirror)
        for frame in pair.appended(b"first"):
            assert pair.copy.take(batch(*frame)) is None
        mirror.sync()
        pair.copy.receiver.report()
        synced = mirror.synced_mark
        assert pair.copy.reports()[-1] == (synced, synced)
        (frame,) = pair.appended(b"second")
        assert pair.copy.take_fast(*frame) == b""
        assert pair.copy.reports() == [((master.tail.end, 2), synced)]
        mirror.sync()
        (frame,) = pair.appended(b"third")
        synced = mirror.synced_mark
        assert pair.copy.take_fast(*frame) == b"" and pair.copy.other_reports, "the place has to be looked up"
        assert pair.copy.reports() == [((master.tail.end, 3), synced)]
        pair.copy.wire.close()


def test_a_report_that_does_not_fit_into_the_socket_is_queued(pair: Pair) -> None:
    pair.copy.wire.send_queue.corked = True
    (frame,) = pair.appended(b"one")
    assert pair.copy.take_fast(*frame) == b"" and pair.copy.wire.sends == 1


def test_a_frame_of_a_long_stream_is_not_reported_by_itself(pair: Pair) -> None:
    pair.copy.wire.unread_bytes = 100  # of the next frame
    for number in range(2):
        (frame,) = pair.appended(b"x" * 8000)
        assert pair.copy.take(batch(*frame)) is None
        assert len(pair.copy.reports()) == number
        pair.copy.wire.unread_bytes = 0


# ---- both ways ---------------------------------------------------------------------------------------------------


def history(random: Random, master: CommitLog) -> Iterator[FrameBatch]:
    """Append to a master at random, and yield what it sends, cut into batches as a socket might, some of it wrong."""
    feed = FrameFeed(master, 0, 4096)
    for _ in range(random.randint(20, 120)):
        for _ in range(random.choice((1, 1, 1, 3))):
            size = random.choice((0, 1, 10, 100, 1000, 1000, 5000))
            key = random.choice((None, None, b"key"))
            times = random.choice((None, None, 1_700_000_000_000_000 + random.randrange(1000)))
            master.append(random.randbytes(size), key, event_time=times)
        frames = list(FrameParser().feed(b"".join(feed.take(1 << 20)[0])))
        while frames:
            count = random.choice((1, 1, 1, 2, 5))
            group, frames = frames[:count], frames[count:]
            if random.random() < 0.1 and group[0][0] % SEGMENT_BYTES:  # the header of a segment comes whole
                offset, body = group[0]
                middle = random.randint(0, len(body))
                yield batch(offset, bytes(body[:middle]))
                yield batch(offset + middle, bytes(body[middle:]))
                group = group[1:]
            if group:
                yield FrameParser(max_body=1 << 20).feed(b"".join(encode(*frame) for frame in group))
            if random.random() < 0.05:
                yield batch(CONTROL_OFFSET, b"\6" + bytes(25))
            if random.random() < 0.05:
                yield batch(feed.position, b"")
    if random.random() < 0.5:
        offset = master.tail.end + random.choice((0, 0, 8, -8))
        yield batch(offset, random.randbytes(random.choice((8, 40, 200))))


def segments(mirror: MirrorLog) -> dict[int, bytes]:
    """Return the bytes of each segment up to the end of the log."""
    end = mirror.received_end
    return {
        base: names.segment_path(mirror.path, base).read_bytes()[: end - base]
        for base in names.segment_bases(mirror.path)
        if base < end
    }


@pytest.mark.parametrize("seed", range(12))
def test_both_ways_have_the_same_bytes_states_and_reports(tmp_path: Path, seed: int) -> None:
    random = Random(seed)
    with open_master(tmp_path / "a") as master:
        mirrors = [make_mirror(tmp_path / name, master) for name in ("fast", "slow")]
        fast, slow = (Copy(mirror, is_fast=is_fast) for mirror, is_fast in zip(mirrors, (True, False), strict=True))
        taken = 0
        for frames in history(random, master):
            before, sync = fast.other_reports, random.random() < 0.05
            errors = [type(copy.take(frames)) for copy in (fast, slow)]
            taken += fast.other_reports == before
            assert errors[0] is errors[1], "the connection would end here"
            assert fast.wire.arrived() == slow.wire.arrived()
            assert fast.mirror.progress == slow.mirror.progress
            assert fast.mirror.received_end == slow.mirror.received_end
            if sync:
                for copy in (fast, slow):
                    copy.mirror.sync()
                    copy.receiver.report()
                assert fast.wire.arrived() == slow.wire.arrived()
        assert taken > 5, "the fast path was hardly taken"
        assert fast.receiver.received_bytes == slow.receiver.received_bytes
        assert segments(fast.mirror) == segments(slow.mirror)
        end = fast.mirror.received_mark
        for copy in (fast, slow):
            copy.mirror.show(*end)
        assert fast.mirror[:] == slow.mirror[:]
        for copy in (fast, slow):
            copy.mirror.close()
            copy.wire.close()


def test_a_failed_write_poisons_the_copy(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise OSError(5, "the disk failed")

    (frame,) = pair.appended(b"one")
    monkeypatch.setattr(RealFiles, "write", fail)
    with pytest.raises(PoisonedError):
        pair.copy.take_fast(*frame)
    assert not pair.copy.reports() and pair.mirror.tail.end == frame[0]
    assert frame[0] < SEGMENT_BYTES
