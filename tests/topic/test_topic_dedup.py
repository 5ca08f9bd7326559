"""Topics that deduplicate, while owners fail and change: no message is stored twice, and none is dropped that is not
stored."""

from __future__ import annotations

import random
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from pyreplog.cluster import Cluster
from pyreplog.errors import InvalidArgumentError, ReplogError
from pyreplog.future import AppendFuture, set_result
from pyreplog.topic.model.producer_snapshot import SEQUENCE_MAX
from pyreplog.topic.owner import snapshot_cursor
from pyreplog.topic.owner import topics as topics_module
from pyreplog.topic.owner.topic import Topic
from tests.topic.handling import PATIENCE_S, SMALL, open_cluster, stored, trim, until
from tests.topic.killable_processes import kill, killable_process, lose_lease

NAME = "t"
DEDUP = {**SMALL, "deduplicate": True}


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with open_cluster(tmp_path_factory.mktemp("dedup")) as cluster:
        yield cluster


@pytest.fixture(autouse=True)
def nothing_is_left(cluster: Cluster) -> Iterator[None]:
    yield
    with cluster.topic(NAME, **DEDUP) as topic:
        topic.delete()


@pytest.fixture
def unwatched(monkeypatch: pytest.MonkeyPatch) -> None:
    """Topics of later owners store a snapshot when the test says so, and not in their first maintenance."""
    monkeypatch.setattr(topics_module, "MAINTENANCE_S", 86_400.0)


def publish(topic: Topic, numbers: range) -> list[int]:
    """Publish one entry for each number."""
    return [topic.publish(b"%d" % number, producer="p", sequence=number) for number in numbers]


def test_duplicates_are_known_after_a_clean_close(cluster: Cluster) -> None:
    with cluster.topic(NAME, **DEDUP) as topic:
        assert publish(topic, range(10)) == list(range(10))
    with cluster.topic(NAME, **DEDUP) as topic:
        assert topic.dedup is not None and topic.dedup.mark.offset == 10
        assert topic.producer("p").last_sequence == 9
        assert publish(topic, range(5, 12)) == [-1] * 5 + [10, 11]


@pytest.mark.usefixtures("unwatched")
def test_duplicates_are_known_after_a_crash(cluster: Cluster) -> None:
    """All entries after the last snapshot are read again."""
    with killable_process(cluster) as owner:
        topic = owner.topic(NAME, **DEDUP)
        publish(topic, range(7))
        assert topic.dedup is not None
        topic.dedup.store().result(PATIENCE_S)
        publish(topic, range(7, 10))
        kill(owner)
    with cluster.topic(NAME, **DEDUP) as topic:
        assert topic.dedup is not None and topic.dedup.mark.offset == 7
        assert publish(topic, range(12)) == [-1] * 10 + [10, 11]


@pytest.mark.usefixtures("unwatched")
def test_nothing_that_would_have_to_be_read_again_is_trimmed(cluster: Cluster) -> None:
    """No subscription needs the messages, and yet only those that the stored snapshot covers are trimmed."""
    with killable_process(cluster) as owner:
        topic = owner.topic(NAME, **DEDUP)
        publish(topic, range(9))
        assert topic.dedup is not None
        topic.dedup.store().result(PATIENCE_S)
        publish(topic, range(9, 20))
        trim(topic)
        assert 6 <= topic.start <= 9
        kill(owner)
    with cluster.topic(NAME, **DEDUP) as topic:
        assert publish(topic, range(21)) == [-1] * 20 + [20]


@pytest.mark.usefixtures("unwatched")
def test_maintenance_stores_a_snapshot(cluster: Cluster) -> None:
    """After a crash, few entries have to be read again."""
    with killable_process(cluster) as owner:
        topic = owner.topic(NAME, **DEDUP)
        publish(topic, range(9))
        assert topic.dedup is not None and topic.dedup.mark.offset == 0
        topic.maintain()
        until(lambda: topic.dedup is not None and topic.dedup.mark.offset == 9)
        kill(owner)
    with cluster.topic(NAME, **DEDUP) as topic:
        assert topic.dedup is not None and topic.dedup.mark.offset == 9
        assert publish(topic, range(10)) == [-1] * 9 + [9]


