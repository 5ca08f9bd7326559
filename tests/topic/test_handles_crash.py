"""A process that dies, or whose metadata store fails, at every write of what its topics' handles do."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import pytest

from pyreplog.cluster import Cluster
from pyreplog.errors import MetadataUnavailableError, NoSuchSubscriptionError, OutcomeUnknownError, ReplogError
from pyreplog.ledger.protocol import recovery, writer
from pyreplog.topic.client.consumer import Consumer
from pyreplog.topic.owner.managed import ledgers
from pyreplog.topic.owner.topic import Topic
from tests.thorough import one_in
from tests.topic.counting import Faults
from tests.topic.handling import SMALL, counted_backlog, open_cluster, receive, received, stored, told_backlog
from tests.topic.lives import life, lose_lease

T = TypeVar("T")
NAME = "t"
SETTINGS = {**SMALL, "retention_bytes": 0}
AWAY = (MetadataUnavailableError, OutcomeUnknownError)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with open_cluster(tmp_path_factory.mktemp("crash")) as cluster:
        yield cluster


@pytest.fixture(autouse=True)
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    """What failed is tried again soon."""
    for module, name in (
        (writer, "RETRY_METADATA_S"), (recovery, "RETRY_METADATA_S"), (ledgers, "RETRY_FIRST_S"), (ledgers, "DELETE_RETRY_FIRST_S"),
    ):  # fmt: skip
        monkeypatch.setattr(module, name, 0.001)


class Deeds:
    """What a process does, and what it knows of it.

    confirmed: values of messages. acked: offsets, by subscription; known: those of which it knows that they are stored.
    there, gone: subscriptions that it knows to exist, or not to.
    """

    def __init__(self, faults: Faults, *, deduplicate: bool) -> None:
        self.faults, self.deduplicate = faults, deduplicate
        self.confirmed: dict[int, bytes] = {}
        self.acked: dict[str, set[int]] = {"a": set(), "b": set()}
        self.known: dict[str, set[int]] = {"a": set(), "b": set()}
        self.there: set[str] = set()
        self.gone: set[str] = set()
        self.trimmed = 0
        self.is_deleted = False

    def insist(self, call: Callable[[], T], *, done: type[ReplogError] | None = None) -> T | None:
        """Again, when the store was away for a moment; done: what says that it had been done."""
        tries = 0
        while True:
            try:
                return call()
            except AWAY:
                tries += 1
                if self.faults.is_dead:
                    raise
            except ReplogError as error:
                if done is None or not tries or not isinstance(error, done):
                    raise
                return None

    def publish(self, topic: Topic, count: int) -> None:
        for _ in range(count):
            values = [b"%d" % (len(self.confirmed) + at) for at in range(2)]
            self.confirmed.update(zip(topic.publish_batch(values, producer="p"), values, strict=True))

    def acknowledge(self, consumer: Consumer, count: int) -> None:
        name = consumer.subscription
        messages = [message.offset for message in receive(consumer, count)][::2]
        self.acked[name].update(messages)
        consumer.acknowledge(messages)
        self.insist(consumer.flush)
        self.known[name].update(messages)

    def do(self, cluster: Cluster) -> None:
        for turn in range(2):
            topic = self.insist(lambda: cluster.topic(NAME, **SETTINGS, deduplicate=self.deduplicate))
            self.use(topic, turn)

    def use(self, topic: Any, turn: int) -> None:
        with topic:
            for name in ("a", "b"):
                self.insist(lambda name=name: topic.create_subscription(name, start="earliest"))
                self.there.add(name)
            self.publish(topic, 4)
            with topic.subscribe("a", type="shared") as consumer:
                self.acknowledge(consumer, 5)
                if turn:
                    self.acked["b"].update(range(topic.end))
                    self.trimmed = 10
                    self.insist(lambda: topic.clear("b"))
                    self.known["b"].update(range(topic.end))
                    self.insist(topic.trim)
                    self.publish(topic, 1)
                self.acknowledge(consumer, 2)
            self.gone.discard("short")
            self.insist(lambda: topic.create_subscription("short"))
            self.insist(lambda: topic.delete_subscription("short"), done=NoSuchSubscriptionError)
            self.gone.add("short")


def check(cluster: Cluster, deeds: Deeds) -> None:
    with cluster.topic(NAME, **SETTINGS, deduplicate=deeds.deduplicate) as topic:
        messages = stored(topic)
        assert list(messages) == list(range(topic.start, topic.end))
        expected = {offset: value for offset, value in deeds.confirmed.items() if offset >= topic.start}
        assert expected.items() <= messages.items()
        assert all(offset < topic.end for offset in deeds.confirmed)
        assert deeds.trimmed or topic.start == 0
        names = set(topic.subscriptions())
        assert deeds.there <= names and not deeds.gone & names
        for name in deeds.there:
            left, counted = counted_backlog(topic, name)
            assert not deeds.known[name] & set(left)
            assert set(messages) - set(left) <= deeds.acked[name]
            assert told_backlog(topic, name) == counted
            with topic.subscribe(name, type="shared") as consumer:
                assert received(consumer, len(left)) == left
        if deeds.deduplicate and deeds.confirmed:
            assert topic.publisher.last_sequence("p") >= len(deeds.confirmed) - 1
        topic.delete()


def calls(cluster: Cluster, *, deduplicate: bool) -> int:
    faults = Faults()
    with life(cluster, faults) as owner:
        Deeds(faults, deduplicate=deduplicate).do(owner)
    cluster.topic(NAME).delete()
    return len(faults.calls)


def test_a_crash_at_every_write(cluster: Cluster, seed: int) -> None:
    """Before or after it, by turns; which first, the seed says."""
    share = one_in(6)
    for at in range(seed % share, calls(cluster, deduplicate=True), share):
        faults = Faults(at, after=(at // share + seed) % 2 > 0, dies=True)
        deeds = Deeds(faults, deduplicate=seed % 3 > 0)
        with life(cluster, faults) as owner:
            try:
                deeds.do(owner)
            except ReplogError:
                assert faults.is_dead, (at, faults.calls)
            lose_lease(owner)
        check(cluster, deeds)


def test_a_fault_at_many_writes(cluster: Cluster, seed: int) -> None:
    """The store was away for a moment, or its reply was lost."""
    share = 3 * one_in(4)
    for at in range(seed % share, calls(cluster, deduplicate=True), share):
        faults = Faults(at, after=(at // share + seed) % 2 > 0)
        deeds = Deeds(faults, deduplicate=True)
        with life(cluster, faults) as owner:
            deeds.do(owner)
        assert len(deeds.confirmed) == 18
        check(cluster, deeds)


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
def test_a_crash_at_every_write_of_deleting(cluster: Cluster, after: bool) -> None:
    """It is there with all that it had, or it is not; never a part of it."""
    at, died = 0, True
    while died:
        faults = Faults(at, after=after, dies=True)
        deeds = Deeds(Faults(), deduplicate=True)
        with life(cluster, faults) as owner:
            faults.pause()
            topic = owner.topic(NAME, **SETTINGS, deduplicate=True)
            topic.create_subscription("a", start="earliest")
            deeds.publish(topic, 4)
            faults.go_on()
            try:
                topic.delete()
            except ReplogError:
                assert faults.is_dead
            faults.settle()  # it may be a write of another thread, which is still being made
            died = faults.is_dead
            lose_lease(owner)
        with cluster.topic(NAME, **SETTINGS, deduplicate=True) as again:
            if again.end:
                assert stored(again) == deeds.confirmed and again.subscriptions() == ["a"]
            else:
                assert again.subscriptions() == [] and again.publisher.last_sequence("p") == -1
            again.delete()
        at += 1
    assert at > 2  # others of its writes are made in the background, at any time
