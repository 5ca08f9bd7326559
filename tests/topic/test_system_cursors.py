"""Stored system cursors that no code of this owner moves: in doubt, they keep their messages."""

from __future__ import annotations

import json
import secrets
import threading
from collections.abc import Iterator
from typing import Any, cast

import pytest

from pyreplog.cluster import Cluster
from pyreplog.cursors.cursor_log import CursorLedgerReader
from pyreplog.cursors.subscription_metadata import (
    SubscriptionMetadata,
    create_subscription,
    list_subscriptions,
    subscription_key,
    subscriptions_key,
)
from pyreplog.errors import (
    BacklogFullError,
    InvalidArgumentError,
    NoSuchSubscriptionError,
    ReplogError,
    SubscriptionBusyError,
    TopicFencedError,
    UnreadableError,
)
from pyreplog.topic.model.positions import ORIGIN, TopicPosition, position
from pyreplog.topic.model.system_cursor_record import StoredMark, SystemCursorRecord, stored_mark
from pyreplog.topic.owner import subscriptions as subscriptions_module
from pyreplog.topic.owner import topics as topics_module
from pyreplog.topic.owner.system_cursors import SystemCursor, SystemCursors
from pyreplog.topic.owner.topic import Topic
from tests.topic.handling import PATIENCE_S, SMALL, fill, open_cluster, trim
from tests.topic.killable_processes import kill, killable_process, lose_lease
from tests.topic.remoting import ServedCluster

NAME = "t"
NEWER = "pyreplog.newer.b"
"""The name of a cursor of a newer version."""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A cluster without periodic maintenance of its topics."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(topics_module, "MAINTENANCE_S", 86_400.0)
        with open_cluster(tmp_path_factory.mktemp("system")) as cluster:
            yield cluster


@pytest.fixture(autouse=True)
def nothing_is_left(cluster: Cluster) -> Iterator[None]:
    yield
    with cluster.topic(NAME) as topic:
        topic.delete()


def make(cluster: Cluster, count: int = 30, **settings: Any) -> TopicPosition:
    """Create and close a topic of so many messages, two to an entry and six to a ledger; return a position in its
    middle."""
    with cluster.topic(NAME, **SMALL, **settings) as topic:
        fill(topic, count)
        return position(topic.managed, 14).result(PATIENCE_S)


def store(cluster: Cluster, record: bytes, name: str = NEWER) -> None:
    """Store a cursor as a process of another version does."""
    metadata = SubscriptionMetadata(token=secrets.token_hex(8), created_us=1, snapshot=record)
    create_subscription(cluster.metadata, NAME, name, metadata)


def store_mark(cluster: Cluster, mark: TopicPosition, name: str = NEWER) -> None:
    store(cluster, SystemCursorRecord(3, mark, b"of another version").to_bytes(), name)


def make_newer(cluster: Cluster, name: str = NEWER) -> bytes:
    """Change the stored cursor so that only a newer version can read its metadata; return their bytes."""
    key = subscription_key(NAME, name)
    item = cluster.metadata.get(key)
    assert item is not None
    newer = json.dumps({**json.loads(item.value), "version": 99, "min_reader": 99}).encode()
    cluster.metadata.put(key, newer, item.version)
    return newer


class Moved:
    """A cursor of another version, whose records go to a cursor ledger."""

    def __init__(self, *records: bytes) -> None:
        self._records, self._sequence = list(records), 10

    def take_changes(self) -> tuple[int, bytes] | None:
        return self.snapshot_record() if self._records else None

    def snapshot_record(self) -> tuple[int, bytes]:
        self._sequence += 1
        return self._sequence, self._records.pop(0)

    def persisted(self, sequence: int) -> None:
        """Do nothing: the test does not wait for it."""

    def lost(self, error: ReplogError) -> None:
        """Do nothing: the test does not wait for it."""


def move(cluster: Cluster, *records: bytes) -> None:
    """Store these records, one after the other, in a cursor ledger."""
    log = cluster.topics.cursors
    persister = log.attach(log.recover(NAME, NEWER), Moved(*records))
    for _ in records:
        persister.dirty()
        persister.flush().result(PATIENCE_S)
    persister.close()


def states(topic: Topic) -> dict[str, tuple[str, int]]:
    """Return state and mark of each cursor; check that each is listed once."""
    cursors = topic.internal_stats().cursors
    assert len({cursor.name for cursor in cursors}) == len(cursors)
    return {cursor.name: (cursor.state, cursor.mark.offset) for cursor in cursors}


# ---- trimming ----------------------------------------------------------------------------------------------------


