"""The frames of a log from any position on, as they are sent to a replica."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest

from pyreplog._native.net.frame import FrameBatch, FrameParser
from pyreplog.errors import StreamError, TrimmedError, TruncatedError
from pyreplog.stream.frame_feed import FrameFeed
from pyreplog.stream.mirror_log import MirrorLog
from tests.ha.streams import (
    PER_SEGMENT,
    SEGMENT_BYTES,
    assert_same_files,
    frames_of,
    make_mirror,
    open_master,
    stream,
    take_in,
    uncommitted,
    values,
)


def is_blank(head: bytes, length: int) -> bool:
    """Return whether this is the header of a blank of this length. A time may contain the byte of the blank's kind,
    too."""
    return len(head) == 32 and head[12] == 5 and int.from_bytes(head[:4], "little") == length


@pytest.mark.parametrize("transfer_bytes", [64, 1000, SEGMENT_BYTES, 1 << 20])
def test_frames_lie_end_to_end_but_for_two_gaps(tmp_path: Path, transfer_bytes: int) -> None:
    with open_master(tmp_path / "log") as log:
        log.append_batch(values(3 * PER_SEGMENT + 5))
        expected = 0
        for offset, body in frames_of(stream(log, 0, transfer_bytes=transfer_bytes)):
            assert offset == expected
            assert 0 < len(body) <= transfer_bytes
            base = offset // SEGMENT_BYTES * SEGMENT_BYTES
            assert offset + len(body) <= base + SEGMENT_BYTES
            expected = offset + len(body)
            if offset == base:
                assert len(body) == 64
                expected = base + 4096
            elif is_blank(bytes(body[-32:]), base + SEGMENT_BYTES - (expected - 32)):
                expected = base + SEGMENT_BYTES
        assert expected == log.tail.end


def test_a_feed_goes_on_as_the_log_grows(tmp_path: Path) -> None:
    with open_master(tmp_path / "log") as log:
        feed, parts, rng = FrameFeed(log, 0, 3000), list[bytes](), Random(1)
        for number in range(0, 4 * PER_SEGMENT, 3):
            log.append_batch(values(3, number))
            frames, size = feed.take(rng.choice((1, 2000, 9000)))
            assert size == sum(len(part) for part in frames[1::2]) > 0
            parts += map(bytes, frames)
        assert feed.behind > 0
        while (taken := feed.take(1 << 20))[1]:
            parts += map(bytes, taken[0])
        assert (feed.behind, feed.position) == (0, log.tail.end)
        with make_mirror(tmp_path / "mirror", log) as mirror:
            take_in(mirror, b"".join(parts))
            assert_same_files(log, mirror)


@pytest.mark.parametrize("indexes", [True, False])
def test_segments_that_were_not_mapped_yet_are_sent(tmp_path: Path, indexes: bool) -> None:
    with open_master(tmp_path / "log") as log:
        log.append_batch(values(4 * PER_SEGMENT))
    if not indexes:
        for path in (tmp_path / "log").glob("*.idx"):
            path.unlink()
    with open_master(tmp_path / "log") as log, make_mirror(tmp_path / "mirror", log) as mirror:
        take_in(mirror, stream(log, 0))
        assert_same_files(log, mirror)


def test_a_synced_log_is_sent_as_far_as_it_is_synced(tmp_path: Path) -> None:
    with open_master(tmp_path / "log", durability="synced") as log, make_mirror(tmp_path / "mirror", log) as mirror:
        log.append_pending(b"not synced")
        assert [len(body) for _, body in frames_of(stream(log, 0))] == [64]
        log.sync()
        take_in(mirror, stream(log, 0))
        assert uncommitted(mirror) == [b"not synced"]


def test_segment_of_a_feed_is_not_recycled(tmp_path: Path) -> None:
    """The segment of a feed is not recycled."""
    with open_master(tmp_path / "log", retention_bytes=0) as log:
        log.retention_floor = 0  # until the feed has a position
        log.append_batch(values(2 * PER_SEGMENT))
        feed = FrameFeed(log, 0, 5000)
        frames, _ = feed.take(20_000)
        log.retention_floor = 1 << 62
        before = b"".join(frames)
        del frames
        for number in range(6):
            log.append_batch(values(PER_SEGMENT, 1000 * number))
            log.run_background_tasks()
        assert log.start > 2 * PER_SEGMENT
        rest, _ = feed.take(SEGMENT_BYTES // 3)
        sent = b"".join(bytes(body) for _, body in frames_of(before + b"".join(rest)))
        assert all(b"%d,..." % number in sent for number in range(20))
        with pytest.raises(TrimmedError):
            feed.take(1 << 20)


def test_a_log_that_was_cut_is_not_sent_on(tmp_path: Path) -> None:
    with open_master(tmp_path / "log") as log:
        log.append_batch(values(20))
        feed = FrameFeed(log, 0)
        feed.take(1 << 20)
        log.truncate(10)
        log.append_batch(values(30, 50))
        with pytest.raises(TruncatedError, match="was cut"):
            feed.take(1 << 20)


@pytest.mark.parametrize("seed", range(40))
def test_whatever_is_changed_on_the_way_only_the_masters_records_count(tmp_path: Path, seed: int) -> None:
    """Bits are flipped, and ranges are lost, repeated or swapped. The mirror raises an error or ignores repeated bytes;
    no other record is appended."""
    rng = Random(seed)
    with open_master(tmp_path / "log") as log, make_mirror(tmp_path / "mirror", log) as mirror:
        log.append_batch([rng.randbytes(rng.randint(0, 3000)) for _ in range(100)])
        everything = uncommitted(log)
        for _ in range(4):
            data = bytearray(stream(log, mirror.resume()[0], transfer_bytes=rng.choice((500, 70_000))))
            _spoil(data, rng)
            batch = FrameParser(max_body=1 << 17).feed(data)
            try:
                take_in_frames(mirror, batch)
            except StreamError:
                assert uncommitted(mirror) == everything[: len(uncommitted(mirror))]
        take_in(mirror, stream(log, mirror.resume()[0]))
        assert_same_files(log, mirror)


def take_in_frames(mirror: MirrorLog, batch: FrameBatch) -> None:
    behind = 0
    while behind < len(batch):
        offset, bodies, size, behind = batch.run(behind, mirror.segment_bytes)
        if size:
            mirror.append_replicated(offset, bodies)


def _spoil(data: bytearray, rng: Random) -> None:
    if not data:
        return
    at = rng.randrange(len(data))
    length = rng.choice((1, 8, 64, 1440))
    kind = rng.choice(("flip", "lose", "repeat", "swap", "zero"))
    if kind == "flip":
        data[at] ^= 1 << rng.randrange(8)
    elif kind == "lose":
        del data[at : at + length]
    elif kind == "repeat":
        data[at:at] = data[at : at + length]
    elif kind == "swap":
        data[at : at + 2 * length] = data[at + length : at + 2 * length] + data[at : at + length]
    else:
        data[at : at + length] = bytes(len(data[at : at + length]))
