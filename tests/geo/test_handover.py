"""Planned handover of a subscription to the other cluster, and taking it over: no message is delivered twice, none is
lost."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pyreplog.errors import NoSuchSubscriptionError
from pyreplog.future import AppendFuture, set_result
from pyreplog.geo.acks.effects import Effect
from pyreplog.geo.acks.exchange import SubscriptionExchange
from pyreplog.topic.client.consumer import Consumer
from tests.geo.replicated import Side, rest, take, two
from tests.geo.sites import NOWHERE
from tests.waiting import until


@pytest.fixture
def sides(tmp_path: Path) -> Iterator[tuple[Side, Side]]:
    with two(tmp_path) as (a, b):
        yield a, b


def order(side: Side, target: Side, number: int = 1, timeout: float = 60.0, grace: float = 60.0) -> dict[str, Any]:
    """Begin a handover once the replication has begun, or return the status of the handover with this number."""
    subscriptions, name = side.subscriptions, target.path.name
    assert subscriptions is not None

    def status() -> dict[str, Any] | None:
        row = subscriptions.hand_over("s", name, order=str(number), timeout=timeout, grace=grace)
        return None if row["phase"] == "opening" else row

    return until(status)


def take_over(side: Side, *, any_cluster: bool = False) -> None:
    """Take the subscription over once the replication has begun."""
    subscriptions = side.subscriptions
    assert subscriptions is not None
    until(lambda: subscriptions.take_over("s", any_cluster=any_cluster)["phase"] == "done")


def reaches(side: Side, target: Side, phase: str, number: int = 1) -> dict[str, Any]:
    """Wait until a handover is in a phase; return its status."""

    def status() -> dict[str, Any] | None:
        row = order(side, target, number)
        assert row["phase"] in (phase, "stopping", "draining", "moving"), row
        return row if row["phase"] == phase else None

    return until(status)


def held(side: Side) -> int:
    return side.topic.subscription("s").held


def part(*sides: Side) -> None:
    """Cut the connections between the clusters, and refuse new ones."""
    for side in sides:
        side.wire.lead_to(NOWHERE)
        side.wire.cut()


def join(*sides: Side) -> None:
    for side in sides:
        side.wire.lead_to(side.site.server.address)


def acknowledge(consumer: Consumer, messages: dict[int, Any], *numbers: int) -> None:
    for number in numbers:
        consumer.acknowledge(messages[number])


def waits(side: Side) -> bool:
    """Return whether the alarm says that consumers wait."""
    assert side.subscriptions is not None
    return "s" in side.subscriptions.waiting()


def test_consumers_end_what_they_hold_and_nothing_comes_twice(sides: tuple[Side, Side]) -> None:
    a, b = sides
    a.publish(0, 30)
    with a.subscribe() as consumer:
        messages = take(consumer, 30)
        acknowledge(consumer, messages, 3, 11, 4, 28)
        take_over(a)  # consumers of the other cluster wait from here on
        until(lambda: [row.home for row in b.rows()] == ["a"])
        assert order(a, b)["phase"] == "stopping"
        until(lambda: order(a, b)["held"] == 26)
        a.publish(30, 36)
        until(lambda: len(b.topic) == 36)
        with b.subscribe() as other:
            acknowledge(consumer, messages, *sorted(messages.keys() - {3, 11, 4, 28, 17}))
            until(lambda: order(a, b)["held"] == 1)
            consumer.nack(messages[17])  # this cluster does not deliver it again
            reaches(a, b, "done")
            received = rest(other, 35)
            assert sorted(received) == [17, *range(30, 36)]
            assert held(a) == 0 and waits(a)
            assert [row.home for row in a.rows()] == ["b"] and [row.home for row in b.rows()] == [""]
            assert "its home is the cluster b" in a.rows()[0].alarm and not b.rows()[0].alarm
    assert not waits(a)


def test_handover_releases_held_messages_after_the_grace_period_and_counts_late_acks(
    sides: tuple[Side, Side],
) -> None:
    a, b = sides
    a.publish(0, 12)
    with a.subscribe() as consumer:
        messages = take(consumer, 12)
        until(lambda: "s" in b.topic.subscriptions())
        acknowledge(consumer, messages, 0, 5)
        assert order(a, b, grace=0.3)["phase"] == "stopping"
        reaches(a, b, "done")
        assert held(a) == 0
        acknowledge(consumer, messages, 7, 2)
        until(lambda: b.acked() == [0, 2, 5, 7])
        with b.subscribe() as other:
            assert sorted(take(other, 8)) == [1, 3, 4, 6, 8, 9, 10, 11]
            acknowledge(consumer, messages, 10)
            until(lambda: b.acked() == [0, 2, 5, 7, 10])
    assert a.acked() == [0, 2, 5, 7, 10]


@pytest.mark.parametrize("type", ["exclusive", "failover", "key_shared"])
def test_all_types_and_back_again(sides: tuple[Side, Side], type: str) -> None:
    a, b = sides
    a.publish(0, 20)
    received = list[int]()
    for number, (side, target, end) in enumerate(((a, b, 10), (b, a, 15), (a, b, 20)), 1):
        with side.subscribe(type) as consumer:
            while len(received) < end:
                message = consumer.receive(timeout=20.0)
                received.append(int(message.value))
                consumer.acknowledge(message)
            order(side, target, number, grace=0.0)
            reaches(side, target, "done", number)
    assert received == [*range(20)]
    until(lambda: b.acked() == [*range(20)])


def test_unacknowledged_messages_of_a_closed_consumer_are_delivered_in_the_other_cluster(
    sides: tuple[Side, Side],
) -> None:
    """Its messages are not delivered to another consumer here, which waits while it holds messages of its own."""
    a, b = sides
    with a.subscribe() as first, a.subscribe() as second:
        a.publish(0, 12)
        until(lambda: held(a) == 12)
        until(lambda: "s" in b.topic.subscriptions())
        message = second.receive(timeout=20.0)
        order(a, b)
        left = held(a)
        first.close()
        until(lambda: held(a) < left)
        until(lambda: order(a, b)["held"] == held(a) > 0)
        rest_of_it = [second.receive(timeout=20.0) for _ in range(held(a) - 1)]
        for one in (message, *rest_of_it):
            second.acknowledge(one)
        reaches(a, b, "done")
        with b.subscribe() as other:
            left_behind = {*range(12)} - {int(one.value) for one in (message, *rest_of_it)}
            assert left_behind and {*take(other, len(left_behind))} == left_behind


def test_handover_is_cancelled_at_its_timeout_and_delivery_resumes(sides: tuple[Side, Side]) -> None:
    """When the time-out is over, consumers here get messages again, also those published meanwhile."""
    a, b = sides
    a.publish(0, 6)
    with a.subscribe() as consumer:
        messages = take(consumer, 6)
        acknowledge(consumer, messages, 0)
        until(lambda: b.acked() == [0])
        part(a, b)
        acknowledge(consumer, messages, *range(1, 6))
        order(a, b, timeout=1.0)
        a.publish(6, 9)
        row = reaches(a, b, "cancelled")
        assert row["error"] and order(a, b)["phase"] == "cancelled"  # the same order does not begin another handover
        assert sorted(take(consumer, 3)) == [6, 7, 8]
        assert not waits(a)
        join(a, b)
        order(a, b, 2, timeout=60.0, grace=0.0)
        reaches(a, b, "done", 2)
        with b.subscribe() as other:
            assert sorted(take(other, 3)) == [6, 7, 8]


def test_messages_held_for_long_are_taken_back_from_consumers(sides: tuple[Side, Side]) -> None:
    a, b = sides
    a.publish(0, 6)
    with a.subscribe() as consumer:
        messages = take(consumer, 6)
        order(a, b, timeout=0.5)
        assert "consumers hold 6 messages" in reaches(a, b, "cancelled")["error"]
        a.publish(6, 9)
        assert sorted(take(consumer, 3)) == [6, 7, 8]
        acknowledge(consumer, messages, *range(6))


def cut_at_move(sides: tuple[Side, Side], patch: pytest.MonkeyPatch) -> None:
    """Cut the connections when the home of the subscription has changed here, before the other cluster knows."""
    move = SubscriptionExchange.move

    def cut(self: SubscriptionExchange, name: str, home: bytes) -> list[Effect]:
        part(*sides)
        return move(self, name, home)

    patch.setattr(SubscriptionExchange, "move", cut)


def test_a_moved_home_is_not_taken_back(sides: tuple[Side, Side], monkeypatch: pytest.MonkeyPatch) -> None:
    a, b = sides
    a.publish(0, 6)
    with a.subscribe() as consumer:
        acknowledge(consumer, take(consumer, 6), 1, 2)
        until(lambda: b.acked() == [1, 2])
        cut_at_move(sides, monkeypatch)
        order(a, b, timeout=5.0, grace=0.0)
        row = reaches(a, b, "unconfirmed")
        assert row["error"] and waits(a) and held(a) == 0
        monkeypatch.undo()
        order(a, b, 2)
        assert order(a, b, 2)["phase"] == "moving"
        join(a, b)
        reaches(a, b, "done", 2)
        with b.subscribe() as other:
            assert sorted(take(other, 4)) == [0, 3, 4, 5]
        assert held(a) == 0


@pytest.mark.parametrize("phase", ["stopping", "moving"])
def test_a_handover_survives_a_restart_of_the_owner(
    sides: tuple[Side, Side], monkeypatch: pytest.MonkeyPatch, phase: str
) -> None:
    """A restart before the other cluster is to deliver ends the handover; after that the handover goes on."""
    a, b = sides
    a.publish(0, 6)
    cluster = b.cluster
    with a.subscribe() as consumer:
        acknowledge(consumer, take(consumer, 6), 1, 2)
        until(lambda: b.acked() == [1, 2])
        if phase == "moving":
            cut_at_move(sides, monkeypatch)
        order(a, b, grace=0.0 if phase == "moving" else 60.0)
        reaches(a, b, phase)
    monkeypatch.undo()
    a.end()
    a.begin_again()
    a.follow(b, cluster)
    join(a, b)
    first, second = (a, b) if phase == "stopping" else (b, a)
    with second.subscribe() as waiting, first.subscribe() as consumer:
        if phase == "stopping":
            waiting.close()
        else:
            until(lambda: waits(a))
        assert sorted(take(consumer, 4)) == [0, 3, 4, 5]
        if phase == "moving":
            assert held(a) == 0
            order(a, b, 2)
            reaches(a, b, "done", 2)


def test_the_other_cluster_begins_again(sides: tuple[Side, Side]) -> None:
    """The target stores that it is to deliver before it confirms that."""
    a, b = sides
    a.publish(0, 6)
    cluster = a.cluster
    with a.subscribe() as consumer:
        acknowledge(consumer, take(consumer, 6), 1, 2)
        until(lambda: b.acked() == [1, 2])
        order(a, b, grace=0.0)
        reaches(a, b, "done")
    a.end()
    a.wire.cut()
    b.end()
    b.begin_again()
    b.exchange_with(a, cluster)
    with b.subscribe() as other:
        assert sorted(take(other, 4)) == [0, 3, 4, 5]
    a.begin_again()
    a.exchange_with(b, b.cluster)
    with a.subscribe():
        until(lambda: waits(a))
        assert held(a) == 0


def test_a_seek_meanwhile_is_taken_along(sides: tuple[Side, Side]) -> None:
    a, b = sides
    a.publish(0, 9)
    with a.subscribe() as consumer:
        messages = take(consumer, 9)
        acknowledge(consumer, messages, *range(8))
        order(a, b)
        assert order(a, b)["phase"] == "stopping"
        a.topic.seek("s", 4)
        reaches(a, b, "done")
        with b.subscribe() as other:
            assert sorted(take(other, 5)) == [4, 5, 6, 7, 8]
    assert held(a) == 0


def test_acknowledgements_are_applied_before_the_other_cluster_delivers(
    sides: tuple[Side, Side], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its cursor needs the entries of messages that were acknowledged elsewhere. Here these are read slowly."""
    a, b = sides
    a.publish(0, 9)
    with a.subscribe() as consumer:
        messages = take(consumer, 9)
        until(lambda: len(b.topic) == 9 and "s" in b.topic.subscriptions())
        until(a.is_ready)
        managed = b.topic.managed
        read, late = managed.read, list[tuple[AppendFuture[Any], AppendFuture[Any]]]()

        def slowly(*place: Any, **bounds: Any) -> AppendFuture[Any]:
            late.append((read(*place, **bounds), result := AppendFuture[Any]()))
            return result

        monkeypatch.setattr(managed, "read", slowly)
        acknowledge(consumer, messages, 4, 7)
        until(lambda: late)
        order(a, b, grace=0.0)
        reaches(a, b, "done")
        monkeypatch.setattr(managed, "read", read)
        with b.subscribe() as other:
            subscription = b.topic.subscription("s")
            status = subscription.inspect(lambda _, dispatcher: dispatcher.status(0).waits)
            assert "messages from 0 on wait for acknowledgements of other clusters" in status
            for future, result in late:
                set_result(result, future.result(20.0))
            assert rest(other, 8) == [0, 1, 2, 3, 5, 6, 8]


