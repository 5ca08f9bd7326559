"""Global producers: a sequence number that is stored, from any cluster, is not stored again. A number that is not known
to be stored is new, even below the highest one."""

from __future__ import annotations

import struct
from collections import deque
from typing import Any, NamedTuple

import numpy
import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from pyreplog.errors import InvalidMetadataError, MetadataVersionError
from pyreplog.topic.model import dedup
from pyreplog.topic.model.dedup import LOCAL, DedupVerdict, GlobalProducers

NEW, DUPLICATE, IN_DOUBT = DedupVerdict.NEW, DedupVerdict.DUPLICATE, DedupVerdict.IN_DOUBT
NAMES = (b"a", b"b")
NUMBERS = range(12)
ORIGINS = (11, 12, (1 << 64) - 1)
SAME_CLUSTER = {11: (11, 12), 12: (11, 12), ORIGINS[2]: (ORIGINS[2],)}


class Push(NamedTuple):
    """One entry."""

    name: bytes
    origin: int
    numbers: list[int]


class Entries:
    """Entries of a topic, in the form that `Producers.replay` reads."""

    def __init__(self, log: list[Push]) -> None:
        self.sequence = numpy.array([number for push in log for number in push.numbers], numpy.int64)
        self.publish_time = numpy.arange(len(self.sequence), dtype=numpy.int64)
        self.entry_count = numpy.array([len(push.numbers) for push in log], numpy.int64)
        self.entry_sequence = numpy.array([push.numbers[-1] for push in log], numpy.int64)
        self.entry_producer = [push.name for push in log]
        self.entry_origin_first = numpy.array([-1 if push.origin == LOCAL else 0 for push in log], numpy.int64)
        self.entry_origin_key = numpy.array([push.origin for push in log], numpy.uint64)


class Restarts(RuleBasedStateMachine):
    """Messages are published here, and replicated from two topics of one cluster and one of another. Each write may
    fail, and the owner may crash at any point. Plain sets give the expected results."""

    def __init__(self) -> None:
        super().__init__()
        self.producers = GlobalProducers()
        self.log: list[Push] = []
        self.flights: deque[Push] = deque()
        self.take_snapshot()

    def of(self, pushes: Any, name: bytes, without: tuple[int, ...] = ()) -> set[int]:
        return {
            number for push in pushes if push.name == name and push.origin not in without for number in push.numbers
        }

    def expected(self, name: bytes, number: int) -> DedupVerdict:
        if number in self.of(self.log, name):
            return DUPLICATE
        return IN_DOUBT if number in self.of(self.flights, name) else NEW

    def push(self, push: Push) -> None:
        self.producers.push(push.name, numpy.array(push.numbers), push.origin)
        self.flights.append(push)

    @rule(name=st.sampled_from(NAMES), numbers=st.sets(st.sampled_from(NUMBERS), min_size=1, max_size=5))
    def publish(self, name: bytes, numbers: set[int]) -> None:
        column = numpy.array(sorted(numbers))
        verdicts = [self.expected(name, number) for number in column.tolist()]
        new = self.producers.find_new(name, column)
        if IN_DOUBT in verdicts:
            assert new is None
            return
        assert new is not None and new.tolist() == [verdict is NEW for verdict in verdicts]
        if new.any():
            self.push(Push(name, LOCAL, column[new].tolist()))

    @rule(
        name=st.sampled_from(NAMES), numbers=st.sets(st.sampled_from(NUMBERS), min_size=1, max_size=5),
        origin=st.sampled_from(ORIGINS),
    )  # fmt: skip
    def replicate(self, name: bytes, numbers: set[int], origin: int) -> None:
        same = SAME_CLUSTER[origin]
        stored, flying = self.of(self.log, name, same), self.of(self.flights, name, same)
        verdict = self.producers.check_copy(name, numpy.array(sorted(numbers)), same)
        if numbers <= stored:
            assert verdict is DUPLICATE
        elif numbers <= stored | flying:
            assert verdict is IN_DOUBT
        else:
            assert verdict is NEW
            self.push(Push(name, origin, sorted(numbers)))

    @rule()
    def store(self) -> None:
        if self.flights:
            push = self.flights.popleft()
            self.log.append(push)
            self.producers.persisted(push.name, numpy.array(push.numbers), len(self.log), push.origin)

    @rule()
    def fail(self) -> None:
        if self.flights:
            push = self.flights.pop()
            self.producers.failed(push.name, numpy.array(push.numbers), push.origin)

    @rule()
    def take_snapshot(self) -> None:
        self.snapshot, self.stored_then = self.producers.snapshot(), len(self.log)

    @rule(stored=st.integers(0, 5), again=st.integers(0, 3))
    def crash(self, stored: int, again: int) -> None:
        self.log += list(self.flights)[:stored]
        self.flights.clear()
        self.producers = GlobalProducers()
        self.producers.restore(self.snapshot)
        self.producers.replay(Entries(self.log[max(self.stored_then - again, 0) :]))

    @invariant()
    def all_numbers_are_known(self) -> None:
        for name in NAMES:
            assert self.producers.last_sequence(name) == max(self.of(self.log, name), default=-1)
            for number in NUMBERS:
                assert self.producers.check_sequence(name, number) is self.expected(name, number)


