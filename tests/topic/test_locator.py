"""Messages that are acknowledged without having been delivered: their entries are found in one pass."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyreplog.cluster import Cluster
from pyreplog.errors import UnreadableError
from pyreplog.topic.model.dispatch.effects import Locate
from pyreplog.topic.owner.locator import Locator, joined, offsets_in
from pyreplog.topic.owner.subscription import NOBODY
from pyreplog.topic.owner.topic import Topic
from tests.topic.handling import PATIENCE_S, PLAIN, HeldPlaces, check_backlog, open_cluster, until

MESSAGES, ENTRY = 20_000, 10


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with open_cluster(tmp_path_factory.mktemp("locator")) as cluster:
        yield cluster


@pytest.fixture
def topic(cluster: Cluster, request: pytest.FixtureRequest) -> Iterator[Topic]:
    """Of several ledgers."""
    with cluster.topic(request.node.name[:100], **PLAIN, batch_messages=ENTRY, roll_entries=900) as topic:
        topic.create_subscription("s", start="earliest")
        for _ in range(4):
            topic.publish_batch([b"x" * 100] * (MESSAGES // 4))
        topic.subscribe("s", type="shared", queue=1).close()  # from now on it knows where the topic ends
        yield topic


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """(offset, bytes) of all reads."""
    rows: list[tuple[int, int]] = []
    read = Locator._read

    def counted(self: Locator, start: int, end: int) -> Any:
        rows.append((start, self._bytes))
        return read(self, start, end)

    monkeypatch.setattr(Locator, "_read", counted)
    return rows


def acknowledged(topic: Topic, *some: Any) -> None:
    """All are, and nothing else; the first message is not, so that none is below the mark."""
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


def test_what_is_far_apart_is_not_read_through(topic: Topic, reads: list[tuple[int, int]]) -> None:
    acknowledged(topic, range(7, MESSAGES, 1009))
    assert {size for _, size in reads[1:]} == {1} and len(reads) <= len(range(7, MESSAGES, 1009))


def test_what_comes_meanwhile_is_one_pass_too(topic: Topic, monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    """One call for each message, in any order, while the first is being looked for."""
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


def test_what_cannot_be_read_comes_again_and_the_rest_does_not(topic: Topic, monkeypatch: pytest.MonkeyPatch) -> None:
    read = Locator._read

    def fails(self: Locator, start: int, end: int) -> Any:
        if start == 15_500:
            raise UnreadableError(1, "its bookies are away")
        return read(self, start, end)

    monkeypatch.setattr(Locator, "_read", fails)
    subscription = topic.subscription("s")
    subscription.acknowledge(NOBODY, np.array([15_100, 15_500, 15_900]))
    subscription.flush_async().result(PATIENCE_S)
    assert subscription.inspect(lambda cursor, _: cursor.mask(np.array([15_100, 15_500, 15_900]))).tolist() == [
        True,
        False,
        True,
    ]


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
