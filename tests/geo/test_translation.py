"""Translation between offsets of a topic and offsets at origins: runs give what a scan of all messages gives."""

from __future__ import annotations

import itertools
import time

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from pyreplog.geo.acks.origin_ranges import ranges_of
from pyreplog.geo.acks.translation import Translation
from pyreplog.origins.origin import Origin
from tests.switching import race

from .exchanging import origin, whole

LOGS = st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 2)), max_size=30)
"""For each message: its origin, where a is the topic's own, and how many offsets of that origin are left out before it.
"""


def numbered(log: list[tuple[str, int]]) -> list[tuple[str, int]]:
    """Return origin and offset there of each message."""
    ends, messages = {"b": 0, "c": 0}, []
    for local, (letter, gap) in enumerate(log):
        number = local if letter == "a" else ends[letter] + gap
        if letter != "a":
            ends[letter] = number + 1
        messages.append((letter, number))
    return messages


def extend(translation: Translation, messages: list[tuple[str, int]], start: int, end: int) -> None:
    entries = {}
    for letter in "bc":
        locals = np.array([at for at in range(start, end) if messages[at][0] == letter], np.int64)
        numbers = np.array([messages[at][1] for at in locals], np.int64)
        entries[origin(letter)] = numbers, locals, np.ones(len(locals), np.int64)
    translation.extend(entries, end)


