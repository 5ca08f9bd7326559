"""Logs with copies of a segment that are compacted in different ways, and how one copy takes the place of another."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from random import Random

import pytest

from pyreplog._native.kafka.record_batch import encode_batch, encode_records
from pyreplog._native.log.segment import HEADER_BYTES
from pyreplog._native.system.checksum import crc32c
from pyreplog.errors import CorruptionError, InvalidArgumentError, StreamError
from pyreplog.log import names
from pyreplog.log.files import RealFiles
from pyreplog.log.fsck.check import check
from pyreplog.partition.config import CompactionConfig
from pyreplog.partition.protocol.record_batch import stamped
from pyreplog.partition.store.log_cleaner import CleaningBounds, LogCleaner
from pyreplog.partition.store.partition_log import PartitionLog
from pyreplog.partition.store.segment_copy import SegmentCopy, SegmentDigest, digest_of
from tests.ha.streams import SEGMENT_BYTES

from .partition_logs import catch_up, epoch, fetch, open_replica

CONFIG = CompactionConfig(min_dirty_ratio=0.0)
NOW_US = 1 << 60


@pytest.fixture
def logs(tmp_path: Path) -> Iterator[list[PartitionLog]]:
    with ExitStack() as stack:
        yield [stack.enter_context(open_replica(tmp_path / name)) for name in "ab"]
    for name in "ab":
        assert check(tmp_path / name).damages == ()


def fill(log: PartitionLog, rng: Random, segments: int, *, epochs: bool = False) -> None:
    """Lead, and append batches of few keys until so many segments are full. epochs: others begin in between, some of them
    without a record."""
    number = 1
    log.lead(epoch(number))
    while log.end_mark.position < segments * SEGMENT_BYTES:
        first, count = log.end_mark.entry, rng.choice((1, 3))
        keys = [rng.choice((b"a", b"b", b"c")) for _ in range(count)]
        body = encode_records([rng.randbytes(rng.choice((10, 1500))) for _ in keys], keys, [1000] * count, None)
        data = encode_batch(body, count, base_timestamp=1000, max_timestamp=1000)
        log.append_records([stamped(data, first, 1)], [count])
        while epochs and rng.random() < 0.05:
            number += 1
            log.stop_leading()
            log.lead(epoch(number))


def clean(log: PartitionLog) -> LogCleaner:
    log.show_high_watermark(log.end_mark)
    log.sync()
    log.run_background_tasks()
    cleaner = LogCleaner(log, RealFiles())
    cleaner.clean(CleaningBounds(log.end_mark, (), {}), CONFIG, NOW_US, 1 << 20)
    return cleaner


def digests(log: PartitionLog) -> list[SegmentDigest]:
    return [digest_of(log, each) for each in log.cleanable_segments(log.end_mark, NOW_US)]


def content(log: PartitionLog, digest: SegmentDigest) -> bytes:
    return names.segment_path(log.path, digest.base).read_bytes()


def test_a_fetch_does_not_end_where_epochs_are_unclear(logs: list[PartitionLog], seed: int) -> None:
    """Compaction moves the record of an epoch in front of the position where the epoch began."""
    rng, (leader, follower) = Random(seed), logs
    fill(leader, rng, 3, epochs=True)
    clean(leader)
    while follower.end_mark != leader.end_mark:
        fetch(leader, follower, rng.choice((1, 1, 500, 5000)))
        assert follower.history == leader.history.up_to(follower.end_mark)
    follower.sync()
    follower.run_background_tasks()
    assert digests(follower) == digests(leader)


def test_a_follower_at_the_end_of_another_copy_of_a_segment(logs: list[PartitionLog], seed: int) -> None:
    """Its segment ends further behind than the leader's compacted one. The next one begins at the same position."""
    leader, follower = logs
    fill(leader, Random(seed), 2)
    leader.sync()
    leader.run_background_tasks()
    first = digests(leader)[0]
    end = first.size - 32, first.end
    while follower.end_mark != end:
        follower.append_fetched(leader.read_frames(follower.end_mark, 5000, until=type(leader.end_mark)(*end)))
    clean(leader)
    assert digests(leader)[0].size < first.size
    catch_up(leader, follower)
    follower.sync()
    follower.run_background_tasks()
    assert digests(follower)[0] == first
    assert digests(follower)[1:] == digests(leader)[1:]
    follower.show_high_watermark(follower.end_mark)
    entries = [record.entry for batch in follower.read_positions(0) for record in batch]
    assert entries == sorted({*entries})


def test_copy_that_differs_from_the_named_segment_is_refused(logs: list[PartitionLog], seed: int) -> None:
    rng, (leader, follower) = Random(seed), logs
    fill(leader, rng, 3)
    catch_up(leader, follower)
    follower.sync()
    follower.run_background_tasks()
    clean(leader)
    one, other = digests(leader)[:2]
    before = content(follower, one)
    good = content(leader, one)[: one.size]
    at = rng.randrange(HEADER_BYTES, one.size)
    flipped = good[:at] + bytes([good[at] ^ 1 << rng.randrange(8)]) + good[at + 1 :]
    foreign = content(leader, other)[: other.size]
    for digest, data in (
        (one, flipped),
        (one, good[:-8]),
        (one._replace(crc=one.crc ^ 1), good),
        (one._replace(crc=crc32c(flipped)), flipped),
        (one._replace(size=other.size, crc=other.crc), foreign),
        (one._replace(end=one.end + 1), good),
        (one._replace(size=one.size - 8, crc=crc32c(good[:-8])), good[:-8]),
    ):
        copy = SegmentCopy(follower, RealFiles(), digest)
        copy.write(data)
        with pytest.raises((StreamError, CorruptionError)):
            copy.finish()
        copy.discard()
    copy = SegmentCopy(follower, RealFiles(), one)
    with pytest.raises(StreamError, match="1 to"):
        copy.write(good + b"x")
    copy.discard()
    with pytest.raises(InvalidArgumentError, match="size: expected at most"):
        SegmentCopy(follower, RealFiles(), one._replace(size=SEGMENT_BYTES + 1))
    assert content(follower, one) == before
    assert list(follower.path.glob("fresh-*")) == []


def test_a_log_that_was_cut_is_dirty_again(logs: list[PartitionLog], seed: int) -> None:
    leader, _ = logs
    fill(leader, Random(seed), 3)
    cleaner = clean(leader)
    cleaned = cleaner.cleaned
    cleaner.begin()
    cleaner.forget_from(cleaned + 5)
    cleaner.note_cleaned(cleaned + 1)  # of a cleaning that began before the cut
    assert cleaner.cleaned == cleaned
    cleaner.forget_from(cleaned - 5)
    for each in (cleaner, LogCleaner(leader, RealFiles())):
        assert each.cleaned == cleaned - 5