TestRestarts = Restarts.TestCase


def started(*numbers: int, origin: int = LOCAL, name: bytes = b"p") -> GlobalProducers:
    producers = GlobalProducers()
    for number in numbers:
        producers.push(name, (number,), origin)
        producers.persisted(name, (number,), number, origin)
    return producers


def test_a_number_below_the_highest_one_is_new_unless_it_is_stored() -> None:
    producers = started(1, 2, 7)
    assert [producers.check_sequence(b"p", number) for number in (1, 2, 3, 4, 7)] == [
        DUPLICATE,
        DUPLICATE,
        NEW,
        NEW,
        DUPLICATE,
    ]
    assert producers.check_copy(b"p", (3, 4), (11,)) is NEW, "the originals are still on their way"


def test_an_entry_is_a_copy_only_if_all_of_its_messages_are_stored() -> None:
    producers = started(1, 2)
    assert producers.check_copy(b"p", (1, 2), (11,)) is DUPLICATE
    assert producers.check_copy(b"p", (1, 2, 3), (11,)) is NEW
    producers.push(b"p", (3,))
    assert producers.check_copy(b"p", (1, 2, 3), (11,)) is IN_DOUBT
    producers.wait(b"p", "entry")
    assert producers.failed(b"p", (3,)) == ["entry"]
    assert producers.check_copy(b"p", (1, 2, 3), (11,)) is NEW


def test_a_topic_that_was_made_anew_in_its_cluster_may_begin_with_the_same_numbers() -> None:
    producers = started(1, 2, origin=11)
    assert producers.check_copy(b"p", (1, 2), (11, 12)) is NEW
    assert producers.check_copy(b"p", (1, 2), (13,)) is DUPLICATE


def test_consecutive_numbers_cost_one_range() -> None:
    producers = GlobalProducers()
    for first in range(0, 10_000, 100):
        producers.push(b"p", range(first, first + 100))
        producers.persisted(b"p", range(first, first + 100), 0)
    assert len(producers.snapshot()) < 64


def test_numbers_published_here_that_were_forgotten_are_duplicates(monkeypatch: pytest.MonkeyPatch) -> None:
    """They are duplicates as without global producers, by the highest number. Numbers of other clusters are unknown,
    and count as new."""
    monkeypatch.setattr(dedup, "STORED_RANGES_MAX", 3)
    producers = started(*range(0, 20, 2))
    restored = GlobalProducers()
    restored.restore(producers.snapshot())
    for known in (producers, restored):
        assert [known.check_sequence(b"p", number) for number in (0, 12, 14, 15, 17, 18)] == [
            DUPLICATE, DUPLICATE, DUPLICATE, NEW, NEW, DUPLICATE,
        ]  # fmt: skip
        assert known.check_copy(b"p", (12,), (11,)) is NEW
    assert started(*range(0, 20, 2), origin=11).check_sequence(b"p", 12) is NEW


def test_the_producers_that_published_longest_ago_are_forgotten_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dedup, "TOTAL_RANGES_MAX", 6)
    producers = GlobalProducers()
    for name in (b"a", b"b", b"c"):
        producers.push(name, (1, 3, 5))
        producers.persisted(name, (1, 3, 5), 0)
    assert [producers.last_sequence(name) for name in (b"a", b"b", b"c")] == [-1, 5, 5]


def test_a_malformed_snapshot_is_refused() -> None:
    data = started(1, 3).snapshot()
    for wrong in (data[:-1], data[:5], data + b"\0", data[:4] + b"\2" + data[5:], b""):
        with pytest.raises(InvalidMetadataError):
            GlobalProducers().restore(wrong)
    with pytest.raises(MetadataVersionError):
        GlobalProducers().restore(struct.pack("<HH", 2, 2) + data[4:])
    later = bytearray(data)
    later[:4] = struct.pack("<HH", 2, 1)  # a later version, with one more field
    later[8:10] = struct.pack("<H", 24 + 8)
    later[32:32] = bytes(8)
    restored = GlobalProducers()
    restored.restore(bytes(later))
    assert restored.check_sequence(b"p", 3) is DUPLICATE
