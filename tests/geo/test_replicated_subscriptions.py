"""Subscriptions of two clusters, over TCP: a message that was acknowledged in one is not delivered in the other."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from pyreplog._native.topic.messages import MessageBatch
from pyreplog.errors import NotEnoughBookiesError
from pyreplog.future import AppendFuture, completed_future, set_exception, set_result
from pyreplog.geo.acks.effects import Effect, Persist
from pyreplog.geo.acks.exchange import SubscriptionExchange
from pyreplog.geo.acks.journal import encode_record, replay
from pyreplog.geo.acks.messages import AcksItem, Item, StateItem
from pyreplog.geo.acks.origin_ranges import OriginRanges, ranges_of
from pyreplog.geo.acks.subscription_state import Generation
from pyreplog.geo.subscription_journal import SubscriptionJournal
from pyreplog.geo.subscription_replication import RETRY_S
from pyreplog.geo.target_link import TargetLink
from pyreplog.ledger.driver import TimerLike
from pyreplog.origins.origin import Origin, OriginState
from pyreplog.topic.model.wire.protocol import ORIGINS
from pyreplog.topic.owner.managed.entry_reader import EntryBatch
from pyreplog.topic.owner.origins import Origins
from pyreplog.topic.owner.subscriptions import JOURNAL
from pyreplog.topic.server import topic_server
from tests.geo.replicated import Side, rest, take, two
from tests.waiting import until


@pytest.fixture
def sides(tmp_path: Path) -> Iterator[tuple[Side, Side]]:
    with two(tmp_path) as (a, b):
        yield a, b


def has(side: Side, numbers: list[int], name: str = "s") -> None:
    """Wait until these messages are stored in a cluster, and are all that is acknowledged there."""
    until(lambda: side.acked(name) == numbers, pause_s=0.05)


def test_acknowledgements_out_of_order_arrive(sides: tuple[Side, Side]) -> None:
    a, b = sides
    a.publish(0, 30)
    acked = [0, 1, 4, 9, 10, 11, 12, 20, 28]
    with a.subscribe() as consumer:
        messages = take(consumer, 30)
        for number in acked:
            consumer.acknowledge(messages[number])
        has(b, acked)
        with b.subscribe() as other:
            assert rest(other, 29) == [number for number in range(30) if number not in acked]
    until(a.is_ready)


def test_acknowledgements_of_the_other_cluster_come_back(sides: tuple[Side, Side]) -> None:
    """Both clusters publish. What is acknowledged in the other cluster is acknowledged here, for messages of both."""
    a, b = sides
    a.publish(0, 10)
    b.publish(100, 110)
    until(lambda: len(a.topic) == len(b.topic) == 20)
    with a.subscribe() as consumer:
        messages = take(consumer, 20)
        until(lambda: "s" in b.topic.subscriptions())
        with b.subscribe() as other:
            elsewhere = take(other, 20)
            for number in (3, 105):
                other.acknowledge(elsewhere[number])
            for number in (7, 101):
                consumer.acknowledge(messages[number])
            has(a, [3, 7, 101, 105])
            has(b, [3, 7, 101, 105])


def test_cumulative_acknowledgements_are_replicated(sides: tuple[Side, Side]) -> None:
    a, b = sides
    a.publish(0, 20)
    with a.subscribe("exclusive") as consumer:
        messages = take(consumer, 20)
        consumer.acknowledge_cumulative(messages[12])
        consumer.acknowledge(messages[15])
        has(b, [*range(13), 15])
    with b.subscribe("exclusive") as other:
        assert rest(other, 19) == [13, 14, 16, 17, 18, 19]


def test_skipped_messages_are_acknowledged_in_the_other_cluster(sides: tuple[Side, Side]) -> None:
    a, b = sides
    a.publish(0, 9)
    a.topic.create_subscription("s", start="earliest")
    a.topic.skip("s", 4)
    has(b, [0, 1, 2, 3])
    until(lambda: len(b.topic) == 9)
    with b.subscribe() as consumer:
        assert rest(consumer, 8) == [4, 5, 6, 7, 8]


def test_a_subscription_begins_at_the_same_message_in_both_clusters(sides: tuple[Side, Side]) -> None:
    """The subscription exists in the other cluster without a consumer, and keeps messages there."""
    a, b = sides
    a.publish(0, 9)
    a.topic.create_subscription("s", start=4)
    has(b, [0, 1, 2, 3])
    a.publish(9, 12)
    until(lambda: len(b.topic) == 12)
    with b.subscribe() as consumer:
        assert rest(consumer, 11) == [*range(4, 12)]


def test_acknowledgements_that_come_before_their_messages(
    sides: tuple[Side, Side], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The replication of messages is paused, so that acknowledgements arrive first."""
    a, b = sides
    a.publish(0, 4)
    a.topic.create_subscription("s", start="earliest")
    until(lambda: len(b.topic) == 4 and "s" in b.topic.subscriptions())
    assert a.replicator is not None
    a.replicator.pause()
    a.publish(4, 12)
    with a.subscribe() as consumer, b.subscribe() as other:
        messages = take(consumer, 12)
        for number in (1, 5, 6, 10):
            consumer.acknowledge(messages[number])
        until(lambda: b.acked() == [1], pause_s=0.05)
        until(lambda: all(row.repeated == 0 for row in a.rows()))
        assert len(b.topic) == 4
        assert {0, 2, 3} <= {*take(other, 4)}
        there, arrive, waits = b.topic.subscription("s"), SubscriptionExchange.arrive, list[tuple[str, ...]]()

        def note_waits(self: SubscriptionExchange, origin: Origin, end: int) -> list[Effect]:
            if not waits:  # no message arrives at a, so that this is the arrival at b
                waits.append(there.inspect(lambda _, dispatcher: dispatcher.status(0).waits))
            return arrive(self, origin, end)

        monkeypatch.setattr(SubscriptionExchange, "arrive", note_waits)
        a.replicator.resume()
        assert rest(other, 11) == [4, 7, 8, 9, 11]
        assert "messages from 4 on wait for acknowledgements of other clusters" in waits[0]