def test_each_owner_of_the_topic_keeps_its_messages(cluster: Cluster, caplog: pytest.LogCaptureFixture) -> None:
    """The messages are kept after the topic is opened again, and after the death of an owner, until the cursor is
    deleted."""
    store_mark(cluster, make(cluster))
    with cluster.topic(NAME) as topic:
        assert trim(topic) == 12
        assert states(topic) == {NEWER: ("stored", 14)}
    with killable_process(cluster) as other:
        topic = other.topic(NAME)
        fill(topic, 6)
        assert trim(topic) == 12
        kill(other)
    with cluster.topic(NAME) as topic:
        assert trim(topic) == 12
        caplog.clear()
        topic.delete_subscription(NEWER)
        assert (trim(topic), states(topic)) == (36, {})
        with pytest.raises(NoSuchSubscriptionError, match=NEWER):
            topic.delete_subscription(NEWER)
    with cluster.topic(NAME) as topic:
        assert states(topic) == {} and NEWER not in caplog.text


def test_stored_cursor_that_keeps_messages_is_logged(cluster: Cluster, caplog: pytest.LogCaptureFixture) -> None:
    store_mark(cluster, make(cluster))
    with cluster.topic(NAME) as topic:
        for _ in range(3):
            topic.maintain()
    (record,) = [record for record in caplog.records if NEWER in record.getMessage()]
    assert record.levelname == "WARNING"
    assert "offset 14" in record.getMessage() and "delete_subscription" in record.getMessage()


@pytest.mark.parametrize("name", ["pyreplog.geo.b", subscriptions_module.JOURNAL])
def test_stored_cursors_that_are_adopted_later_are_not_logged(
    cluster: Cluster, caplog: pytest.LogCaptureFixture, name: str
) -> None:
    """They keep messages until then, without advice to delete them. A cursor that cannot be read raises an alarm."""
    store_mark(cluster, make(cluster), name)
    with cluster.topic(NAME) as topic:
        assert states(topic) == {name: ("stored", 14)} and name not in caplog.text
    make_newer(cluster, name)
    with cluster.topic(NAME) as topic:
        assert states(topic)[name][0] == "unknown" and name in caplog.text


def test_the_newest_record_in_a_cursor_ledger_counts(cluster: Cluster) -> None:
    mark = make(cluster)
    store_mark(cluster, ORIGIN)
    move(cluster, SystemCursorRecord(11, mark, b"").to_bytes())
    with cluster.topic(NAME) as topic:
        assert states(topic) == {NEWER: ("stored", 14)}
        assert trim(topic) == 12


def test_messages_before_its_mark_were_trimmed_already(cluster: Cluster) -> None:
    """A version without this rule has trimmed them: they count in no quota."""
    with cluster.topic(NAME, **SMALL) as topic:
        fill(topic, 30)
        assert trim(topic) == 30
        fill(topic, 6)
    store_mark(cluster, ORIGIN)
    with cluster.topic(NAME) as topic:
        assert states(topic) == {NEWER: ("stored", 30)}
        assert trim(topic) == 30


# ---- doubt -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "record",
    [b"", b"short", SystemCursorRecord(3, TopicPosition(1 << 40, 1 << 40, 1 << 40), b"").to_bytes()],
    ids=["nothing", "short", "a mark behind the end"],
)
def test_a_record_that_is_not_understood_keeps_everything(
    cluster: Cluster, caplog: pytest.LogCaptureFixture, record: bytes
) -> None:
    make(cluster)
    store(cluster, record)
    for _ in range(2):
        caplog.clear()
        with cluster.topic(NAME) as topic:
            assert (trim(topic), states(topic)) == (0, {NEWER: ("unknown", 0)})
        assert len([line for line in caplog.messages if "cannot be read" in line and "version" in line]) == 1
    with cluster.topic(NAME) as topic:
        topic.delete_subscription(NEWER)
        assert trim(topic) == 30


def test_metadata_of_a_newer_version_keep_everything(cluster: Cluster) -> None:
    make(cluster)
    store_mark(cluster, ORIGIN)
    newer = make_newer(cluster)
    with cluster.topic(NAME) as topic:
        assert (trim(topic), states(topic)) == (0, {NEWER: ("unknown", 0)})
        left = cluster.metadata.get(subscription_key(NAME, NEWER))
        assert left is not None and left.value == newer
        topic.delete_subscription(NEWER)
        assert trim(topic) == 30
    assert list_subscriptions(cluster.metadata, NAME) == []


