"""A topic has a new owner while its former owner goes on: no call of the former owner has an effect at the new one."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from pyreplog.cluster import Cluster
from pyreplog.errors import (
    ClosedError,
    MetadataUnavailableError,
    OutcomeUnknownError,
    ReplogError,
    TopicFencedError,
    TopicOwnedError,
)
from pyreplog.topic.owner import topics as topics_module
from pyreplog.topic.owner.ownership import Claim
from pyreplog.topic.owner.subscriptions import Subscriptions
from pyreplog.topic.owner.topic import Topic
from tests.topic.counting import Faults
from tests.topic.handling import (
    PATIENCE_S,
    SMALL,
    check_backlog,
    drain,
    fill,
    open_cluster,
    receive,
    received,
    stored,
    until,
    values,
)
from tests.topic.killable_processes import kill, killable_process, lose_lease, runtime_of

NAME = "t"


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with open_cluster(tmp_path_factory.mktemp("owners"), bookies=2) as cluster:
        yield cluster


@pytest.fixture(autouse=True)
def nothing_is_left(cluster: Cluster) -> Iterator[None]:
    yield
    with cluster.topic(NAME, **SMALL) as topic:
        topic.delete()


def test_topic_has_one_owner_at_a_time(cluster: Cluster) -> None:
    with killable_process(cluster) as owner, killable_process(cluster) as other:
        owner.topic(NAME, **SMALL).publish(b"x")
        with pytest.raises(TopicOwnedError):
            other.topic(NAME)
        with ThreadPoolExecutor(1) as pool:
            waiting = pool.submit(other.topic, NAME, wait=PATIENCE_S)
            owner.topic(NAME).close()
            assert stored(waiting.result(PATIENCE_S)) == {0: b"x"}


def shown(topic: Topic) -> object:
    return (
        stored(topic), topic.start, topic.end, topic.config,
        {name: topic.subscription(name).cursor.mark for name in topic.subscriptions()},
        {sub.name: sub.backlog_messages for sub in topic.stats().subscriptions},
    )  # fmt: skip


def all_that_it_can(topic: Topic) -> list[BaseException]:
    """Call each method of a former owner; each raises an error. Return the errors."""
    calls = [
        lambda: topic.publish(b"late"), lambda: topic.publish_batch([b"late"]), lambda: topic.seek("s", "latest"),
        lambda: topic.clear("t"), lambda: topic.skip("t", 1), lambda: topic.trim(), lambda: topic.configure(ttl_ms=1),
        lambda: topic.delete_subscription("t"), lambda: topic.create_subscription("late"),
        lambda: topic.subscribe("late", start="earliest"), lambda: topic.delete(),
    ]  # fmt: skip
    errors: list[BaseException] = []
    for call in calls:
        with pytest.raises(ReplogError) as raised:
            call()
        errors.append(raised.value)
    return errors


def test_calls_of_a_former_owner_have_no_effect_at_the_new_owner(cluster: Cluster) -> None:
    """Scenario 33, with subscriptions: the former owner was paused, and goes on when another one owns the topic."""
    with killable_process(cluster) as owner, killable_process(cluster) as other:
        old = owner.topic(NAME, **SMALL)
        fill(old, 12)
        old.create_subscription("t", start=2)
        consumer = old.subscribe("s", start="earliest", type="shared")
        messages = receive(consumer, 12)
        consumer.acknowledge([messages[at] for at in (0, 1, 5)])
        consumer.flush()
        runtime_of(owner).pause()
        consumer.acknowledge([messages[at] for at in (2, 3)])
        consumer._send_acks()
        late = [old.submit(value) for value in values(5)]
        lose_lease(owner)
        new = other.topic(NAME)
        check_backlog(new, "s", set(range(12)) - {0, 1, 5})
        assert new.publish(b"new") == 12
        new.seek("s", 7)
        new.configure(retention_bytes=0)
        before = shown(new)
        runtime_of(owner).resume()
        assert all(isinstance(future.exception(PATIENCE_S), TopicFencedError) for future in late)
        all_that_it_can(old)
        with pytest.raises(ReplogError):
            consumer.acknowledge([messages[11]])
            consumer.flush(PATIENCE_S)
        consumer.close()
        old.close()
        assert shown(new) == before
        assert new.publish(b"newer") == 13
        new.close()
        with cluster.topic(NAME) as third:
            assert list(stored(third).values())[-2:] == [b"new", b"newer"]
            assert third.subscriptions() == ["s", "t"]
            assert drain(third, "s", 7) == list(range(7, 14))


@pytest.mark.parametrize("at", range(11))
def test_any_first_call_of_a_former_owner_fails(cluster: Cluster, at: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The former owner does not know that it lost the topic: its first call, whichever it is, has no effect and raises
    an error."""
    monkeypatch.setattr(topics_module, "MAINTENANCE_S", 86_400.0)
    with killable_process(cluster) as owner, killable_process(cluster) as other:
        old = owner.topic(NAME, **SMALL)
        fill(old, 6)
        old.managed.roll().result(PATIENCE_S)
        old.create_subscription("s", start="earliest")
        old.create_subscription("t", start=6)
        lose_lease(owner)
        new = other.topic(NAME)
        before = shown(new)
        calls = [
            lambda: old.publish(b"late"), lambda: old.seek("s", "latest"), lambda: old.clear("s"),
            lambda: old.skip("s", 1), lambda: old.configure(ttl_ms=1), lambda: old.delete_subscription("s"),
            lambda: old.delete_subscription("t"), lambda: old.create_subscription("late"),
            lambda: old.subscribe("late", start="earliest"), lambda: old.delete(), lambda: old.maintain(),
        ]  # fmt: skip
        with pytest.raises(TopicFencedError):
            calls[at]()
        assert shown(new) == before
        new.clear("s")
        new.close()
        with cluster.topic(NAME) as third:
            assert third.subscriptions() == ["s", "t"]
            check_backlog(third, "s", [])


