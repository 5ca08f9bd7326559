"""Producers and their sequence numbers: no stored number is accepted again, and no other is refused."""

from __future__ import annotations

import struct
from typing import Any

import numpy
import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from pyreplog.errors import InvalidMetadataError
from pyreplog.topic.model.dedup import FAILED_RANGES_MAX, DedupVerdict, Producers
from tests.topic.dedup_model import Model, entries_of

NEW, DUPLICATE, IN_DOUBT = DedupVerdict.NEW, DedupVerdict.DUPLICATE, DedupVerdict.IN_DOUBT
NAMES = (b"a", b"b")
NUMBERS = range(14)


class Restarts(RuleBasedStateMachine):
    """Each write may fail, and the owner may crash at any point. The next owner starts with the last snapshot and the
    messages stored after it."""

    def __init__(self) -> None:
        super().__init__()
        self.producers, self.model = Producers(), Model()
        self.now = 0
        self.take_snapshot()

    @rule(name=st.sampled_from(NAMES), number=st.sampled_from(NUMBERS))
    def publish(self, name: bytes, number: int) -> None:
        verdict = self.producers.check_sequence(name, number)
        assert verdict is self.model.check_sequence(name, number)
        if verdict is NEW:
            self.producers.push(name, (number,))
            self.model.push(name, [number])

    @rule(name=st.sampled_from(NAMES), numbers=st.sets(st.sampled_from(NUMBERS), min_size=1, max_size=5))
    def publish_batch(self, name: bytes, numbers: set[int]) -> None:
        column = numpy.array(sorted(numbers))
        expected = [self.model.check_sequence(name, number) for number in column.tolist()]
        new = self.producers.find_new(name, column)
        if IN_DOUBT in expected:
            assert new is None
            return
        assert new is not None and new.tolist() == [verdict is NEW for verdict in expected]
        if new.any():
            self.producers.push(name, column[new])
            self.model.push(name, column[new].tolist())

    @rule()
    def store(self) -> None:
        if self.model.flights:
            self.now += 1
            assert self.producers.persisted(*self.model.store(), self.now) == []

    @rule()
    def fail(self) -> None:
        if self.model.flights:
            self.producers.failed(*self.model.fail())
            assert self.producers.has_new_failures

    @rule()
    def take_snapshot(self) -> None:
        self.snapshot, self.stored_then = self.producers.snapshot(), len(self.model.log)
        self.missing_then = self.model.missing()
        assert not self.producers.has_new_failures

    @rule(stored=st.integers(0, 5), again=st.integers(0, 3))
    def crash(self, stored: int, again: int) -> None:
        self.model.crash(stored, self.missing_then)
        self.producers = Producers()
        self.producers.restore(self.snapshot)
        first = max(self.stored_then - again, 0)  # reading some entries twice does no harm
        if len(self.model.log) > first:
            self.producers.replay(entries_of(self.model.log, first))

    @invariant()
    def all_numbers_are_known(self) -> None:
        for name in NAMES:
            stored = self.model.stored.get(name, set())
            assert self.producers.last_sequence(name) == max(stored, default=-1)
            for number in NUMBERS:
                assert self.producers.check_sequence(name, number) is self.model.check_sequence(name, number)


TestRestarts = Restarts.TestCase


def started(*numbers: int, name: bytes = b"p") -> Producers:
    """Return producers for which these numbers are stored."""
    producers = Producers()
    for number in numbers:
        producers.push(name, (number,))
        producers.persisted(name, (number,), number)
    return producers


def test_a_head_that_failed_alone_is_new_whatever_was_stored_behind_it() -> None:
    producers = Producers()
    for number in (1, 2, 3):
        producers.push(b"p", (number,))
    producers.failed(b"p", (1,))
    producers.persisted(b"p", range(2, 4), 0)
    assert [producers.check_sequence(b"p", number) for number in (1, 2, 3, 4)] == [NEW, DUPLICATE, DUPLICATE, NEW]
    producers.push(b"p", (1,))
    assert producers.check_sequence(b"p", 1) is IN_DOUBT, "it is on its way again"
    producers.persisted(b"p", (1,), 0)
    assert producers.check_sequence(b"p", 1) is DUPLICATE
    assert producers.last_sequence(b"p") == 3


def test_a_failure_makes_its_numbers_the_next_ones_again() -> None:
    producers = started(4)
    producers.push(b"p", range(5, 8))
    assert producers.next_sequence(b"p") == 8
    producers.failed(b"p", range(5, 8))
    assert producers.next_sequence(b"p") == 5


def test_waiting_entrants_are_admitted_when_the_outcome_is_known() -> None:
    producers = Producers()
    producers.push(b"p", (1,))
    producers.push(b"p", (2,))
    producers.push(b"q", (2,))
    producers.wait(b"p", "one")
    producers.wait(b"p", "two")
    assert producers.persisted(b"q", (2,), 0) == []
    assert producers.persisted(b"p", (1,), 0) == ["one", "two"]
    producers.wait(b"p", "one")
    assert producers.failed(b"p", (2,)) == ["one"]
    producers.push(b"p", (2,))
    producers.wait(b"p", "three")
    assert producers.drop_waiting() == ["three"]
    assert producers.persisted(b"p", (2,), 0) == []


