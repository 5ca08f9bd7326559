"""Merging states of subscriptions is commutative, associative and idempotent."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyreplog.errors import InvalidArgumentError
from pyreplog.geo.acks.lifecycle import SubscriptionLifecycle
from pyreplog.geo.acks.origin_ranges import OriginRanges, ranges_of, subtract
from pyreplog.geo.acks.subscription_state import Generation, Home, SubscriptionState

from .exchanging import bases, cluster_id, origin, span

HOMES = (
    Home(0, bytes(16)), Home(1, cluster_id("a")), Home(1, cluster_id("b")), Home(2, cluster_id("a")), Home(3, bytes(16)),
)  # fmt: skip
MESSAGES = st.sets(st.tuples(st.sampled_from("abc"), st.integers(0, 30)), max_size=20)


def ranges_with(messages: set[tuple[str, int]]) -> OriginRanges:
    ranges = OriginRanges()
    for letter in "abc":
        offsets = sorted(number for other, number in messages if other == letter)
        ranges.add(origin(letter), *span(*offsets))
    return ranges


def messages_in(ranges: OriginRanges) -> set[tuple[str, int]]:
    return {
        (letter, number)
        for letter in "abc"
        for start, end in zip(*ranges.between(origin(letter)), strict=True)
        for number in range(int(start), int(end))
    }


@st.composite
def states(draw: st.DrawFn) -> SubscriptionState:
    """Draw a state as it occurs: the base of the generation of a seek is that of one cluster."""
    generation = draw(st.sampled_from((Generation(0, bytes(16)), Generation(1, cluster_id("a")))))
    base = draw(MESSAGES) if generation.counter == 0 else {("a", number) for number in range(5)}
    return SubscriptionState(
        frozenset(draw(st.sets(st.sampled_from(("t1", "t2", "t3")), min_size=1))),
        generation,
        draw(st.sampled_from(HOMES)),
        ranges_with(base),
        ranges_with(draw(MESSAGES)),
    )


def merged(*several: SubscriptionState) -> SubscriptionState:
    first, *others = several
    result = first.copy()
    for other in others:
        result.merge(other)
    return result


@given(states(), states(), states())
def test_merging_is_commutative_associative_and_idempotent(
    one: SubscriptionState, two: SubscriptionState, three: SubscriptionState
) -> None:
    assert merged(one, two) == merged(two, one)
    assert merged(merged(one, two), three) == merged(one, merged(two, three))
    assert merged(one, one) == one and merged(one, two, two, one) == merged(one, two)


@given(states(), states())
def test_merge_reports_added_acknowledgements_and_changes(one: SubscriptionState, two: SubscriptionState) -> None:
    result = one.copy()
    merge = result.merge(two)
    if not merge.is_replaced:
        assert messages_in(merge.added) == messages_in(result.acks) - messages_in(one.acks)
        assert messages_in(result.bases) <= messages_in(one.bases)
        assert merge.is_widened == (messages_in(result.bases) != messages_in(one.bases))
    assert merge.is_changed == (result.header_digest() != one.header_digest())
    for letter in "abc":
        passed = ranges_of(*result.passed(origin(letter)))
        assert passed.dump() == result.passed_set(origin(letter)).dump()
        assert all(result.is_passed(origin(letter), number) == (number in passed) for number in range(31))


@given(MESSAGES, MESSAGES)
def test_origin_ranges_behave_as_sets_of_messages(one: set[tuple[str, int]], two: set[tuple[str, int]]) -> None:
    joined = ranges_with(one)
    assert messages_in(joined.add_all(ranges_with(two))) == two - one
    assert messages_in(joined) == one | two and joined.total == len(one | two)
    common = ranges_with(one)
    assert common.intersect_all(ranges_with(two)) == bool(one - two)
    assert messages_in(common) == one & two and bool(common) == bool(one & two)
    assert common == ranges_with(one & two) and common.copy() == common
    for letter in "abc":
        rest = subtract(ranges_with(one).of(origin(letter)), ranges_with(two).of(origin(letter)))
        assert rest.total == len({number for other, number in one - two if other == letter})


def test_the_later_seek_replaces_acknowledgements_in_a_merge() -> None:
    former = SubscriptionState(frozenset({"t1"}), bases=bases(a=3))
    former.acks.add(origin("a"), *span(7, 8))
    later = SubscriptionState(frozenset({"t1"}), Generation(1, cluster_id("b")), bases=bases(a=1))
    for result in (merged(former, later), merged(later, former)):
        assert result.bases == bases(a=1) and not result.acks


def test_a_birth_that_is_dead_takes_those_along_that_it_was_joined_with() -> None:
    lifecycle = SubscriptionLifecycle()
    assert lifecycle.create("t1", bases(a=3)) and not lifecycle.create("t9", bases())
    lifecycle.merge(SubscriptionState(frozenset({"t2"})))
    change = lifecycle.add_tombstone("t2")
    assert change.is_deleted and change.changed_tombstones == {"t1", "t2"} and lifecycle.state is None
    assert not lifecycle.merge(SubscriptionState(frozenset({"t1"}))).is_born
    born = lifecycle.merge(SubscriptionState(frozenset({"t3"})))
    assert born.is_born and lifecycle.state is not None and lifecycle.state.tokens == {"t3"}


def test_tombstones_are_settled_by_all() -> None:
    lifecycle = SubscriptionLifecycle()
    lifecycle.create("t1", bases())
    assert lifecycle.delete().changed_tombstones == {"t1"} and not lifecycle.delete().changed_tombstones
    assert lifecycle.add_tombstone("t1", [cluster_id("b")]).changed_tombstones == {"t1"}
    assert not lifecycle.add_tombstone("t1", [cluster_id("b")]).changed_tombstones
    assert not lifecycle.is_settled("t1", [cluster_id("a"), cluster_id("b")])
    assert lifecycle.confirm("t1", cluster_id("a")) and not lifecycle.confirm("t1", cluster_id("a"))
    assert lifecycle.is_settled("t1", [cluster_id("a"), cluster_id("b")])
    lifecycle.forget("t1")
    assert lifecycle.is_empty and not np.any([lifecycle.confirm("t1", cluster_id("a"))])


def test_home_in_metadata_is_text() -> None:
    assert [home.text() for home in HOMES[:2]] == ["", f"1/{'61' * 16}"]
    assert [Home.of_text(home.text()) for home in HOMES] == [*HOMES]
    assert Home.of_text(Home(1 << 62, cluster_id("a")).text()).number == 1 << 62


@pytest.mark.parametrize(
    "text",
    [
        "a", "/", "1/", f"0/{'61' * 16}", f"01/{'61' * 16}", f"-1/{'61' * 16}", f"1/{'61' * 15}", f"1/{'61' * 17}",
        f"1/{'6A' * 16}", f"1/{'61' * 16}\n", f"{(1 << 62) + 1}/{'61' * 16}", f"{1 << 64}/{'61' * 16}", "9" * 5000,
        f"\u0661/{'61' * 16}",
    ],
)  # fmt: skip
def test_malformed_home_is_refused(text: str) -> None:
    with pytest.raises(InvalidArgumentError, match=r"home of a subscription: expected a number .*, found"):
        Home.of_text(text)
