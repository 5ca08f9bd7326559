"""What clients of ledgers keep for a while, beside models that are searched from end to end; sizes and times are of few
values, so that equal ones meet."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pyreplog._native.ledger.pending_adds_base import EntryBatch
from pyreplog._native.ledgerlog.entries import encode_entries
from pyreplog.clock import ManualClock
from pyreplog.ledger import quarantine, tail_cache
from pyreplog.ledger.quarantine import Quarantine
from pyreplog.ledger.tail_cache import TailCache

LEDGER = 5
sizes = st.lists(st.sampled_from([0, 8, 100]), min_size=1, max_size=4)


def batch(first: int, found: list[int]) -> EntryBatch:
    made = encode_entries([bytes(size) for size in found], ledger=LEDGER, first=first, lac=first - 1, time=1)
    return EntryBatch(first, made.last, made.view, made.offsets, made.nbytes)


def record_bytes(made: EntryBatch) -> list[int]:
    return [stop - start for start, stop in zip(made.offsets[:-1], made.offsets[1:], strict=True)]


@settings(max_examples=25)
@given(found=sizes, first=st.integers(1, 2))
def test_what_was_written_last_is_read_up_to_so_many_bytes(found: list[int], first: int) -> None:
    """At least one entry; of those that fit exactly, the last, too."""
    there, made = TailCache(LEDGER), batch(first, found)
    there.keep(made)
    behind = made.last + 2
    for low, last in itertools.combinations_with_replacement(range(first - 1, behind), 2):
        wanted = record_bytes(made)[max(low - first, 0) : last + 1 - first]
        sums = list(itertools.accumulate(wanted))
        for bytes_max in sorted({1, *(size + step for size in sums for step in (-1, 0, 1))}):
            got = there.read(low, last + 1, bytes_max)
            if not first <= low <= made.last:
                assert got is None
            else:
                fit = max(sum(size <= bytes_max for size in sums), 1)
                assert got is not None and got.entry.tolist() == list(range(low, low + fit))


@given(beside=st.integers(-1, 1), found=sizes, steps=st.lists(st.sampled_from(["small", "large", "told"]), max_size=12))
def test_only_the_last_batch_is_kept_and_only_if_it_is_small(beside: int, found: list[int], steps: list[str]) -> None:
    """As large as the bound is small."""
    made = batch(0, found)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tail_cache, "KEPT_BYTES", made.nbytes + beside)
        there, kept, first = TailCache(LEDGER), None, 0
        for step in steps:
            if step == "told":
                there.release()
                kept = None
            else:
                last = batch(first, found if step == "small" else [*found, 5000])
                there.keep(last)
                kept = last if step == "small" and beside >= 0 else None
                first = last.last + 1
            for entry in range(first + 1):
                is_there = kept is not None and kept.first <= entry <= kept.last
                assert (there.read(entry, entry + 1, 1) is not None) == is_there


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
        for step, what in steps:
            if step == "later":
                assert isinstance(what, int)
                clock.advance(what * 1_000_000)
                now += what
            elif step == "fails":
                for name in list(until):
                    if now > until[name] + most:
                        del until[name], delay[name]
                if until.get(what, now) <= now:
                    delay[what] = min(2 * delay[what], most) if what in delay else first
                    until[what] = now + delay[what]
            else:
                held.release([str(what)])
                if what in until:
                    until[what] = min(until[what], now)
            if step == "fails":
                held.add(str(what))
            assert [name in held for name in "ab"] == [until.get(name, 0) > now for name in "ab"]
            assert set(held._held) == set(until)
