"""A small record that arrives by itself is appended and reported on a fast path."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest

from pyreplog._native.net.frame import FrameBatch, FrameParser, encode
from pyreplog.errors import StreamError
from pyreplog.log.commit_log import CommitLog
from pyreplog.net.connection import Connection
from pyreplog.stream.frame_feed import FrameFeed
from pyreplog.stream.log_position import LogPosition
from pyreplog.stream.mirror_log import MirrorLog
from pyreplog.stream.receiver import StreamReceiver
from tests.ha.streams import make_mirror, open_master

NOBODY = cast("Connection", None)
"""`fast_path` does not use the connection."""


class Copy:
    """A mirror log and its receiver; `reports` are the reports that it sends."""

    def __init__(self, master: CommitLog, mirror: MirrorLog) -> None:
        self.master, self.mirror = master, mirror
        self.reports: list[tuple[LogPosition, LogPosition]] = []
        self.landings = 0
        self.receiver = StreamReceiver(
            on_opened=_nothing, on_control=_nothing, on_closed=_nothing, on_landed=self._landed,
            on_progress=lambda: self.reports.append(mirror.progress),
        )  # fmt: skip
        self.receiver.stream(mirror, syncs=False)
        self._feed = FrameFeed(master, 0)

    def _landed(self) -> None:
        self.landings += 1

    def appended(self, *values: bytes) -> list[tuple[int, bytes]]:
        """Append to the master; return offset and body of each frame that it sends."""
        self.master.append_batch(list(values))
        frames, _ = self._feed.take(1 << 20)
        batch = FrameParser().feed(b"".join(frames))
        return [(offset, bytes(body)) for offset, body in batch]

    def take(self, offset: int, body: bytes) -> bytes | None:
        return self.receiver.fast_path(NOBODY, _batch(offset, body))


def _nothing(*_: Any) -> None:
    """Do nothing: this test does not use the call."""


def _batch(offset: int, body: bytes) -> FrameBatch:
    return FrameParser().feed(encode(offset, body))


@pytest.fixture
def copy(tmp_path: Path) -> Iterator[Copy]:
    with open_master(tmp_path / "a") as master, make_mirror(tmp_path / "b", master) as mirror:
        yield Copy(master, mirror)


def test_each_small_record_is_appended_and_reported(copy: Copy) -> None:
    for number in range(3):
        for frame in copy.appended(b"%d" % number):
            assert copy.take(*frame) == b""
        assert copy.reports[-1][0] == (copy.master.tail.end, number + 1)
        assert copy.mirror.received_end == copy.master.tail.end
    assert len(copy.reports) == copy.landings == 4, "a segment's header, too"


def test_records_before_a_damaged_one_are_appended_and_reported(copy: Copy) -> None:
    header, (offset, body) = copy.appended(b"one", b"two")
    copy.take(*header)
    damaged = body[:-8] + bytes(byte ^ 1 for byte in body[-8:])
    with pytest.raises(StreamError):
        copy.take(offset, damaged)
    assert copy.reports[-1][0] == (offset + len(body) // 2, 1)


def test_other_frames_are_left_to_the_slow_path(copy: Copy) -> None:
    header, (offset, body) = copy.appended(b"x" * 8000)
    copy.take(*header)
    before = list(copy.reports)
    assert copy.take(offset, body) is None, "much: not each frame is reported"
    assert copy.take(offset, b"") is None, "a heartbeat"
    assert copy.take(-1, b"\6" + bytes(24)) is None, "the master's word"
    two = FrameParser().feed(encode(offset, body[:100]) + encode(offset + 100, body[100:200]))
    assert copy.receiver.fast_path(NOBODY, two) is None
    copy.receiver.stop()
    assert copy.take(offset, body[:100]) is None, "nothing is taken any more"
    assert copy.reports == before
    assert copy.mirror.received_end == offset