def test_an_older_mark_counts_if_the_newest_record_is_not_understood(cluster: Cluster) -> None:
    mark = make(cluster)
    store_mark(cluster, ORIGIN)
    move(cluster, SystemCursorRecord(11, mark, b"").to_bytes(), b"newer")
    with cluster.topic(NAME) as topic:
        assert (trim(topic), states(topic)) == (12, {NEWER: ("unknown", 14)})


def test_a_topic_is_opened_while_the_ledger_of_a_cursor_cannot_be_read(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The mark in the metadata is older, so that it keeps more messages."""
    mark = make(cluster)
    store_mark(cluster, ORIGIN)
    move(cluster, SystemCursorRecord(11, ORIGIN, b"").to_bytes(), SystemCursorRecord(12, mark, b"").to_bytes())

    def fail(*_: object, **__: object) -> list[bytes]:
        raise UnreadableError(1, "too few bookies answer")

    with monkeypatch.context() as patch:
        patch.setattr(CursorLedgerReader, "read", fail)
        patch.setattr(CursorLedgerReader, "read_open", fail)
        with cluster.topic(NAME) as topic:
            assert (trim(topic), states(topic)) == (0, {NEWER: ("unknown", 0)})
    with cluster.topic(NAME) as topic:
        assert (trim(topic), states(topic)) == (12, {NEWER: ("stored", 14)})


def test_the_lowest_mark_of_stored_records_counts() -> None:
    low, high = (SystemCursorRecord(1, TopicPosition(n, n, n), b"state").to_bytes() for n in (5, 9))
    assert SystemCursorRecord.from_bytes("n", low) == (1, (5, 5, 5), b"state")
    assert stored_mark("n", [high, low]) == StoredMark(TopicPosition(9, 9, 9), "")
    assert stored_mark("n", [high], TopicPosition(9, 9, 9)).mark == (9, 9, 9)
    for end in (TopicPosition(8, 9, 9), TopicPosition(9, 8, 9), TopicPosition(9, 9, 8)):
        mark = stored_mark("n", [high, low], end)
        assert mark.mark == (5, 5, 5) and str(end) in mark.problem
    assert stored_mark("n", [b"", low]).mark == (5, 5, 5)
    assert stored_mark("n", []).mark is None and stored_mark("n", []).problem


# ---- quotas, and who asks ----------------------------------------------------------------------------------------


def test_a_quota_counts_the_backlog_of_an_unknown_system_cursor(cluster: Cluster) -> None:
    store_mark(cluster, make(cluster, quota_bytes=10, quota_policy="error"))
    with cluster.topic(NAME) as topic:
        topic.maintain()
        with pytest.raises(BacklogFullError, match=NEWER):
            topic.publish(b"one more")
        topic.delete_subscription(NEWER)
        topic.maintain()
        assert topic.publish(b"one more") == 30


def test_cursor_in_use_is_listed_once_and_cannot_be_deleted(cluster: Cluster) -> None:
    mark = make(cluster, deduplicate=True)
    store_mark(cluster, mark)
    with cluster.topic(NAME) as topic:
        assert states(topic) == {"pyreplog.dedup": ("open", 30), NEWER: ("stored", 14)}
        for force in (False, True):
            with pytest.raises(SubscriptionBusyError, match="deduplicate"):
                topic.delete_subscription("pyreplog.dedup", force=force)
        with pytest.raises(InvalidArgumentError):
            topic.create_subscription("pyreplog.other")
        topic.delete_subscription(NEWER)
        topic.publish(b"one more", producer="p", sequence=7)
        assert states(topic) == {"pyreplog.dedup": ("open", 30)}
    with cluster.topic(NAME) as topic:
        assert states(topic) == {"pyreplog.dedup": ("open", 31)}
        assert topic.publish(b"one more", producer="p", sequence=7) == -1


def test_two_that_begin_at_the_same_time(cluster: Cluster) -> None:
    """Each cursor keeps its messages, when those of two other clusters and that of the origins begin together."""
    stored = list[str]()

    class Begins:
        def __init__(self, name: str, meanwhile: threading.Thread | None = None) -> None:
            self._name, self._meanwhile = name, meanwhile

        @property
        def name(self) -> str:
            meanwhile, self._meanwhile = self._meanwhile, None
            if meanwhile is not None:
                meanwhile.start()
                meanwhile.join(0.5)  # this thread may have to wait
            return self._name

        def store(self) -> None:
            stored.append(self._name)

    with cluster.topic(NAME, **SMALL) as topic:
        cursors = SystemCursors(topic.context, (), ())
        other = threading.Thread(target=cursors.begin, args=(Begins("b"),))
        cursors.begin(cast(SystemCursor, Begins("a", other)))
        other.join()
        cursors.catch_up(["a", "b"])
        assert stored == ["a", "b"]


def test_a_client_sees_and_deletes_an_unknown_system_cursor(served: ServedCluster) -> None:
    store_mark(served.cluster, make(served.cluster))
    with served.client() as client:
        topic = client.topic(NAME)
        (cursor,) = topic.internal_stats().cursors
        assert (cursor.name, cursor.state, cursor.mark.offset) == (NEWER, "stored", 14)
        topic.configure(retention_bytes=0)
        assert topic.trim() == 12
        topic.delete_subscription(NEWER)
        assert topic.internal_stats().cursors == () and topic.trim() >= 24
        with pytest.raises(NoSuchSubscriptionError):
            topic.delete_subscription(NEWER)


@pytest.mark.parametrize("newer", [False, True], ids=["of any version", "of a newer version"])
def test_a_former_owner_deletes_nothing(cluster: Cluster, newer: bool) -> None:
    store_mark(cluster, make(cluster))
    if newer:
        make_newer(cluster)
    with killable_process(cluster) as former:
        topic = former.topic(NAME)
        lose_lease(former)
        with cluster.topic(NAME) as owned:
            with pytest.raises(TopicFencedError):
                topic.delete_subscription(NEWER)
            assert states(owned) == {NEWER: ("unknown", 0) if newer else ("stored", 14)}
            assert list_subscriptions(cluster.metadata, NAME) == [NEWER]


def test_opening_asks_the_metadata_store_for_no_more(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without stored system cursors, opening lists the subscriptions once and reads nothing else."""
    make(cluster)
    asked: list[str] = []
    for name in ("get", "list"):
        call = getattr(cluster.metadata, name)
        monkeypatch.setattr(cluster.metadata, name, lambda key, call=call: (asked.append(key), call(key))[1])
    with cluster.topic(NAME):
        about = [key for key in asked if key.startswith(subscriptions_key(NAME))]
    assert about == [subscriptions_key(NAME)]


# ---- deduplication is switched off -------------------------------------------------------------------------------


def test_the_cursor_of_deduplication_goes_when_that_is_switched_off(cluster: Cluster) -> None:
    """It is deleted when the topic is opened next. Switched on again, deduplication knows the messages that are kept."""
    with cluster.topic(NAME, **SMALL, deduplicate=True) as topic:
        for number in range(6):
            topic.publish(b"%d" % number, producer="p", sequence=number)
        topic.configure(deduplicate=False)
        assert states(topic) == {"pyreplog.dedup": ("open", 0)}
    assert list_subscriptions(cluster.metadata, NAME) == ["pyreplog.dedup"]
    store_mark(cluster, ORIGIN)
    with cluster.topic(NAME) as topic:
        assert list_subscriptions(cluster.metadata, NAME) == [NEWER], "of others no version knows that they can go"
        topic.delete_subscription(NEWER)
        topic.configure(deduplicate=True)
    with cluster.topic(NAME) as topic:
        assert states(topic) == {"pyreplog.dedup": ("open", 0)}
        assert topic.publish(b"again", producer="p", sequence=5) == -1
        topic.configure(deduplicate=False)
    with cluster.topic(NAME) as topic:
        assert trim(topic) == 6


def test_a_newer_version_of_that_cursor_stays(cluster: Cluster) -> None:
    make(cluster)
    store_mark(cluster, ORIGIN, "pyreplog.dedup")
    make_newer(cluster, "pyreplog.dedup")
    with cluster.topic(NAME) as topic:
        assert (trim(topic), states(topic)) == (0, {"pyreplog.dedup": ("unknown", 0)})


def test_an_owner_that_was_slow_to_open_the_topic_deletes_nothing(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another process owns the topic by then, and deduplicates."""
    make(cluster, deduplicate=True)
    with cluster.topic(NAME) as topic:
        topic.configure(deduplicate=False)

    with killable_process(cluster) as slow:

        def listed(store: Any, topic: str) -> list[str]:
            subscriptions = list_subscriptions(store, topic)
            monkeypatch.undo()
            lose_lease(slow)
            with cluster.topic(NAME) as other:
                other.configure(deduplicate=True)
            with cluster.topic(NAME) as other:
                other.publish(b"one more", producer="p", sequence=7)
            return subscriptions

        monkeypatch.setattr(subscriptions_module, "list_subscriptions", listed)
        with pytest.raises(TopicFencedError):
            slow.topic(NAME)
    assert list_subscriptions(cluster.metadata, NAME) == ["pyreplog.dedup"]
