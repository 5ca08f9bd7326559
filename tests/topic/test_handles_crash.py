"""A process dies, or its metadata store fails, at each write of the handles of its topics."""

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
from tests.topic.handling import SMALL, counted_backlog, open_cluster, receive, received, reported_backlog, stored
from tests.topic.killable_processes import killable_process, lose_lease

T = TypeVar("T")
NAME = "t"
SETTINGS = {**SMALL, "retention_bytes": 0}
AWAY = (MetadataUnavailableError, OutcomeUnknownError)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with open_cluster(tmp_path_factory.mktemp("crash")) as cluster:
        yield cluster


@pytest.fixture(autouse=True)
def fast_retries(monkeypatch: pytest.MonkeyPatch) -> None:
    """Retry failed writes after a short time."""
    for module, name in (
        (writer, "RETRY_METADATA_S"), (recovery, "RETRY_METADATA_S"), (ledgers, "RETRY_FIRST_S"), (ledgers, "DELETE_RETRY_FIRST_S"),
    ):  # fmt: skip
        monkeypatch.setattr(module, name, 0.001)


class Workload:
    """The calls of a process, and what it knows of their outcomes.

    Attributes:
        confirmed: values of messages, by offset.
        acked: acknowledged offsets, by subscription.
        known: those of them that are known to be stored.
        there: subscriptions that are known to exist.
        gone: subscriptions that are known not to exist.
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
        """Repeat a call while the store fails. done: the error that says that an earlier attempt succeeded."""
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


def check(cluster: Cluster, workload: Workload) -> None:
    with cluster.topic(NAME, **SETTINGS, deduplicate=workload.deduplicate) as topic:
        messages = stored(topic)
        assert list(messages) == list(range(topic.start, topic.end))
        expected = {offset: value for offset, value in workload.confirmed.items() if offset >= topic.start}
        assert expected.items() <= messages.items()
        assert all(offset < topic.end for offset in workload.confirmed)
        assert workload.trimmed or topic.start == 0
        names = set(topic.subscriptions())
        assert workload.there <= names and not workload.gone & names
        for name in workload.there:
            left, counted = counted_backlog(topic, name)
            assert not workload.known[name] & set(left)
            assert set(messages) - set(left) <= workload.acked[name]
            assert reported_backlog(topic, name) == counted
            with topic.subscribe(name, type="shared") as consumer:
                assert received(consumer, len(left)) == left
        if workload.deduplicate and workload.confirmed:
            assert topic.publisher.last_sequence("p") >= len(workload.confirmed) - 1
        topic.delete()


def calls(cluster: Cluster, *, deduplicate: bool) -> int:
    faults = Faults()
    with killable_process(cluster, faults) as owner:
        Workload(faults, deduplicate=deduplicate).do(owner)
    cluster.topic(NAME).delete()
    return len(faults.calls)


def test_a_crash_at_every_write(cluster: Cluster, seed: int) -> None:
    """The crash comes before a write or after it, in turns; the seed decides which comes first."""
    share = one_in(6)
    for at in range(seed % share, calls(cluster, deduplicate=True), share):
        faults = Faults(at, after=(at // share + seed) % 2 > 0, dies=True)
        workload = Workload(faults, deduplicate=seed % 3 > 0)
        with killable_process(cluster, faults) as owner:
            try:
                workload.do(owner)
            except ReplogError:
                assert faults.is_dead, (at, faults.calls)
            lose_lease(owner)
        check(cluster, workload)


def test_a_fault_at_many_writes(cluster: Cluster, seed: int) -> None:
    """The store was away for a moment, or its reply was lost."""
    share = 3 * one_in(4)
    for at in range(seed % share, calls(cluster, deduplicate=True), share):
        faults = Faults(at, after=(at // share + seed) % 2 > 0)
        workload = Workload(faults, deduplicate=True)
        with killable_process(cluster, faults) as owner:
            workload.do(owner)
        assert len(workload.confirmed) == 18
        check(cluster, workload)


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
def test_a_crash_at_every_write_of_deleting(cluster: Cluster, after: bool) -> None:
    """The topic exists with all that it had, or it does not exist; no part of it is left."""
    at, died = 0, True
    while died:
        faults = Faults(at, after=after, dies=True)
        workload = Workload(Faults(), deduplicate=True)
        with killable_process(cluster, faults) as owner:
            faults.pause()
            topic = owner.topic(NAME, **SETTINGS, deduplicate=True)
            topic.create_subscription("a", start="earliest")
            workload.publish(topic, 4)
            faults.resume()
            try:
                topic.delete()
            except ReplogError:
                assert faults.is_dead
            faults.settle()  # this may be the write of another thread, which is not finished
            died = faults.is_dead
            lose_lease(owner)
        with cluster.topic(NAME, **SETTINGS, deduplicate=True) as again:
            if again.end:
                assert stored(again) == workload.confirmed and again.subscriptions() == ["a"]
            else:
                assert again.subscriptions() == [] and again.publisher.last_sequence("p") == -1
            again.delete()
        at += 1
    assert at > 2  # other writes run in the background, at any time
