"""What clients of ledgers keep for a while, beside models that are searched from end to end; sizes and times are of few
values, so that equal ones meet."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pyreplog._native.ledger.pending_adds_base import EntryBatch
from pyreplog._native.ledger_log.entries import encode_entries
from pyreplog.clock import ManualClock
from pyreplog.ledger import quarantine, tail_cache
from pyreplog.ledger.quarantine import Quarantine
from pyreplog.ledger.tail_cache import TailCache

LEDGER = 5
sizes = st.lists(st.sampled_from([0, 8, 100]), min_size=1, max_size=4)


def batch(first: int, numbers: list[int]) -> EntryBatch:
    entries = encode_entries([bytes(size) for size in numbers], ledger=LEDGER, first=first, lac=first - 1, time=1)
    return EntryBatch(first, entries.last, entries.view, entries.offsets, entries.nbytes)


def record_bytes(entry_batch: EntryBatch) -> list[int]:
    return [stop - start for start, stop in zip(entry_batch.offsets[:-1], entry_batch.offsets[1:], strict=True)]


@settings(max_examples=25)
@given(numbers=sizes, first=st.integers(1, 2))
def test_tail_cache_read_returns_as_many_entries_as_fit_the_byte_limit(numbers: list[int], first: int) -> None:
    """At least one entry; of those that fit exactly, the last, too."""
    tail_cache, new_batch = TailCache(LEDGER), batch(first, numbers)
    tail_cache.keep(new_batch)
    behind = new_batch.last + 2
    for low, last in itertools.combinations_with_replacement(range(first - 1, behind), 2):
        wanted = record_bytes(new_batch)[max(low - first, 0) : last + 1 - first]
        sums = list(itertools.accumulate(wanted))
        for bytes_max in sorted({1, *(size + step for size in sums for step in (-1, 0, 1))}):
            got = tail_cache.read(low, last + 1, bytes_max)
            if not first <= low <= new_batch.last:
                assert got is None
            else:
                fit = max(sum(size <= bytes_max for size in sums), 1)
                assert got is not None and got.entry.tolist() == list(range(low, low + fit))


@given(
    beside=st.integers(-1, 1), numbers=sizes, steps=st.lists(st.sampled_from(["small", "large", "told"]), max_size=12)
)
def test_only_the_last_batch_is_kept_and_only_if_it_is_small(beside: int, numbers: list[int], steps: list[str]) -> None:
    """As large as the bound is small."""
    new_batch = batch(0, numbers)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tail_cache, "KEPT_BYTES", new_batch.nbytes + beside)
        cache, kept, first = TailCache(LEDGER), None, 0
        for step in steps:
            if step == "told":
                cache.release()
                kept = None
            else:
                last = batch(first, numbers if step == "small" else [*numbers, 5000])
                cache.keep(last)
                kept = last if step == "small" and beside >= 0 else None
                first = last.last + 1
            for entry in range(first + 1):
                is_there = kept is not None and kept.first <= entry <= kept.last
                assert (cache.read(entry, entry + 1, 1) is not None) == is_there


@given(
    steps=st.lists(
        st.one_of(
            st.tuples(st.sampled_from(["fails", "fails", "back"]), st.sampled_from("ab")),
            st.tuples(st.just("later"), st.sampled_from([1, 2, 3, 4, 5])),
        ),
        max_size=30,
    )
)  # fmt: skip
def test_bookies_are_held_longer_each_time_until_they_were_good_for_long(steps: list[tuple[str, object]]) -> None:
    first, most, clock = 1, 4, ManualClock(0)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(quarantine, "FIRST_S", first)
        patch.setattr(quarantine, "MOST_S", most)
        held = Quarantine(clock, lambda: 1.0)
        until: dict[object, int] = {}
        delay: dict[object, int] = {}
        now = 0
        for step, actual_step in steps:
            if step == "later":
                assert isinstance(actual_step, int)
                clock.advance(actual_step * 1_000_000)
                now += actual_step
            elif step == "fails":
                for name in list(until):
                    if now > until[name] + most:
                        del until[name], delay[name]
                if until.get(actual_step, now) <= now:
                    delay[actual_step] = min(2 * delay[actual_step], most) if actual_step in delay else first
                    until[actual_step] = now + delay[actual_step]
            else:
                held.release([str(actual_step)])
                if actual_step in until:
                    until[actual_step] = min(until[actual_step], now)
            if step == "fails":
                held.add(str(actual_step))
            assert [name in held for name in "ab"] == [until.get(name, 0) > now for name in "ab"]
            assert set(held._held) == set(until)
