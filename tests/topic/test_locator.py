"""Messages are acknowledged that were never delivered: their entries are located in one pass."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyreplog.cluster import Cluster
from pyreplog.errors import (
    InvalidEntryError,
    MetadataUnavailableError,
    NoSuchSubscriptionError,
    ReplogError,
    TopicFencedError,
    UnreadableError,
)
from pyreplog.future import AppendFuture, set_exception
from pyreplog.topic.model.dispatch.effects import Locate
from pyreplog.topic.owner import locator as locator_module
from pyreplog.topic.owner import subscription as subscription_module
from pyreplog.topic.owner.locator import Locator, joined, offsets_in
from pyreplog.topic.owner.subscription import NOBODY, Subscription
from pyreplog.topic.owner.topic import Topic
from tests.topic.handling import PATIENCE_S, PLAIN, HeldPlaces, check_backlog, open_cluster, until

MESSAGES, ENTRY = 20_000, 10


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with open_cluster(tmp_path_factory.mktemp("locator")) as cluster:
        yield cluster


@pytest.fixture
def topic(cluster: Cluster, request: pytest.FixtureRequest) -> Iterator[Topic]:
    """A topic of several ledgers."""
    with cluster.topic(request.node.name[:100], **PLAIN, batch_messages=ENTRY, roll_entries=900) as topic:
        topic.create_subscription("s", start="earliest")
        for _ in range(4):
            topic.publish_batch([b"x" * 100] * (MESSAGES // 4))
        topic.subscribe("s", type="shared", queue=1).close()  # the subscription knows the end of the topic from here on
        yield topic


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """Record offset and size of all reads."""
    rows: list[tuple[int, int]] = []
    read = Locator._read

    def counted(self: Locator, start: int, end: int) -> Any:
        rows.append((start, self._bytes))
        return read(self, start, end)

    monkeypatch.setattr(Locator, "_read", counted)
    return rows


def acknowledged(topic: Topic, *some: Any) -> None:
    """Check that exactly these messages are acknowledged. The first message is not, so that none is below the mark."""
    subscription = topic.subscription("s")
    for offsets in some:
        subscription.acknowledge(NOBODY, np.array(offsets, np.int64))
    subscription.flush_async().result(PATIENCE_S)
    acked = set().union(*map(set, some))
    assert topic.stats().subscriptions[0].backlog_messages == MESSAGES - len(acked)
    mask = subscription.inspect(lambda cursor, _: cursor.mask(np.arange(MESSAGES)))
    assert np.flatnonzero(mask).tolist() == sorted(acked)


def test_a_range_is_read_in_few_steps(topic: Topic, reads: list[tuple[int, int]]) -> None:
    topic.subscription("s").acknowledge_range(NOBODY, 1, MESSAGES)
    topic.subscription("s").flush_async().result(PATIENCE_S)
    check_backlog(topic, "s", [0])
    assert len(reads) < 20, "2,000 entries"


def test_every_other_message_is_one_pass(topic: Topic, reads: list[tuple[int, int]]) -> None:
    acknowledged(topic, range(1, MESSAGES, 2))
    assert len(reads) < 20
    assert [start for start, _ in reads] == sorted(start for start, _ in reads)


def test_locating_distant_messages_reads_only_their_entries(topic: Topic, reads: list[tuple[int, int]]) -> None:
    acknowledged(topic, range(7, MESSAGES, 1009))
    assert {size for _, size in reads[1:]} == {1} and len(reads) <= len(range(7, MESSAGES, 1009))


def test_acknowledgements_that_arrive_during_a_location_are_located_in_one_pass(
    topic: Topic, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    """There is one call for each message, in any order, while the first entry is being located."""
    places = HeldPlaces(monkeypatch)
    subscription, some = topic.subscription("s"), list(range(15_001, 17_000, 2))
    random.Random(seed).shuffle(some)
    for offset in some:
        subscription.acknowledge(NOBODY, np.array([offset]))
    until(lambda: places.held)
    flushed = subscription.flush_async()
    assert places.held == 1, "the others wait for that"
    reads = places.release(flushed.done)
    flushed.result(PATIENCE_S)
    assert reads < 20
    acknowledged(topic, some)


def rejected(error: ReplogError) -> AppendFuture[Any]:
    future: AppendFuture[Any] = AppendFuture()
    set_exception(future, error)
    return future


class Unread:
    """An entry that the locator cannot read until the test says so."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, error: ReplogError) -> None:
        self.error: ReplogError | None = error
        self.failures = 0
        self._read = Locator._read
        monkeypatch.setattr(Locator, "_read", lambda locator, start, end: self._fail(locator, start, end))
        monkeypatch.setattr(locator_module, "RETRY_MAX_S", 0.01)
        monkeypatch.setattr(locator_module, "RETRY_FIRST_S", 0.01)

    def _fail(self, locator: Locator, start: int, end: int) -> Any:
        if start == UNREAD and self.error is not None:
            self.failures += 1
            raise self.error
        return self._read(locator, start, end)