@pytest.mark.usefixtures("unwatched")
def test_an_older_snapshot_that_is_located_later_does_not_replace_a_newer_one(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    with killable_process(cluster) as owner:
        topic = owner.topic(NAME, **DEDUP)
        publish(topic, range(9))
        assert topic.dedup is not None
        held: list[tuple[AppendFuture[object], object]] = []
        position = snapshot_cursor.position
        first: AppendFuture[object] = AppendFuture()
        monkeypatch.setattr(
            snapshot_cursor, "position", lambda log, start: held.append((first, position(log, start))) or first
        )
        older = topic.dedup.store()
        monkeypatch.undo()
        publish(topic, range(9, 20))
        topic.dedup.store().result(PATIENCE_S)
        trim(topic)
        assert topic.start == 20
        set_result(first, held[0][1].result(PATIENCE_S))
        older.result(PATIENCE_S)
        assert topic.dedup.mark.offset == 20
        kill(owner)
    with cluster.topic(NAME, **DEDUP) as topic:
        assert publish(topic, range(21)) == [-1] * 20 + [20]


def test_dedup_cursor_advances_when_it_holds_publishers_by_a_quota(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The cursor of deduplication counts for quotas, and moves on request: publishers do not wait for long."""
    monkeypatch.setattr(topics_module, "MAINTENANCE_S", 0.01)
    with killable_process(cluster) as owner, owner.topic(NAME, **DEDUP, quota_bytes=1000) as topic:
        states: list[str] = []
        put = topic.publisher.set_quota
        monkeypatch.setattr(
            topic.publisher, "set_quota", lambda state, reason: (states.append(state), put(state, reason))
        )
        for number in range(20):
            topic.publish(b"x" * 2000, producer="p", sequence=number)  # the quota is free again at once
            if number % 5 == 4:
                topic.maintain()
        assert "held" in states and topic.end == 20


def test_retries_at_changing_owners_are_stored_once(cluster: Cluster) -> None:
    """Owners change and fence each other; a producer repeats messages without an outcome. Each message is stored once."""
    rng = random.Random(5)
    count, done = 120, 0
    with killable_process(cluster) as first, killable_process(cluster) as second:
        while done < count:
            choice = rng.choice((first, second))
            try:
                topic = choice.topic(NAME, **DEDUP)
            except ReplogError:
                for other in (first, second):
                    lose_lease(other)
                continue
            with ThreadPoolExecutor(1) as pool:
                taking = pool.submit(lose_lease, choice) if rng.random() < 0.5 else None
                for number in range(done, min(done + rng.randint(5, 30), count)):
                    try:
                        topic.publish(b"%d" % number, producer="p", sequence=number)
                    except ReplogError:
                        break
                    done = number + 1
                    if taking is not None and rng.random() < 0.1:
                        taking.result(PATIENCE_S)
                        try:
                            (second if choice is first else first).topic(NAME)
                        except ReplogError:
                            continue
    with cluster.topic(NAME, **DEDUP, wait=PATIENCE_S) as topic:
        assert list(stored(topic).values()) == [b"%d" % number for number in range(count)]


def test_numbers_without_a_producer_are_not_compared(cluster: Cluster) -> None:
    topic = cluster.topic(NAME, **DEDUP)
    first, again = (topic.publish_batch([b"a", b"b"], sequences=[5, 6]) for _ in range(2))
    assert (len(first), len(again), first.stop) == (2, 2, again.start)
    assert topic.stats().producers == 0


def test_a_producer_whose_numbers_are_used_up(cluster: Cluster) -> None:
    """A message that is refused before it has an offset takes no room of the window."""
    topic = cluster.topic(NAME, **DEDUP)
    topic.publish(b"last", producer="p", sequence=SEQUENCE_MAX)
    for _ in range(3):
        with pytest.raises(InvalidArgumentError):
            topic.publish(b"one more", producer="p")
    topic.flush(PATIENCE_S)
    assert (topic.publisher.pending_messages, topic.publisher.pending_bytes) == (0, 0)
    assert topic.publish(b"of another", producer="q") == topic.end - 1
