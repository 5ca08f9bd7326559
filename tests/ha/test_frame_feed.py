"""What was just appended leaves as one frame, or not at all."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from pyreplog._native.ha.reports import encode_report, report_alone
from pyreplog._native.net.frame import FrameBatch, FrameParser, encode
from pyreplog._native.net.send_queue import FrameSendQueue
from pyreplog.errors import InvalidMessageError
from pyreplog.log.commit_log import CommitLog
from pyreplog.stream.frame_feed import FrameFeed
from tests.ha.streams import PER_SEGMENT, open_master, values


class Stand:
    """A feed of a log that was sent all but what `append` has appended, and the other end of its socket."""

    def __init__(self, log: CommitLog, near: socket.socket, far: socket.socket) -> None:
        self.log, self.far = log, far
        self.outbox = FrameSendQueue(near, lambda: None)
        self.feed = FrameFeed(log, 0, 5000)
        self.feed.turn = threading.Lock()
        self.feed.begin(self.outbox, 1 << 20)
        self.append()
        while self.feed.take(1 << 20)[1]:
            pass

    def append(self, count: int = 1) -> None:
        self.log.append_batch(values(count))

    def arrived(self) -> bytes:
        try:
            return self.far.recv(1 << 20, socket.MSG_DONTWAIT)
        except BlockingIOError:
            return b""


@pytest.fixture
def stand(tmp_path: Path) -> Iterator[Stand]:
    near, far = socket.socketpair()
    with open_master(tmp_path / "log") as log, near, far:
        near.setblocking(False)
        near.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1)  # the least there is: a few frames
        yield Stand(log, near, far)


def test_it_is_the_frame_that_would_come(stand: Stand) -> None:
    for _ in range(3):
        stand.append()
        frames, size = FrameFeed(stand.log, stand.feed.position).take(1 << 20)
        sent = stand.feed.left_bytes
        assert stand.feed.leave()
        assert stand.arrived() == b"".join(frames)
        assert (stand.feed.position, stand.feed.left_bytes - sent) == (stand.log.tail.end, size)
        assert not stand.feed.leave(), "there is no more"


def held_by_who_sends(stand: Stand) -> None:
    stand.append()
    stand.feed.turn.acquire()


def cut(stand: Stand) -> None:
    stand.append()
    stand.log.truncate(0)
    stand.append(2)


def larger_than_a_frame(stand: Stand) -> None:
    stand.append(4)


def over_the_end_of_a_segment(stand: Stand) -> None:
    stand.append(PER_SEGMENT)


def over(stand: Stand) -> None:
    stand.append()
    stand.feed.end()


def corked(stand: Stand) -> None:
    stand.append()
    stand.outbox.corked = True


@pytest.mark.parametrize(
    "prepare", [held_by_who_sends, cut, larger_than_a_frame, over_the_end_of_a_segment, over, corked]
)
def test_what_is_unusual_takes_the_long_way(stand: Stand, prepare: Callable[[Stand], None]) -> None:
    prepare(stand)
    position = stand.feed.position
    assert not stand.feed.leave()
    assert (stand.feed.position, stand.feed.left_bytes, stand.arrived()) == (position, 0, b"")


def test_where_the_stream_stands_is_known_first(stand: Stand) -> None:
    feed = FrameFeed(stand.log, 0, 1 << 20)
    feed.turn = threading.Lock()
    feed.begin(stand.outbox, 1 << 20)
    assert not feed.leave(), "a segment's header is a frame of its own"
    assert stand.arrived() == b""


def test_what_the_socket_does_not_take_waits(stand: Stand) -> None:
    expected, arrived = b"", b""
    for _ in range(20):  # not beyond the segment
        stand.append()
        expected += b"".join(FrameFeed(stand.log, stand.feed.position).take(1 << 20)[0])
        assert stand.feed.leave()
        if stand.outbox.queued_bytes:
            break
    assert stand.outbox.queued_bytes
    assert stand.feed.position == stand.log.tail.end
    stand.append()
    assert not stand.feed.leave(), "nothing overtakes what waits"
    while len(arrived) < len(expected):
        arrived += stand.arrived()
        stand.outbox.flush()
    assert arrived == expected


def batch(*frames: bytes) -> FrameBatch:
    return FrameParser().feed(b"".join(frames))


def test_a_report_by_itself_is_read_from_its_frame() -> None:
    marks = ((1 << 40, 7), (4096, 2))
    report = encode(-1, encode_report(*marks))
    assert report_alone(batch(report)) == marks
    assert report_alone(batch(report, report)) is None
    assert report_alone(batch()) is None
    assert report_alone(batch(report[:-1])) is None, "it has not come yet"
    assert report_alone(batch(encode(0, encode_report(*marks)))) is None, "no control body"
    assert report_alone(batch(encode(-1, b"\1" + encode_report(*marks)[1:]))) is None, "another kind"
    with pytest.raises(InvalidMessageError, match="from 0 on"):
        report_alone(batch(encode(-1, encode_report((8, 1), (-8, 1)))))
