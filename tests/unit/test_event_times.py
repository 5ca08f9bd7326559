"""Entries by the producers' times: the same as a filter over a full scan, and blocks without any are skipped."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

import pyreplog
from pyreplog._native.log.segment import Segment
from pyreplog.log import commit_log


@pytest.fixture(params=["appended", "synced"])
def log(tmp_path: Path, request: pytest.FixtureRequest):
    rng = random.Random(7)
    with pyreplog.open(tmp_path / "log", segment_bytes=1 << 18, durability=request.param) as log:
        for number in range(120):  # rising with some noise, with entries that have none, over several segments
            values = [b"%d" % n + b"x" * rng.randrange(120) for n in range(60)]
            times = [rng.choice([None, number * 1000 + rng.randrange(-3000, 3000)]) for _ in values]
            log.append_batch(values, event_times=times, control=b"c" if number % 7 == 0 else None)
        log.sync()
        yield log


@pytest.mark.parametrize("reading", ["a", "r", "reopened"])
def test_same_as_a_filter_over_all(log, reading):
    expected = {r.entry: r.event_time for batch in log.read() for r in batch if r.event_time is not None}
    path = log.path
    if reading == "reopened":
        log.close()
    handle = log if reading == "a" else pyreplog.open(path, mode="r")
    for low, high in [
        (0, 1000),
        (50_000, 52_000),
        (-(1 << 62), 1 << 62),
        (119_000, 1 << 40),
        (7, 7),
        (1 << 50, 1 << 51),
    ]:
        rows = [(r.entry, r.event_time) for batch in handle.read_event_times(low, high) for r in batch]
        assert rows == [(entry, time) for entry, time in expected.items() if low <= time < high]
    handle.close()


def test_blocks_out_of_the_range_are_not_scanned(log, monkeypatch):
    monkeypatch.setattr(commit_log, "LAZY_SYNC_S", -1.0)
    log.sync()
    log.run_background_tasks()
    whole = sum(1 for _ in log.read(batch_bytes=1 << 16))
    narrow = sum(1 for _ in log.read_event_times(60_000, 60_500))
    assert 0 < narrow < whole / 3


def test_a_wrong_index_is_not_believed(log):
    """An index file with one bit flipped is made again, and finds the same."""
    expected = [r.entry for batch in log.read_event_times(30_000, 40_000) for r in batch]
    log.close()
    for path in log.path.glob("*.idx"):
        data = bytearray(path.read_bytes())
        data[-20] ^= 1
        path.write_bytes(data)
    with pyreplog.open(log.path) as again:
        assert [r.entry for batch in again.read_event_times(30_000, 40_000) for r in batch] == expected


def test_selected_rows_of_a_batch(log):
    batch = next(log.read())
    some = batch.select([0, 5, 6])
    assert [r.entry for r in some] == [0, 5, 6]
    assert some.size.tolist() == batch.size[[0, 5, 6]].tolist()
    assert some.entry.tolist() == [0, 5, 6]
    with pytest.raises(IndexError):
        batch.select([len(batch)])
    assert isinstance(log.hold_segment(0)[1], Segment)


def test_index_returns_blocks_with_event_times_in_a_range(tmp_path):
    """All that have some, and no others; adjacent ones are one range."""
    block = 64 << 10
    with pyreplog.open(tmp_path / "blocks", segment_bytes=1 << 20) as log:
        times = [entry // 65 * 3 % 7 if entry // 195 % 2 else None for entry in range(900)]
        for time in times:
            log.append(bytes(1000), event_time=time)
        _pin, segment = log.hold_segment(0)
        by_block = {}
        for entry, time in enumerate(times):
            if time is not None:
                by_block.setdefault(log.position_of(entry) // block, []).append(time)
        assert len(by_block) > 5 and max(by_block) - min(by_block) > len(by_block), "there are gaps"
        for low in range(-1, 13):
            for high in range(low, 13):
                wanted = [at for at, found in by_block.items() if min(found) < high and max(found) >= low]
                ranges = []
                for at in sorted(wanted):
                    if ranges and ranges[-1][1] == at * block:
                        ranges[-1] = ranges[-1][0], (at + 1) * block
                    else:
                        ranges.append((at * block, (at + 1) * block))
                assert segment.index.event_time_blocks(low, high) == ranges, (low, high)