def test_early_acknowledgements_pass_no_message_that_has_arrived(sides: tuple[Side, Side]) -> None:
    """In KAFKA-12468, MirrorMaker 2 translated positions to ones ahead of the target's messages. Here the target
    restarts, and reads the acknowledgements of messages that it lacks from its journal.
    """
    a, b = sides
    a.publish(0, 4)
    a.topic.create_subscription("s", start="earliest")
    until(lambda: len(b.topic) == 4 and "s" in b.topic.subscriptions())
    assert a.replicator is not None
    a.replicator.pause()
    until(lambda: a.replicator is not None and a.replicator.status().state == "paused")
    a.publish(4, 8)
    with a.subscribe() as consumer:
        messages = take(consumer, 8)
        for number in range(4, 8):
            consumer.acknowledge(messages[number])
        consumer.flush()
        until(lambda: [row.beyond for row in a.positions() if row.at] == [4])  # b has stored them
    cluster = a.cluster
    b.end()
    a.wire.cut()
    b.begin_again()
    b.follow(a, cluster)
    with b.subscribe() as other:
        assert rest(other, 3) == [0, 1, 2, 3]
        assert b.acked() == [] and len(b.topic) == 4
        a.publish(8, 10)
        a.replicator.resume()
        assert rest(other, 9) == [8, 9]


def test_a_seek_moves_a_subscription_in_both_clusters(sides: tuple[Side, Side]) -> None:
    a, b = sides
    a.publish(0, 20)
    with a.subscribe() as consumer:
        messages = take(consumer, 20)
        for number in range(15):
            consumer.acknowledge(messages[number])
        has(b, [*range(15)])
        consumer.seek(6)
        has(b, [*range(6)])
        again = take(consumer, 14)
        consumer.acknowledge(again[7])
        has(b, [*range(6), 7])
    has(a, [*range(6), 7])
    assert b.topic.seek("s", 18) == 18
    has(a, [*range(18)])


def trims_soon(a: Side, b: Side) -> None:
    """Let a cluster trim its messages as soon as nothing needs them, and begin again."""
    cluster = b.cluster
    a.topic.configure(retention_bytes=0, roll_entries=2)
    a.end()
    a.begin_again()
    a.follow(b, cluster)


