"""Searching an entry by offset or time takes few steps, however the messages are spread over entries."""

from __future__ import annotations

import math
from itertools import accumulate

from hypothesis import given
from hypothesis import strategies as st

from pyreplog.topic.model.positions import EntryPosition, FirstSearch, OffsetSearch

COUNTS = st.lists(st.one_of(st.just(1), st.integers(1, 5), st.integers(1, 10_000)), min_size=1, max_size=300)


def places(counts: list[int], start: int) -> list[EntryPosition]:
    firsts = list(accumulate(counts, initial=start))
    return [EntryPosition(7, at, firsts[at], count, 1, at, at) for at, count in enumerate(counts)]


def hunt(
    search: OffsetSearch | FirstSearch, entry_positions: list[EntryPosition], times: list[int] | None = None
) -> int:
    """Search; return how many entries were read."""
    steps = 0
    while (entry := search.next()) is not None:
        steps += 1
        search.observe(entry_positions[entry], times[entry] if times else 0)
    return steps


@given(COUNTS, st.data())
def test_every_offset_is_found(counts: list[int], data: st.DataObject) -> None:
    start = data.draw(st.integers(0, 1000))
    positions = places(counts, start)
    offset = data.draw(st.integers(start, positions[-1].end - 1))
    search = OffsetSearch(offset, len(positions), start, positions[-1].end)
    steps = hunt(search, positions)
    assert search.found is not None and search.found.first <= offset < search.found.end
    assert steps <= 2 * math.ceil(math.log2(len(positions) + 1)) + 1


def test_entries_alike_are_found_at_once() -> None:
    positions = places([64] * 100_000, 5)
    for offset in range(5, positions[-1].end, 99_991):
        assert hunt(OffsetSearch(offset, len(positions), 5, positions[-1].end), positions) == 1


def test_an_offset_is_found_in_few_steps_among_uneven_entries() -> None:
    """One entry has nearly all messages, which misleads a search that interpolates."""
    positions = places([1] * 4095 + [1 << 40], 0)
    for offset in (0, 1, 2048, 4094, 4095, 1 << 39):
        search = OffsetSearch(offset, len(positions), 0, positions[-1].end)
        assert hunt(search, positions) <= 26
        assert search.found == positions[min(offset, 4095)]


def test_offset_search_ends_without_a_result_when_entries_contradict_the_chain() -> None:
    """Entries that contradict the chain end the search as well."""
    search = OffsetSearch(50, 3, 0, 100)
    hunt(search, places([1, 1, 1], 0))
    assert search.found is None


@given(st.lists(st.integers(0, 20), min_size=1, max_size=60), st.integers(-1, 22), st.sampled_from((None, 0)))
def test_a_time_is_found_in_few_steps(times: list[int], wanted: int, guess: int | None) -> None:
    times.sort()
    positions = places([2] * len(times), 0)
    search = FirstSearch(len(times), lambda _, time_us: time_us >= wanted, guess=guess)
    steps = hunt(search, positions, times)
    assert steps <= math.ceil(math.log2(len(times) + 1)) + 1 and (
        steps == 1 or guess is None or search.found != positions[0]
    )
    assert search.found == next((place for place, at in zip(positions, times, strict=True) if at >= wanted), None)
