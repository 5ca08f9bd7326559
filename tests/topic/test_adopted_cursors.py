"""System cursors of a topic: a part of the process adopts one, moves it, and removes it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from pyreplog.cluster import Cluster
from pyreplog.future import AppendFuture, set_result
from pyreplog.topic.client.publishing.publisher import Publisher
from pyreplog.topic.model.positions import ORIGIN, TopicPosition
from pyreplog.topic.owner.topic import Topic
from tests.topic.handling import PLAIN, open_cluster


class Moved:
    """A system cursor that stands at the start of its topic, and counts what is asked of it."""

    needed_by, mark, cursor_ledger = "the test", ORIGIN, -1

    def __init__(self, name: str = "pyreplog.geo.b") -> None:
        self.name = name
        self.recovered = self.closed = 0

    def recover(self) -> None:
        self.recovered += 1

    def follow(self, publisher: Publisher) -> None: ...

    def store_if_due(self) -> None: ...

    def store(self, *, is_last: bool = False) -> AppendFuture[None]:
        stored: AppendFuture[None] = AppendFuture()
        set_result(stored, None)
        return stored

    def close(self) -> None:
        self.closed += 1


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with open_cluster(tmp_path_factory.mktemp("cursors")) as cluster:
        yield cluster


@pytest.fixture
def topic(cluster: Cluster, request: pytest.FixtureRequest) -> Iterator[Topic]:
    with cluster.topic(request.node.name[:100], **PLAIN) as topic:
        yield topic


def names(topic: Topic) -> list[str]:
    return [cursor.name for cursor in topic.system_cursors.all() if cursor.name == "pyreplog.geo.b"]


def needed(topic: Topic) -> TopicPosition:
    """Return the lowest mark of the system cursors."""
    return min(cursor.mark for cursor in topic.system_cursors.all())


def test_a_cursor_that_is_adopted_is_recovered_and_keeps_messages(topic: Topic) -> None:
    cursor = Moved()
    assert topic.system_cursors.adopt(cursor)
    assert names(topic) == ["pyreplog.geo.b"] and cursor.recovered == 1
    topic.publish(b"1")
    assert needed(topic) == ORIGIN


def test_a_cursor_is_not_adopted_when_its_condition_no_longer_holds(topic: Topic) -> None:
    cursor = Moved()
    assert not topic.system_cursors.adopt(cursor, if_=lambda: False)
    assert names(topic) == [] and cursor.recovered == 0


def test_a_removed_cursor_is_closed_and_keeps_nothing(topic: Topic) -> None:
    cursor, former = Moved(), Moved()
    topic.system_cursors.adopt(cursor)
    assert topic.system_cursors.remove(cursor.name, [former, cursor])
    assert names(topic) == [] and (cursor.closed, former.closed) == (1, 0)


def test_a_cursor_of_another_owner_is_not_removed(topic: Topic) -> None:
    cursor = Moved()
    topic.system_cursors.adopt(cursor)
    assert not topic.system_cursors.remove(cursor.name, [Moved()])
    assert names(topic) == ["pyreplog.geo.b"] and cursor.closed == 0


def test_removing_a_cursor_that_nobody_moves_succeeds(topic: Topic) -> None:
    assert topic.system_cursors.remove("pyreplog.geo.b", [])
    assert names(topic) == []