def test_acknowledgements_of_trimmed_messages_stay_in_the_other_cluster(sides: tuple[Side, Side]) -> None:
    """Their positions are forgotten here. A seek to the first message that is left does not deliver older ones in any
    cluster."""
    a, b = sides
    trims_soon(a, b)
    a.topic.configure(retention_bytes=None, retention_ms=None)  # until the positions are counted
    with a.subscribe() as consumer:
        for number in range(0, 40, 2):
            a.publish(number, number + 1)
            b.publish(number + 1, number + 2)
            for message in take(consumer, 2).values():
                consumer.acknowledge(message)
        has(b, [*range(40)])
    assert a.subscriptions is not None
    assert a.subscriptions.position_runs >= 19
    a.topic.configure(retention_bytes=0)
    for stored in a.topic.system_cursors.store_after(completed_future()):
        stored.result(20.0)
    until(lambda: a.topic.trim() >= 20, pause_s=0.05)
    kept = len(a.topic)
    a.publish(40, 41)
    until(lambda: a.subscriptions is not None and a.subscriptions.position_runs <= kept, patience_s=20.0)
    has(b, [*range(40)])
    left = [int(value) for batch in a.topic.read(a.topic.end - 3) for value in batch.values()]
    assert a.topic.seek("s", a.topic.end - 3) == a.topic.end - 3
    has(b, sorted({*range(41)} - {*left}))


def trim(side: Side, start: int) -> None:
    """Remove the messages below an offset, or more. Each attempt may free what the next one removes."""

    def is_trimmed() -> bool:
        for stored in side.topic.system_cursors.store_after(completed_future()):
            stored.result(20.0)
        side.topic.trim()
        return side.topic.start >= start

    until(is_trimmed, pause_s=0.05)


def test_a_seek_in_another_cluster_delivers_messages_there_that_were_removed_here(sides: tuple[Side, Side]) -> None:
    """They do not count as acknowledged here in the new generation, neither at once nor after a restart."""
    a, b = sides
    trims_soon(a, b)
    with a.subscribe() as consumer:
        for number in range(0, 20, 2):
            a.publish(number, number + 1)
            b.publish(number + 1, number + 2)
            for message in take(consumer, 2).values():
                consumer.acknowledge(message)
        has(b, [*range(20)])
    trim(a, 10)
    assert b.topic.seek("s", 0) == 0
    has(b, [])
    a.publish(20, 21)
    with a.subscribe() as consumer:  # acknowledgements of before the seek are passed on with this one, if at all
        consumer.acknowledge(take(consumer, a.topic.end - a.topic.start)[20])
        has(b, [20])
    until(lambda: a.is_ready() and [row.lost for row in b.rows()] == [a.topic.start])
    a.end()
    a.begin_again()
    a.follow(b, b.cluster)
    a.publish(21, 22)
    with a.subscribe() as consumer:
        consumer.acknowledge(take(consumer, a.topic.end - a.topic.start - 1)[21])
        has(b, [20, 21])
    with b.subscribe() as other:
        assert {*take(other, 20)} == {*range(20)}


def test_a_seek_passes_over_no_messages_that_expired_and_were_removed_here(sides: tuple[Side, Side]) -> None:
    """They stay to be delivered in the other cluster."""
    a, b = sides
    trims_soon(a, b)
    with a.subscribe() as consumer:
        a.publish(0, 20, per_entry=1)
        messages = take(consumer, 20)
        for number in (1, 4, 17, 18):
            consumer.acknowledge(messages[number])
        has(b, [1, 4, 17, 18])
    a.topic.subscription("s").skip_to(16, expires=True).result(20.0)
    trim(a, 10)
    start = a.topic.start
    assert a.topic.seek("s", 18) == 18
    has(b, sorted({1, 4, *range(start, 18)}))
    with b.subscribe() as other:
        assert {*rest(other, 19)} == {*range(start), 18, 19} - {1, 4}


def test_a_subscription_that_is_replicated_again_passes_over_what_was_acknowledged_and_removed(
    sides: tuple[Side, Side],
) -> None:
    """The other cluster has deleted it meanwhile, and still has the messages: those that expired here come there."""
    a, b = sides
    trims_soon(a, b)
    odd = [*range(1, 20, 2)]
    with a.subscribe() as consumer:
        a.publish(0, 20, per_entry=1)
        messages = take(consumer, 20)
        for number in odd:
            consumer.acknowledge(messages[number])
        has(b, odd)
    a.topic.subscription("s").skip_to(16, expires=True).result(20.0)
    trim(a, 10)
    for side in sides:
        assert side.subscriptions is not None
        side.subscriptions.remove()
        until(lambda side=side: JOURNAL not in [cursor.name for cursor in side.topic.system_cursors.all()])  # type: ignore[misc]
    b.topic.delete_subscription("s")
    a.exchange_with(b)
    b.exchange_with(a)
    has(b, odd)