def test_a_former_owner_does_not_take_subscriptions_of_the_new_one(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It does not know these subscriptions, nor messages that were published since, and would set cursors back."""
    monkeypatch.setattr(topics_module, "MAINTENANCE_S", 86_400.0)
    with killable_process(cluster) as one, killable_process(cluster) as other:
        old = one.topic(NAME, **SMALL)
        lose_lease(one)
        new = other.topic(NAME)
        with new.subscribe("s", start="earliest") as consumer:
            fill(new, 6)
            consumer.acknowledge(receive(consumer, 4))
            consumer.flush()
            with pytest.raises(TopicFencedError):
                old.subscribe("s", start="earliest")
            until(old.gone.done)
            consumer.acknowledge(receive(consumer, 1))
            consumer.flush()
        new.close()
        with cluster.topic(NAME) as third:
            check_backlog(third, "s", [5])


def test_an_owner_that_opens_the_topic_late_does_not_take_its_subscriptions(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It paused when it had the topic and not its subscriptions yet; meanwhile another owner had both."""
    recover = Subscriptions.recover
    with killable_process(cluster) as one, killable_process(cluster) as other:
        with one.topic(NAME, **SMALL, deduplicate=True) as topic:
            topic.create_subscription("s", start="earliest")
        late: list[Topic] = []

        def recover_late(subscriptions: Subscriptions) -> list[str]:
            if not late:
                late.append(topic)
                lose_lease(one)
                new = other.topic(NAME)
                fill(new, 6)
                with new.subscribe("s") as consumer:
                    consumer.acknowledge(receive(consumer, 4))
                    consumer.flush()
            return recover(subscriptions)

        monkeypatch.setattr(Subscriptions, "recover", recover_late)
        with pytest.raises(TopicFencedError):
            one.topic(NAME)
        new = other.topic(NAME)
        check_backlog(new, "s", [4, 5])
        with new.subscribe("s") as consumer:
            consumer.acknowledge(receive(consumer, 2))
            consumer.flush()
        new.close()
        with cluster.topic(NAME) as third:
            check_backlog(third, "s", [])


def test_a_waiting_read_at_a_former_owner_fails(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """No call is made there."""
    monkeypatch.setattr(topics_module, "MAINTENANCE_S", 0.005)
    with killable_process(cluster) as owner, killable_process(cluster) as other, ThreadPoolExecutor(1) as pool:
        consumer = owner.topic(NAME, **SMALL).subscribe("s")
        waiting = pool.submit(consumer.receive)
        until(lambda: consumer._waiting)
        lose_lease(owner)
        topic = owner.topics.get(NAME)
        assert topic is not None
        other.topic(NAME)
        owner.topics._lost(NAME)
        assert isinstance(waiting.exception(PATIENCE_S), TopicFencedError)
        consumer.close()
        until(topic.gone.done)
        with pytest.raises(TopicOwnedError):
            owner.topic(NAME)


def test_a_call_on_a_closing_topic_names_the_cause(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    errors: list[object] = []
    let_go = Topic._do_close
    monkeypatch.setattr(Topic, "_do_close", lambda topic: (errors.append(topic._error), let_go(topic)))
    with killable_process(cluster) as owner, killable_process(cluster) as other:
        topic = owner.topic(NAME, **SMALL)
        lose_lease(owner)
        other.topic(NAME)
        with pytest.raises(TopicFencedError):
            topic.publish(b"x")
        until(topic.gone.done)
        assert isinstance(errors[0], TopicFencedError)


def test_a_fenced_owner_reports_no_change_as_stored(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """This holds also before it closes the topic by itself."""
    with killable_process(cluster) as owner, killable_process(cluster) as other:
        old = owner.topic(NAME, **SMALL)
        fill(old, 6)
        old.create_subscription("s", start="earliest")
        with monkeypatch.context() as patch:
            patch.setattr(old, "close", lambda: None)
            lose_lease(owner)
            new = other.topic(NAME)
            calls = [
                lambda: old.publish(b"x"), lambda: old.seek("s", "latest"), lambda: old.skip("s", 1), lambda: old.clear("s"),
            ]  # fmt: skip
            for call in calls:
                with pytest.raises(TopicFencedError):
                    call()
        old.close()
        check_backlog(new, "s", range(6))


def claimed_again(cluster: Cluster, topic: Topic, monkeypatch: pytest.MonkeyPatch, *failures: ReplogError) -> None:
    """Tell the owner that its lease is lost, let it claim the lease again with so many failures, and wait until the
    topic has its lease or is closed."""
    ownership, left = cluster.topics.ownership, list(failures)
    claim = ownership.claim

    def claims(name: str, **more: Any) -> Claim:
        if left:
            raise left.pop()
        return claim(name, **more)

    monkeypatch.setattr(ownership, "claim", claims)
    monkeypatch.setattr(topics_module, "MAINTENANCE_S", 0.005)
    for incarnation in list(ownership._sessions):
        ownership._lost(incarnation)
    until(lambda: topic.claim.is_held or topic.gone.done())
    assert not left


def test_a_lost_lease_is_taken_again(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """No other process took the topic meanwhile: it goes on, and clients find its owner again."""
    with killable_process(cluster) as owner, killable_process(cluster) as other:
        topic = owner.topic(NAME, **SMALL)
        with topic.subscribe("s", start="earliest") as consumer:
            assert topic.publish(b"x") == 0
            lose_lease(owner)
            assert other.topics.owner(NAME) is None
            claimed_again(owner, topic, monkeypatch, MetadataUnavailableError("away"), OutcomeUnknownError("lost"))
            assert other.topics.owner(NAME) is not None
            with pytest.raises(TopicOwnedError):
                other.topic(NAME)
            assert topic.publish(b"y") == 1 and received(consumer, 2) == [0, 1]
        topic.close()
        assert other.topics.owner(NAME) is None, "the new one was let go"


def test_a_look_that_comes_late_claims_nothing(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """The topic was closed meanwhile, and another process may own it."""
    monkeypatch.setattr(topics_module, "MAINTENANCE_S", 86_400.0)
    with killable_process(cluster) as owner, killable_process(cluster) as other:
        with owner.topic(NAME, **SMALL) as topic:
            topic.publish(b"x")
        seen: list[object] = []
        claim = owner.topics.claim
        monkeypatch.setattr(owner.topics, "claim", lambda name: seen.append(name) or claim(name))
        with pytest.raises(ClosedError):
            topic.maintain()
        assert seen == [] and other.topics.owner(NAME) is None


def test_a_lost_lease_is_no_use_when_another_had_the_topic(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """The other owner has left, so that the lease is free; but it has fenced the topic."""
    with killable_process(cluster) as owner, killable_process(cluster) as other:
        topic = owner.topic(NAME, **SMALL)
        topic.publish(b"x")
        lose_lease(owner)
        with other.topic(NAME) as new:
            new.publish(b"y")
        claimed_again(owner, topic, monkeypatch)
        until(topic.gone.done)
        with pytest.raises(TopicFencedError):
            topic.publish(b"z")
        until(lambda: other.topics.owner(NAME) is None)
        assert stored(other.topic(NAME)) == {0: b"x", 1: b"y"}


def test_ledgers_that_no_topic_has_go_by_themselves(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process died after it created ledgers and before the chain named them. Ledgers in use, and those of other
    programs, stay."""
    monkeypatch.setattr(topics_module, "RUNS_PER_TURN", 1)
    mine = cluster.create_ledger(1, 1, 1, properties={"of": "somebody else"})
    faults = Faults()
    with killable_process(cluster, faults) as owner:
        owner.topic(NAME, **SMALL).publish(b"x")
        stray = owner.topics.get(NAME).managed._maker.make()  # type: ignore[union-attr]
        kill(owner)
    with killable_process(cluster) as other:
        topic = other.topic(NAME)
        topic.publish(b"y")
        about_to_be_named = topic.managed._maker.make()
        monkeypatch.setattr(topics_module, "MAINTENANCE_S", 0.005)
        monkeypatch.setattr(other.topics, "_runs", 0)
        until(lambda: stray.id not in cluster.ledgers())
        assert {mine.id, about_to_be_named.id, *topic.managed.chain.ids} <= set(cluster.ledgers())
        assert stored(topic) == {0: b"x", 1: b"y"}
        about_to_be_named.close()
        topic.managed._maker.delete(about_to_be_named.id)
    mine.close()
    cluster.delete_ledger(mine.id)


def test_a_topic_returns_to_its_former_owner(cluster: Cluster) -> None:
    """The handle of the former owner closes by itself; opening the topic there again waits for that."""
    with killable_process(cluster) as owner, killable_process(cluster) as other:
        for turn in range(5):
            old = owner.topic(NAME, **SMALL)
            old.create_subscription("s", start="earliest")
            assert old.publish(b"x") == 2 * turn
            lose_lease(owner)
            with other.topic(NAME) as new:
                assert new.publish(b"y") == 2 * turn + 1
            with pytest.raises(TopicFencedError):
                old.publish(b"z")
        with owner.topic(NAME) as topic:
            assert drain(topic, "s", 10) == list(range(10))


def test_a_topic_taken_over_while_it_is_opened_is_fenced(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another process opens the topic between reading the chain and reading the subscriptions: the loser gets an error
    at once."""
    with killable_process(cluster) as owner, killable_process(cluster) as other:
        with owner.topic(NAME, **SMALL) as topic:
            fill(topic, 4)
            topic.create_subscription("s", start="earliest")
        recover = Topic.recover

        def overtaken(self: Topic) -> None:
            monkeypatch.setattr(Topic, "recover", recover)
            lose_lease(owner)
            assert other.topic(NAME).publish(b"x") == 4
            self.recover()

        monkeypatch.setattr(Topic, "recover", overtaken)
        with pytest.raises(TopicFencedError):
            owner.topic(NAME)
        assert owner.topics.get(NAME) is None
        assert drain(other.topic(NAME), "s", 5) == list(range(5))


def test_any_moment_of_a_busy_owner(cluster: Cluster) -> None:
    """Confirmed messages are stored, no message is skipped, and only messages without a stored acknowledgement are
    delivered again."""
    rng = random.Random(7)
    confirmed: dict[int, bytes] = {}
    acked: set[int] = set()  # acknowledgements before a flush that returned
    seen: set[int] = set()
    fenced = 0
    for turn in range(8):
        with killable_process(cluster) as owner:
            topic = owner.topic(NAME, **SMALL, wait=PATIENCE_S)
            consumer = topic.subscribe("s", start="earliest", type="shared")
            until_then = threading.Timer(rng.uniform(0.005, 0.1), lambda item=owner: lose_lease(item))  # type: ignore[misc]
            with ThreadPoolExecutor(1) as pool:
                publishing = pool.submit(_publish, topic, turn, confirmed)
                until_then.start()
                try:
                    while True:
                        messages = consumer.receive(max_messages=20, timeout=0.01)
                        for message in messages:
                            assert message.offset not in acked, turn
                            seen.add(message.offset)
                        if messages:
                            consumer.acknowledge(messages)
                            if rng.random() < 0.3:
                                some = [message.offset for message in messages]
                                consumer.flush(PATIENCE_S)
                                acked.update(some)
                        if not until_then.is_alive():
                            cluster.topic(NAME).close()
                except TopicFencedError:
                    fenced += 1
                publishing.result(PATIENCE_S)
            consumer.close()
    assert fenced == 8
    with cluster.topic(NAME, wait=PATIENCE_S) as topic:
        new_messages = stored(topic)
        assert confirmed.items() <= new_messages.items() and list(new_messages) == list(range(topic.end))
        with topic.subscribe("s", type="shared") as consumer:
            left = received(consumer, topic.stats().subscriptions[0].backlog_messages)
        assert not acked & set(left)
        assert seen | set(left) == set(new_messages)


def _publish(topic: Topic, turn: int, confirmed: dict[int, bytes]) -> None:
    for at in range(1 << 20):
        value = b"%d.%d" % (turn, at)
        try:
            confirmed[topic.publish(value)] = value
        except ReplogError:
            return