def topic_of(log: list[tuple[str, int]], batches: int = 1) -> tuple[Translation, list[tuple[str, int]]]:
    """Return the translation, and origin and offset there of each message."""
    messages, translation = numbered(log), Translation(origin("a"))
    for at in range(batches):
        extend(translation, messages, at * len(log) // batches, (at + 1) * len(log) // batches)
    return translation, messages


@given(LOGS, st.integers(1, 5), st.sets(st.integers(0, 29)))
def test_translation_to_origins_and_back_returns_the_same_offsets(
    log: list[tuple[str, int]], batches: int, chosen: set[int]
) -> None:
    translation, messages = topic_of(log, batches)
    offsets = np.array(sorted(local for local in chosen if local < len(log)), np.int64)
    ranges = ranges_of(offsets, offsets + 1).intersect()
    translated = {at: ranges_of(*own) for at, own in translation.to_origins(ranges).items()}
    for local, (letter, number) in enumerate(messages):
        assert (number in translated.get(origin(letter), ranges_of(*whole(0, 0)))) == (local in chosen)
    back = ranges_of(*whole(0, 0))
    for at, own in translated.items():
        back.add_ranges(*translation.to_local(at, own.intersect()))
    assert back.dump() == ranges_of(*ranges).dump()


def test_another_thread_asks_for_the_runs_while_origins_are_added() -> None:
    """`SubscriptionReplication.position_runs` asks, in any thread."""
    translations = [Translation(origin("a"))]
    names = itertools.count()

    def add() -> None:
        if len(translations[-1].ends()) > 300:
            translations.append(Translation(origin("a")))
        end = translations[-1].end
        one = np.zeros(1, np.int64), np.array([end], np.int64), np.ones(1, np.int64)
        translations[-1].extend({Origin(b"b" * 16, f"{next(names)}"): one}, end + 1)

    race(2000, add, lambda: translations[-1].runs)
    assert translations[0].runs == 300


@given(LOGS, st.integers(1, 5), st.lists(st.integers(0, 30), min_size=1, max_size=3))
def test_a_trimmed_one_is_as_one_that_began_there(log: list[tuple[str, int]], batches: int, starts: list[int]) -> None:
    """A translation that was trimmed equals one that has read only the messages that are left."""
    messages, translation, start = numbered(log), Translation(origin("a")), 0
    for at in range(batches):
        end = (at + 1) * len(log) // batches
        extend(translation, messages, at * len(log) // batches, end)
        if at < len(starts) and start < starts[at] <= end:
            start = starts[at]
            translation.trim(start)
    scanned = Translation(origin("a"), start)
    extend(scanned, messages, start, len(log))
    ours, theirs = (each.foreign_between(0, 1 << 62) for each in (translation, scanned))
    assert [edge.tolist() for edge in ours] == [edge.tolist() for edge in theirs]
    assert translation.runs == scanned.runs and translation.end == scanned.end
    assert translation.held_below(len(log)) == scanned.held_below(len(log))
    offsets = np.arange(31)
    for letter in "abc":
        ours, theirs = (each.to_local(origin(letter), (offsets, offsets + 1)) for each in (translation, scanned))
        assert ours[0].tolist() == theirs[0].tolist()


@given(LOGS, st.integers(0, 30))
def test_a_base_names_what_is_held_and_nothing_else(log: list[tuple[str, int]], below: int) -> None:
    translation, messages = topic_of(log)
    held = translation.held_below(min(below, len(log)))
    assert held.total == min(below, len(log))
    assert all(
        held.contains(origin(letter), number) == (local < below) for local, (letter, number) in enumerate(messages)
    )


@given(LOGS, st.integers(1, 5), st.integers(0, 40), st.integers(0, 40))
def test_a_part_is_as_in_the_whole(log: list[tuple[str, int]], batches: int, one: int, two: int) -> None:
    translation, messages = topic_of(log, batches)
    held = translation.held_from({origin("a"): one, origin("b"): two})
    firsts = {"a": one, "b": two, "c": 0}
    expected = [(letter, number) for letter, number in messages if number >= firsts[letter]]
    assert held.total == len(expected) and all(held.contains(origin(letter), number) for letter, number in expected)
    start, end = sorted((one, two))
    foreign = ranges_of(*translation.foreign_between(start, end))
    others = [local for local, (letter, _) in enumerate(messages) if letter != "a" and start <= local < end]
    assert foreign.total == len(others) and all(local in foreign for local in others)


def test_an_acknowledged_range_stays_one_range_of_the_own_origin() -> None:
    log = [("a" if local % 2 else "b", 0) for local in range(100)]
    translation, _ = topic_of(log)
    starts, ends = translation.to_origins(whole(0, 100))[origin("a")]
    assert (starts.tolist(), ends.tolist()) == ([1], [100])
    assert len(translation.to_local(origin("c"), whole(0, 9))[0]) == 0


@given(LOGS, st.integers(1, 5))
def test_offsets_of_messages_that_have_not_arrived_are_translated_to_none(
    log: list[tuple[str, int]], batches: int
) -> None:
    """An acknowledgement that arrives before its message names no message here, not even the last one."""
    translation, _ = topic_of(log, batches)
    for at, end in {origin("b"): 0, origin("c"): 0, **translation.ends()}.items():
        for early in (whole(end, end + 1), whole(end + 5, end + 9)):
            assert [edges.tolist() for edges in translation.to_local(at, early)] == [[], []]


def alternating(count: int, batch: int) -> Translation:
    """Return a topic in which messages of b alternate with the topic's own, one at a time."""
    translation = Translation(origin("a"))
    for at in range(0, count, batch):
        extend_alternating(translation, at, batch)
    return translation


def extend_alternating(translation: Translation, at: int, batch: int) -> None:
    numbers = np.arange(at, at + batch)
    translation.extend({origin("b"): (numbers * 3, numbers * 2, np.ones(batch, np.int64))}, 2 * (at + batch))


def test_the_cost_follows_what_is_added_and_asked() -> None:
    """With 10^6 runs, 100 entries and 100 ranges take as little time as with few runs: no step walks over all runs."""
    translation = alternating(1_000_000, 10_000)
    assert translation.runs == 1_000_000 and translation.nbytes < 70e6
    starts = np.arange(100) * 20_000
    began = time.process_time()
    for step in range(100):  # 20 s of a busy topic; a step took 0.1 s when it sorted all runs again
        extend_alternating(translation, 1_000_000 + step * 100, 100)
        at_origins = translation.to_origins((starts, starts + 10))
    assert time.process_time() - began < 1.0
    assert int(np.diff(at_origins[origin("b")], axis=0).sum()) == 500


def test_ten_thousand_ranges_over_a_hundred_thousand_runs_take_no_time() -> None:
    """No Python loop runs over messages or runs: the limit is 50 ms, and a loop takes seconds."""
    count = 100_000
    numbers, translation = np.arange(count), Translation(origin("a"))
    translation.extend({origin("b"): (numbers * 10, numbers * 20, np.full(count, 10))}, count * 20)
    starts = np.arange(10_000) * 200
    began = time.process_time()
    at_origin = translation.to_origins((starts, starts + 150))[origin("b")]
    assert time.process_time() - began < 0.5
    assert int((at_origin[1] - at_origin[0]).sum()) == 10_000 * 80
