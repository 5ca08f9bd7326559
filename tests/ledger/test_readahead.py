"""Reading ahead: which ranges are in flight, how many, and in which order they are returned."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from pyreplog._native.ledger_log.entries import encode_entries, parse_entries
from pyreplog._native.log.batch import RecordBatch
from pyreplog.future import AppendFuture, set_result
from pyreplog.ledger.readahead import AHEAD_BYTES, RANGE_BYTES_MAX, REPLY_BYTES, read_ahead


class Source:
    """Entries of one size. A range is complete when it is waited for, and has at most `most` entries. guess: the
    expected size of an entry."""

    def __init__(self, size: int, most: int = 1 << 30, guess: int = 1024) -> None:
        self.size, self.most, self.guess = size, most, guess
        self.asked: list[tuple[int, int]] = []
        self.coming: dict[int, tuple[int, int]] = {}
        self.peak = 0

    def begin(self, start: int, end: int) -> AppendFuture[RecordBatch]:
        future: AppendFuture[RecordBatch] = AppendFuture()
        self.asked.append((start, end))
        self.coming[id(future)] = start, end
        self.peak = max(self.peak, sum(end - start for start, end in self.coming.values()))
        future.add_done_callback(lambda done: self.coming.pop(id(done)))
        return future

    def finish(self, future: AppendFuture[RecordBatch], start: int, end: int) -> RecordBatch:
        assert self.coming[id(future)] == (start, end)
        count = min(end - start, self.most)
        entries = encode_entries([bytes(self.size)] * count, ledger=7, first=start, lac=-1, time=1)
        set_result(future, parse_entries(entries.view, ledger=7, first=start, last=end - 1))
        return future.result()

    def read(self, start: int, end: int, ensemble_size: int = 3, write_quorum: int = 3) -> Iterator[RecordBatch]:
        return read_ahead(start, end, ensemble_size, write_quorum, self.guess, self.begin, self.finish)


def entries(batches: Iterator[RecordBatch]) -> list[int]:
    return [entry for batch in batches for entry in batch.entry.tolist()]


@pytest.mark.parametrize("guess", [0, 100, 20_000, 1 << 40])
@pytest.mark.parametrize("most", [1, 7, 1 << 30])
@pytest.mark.parametrize(("start", "end"), [(0, 0), (0, 1), (5, 6), (3, 301), (0, 300)])
def test_readahead_returns_every_entry_once_and_in_order(guess: int, most: int, start: int, end: int) -> None:
    source = Source(20_000, most, guess)
    assert entries(source.read(start, end)) == list(range(start, end))


def test_readahead_begins_anew_when_records_are_much_larger_than_expected() -> None:
    """Otherwise each of the long ranges would be read alone, one batch at a time."""
    source = Source(100_000, most=40)
    batches = source.read(0, 10**6)
    assert len(next(batches)) == 40
    assert source.asked[0] == (0, REPLY_BYTES // 1024 // 3 * 3 + 1)
    next(batches)
    assert [first for first, _ in source.asked[-3:]] == [40 + 19 * n for n in range(1, 4)]


def test_nothing_is_read_before_it_is_wanted() -> None:
    source = Source(100)
    batches = source.read(0, 10**9)
    assert source.asked == []
    next(batches)
    assert source.asked != []


@pytest.mark.parametrize("quorums", [(1, 1), (3, 3), (5, 3), (64, 1)])
@pytest.mark.parametrize("size", [10, 1000, 50_000])
def test_bytes_in_flight_are_bounded(quorums: tuple[int, int], size: int) -> None:
    """The bound holds after the first batches, when the size of records is known. Several ranges are in flight, unless
    they are very long."""
    source = Source(size)
    batches = source.read(0, 10**9, *quorums)
    for _ in range(8):
        next(batches)
    source.peak = 0
    for _ in range(4):
        next(batches)
    assert source.peak * size <= max(AHEAD_BYTES, 2 * (RANGE_BYTES_MAX // 2)) + 2 * quorums[0] * size
    range_bytes = min(REPLY_BYTES * quorums[0] // quorums[1], RANGE_BYTES_MAX // 2)
    assert source.peak * (size + 72) > 2 * range_bytes - 2 * quorums[0] * (size + 72)


def test_ranges_begin_at_one_bookie_after_the_other() -> None:
    source = Source(1000)
    batches = source.read(0, 10**9, 5, 3)
    for _ in range(20):
        next(batches)
    assert {first % 5 for first, _ in source.asked} == set(range(5))


def test_failed_read_ends_the_iteration() -> None:
    source = Source(1000)
    batches = source.read(0, 10**9)
    next(batches)
    source.coming.clear()
    with pytest.raises(KeyError):
        next(batches)
    assert list(batches) == []
