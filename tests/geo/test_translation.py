"""Offsets of a topic as offsets at origins, and back: runs give what a scan of all messages gives."""

from __future__ import annotations

import time

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from pyreplog.geo.acks.origin_ranges import ranges_of
from pyreplog.geo.acks.translation import Runs, Translation

from .exchanging import origin, whole

LOGS = st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 2)), max_size=30)
"""Of each message its origin, a the topic's own, and how many offsets of that origin are left out before it."""


def topic_of(log: list[tuple[str, int]]) -> tuple[Translation, list[tuple[str, int]]]:
    """Return the translation, and (origin, offset there) of each message."""
    ends = {"b": 0, "c": 0}
    runs: dict[str, list[tuple[int, int, int]]] = {"b": [], "c": []}
    messages = []
    for local, (letter, gap) in enumerate(log):
        if letter == "a":
            messages.append(("a", local))
            continue
        number = ends[letter] + gap
        ends[letter] = number + 1
        messages.append((letter, number))
        runs[letter].append((number, local, 1))
    return Translation(origin("a"), len(log), {origin(name): Runs.of(own) for name, own in runs.items()}), messages


@given(LOGS, st.sets(st.integers(0, 29)))
def test_there_and_back(log: list[tuple[str, int]], chosen: set[int]) -> None:
    translation, messages = topic_of(log)
    offsets = np.array(sorted(local for local in chosen if local < len(log)), np.int64)
    ranges = ranges_of(offsets, offsets + 1).intersect()
    translated = {at: ranges_of(*own) for at, own in translation.to_origins(ranges).items()}
    for local, (letter, number) in enumerate(messages):
        assert (number in translated.get(origin(letter), ranges_of(*whole(0, 0)))) == (local in chosen)
    back = ranges_of(*whole(0, 0))
    for at, own in translated.items():
        back.add_ranges(*translation.to_local(at, own.intersect()))
    assert back.dump() == ranges_of(*ranges).dump()


@given(LOGS, st.integers(0, 30))
def test_a_base_names_what_is_held_and_nothing_else(log: list[tuple[str, int]], below: int) -> None:
    translation, messages = topic_of(log)
    held = translation.held_below(min(below, len(log)))
    assert held.total == min(below, len(log))
    assert all(
        held.contains(origin(letter), number) == (local < below) for local, (letter, number) in enumerate(messages)
    )


def test_an_acknowledged_range_stays_one_range_of_the_own_origin() -> None:
    log = [("a" if local % 2 else "b", 0) for local in range(100)]
    translation, _ = topic_of(log)
    starts, ends = translation.to_origins(whole(0, 100))[origin("a")]
    assert (starts.tolist(), ends.tolist()) == ([1], [100])
    assert len(translation.to_local(origin("c"), whole(0, 9))[0]) == 0


def test_ten_thousand_ranges_over_a_hundred_thousand_runs_take_no_time() -> None:
    """No Python for each message, nor for each run: well below 50 ms, where a loop takes seconds."""
    count = 100_000
    numbers = np.arange(count)
    runs = Runs(numbers * 10, numbers * 20, np.full(count, 10))
    starts = np.arange(10_000) * 200
    began = time.process_time()
    at_origin = runs.to_origin((starts, starts + 150))
    assert time.process_time() - began < 0.5
    assert int((at_origin[1] - at_origin[0]).sum()) == 10_000 * 80