SOME, UNREAD = [15_100, 15_500, 15_900], 15_500
AWAY = [UnreadableError(1, "its bookies are away"), MetadataUnavailableError("the store is away")]


def mask(subscription: Subscription) -> list[bool]:
    return subscription.inspect(lambda cursor, _: cursor.mask(np.array(SOME))).tolist()


@pytest.mark.parametrize("error", AWAY)
def test_a_flush_waits_for_what_cannot_be_read_now(
    topic: Topic, monkeypatch: pytest.MonkeyPatch, error: ReplogError
) -> None:
    """The other messages are acknowledged at once."""
    unread, subscription = Unread(monkeypatch, error), topic.subscription("s")
    subscription.acknowledge(NOBODY, np.array(SOME))
    flushed = subscription.flush_async()
    until(lambda: mask(subscription) == [True, False, True])
    subscription.acknowledge(NOBODY, np.array([17_000]))
    until(lambda: subscription.inspect(lambda cursor, _: cursor.mask(np.array([17_000]))).all())
    flushes = [flushed]

    def flush() -> bool:
        flushes.append(subscription.flush_async())
        return unread.failures >= 20

    until(flush)
    assert not any(future.done() for future in flushes)
    unread.error = None
    for future in flushes:
        future.result(PATIENCE_S)
    assert mask(subscription) == [True, True, True]


def test_acknowledgements_wait_for_a_location_that_is_tried_again(
    topic: Topic, monkeypatch: pytest.MonkeyPatch
) -> None:
    unread, subscription = Unread(monkeypatch, AWAY[0]), topic.subscription("s")
    subscription.acknowledge(NOBODY, np.array([UNREAD]))
    until(lambda: unread.failures >= 3)
    places = HeldPlaces(monkeypatch)
    unread.error = None
    until(lambda: places.held == 1)
    subscription.acknowledge(NOBODY, np.array([17_000]))
    flushed = subscription.flush_async()
    assert places.held == 1, "the message is located after the other one"
    places.release(flushed.done)
    flushed.result(PATIENCE_S)
    assert mask(subscription) == [False, True, False]


def test_flush_succeeds_when_an_acknowledged_entry_is_damaged(topic: Topic, monkeypatch: pytest.MonkeyPatch) -> None:
    """The message is not delivered either."""
    Unread(monkeypatch, InvalidEntryError(1, 2, "an entry", "none"))
    subscription = topic.subscription("s")
    subscription.acknowledge(NOBODY, np.array(SOME))
    subscription.flush_async().result(PATIENCE_S)
    assert mask(subscription) == [True, False, True]