def test_messages_are_kept_until_their_acknowledgements_are_durable_in_the_journal(
    sides: tuple[Side, Side], monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a crash the cursor has acknowledgements that the journal lacks: the exchange then needs these messages."""
    a, b = sides
    cluster = b.cluster
    a.topic.configure(retention_bytes=0, roll_entries=2)
    a.end()
    a.begin_again()
    a.follow(b, cluster)
    with a.subscribe() as consumer:  # subscribe first: a topic without subscriptions trims its messages
        a.publish(0, 30)
        until(lambda: b.topic.end == 30)
        messages = take(consumer, 30)
        until(a.is_ready)
        kept: list[tuple[SubscriptionJournal, int]] = []
        persisted = SubscriptionJournal.persisted
        monkeypatch.setattr(SubscriptionJournal, "persisted", lambda *arguments: kept.append(arguments))
        for message in messages.values():
            consumer.acknowledge(message)
        consumer.flush()
        until(lambda: kept)
        subscription = a.topic.subscription("s")
        until(lambda: subscription.inspect(lambda cursor, _: cursor.durable_mark.offset) == 30)
        until(lambda: all(cursor.mark.offset == 30 for cursor in a.topic.system_cursors.all()))
        assert a.topic.trim() == 0
        monkeypatch.setattr(SubscriptionJournal, "persisted", persisted)
        for journal, sequence in kept:
            journal.persisted(sequence)
    has(b, [*range(30)])
    a.end()
    a.begin_again()
    start = a.topic.start
    assert a.topic.trim() == start, "the journal is not read yet"
    a.follow(b, cluster)
    until(lambda: a.topic.trim() >= 20, pause_s=0.05)


def test_a_deleted_subscription_stays_deleted_in_both_clusters(sides: tuple[Side, Side]) -> None:
    a, b = sides
    a.publish(0, 6)
    a.topic.create_subscription("s", start="earliest")
    until(lambda: b.topic.subscriptions() == ["s"])
    b.topic.delete_subscription("s")
    until(lambda: a.topic.subscriptions() == [])
    a.topic.create_subscription("s", start=5)  # a new subscription of the same name inherits no acknowledgements
    has(b, [0, 1, 2, 3, 4])


@pytest.mark.parametrize("who", [0, 1])
def test_an_end_that_begins_again_goes_on(sides: tuple[Side, Side], who: int) -> None:
    """Acknowledgements made while either cluster was down arrive when it is back; it reads its own journal."""
    a, b = sides
    away, here = sides[who], sides[1 - who]
    a.publish(0, 20)
    a.topic.create_subscription("s", start="earliest")
    until(lambda: len(b.topic) == 20 and "s" in b.topic.subscriptions())
    with away.subscribe() as consumer:
        messages = take(consumer, 20)
        for number in (2, 3, 11):
            consumer.acknowledge(messages[number])
        has(here, [2, 3, 11])
    cluster = here.cluster
    away.end()
    here.wire.cut()
    with here.subscribe() as consumer:
        assert rest(consumer, 19) == [number for number in range(20) if number not in (2, 3, 11)]
    with here.subscribe() as consumer:
        messages = take(consumer, 17)
        for number in (4, 17):
            consumer.acknowledge(messages[number])
        consumer.flush()
    away.begin_again()
    away.follow(here, cluster)
    has(away, [2, 3, 4, 11, 17])
    with away.subscribe() as consumer:
        assert rest(consumer, 19) == [number for number in range(20) if number not in (2, 3, 4, 11, 17)]


def test_nothing_is_sent_or_stored_while_nothing_changes(
    sides: tuple[Side, Side], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Messages are published and delivered. No request about subscriptions is sent, and the journal gets no record."""
    a, b = sides
    a.publish(0, 6)
    with a.subscribe() as consumer:
        consumer.acknowledge(take(consumer, 6)[2])
        has(b, [2])
        until(a.is_ready)
        until(b.is_ready)
        calls: list[object] = []
        monkeypatch.setattr(TargetLink, "exchange", lambda *_: calls.append("exchange"))
        monkeypatch.setattr(SubscriptionJournal, "append", lambda *_: calls.append("append"))
        flushes = 0

        def count_flush(self: SubscriptionExchange) -> list[Effect]:
            nonlocal flushes
            flushes += 1
            return flush(self)

        flush = SubscriptionExchange.flush
        monkeypatch.setattr(SubscriptionExchange, "flush", count_flush)
        a.publish(6, 12)
        until(lambda: len(b.topic) == 12)
        for wanted in range(1, 6):  # acknowledgements of a message that is acknowledged already
            a.topic.subscription("s").acknowledge_range(-1, 2, 3)
            until(lambda wanted=wanted: flushes >= wanted)  # type: ignore[misc]
        assert not calls


def test_acknowledgements_made_before_replication_was_enabled_are_replicated(tmp_path: Path) -> None:
    """The messages include those of the other cluster, which have other offsets there."""
    with two(tmp_path, begins=False) as (a, b):
        b.publish(100, 110)
        a.publish(0, 7)
        a.replicate_to(b)
        b.replicate_to(a)
        until(lambda: len(a.topic) == len(b.topic) == 17)
        with a.subscribe() as consumer:
            messages = take(consumer, 17)
            for number in (0, 1, 5, 100, 108):
                consumer.acknowledge(messages[number])
            consumer.flush()
        a.exchange_with(b)
        b.exchange_with(a)
        has(b, [0, 1, 5, 100, 108])


def test_messages_that_expired_in_one_cluster_are_delivered_in_the_other(sides: tuple[Side, Side]) -> None:
    """They are delivered there after a restart of this cluster, too, although the cursor here has them as acknowledged."""
    a, b = sides
    a.publish(0, 10)
    with a.subscribe() as consumer:
        messages = take(consumer, 10)
        consumer.acknowledge(messages[1])
        has(b, [1])
    a.topic.subscription("s").skip_to(6, expires=True).result(20.0)
    until(lambda: a.acked_or_expired() == [0, 1, 2, 3, 4, 5])
    with a.subscribe() as consumer:
        consumer.acknowledge(take(consumer, 4)[8])
        has(b, [1, 8])
        consumer.flush()
    until(lambda: [(row.revived, row.is_ready) for row in a.rows()] == [(5, True)])
    cluster = b.cluster
    a.end()
    a.begin_again()
    a.follow(b, cluster)
    with a.subscribe() as consumer:
        consumer.acknowledge(take(consumer, 3)[7])
        has(b, [1, 7, 8])


def test_another_history_is_not_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The other cluster has as many messages of this one, but with another content: no acknowledgement of them is
    taken."""
    with two(tmp_path, begins=False) as (a, b):
        a.publish(0, 9)
        a.replicate_to(b)
        until(lambda: len(b.topic) == 9)
        origin = a.topic.origin
        assert a.replicator is not None
        a.replicator.close()
        state = b.topic.origins.all()[origin]
        assert state.last is not None
        other = state._replace(last=state.last._replace(value_crc=state.last.value_crc ^ 1))
        vector, restored = Origins.all, b.topic.origins

        def all_of(self: Origins) -> dict[Origin, OriginState]:
            return {**vector(self), origin: other} if self is restored else vector(self)

        monkeypatch.setattr(Origins, "all", all_of)
        a.exchange_with(b)
        b.exchange_with(a)
        with b.subscribe() as consumer:
            consumer.acknowledge(take(consumer, 9)[4])
            consumer.flush()
        until(lambda: any(row.alarm for row in a.rows()))
        until(lambda: "s" in a.topic.subscriptions())
        b.publish(100, 103)  # acknowledgements of the messages of b are taken
        b.replicate_to(a)
        with b.subscribe() as consumer:
            consumer.acknowledge(take(consumer, 11)[101])
        has(a, [101])
        with a.subscribe() as consumer:
            messages = take(consumer, 11)
            consumer.acknowledge(messages[7])
            consumer.acknowledge(messages[102])
        has(b, [4, 101, 102])
        assert not any(row.is_ready for row in a.rows())


def test_status_reports_a_cluster_without_the_policy(tmp_path: Path) -> None:
    with two(tmp_path, begins=False) as (a, b):
        first, second = sorted((a, b), key=lambda side: side.cluster)
        first.publish(0, 3)
        first.replicate_to(second)
        first.exchange_with(second)
        first.topic.create_subscription("s")
        until(lambda: any("replicated_subscriptions=true" in row.error for row in first.rows()))
        assert not first.is_ready()
        second.exchange_with(first)
        until(lambda: second.topic.subscriptions() == ["s"])
        until(first.is_ready)


def test_a_message_may_be_acknowledged_elsewhere_before_it_was_read_here(
    sides: tuple[Side, Side], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The owner here is slow to read its own messages, which the other cluster has got and acknowledged meanwhile."""
    a, b = sides
    a.publish(0, 6)
    with b.subscribe() as consumer:
        until(lambda: a.is_ready() and b.is_ready())
        managed, late = a.topic.managed, AppendFuture[MessageBatch]()
        read = managed.read
        monkeypatch.setattr(managed, "read", lambda offset, **more: late if offset == 6 else read(offset, **more))
        a.publish(6, 12)
        messages = take(consumer, 12)
        for number in (3, 7, 10):
            consumer.acknowledge(messages[number])
        consumer.flush()
        until(b.is_ready)
        monkeypatch.undo()
        read(6).add_done_callback(lambda batch: set_result(late, batch.result()))
        has(a, [3, 7, 10])
    assert not [row.alarm for row in a.rows() if row.alarm]
    with a.subscribe() as consumer:
        assert rest(consumer, 11) == [0, 1, 2, 4, 5, 6, 8, 9, 11]


def test_an_entry_that_cannot_be_read_now_is_compared_later(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with two(tmp_path, begins=False) as (a, b):
        a.publish(0, 6)
        a.replicate_to(b)
        b.replicate_to(a)
        until(lambda: len(b.topic) == 6)
        entries, failed = a.topic.managed.entries, list[int]()
        read = entries.read

        def fail(offset: int, **more: int) -> AppendFuture[EntryBatch]:
            if more.get("bytes_max") != 1 or len(failed) == 3:
                return read(offset, **more)
            failed.append(offset)
            error = NotEnoughBookiesError("a bookie is away")
            if len(failed) == 2:
                raise error
            failure = AppendFuture[EntryBatch]()
            set_exception(failure, error)
            return failure

        monkeypatch.setattr(entries, "read", fail)
        a.exchange_with(b)
        b.exchange_with(a)
        with b.subscribe() as consumer:
            messages = take(consumer, 6)
            consumer.acknowledge(messages[1])
            consumer.flush()
            has(a, [1])
        assert failed == [3, 3, 3]


def test_entries_are_read_again_soon_after_a_read_that_succeeded(
    sides: tuple[Side, Side], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Failures of former days do not delay the delivery of messages."""
    a, _ = sides
    managed, runtime, delays = a.topic.managed, a.topic.context.runtime, list[float]()
    read, wake, failures = managed.read, runtime.wake_after, 0

    def wake_after(seconds: float, callback: Callable[[], object]) -> TimerLike:
        is_retry = getattr(callback, "__name__", "") == "_on_grow"
        if is_retry:
            delays.append(seconds)
        return wake(0.0 if is_retry else seconds, callback)

    def fail(offset: int, **more: int) -> AppendFuture[MessageBatch]:
        if len(delays) < failures and not more:  # the reads of consumers have bounds
            raise NotEnoughBookiesError("a bookie is away")
        return read(offset, **more)

    with a.subscribe() as consumer:
        a.publish(0, 3)
        assert len(take(consumer, 3)) == 3
        monkeypatch.setattr(runtime, "wake_after", wake_after)
        monkeypatch.setattr(managed, "read", fail)
        for failures in (5, 1):
            delays.clear()
            start = a.topic.end
            a.publish(start, start + 3)
            assert len(take(consumer, 3)) == 3
            assert len(delays) >= failures
        assert delays[0] <= RETRY_S


def test_acknowledgements_are_sent_only_once_they_are_durable(
    sides: tuple[Side, Side], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The records of the journal are stored, and the test delays the notice of that."""
    a, b = sides
    a.publish(0, 6)
    with a.subscribe() as consumer:
        messages = take(consumer, 6)
        consumer.acknowledge(messages[0])
        has(b, [0])
        until(a.is_ready)
        kept: list[tuple[SubscriptionJournal, int]] = []
        persisted, flush, flushes = SubscriptionJournal.persisted, SubscriptionExchange.flush, 0

        def count_flush(self: SubscriptionExchange) -> list[Effect]:
            nonlocal flushes
            flushes += 1
            return flush(self)

        monkeypatch.setattr(SubscriptionJournal, "persisted", lambda *arguments: kept.append(arguments))
        monkeypatch.setattr(SubscriptionExchange, "flush", count_flush)
        consumer.acknowledge(messages[3])
        until(lambda: kept)
        wanted = flushes + 5
        until(lambda: flushes >= wanted)
        assert b.acked() == [0] and not a.is_ready()
        monkeypatch.setattr(SubscriptionJournal, "persisted", persisted)
        for journal, sequence in kept:
            journal.persisted(sequence)
        has(b, [0, 3])


def test_a_deletion_is_remembered_while_a_cluster_is_away(sides: tuple[Side, Side]) -> None:
    """The cluster that deleted it restarts meanwhile. The subscription of the other one does not bring it back."""
    a, b = sides
    a.publish(0, 6)
    a.topic.create_subscription("s", start="earliest")
    until(lambda: b.topic.subscriptions() == ["s"])
    until(b.is_ready)
    cluster, other = b.cluster, a.cluster
    b.end()
    a.topic.delete_subscription("s")
    a.end()
    a.begin_again()
    a.follow(b, cluster)
    b.begin_again()
    b.follow(a, other)
    until(lambda: b.topic.subscriptions() == [])
    assert a.topic.subscriptions() == []


def test_consumers_wait_until_the_journal_is_read(sides: tuple[Side, Side]) -> None:
    a, b = sides
    a.publish(0, 6)
    a.topic.create_subscription("s", start="earliest")
    until(a.is_ready)
    cluster = b.cluster
    a.end()
    a.begin_again()
    with a.subscribe() as consumer:
        subscription = a.topic.subscription("s")
        waits = subscription.inspect(lambda _, dispatcher: dispatcher.status(0).waits)
        assert "messages from 0 on wait for acknowledgements of other clusters" in waits
        a.follow(b, cluster)
        assert sorted(take(consumer, 6)) == [*range(6)]


def test_a_subscription_without_consumers_here_does_not_expire(sides: tuple[Side, Side]) -> None:
    a, b = sides
    a.publish(0, 6)
    a.topic.create_subscription("s", start="earliest")
    until(lambda: b.topic.subscriptions() == ["s"])
    b.topic.configure(subscription_expiry_ms=1)
    b.topic.subscribe("alone", durable=False).close()
    b.topic.maintain()
    assert b.topic.subscriptions() == ["s"] and a.topic.subscriptions() == ["s"]


def test_status_reports_a_server_without_replicated_subscriptions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(topic_server, "FEATURES", frozenset({ORIGINS}))
    with two(tmp_path) as (a, b):
        a.publish(0, 3)
        first = min((a, b), key=lambda side: side.cluster)
        first.topic.create_subscription("s")
        until(lambda: any("does not know 'subscriptions': upgrade it" in row.error for row in first.rows()))
        until(lambda: len(b.topic) == 3)


def test_a_topic_that_was_restored_and_has_another_identity(sides: tuple[Side, Side], tmp_path: Path) -> None:
    """Acknowledgements of its new messages do not count for the former messages, which only the other cluster has."""
    a, b = sides
    a.publish(0, 30)
    old = [*range(10), 15]
    with a.subscribe() as consumer:
        messages = take(consumer, 30)
        for number in old:
            consumer.acknowledge(messages[number])
        has(b, old)
        until(a.is_ready)
    a.end()
    shutil.copytree(a.path, tmp_path / "backup")
    a.begin_again()
    a.follow(b)
    a.publish(30, 45)
    until(lambda: len(b.topic) == 45)
    a.end()
    shutil.rmtree(a.path)
    shutil.copytree(tmp_path / "backup", a.path)
    a.begin_again()
    former = a.topic.origin
    a.publish(100, 121)
    a.follow(b)
    replicator = a.replicator
    assert replicator is not None
    until(lambda: replicator.status().state == "diverged")
    with a.subscribe() as consumer:
        messages = take(consumer, 40)
        for number in (102, 103, 104):
            consumer.acknowledge(messages[number])
        consumer.flush()
    replicator.resync()
    until(lambda: a.topic.origin != former)
    a.end()
    a.begin_again()
    a.follow(b)
    until(lambda: len(b.topic) == 66)
    with a.subscribe() as consumer:
        fresh = rest(consumer, 120)
        assert not {*old} & {*fresh}, "acknowledged before the backup"
        assert {*range(10, 30)} - {15} < {*fresh}
        a.publish(121, 124)
        (number, message), *_ = take(consumer, 1).items()
        consumer.acknowledge(message)
        until(lambda: number in b.acked(), pause_s=0.05)
    assert not {*range(30, 45)} & {*b.acked()}, "taken for those of the new messages"
    with b.subscribe() as other:
        assert {*range(30, 45)} <= {*rest(other, 123)}


def test_a_subscription_that_begins_behind_lost_messages_gets_the_new_ones(
    sides: tuple[Side, Side], tmp_path: Path
) -> None:
    """It was created in the other cluster, and came here before the topic that was restored had another identity."""
    a, b = sides
    a.publish(0, 30)
    before = a.replicator
    assert before is not None
    until(lambda: before.status().stored == 30)
    a.end()
    shutil.copytree(a.path, tmp_path / "backup")
    a.begin_again()
    a.follow(b)
    a.publish(30, 45)
    until(lambda: len(b.topic) == 45)
    a.end()
    shutil.rmtree(a.path)
    shutil.copytree(tmp_path / "backup", a.path)
    a.begin_again()
    former = a.topic.origin
    a.publish(100, 121)
    b.topic.create_subscription("late")
    a.follow(b)
    until(lambda: "late" in a.topic.subscriptions() and a.topic.subscription("late").acked_ranges().header != 0)
    replicator = a.replicator
    assert replicator is not None
    until(lambda: replicator.status().state == "diverged")
    replicator.resync()
    until(lambda: a.topic.origin != former)
    a.end()
    a.begin_again()
    a.follow(b)
    until(lambda: len(b.topic) == 66)
    for side in sides:
        with side.subscribe(name="late") as consumer:
            assert rest(consumer, 120) == [*range(100, 121)]


@pytest.mark.parametrize("is_acknowledged", [True, False], ids=["acknowledged", "passed-over-by-a-seek"])
def test_acknowledgements_of_messages_that_were_lost_are_not_those_of_new_ones(
    sides: tuple[Side, Side], is_acknowledged: bool
) -> None:
    """Copies were given up by force: a subscription in the journal has passed messages beyond the end of the topic."""
    a, b = sides
    a.publish(0, 21)
    with a.subscribe() as consumer:
        for message in take(consumer, 21).values():
            consumer.acknowledge(message)
        has(b, [*range(21)])
        until(a.is_ready)
    a.end()
    a.begin_again()
    former = a.topic.origin
    journal = SubscriptionJournal(a.topic.context, lambda _: None, lambda _: None)
    a.topic.system_cursors.adopt(journal)
    known = replay(journal.records)
    state = known.lifecycles["s"].state
    assert state is not None
    item: Item = AcksItem("s", min(state.tokens), state.generation, former, ranges_of(np.array([21]), np.array([30])))
    if not is_acknowledged:
        bases = OriginRanges()
        bases.add(former, np.array([0]), np.array([30]))
        item = StateItem("s", (*state.tokens,), Generation(1, former.cluster), state.home, bases)
    journal.append(Persist(known.sequence + 1, encode_record(known.sequence + 1, [item]), False))
    journal.store().result(20.0)
    journal.close()
    a.follow(b)
    until(lambda: a.topic.origin != former)
    assert a.topic.origins.former == ((former, 21),)
    a.publish(100, 112)
    until(lambda: len(b.topic) == 33)
    for side in sides:
        with side.subscribe() as consumer:
            assert sorted(take(consumer, 12)) == [*range(100, 112)]
