"""`FrameFeed.leave` sends the record that was just appended as one frame, or sends nothing."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from pyreplog._native.ha.reports import decode_report, encode_report
from pyreplog._native.net.send_queue import FrameSendQueue
from pyreplog.errors import InvalidMessageError
from pyreplog.log.commit_log import CommitLog
from pyreplog.stream.frame_feed import FrameFeed
from tests.ha.streams import PER_SEGMENT, open_master, values


class FeedLab:
    """A feed that has sent all records except those of the last `append`, and the other end of its socket."""

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
def lab(tmp_path: Path) -> Iterator[FeedLab]:
    near, far = socket.socketpair()
    with open_master(tmp_path / "log") as log, near, far:
        near.setblocking(False)
        near.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1)  # the smallest buffer holds a few frames
        yield FeedLab(log, near, far)


def test_leave_sends_the_frame_that_would_come_next(lab: FeedLab) -> None:
    for _ in range(3):
        lab.append()
        frames, size = FrameFeed(lab.log, lab.feed.position).take(1 << 20)
        sent = lab.feed.left_bytes
        assert lab.feed.leave()
        assert lab.arrived() == b"".join(frames)
        assert (lab.feed.position, lab.feed.left_bytes - sent) == (lab.log.tail.end, size)
        assert not lab.feed.leave(), "there is no more"


def while_another_thread_sends(lab: FeedLab) -> None:
    lab.append()
    lab.feed.turn.acquire()


def cut(lab: FeedLab) -> None:
    lab.append()
    lab.log.truncate(0)
    lab.append(2)


def larger_than_a_frame(lab: FeedLab) -> None:
    lab.append(4)


def over_the_end_of_a_segment(lab: FeedLab) -> None:
    lab.append(PER_SEGMENT)


def after_the_end(lab: FeedLab) -> None:
    lab.append()
    lab.feed.end()


def corked(lab: FeedLab) -> None:
    lab.append()
    lab.outbox.corked = True


@pytest.mark.parametrize(
    "prepare", [while_another_thread_sends, cut, larger_than_a_frame, over_the_end_of_a_segment, after_the_end, corked]
)
def test_unusual_records_are_left_to_the_slow_path(lab: FeedLab, prepare: Callable[[FeedLab], None]) -> None:
    prepare(lab)
    position = lab.feed.position
    assert not lab.feed.leave()
    assert (lab.feed.position, lab.feed.left_bytes, lab.arrived()) == (position, 0, b"")


def test_nothing_leaves_before_the_header_of_a_segment(lab: FeedLab) -> None:
    feed = FrameFeed(lab.log, 0, 1 << 20)
    feed.turn = threading.Lock()
    feed.begin(lab.outbox, 1 << 20)
    assert not feed.leave(), "a segment's header is a frame of its own"
    assert lab.arrived() == b""


def test_record_that_the_socket_does_not_take_waits_in_the_outbox(lab: FeedLab) -> None:
    expected, arrived = b"", b""
    for _ in range(20):  # all in one segment
        lab.append()
        expected += b"".join(FrameFeed(lab.log, lab.feed.position).take(1 << 20)[0])
        assert lab.feed.leave()
        if lab.outbox.queued_bytes:
            break
    assert lab.outbox.queued_bytes
    assert lab.feed.position == lab.log.tail.end
    lab.append()
    assert not lab.feed.leave(), "nothing overtakes what waits"
    while len(arrived) < len(expected):
        arrived += lab.arrived()
        lab.outbox.flush()
    assert arrived == expected


def test_a_report_with_a_mark_below_0_is_refused() -> None:
    assert decode_report(encode_report((1 << 40, 7), (4096, 2))) == ((1 << 40, 7), (4096, 2))
    with pytest.raises(InvalidMessageError, match="from 0 on"):
        decode_report(encode_report((8, 1), (-8, 1)))