@pytest.mark.parametrize("where", [0, 15_700])
def test_a_seek_ends_the_search(topic: Topic, monkeypatch: pytest.MonkeyPatch, where: int) -> None:
    unread, subscription = Unread(monkeypatch, AWAY[0]), topic.subscription("s")
    subscription.acknowledge(NOBODY, np.array(SOME))
    until(lambda: mask(subscription) == [True, False, True])
    subscription.seek(where).result(PATIENCE_S)
    assert mask(subscription) == [where > offset for offset in SOME]
    unread.error = None
    subscription.flush_async().result(PATIENCE_S)
    assert mask(subscription) == [where > offset for offset in SOME]


@pytest.mark.parametrize("fenced", [False, True])
def test_a_flush_fails_with_its_subscription(topic: Topic, monkeypatch: pytest.MonkeyPatch, fenced: bool) -> None:
    unread, subscription = Unread(monkeypatch, AWAY[0]), topic.subscription("s")
    subscription.acknowledge(NOBODY, np.array(SOME))
    flushed = subscription.flush_async()
    until(lambda: mask(subscription) == [True, False, True])
    if fenced:  # a read is the first call that gets the error
        unread.error = TopicFencedError(topic.name, "another process owns it")
        expected: type[ReplogError] = TopicFencedError
    else:
        topic.delete_subscription("s", force=True)
        expected = NoSuchSubscriptionError
    with pytest.raises(expected):
        flushed.result(PATIENCE_S)
    if fenced:
        with pytest.raises(TopicFencedError):
            subscription.flush_async().result(PATIENCE_S)


def test_repeated_acknowledgements_that_cannot_be_located_in_time(
    topic: Topic, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The consumer gets an error, and the search goes on."""
    monkeypatch.setattr(subscription_module, "RESUME_S", 0.05)
    unread, subscription = Unread(monkeypatch, AWAY[1]), topic.subscription("s")
    ranges = np.array([(offset, offset + 1) for offset in SOME])
    assert subscription.acknowledge_again(NOBODY, 0, ranges, lambda: True).result(PATIENCE_S / 6) is False
    unread.error = None
    until(lambda: mask(subscription) == [True, True, True])
    assert subscription.acknowledge_again(NOBODY, 0, ranges, lambda: True).result(PATIENCE_S) is True


@pytest.mark.parametrize("failures", [1, 1_000_000])
def test_a_repeated_cumulative_acknowledgement_is_located_again(
    topic: Topic, monkeypatch: pytest.MonkeyPatch, failures: int
) -> None:
    monkeypatch.setattr(subscription_module, "RESUME_S", 0.05 if failures > 1 else PATIENCE_S)
    monkeypatch.setattr(subscription_module, "RESUME_RETRY_S", 0.01)
    topic.create_subscription("f", start="earliest", type="failover")
    locate, left = topic.managed.locate, [failures]

    def fails(offset: int) -> Any:
        left[0] -= 1
        return rejected(AWAY[1]) if left[0] >= 0 else locate(offset)

    monkeypatch.setattr(topic.managed, "locate", fails)
    subscription = topic.subscription("f")
    subscription.grew()
    done = subscription.acknowledge_again(NOBODY, 15_505, np.empty((0, 2), np.int64), lambda: True)
    assert done.result(PATIENCE_S) is (failures == 1)
    assert subscription.cursor.mark.offset == (15_505 if failures == 1 else 0)


RANGES = st.lists(st.tuples(st.integers(0, 60), st.integers(1, 9)), min_size=1, max_size=8)


@given(st.lists(RANGES, min_size=1, max_size=4))
def test_ranges_are_joined_as_sets_are(several: list[list[tuple[int, int]]]) -> None:
    asked, wanted = [], set()
    for item in several:
        starts = np.array([start for start, _ in item], np.int64)
        ends = np.array([start + count for start, count in item], np.int64)
        asked.append(Locate(1, starts, ends))
        wanted |= {offset for start, count in item for offset in range(start, start + count)}
    starts, ends = joined(asked)
    assert offsets_in(starts, ends).tolist() == sorted(wanted)
    assert (starts[1:] > ends[:-1]).all(), "none touches the next"