def test_least_recently_active_producers_are_forgotten_unless_messages_are_in_flight() -> None:
    producers = Producers(producers_max=3)
    for name in (b"a", b"b", b"c"):
        producers.push(name, (1,))
        producers.persisted(name, (1,), 0)
    producers.push(b"a", (2,))
    producers.push(b"d", (1,))
    assert [producers.check_sequence(name, 1) for name in (b"a", b"b", b"c")] == [DUPLICATE, NEW, DUPLICATE]
    producers.push(b"c", (2,))
    producers.push(b"e", (1,))
    assert len(producers) == 4, "all have something on its way"
    producers.persisted(b"a", (2,), 0)
    producers.persisted(b"c", (2,), 0)
    producers.push(b"f", (1,))
    assert [producers.last_sequence(name) for name in (b"a", b"c")] == [-1, -1], "what was too many goes with the next"
    assert len(producers) == 3


def test_a_restart_keeps_the_producers_that_were_active_last() -> None:
    producers = started(1, 2, 3)
    for name in (b"x", b"y", b"z"):
        producers.push(name, (7,))
        producers.persisted(name, (7,), 100)
    after = Producers(producers_max=2)
    after.restore(producers.snapshot())
    assert [after.last_sequence(name) for name in (b"p", b"x", b"y", b"z")] == [-1, -1, 7, 7]
    after.replay(entries_of([(b"y", [8]), (b"w", [0])], 0))
    assert [after.last_sequence(name) for name in (b"y", b"z", b"w")] == [8, -1, 0]


def test_a_snapshot_leaves_out_what_is_on_its_way() -> None:
    producers = started(5)
    producers.push(b"p", (6,))
    after = Producers()
    after.restore(producers.snapshot())
    assert [after.check_sequence(b"p", number) for number in (5, 6)] == [DUPLICATE, NEW]


def test_idle_producers_are_purged() -> None:
    producers = started(5)
    for name, now in ((b"x", 9), (b"y", 10)):
        producers.push(name, (1,))
        producers.persisted(name, (1,), now)
    producers.push(b"x", (2,))
    assert producers.purge(10) == 1
    assert [producers.last_sequence(name) for name in (b"p", b"x", b"y")] == [-1, 1, 1]
    after = Producers()
    after.restore(producers.snapshot())
    assert after.purge(10) == 1, "a snapshot says when they were active"


def test_entries_without_a_producer_or_numbers_belong_to_no_producer() -> None:
    producers = Producers()
    batch: Any = entries_of([(b"p", [1, 5]), (b"", [9]), (b"p", [3])], 0)
    producers.replay(batch)
    assert len(producers) == 1 and producers.last_sequence(b"p") == 5


def test_failures_that_are_remembered_are_bounded() -> None:
    producers = Producers()
    numbers = numpy.arange(0, 4 * FAILED_RANGES_MAX, 2)
    producers.push(b"p", numbers)
    producers.push(b"p", (1 << 40,))
    producers.failed(b"p", numbers)
    producers.persisted(b"p", (1 << 40,), 0)
    assert producers.check_sequence(b"p", int(numbers[-1])) is NEW
    assert producers.check_sequence(b"p", 0) is DUPLICATE
    assert len(producers.snapshot()) < 4 * FAILED_RANGES_MAX


def test_a_producer_snapshot_has_its_documented_bytes() -> None:
    producers = started(5)
    producers.push(b"p", range(6, 9))
    producers.push(b"p", (20,))
    producers.failed(b"p", range(6, 9))
    failed = bytes([6, 3])
    assert producers.snapshot() == (
        struct.pack("<HHI", 1, 0, 1) + struct.pack("<HHIqq", 1, 0, len(failed), 5, 5) + b"p" + failed
    )


GOOD = started(5).snapshot()


@pytest.mark.parametrize(
    "data",
    [
        b"",
        GOOD[:7],
        b"\x02" + GOOD[1:],
        GOOD[:-1],
        GOOD + b"\0",
        GOOD + GOOD[8:],
        GOOD[:4] + b"\x02" + GOOD[5:] + GOOD[8:],
        GOOD[:12] + b"\xff\xff\xff\xff" + GOOD[16:],
        GOOD[:16] + b"\xff" * 7 + b"\x7f" + GOOD[24:],
        GOOD[:12] + struct.pack("<I", 2) + GOOD[16:] + b"\xff\xff",
    ],
)
def test_a_malformed_producer_snapshot_is_refused(data: bytes) -> None:
    producers = started(7)
    with pytest.raises(InvalidMetadataError, match="producer snapshot"):
        producers.restore(data)
    assert producers.last_sequence(b"p") == 7