def test_invalid_handovers_are_refused(sides: tuple[Side, Side]) -> None:
    a, b = sides
    a.publish(0, 3)
    assert a.subscriptions is not None and b.subscriptions is not None
    a.topic.create_subscription("s", start="earliest")
    until(a.is_ready)
    with pytest.raises(NoSuchSubscriptionError, match="no replicated subscription other"):
        a.subscriptions.hand_over("other", "b", order="1", timeout=1.0, grace=1.0)
    refused = a.subscriptions.hand_over("s", "c", order="1", timeout=1.0, grace=1.0)
    assert refused["phase"] == "refused" and "replicated with (b)" in refused["error"]
    with a.subscribe() as consumer:
        take(consumer, 3)
        order(a, b, 2)
        refused = order(a, b, 3)
        assert refused["phase"] == "refused" and "a handover to b is under way" in refused["error"]
        a.topic.delete_subscription("s", force=True)
        assert "deleted" in reaches(a, b, "cancelled", 2)["error"]


def test_subscription_is_taken_over_from_a_lost_cluster(sides: tuple[Side, Side]) -> None:
    a, b = sides
    a.publish(0, 9)
    cluster, other = a.cluster, b.cluster
    with a.subscribe() as consumer:
        acknowledge(consumer, take(consumer, 9), 8)
        order(a, b, grace=0.0)
        reaches(a, b, "done")
    with b.subscribe() as consumer:
        acknowledge(consumer, take(consumer, 8), 0, 1)
        until(lambda: a.acked() == [0, 1, 8])
    b.end()
    b.wire.cut()
    with a.subscribe() as consumer:
        until(lambda: waits(a))
        take_over(a)
        assert sorted(take(consumer, 6)) == [2, 3, 4, 5, 6, 7] and not waits(a)
    a.end()
    a.begin_again()
    a.follow(b, other)
    with a.subscribe() as consumer:  # the change of the home is durable
        messages = take(consumer, 6)
        acknowledge(consumer, messages, 2, 3)
        b.begin_again()
        b.follow(a, cluster)
        until(lambda: b.acked() == [0, 1, 2, 3, 8])
        with b.subscribe():
            until(lambda: waits(b))
            assert held(b) == 0
            take_over(a, any_cluster=True)
            until(lambda: held(b) > 0)
    assert not waits(a) and not waits(b)


def test_a_take_over_ends_a_handover(sides: tuple[Side, Side]) -> None:
    a, b = sides
    a.publish(0, 3)
    with a.subscribe() as consumer:
        take(consumer, 3)
        assert order(a, b)["phase"] == "stopping"
        take_over(a)
        assert "taken over here" in order(a, b)["error"]
        a.publish(3, 6)
        assert sorted(take(consumer, 3)) == [3, 4, 5]


def test_a_take_over_by_the_other_cluster_ends_a_handover(sides: tuple[Side, Side]) -> None:
    a, b = sides
    a.publish(0, 3)
    with a.subscribe() as consumer:
        take(consumer, 3)
        until(lambda: "s" in b.topic.subscriptions())
        order(a, b)
        take_over(b)
        assert "taken over" in reaches(a, b, "cancelled")["error"]
        until(lambda: waits(a))
