"""The position of a subscription in offsets of origins equals that of a scan of all messages."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyreplog._native.topic.range_set import RangeSet
from pyreplog.errors import InvalidMessageError
from pyreplog.geo.acks.subscription_position import SubscriptionPosition, place
from pyreplog.geo.geo_replication import decode_position
from tests.geo.replicated import Side, take, two
from tests.waiting import until


def offsets(members: set[int]) -> RangeSet:
    ranges = RangeSet()
    for member in members:
        ranges.add(member, member + 1)
    return ranges


NUMBERS = st.sets(st.integers(0, 20))


@given(NUMBERS, NUMBERS)
def test_a_position_is_before_the_first_message_that_is_left(passed: set[int], held: set[int]) -> None:
    end = max(held, default=-1) + 1
    below, beyond = place(offsets(passed), offsets(held), end)
    expected = next(at for at in range(30) if at not in passed and (at in held or at >= end))
    messages = {number for number in passed if number in held or number >= end}
    assert (below, beyond) == (expected, sum(number >= expected for number in messages))


def shown(side: Side, name: str = "s") -> dict[tuple[str, str], tuple[int | None, int]]:
    """Return the known positions of the subscription, by cluster and origin."""
    assert side.subscriptions is not None
    return {
        (row.at, row.origin): (row.below, row.beyond)
        for row in side.subscriptions.where(name)
        if row.is_known and not row.error
    }


def test_positions_are_told_in_offsets_of_their_origins(tmp_path: Path) -> None:
    """Both clusters publish, so that local offsets differ; positions are in offsets of the origins."""
    with two(tmp_path) as (a, b):
        a.publish(0, 10)
        until(lambda: len(b.topic) == 10)
        b.publish(100, 110)
        until(lambda: len(a.topic) == 20)
        a.publish(10, 15)
        until(lambda: len(b.topic) == 25)
        with a.subscribe() as consumer:
            messages = take(consumer, 25)
            for number in (0, 1, 2, 5, 100, 101, 103, 104, *range(10, 13)):
                consumer.acknowledge(messages[number])
            consumer.flush()
            # a's messages 10 to 14 are at 20 to 24 there; b's 100 to 109 at 10 to 19
            own, other = (3, 4), (12, 2)
            until(lambda: shown(a) == {("", ""): own, ("", "b"): other, ("b", ""): own, ("b", "b"): other})
            until(lambda: shown(b) == {("", "a"): own, ("", ""): other, ("a", "a"): own, ("a", ""): other})
        assert a.subscriptions is not None and a.subscriptions.where("other") == []


def test_a_cluster_that_published_nothing_is_no_origin(tmp_path: Path) -> None:
    """The cluster sends gaps for the messages that came from here, and no entries of its own."""
    with two(tmp_path) as (a, _):
        a.publish(0, 9)
        a.topic.create_subscription("s", start="earliest")
        until(lambda: any(state.stored for state in a.topic.origins.all().values()))
        until(lambda: shown(a) == {("", ""): (0, 0), ("b", ""): (0, 0)})


def test_acknowledgement_in_flight_is_not_counted_in_the_other_cluster(tmp_path: Path) -> None:
    with two(tmp_path) as (a, b):

        def there() -> SubscriptionPosition:
            assert a.subscriptions is not None
            return next(row for row in a.subscriptions.where("s") if (row.at, row.origin) == ("b", ""))

        a.publish(0, 10)
        with a.subscribe() as consumer:
            messages = take(consumer, 10)
            consumer.acknowledge(messages[0])
            until(lambda: shown(a).get(("b", "")) == (1, 0) and there().end == 10)
            b.end()
            consumer.acknowledge(messages[1])
            consumer.flush()
            until(lambda: shown(a)["", ""] == (2, 0))
            row = there()
            assert (row.below, row.beyond, row.end) == (1, 0, 10) and row.error
            b.begin_again()


def test_a_malformed_position_of_a_server() -> None:
    row = {"topic": "t", "subscription": "s", "at": "", "origin": "", "token": "0", "below": 1, "beyond": 0, "end": 1}
    assert decode_position({**row, "is_known": True, "newer": 1}).below == 1
    with pytest.raises(InvalidMessageError, match="position of a subscription"):
        decode_position(row)
