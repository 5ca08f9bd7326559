"""Entries that another cluster replicates into a topic: each is stored once and in the order of its origin, whatever
happens to the owner, and the reported positions are those of a scan of the log."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from pyreplog._native.log.record import NO_EVENT_TIME
from pyreplog._native.system.checksum import crc32c
from pyreplog._native.topic.message_encoder import encode_messages
from pyreplog._native.topic.messages import Message, MessageBatch
from pyreplog.bookie.protocol import ReplyStatus, RequestKind
from pyreplog.cluster import Cluster
from pyreplog.cursors.subscription_metadata import SubscriptionMetadata, create_subscription, delete_subscription
from pyreplog.errors import (
    BacklogFullError,
    ClosedError,
    EntryRefusedError,
    InvalidArgumentError,
    InvalidEntryError,
    InvalidMetadataError,
    NotEnoughBookiesError,
    OriginGapError,
    OriginHistoryError,
    OriginSessionError,
    OutcomeUnknownError,
    RecordTooLargeError,
    SubscriptionBusyError,
    TopicFencedError,
    WrongTypeError,
)
from pyreplog.future import AppendFuture
from pyreplog.metadata.layout import cluster_id
from pyreplog.origins import snapshot
from pyreplog.origins.attribute import OriginAttribute
from pyreplog.origins.gate import GateState
from pyreplog.origins.origin import Gap, GapCause, LastEntry, Origin, OriginEntry, OriginState
from pyreplog.topic.client.remote.client import connect
from pyreplog.topic.client.topic_like import TopicLike
from pyreplog.topic.model.positions import TopicPosition
from pyreplog.topic.model.system_cursor_record import SystemCursorRecord
from pyreplog.topic.owner import topics as topics_module
from pyreplog.topic.owner.managed import chain_writer
from pyreplog.topic.owner.origins import ORIGINS
from pyreplog.topic.owner.topic import Topic
from pyreplog.topic.server.topic_server import TopicServer
from tests.ledger.fault_injection import RequestInterceptor
from tests.topic.handling import PATIENCE_S, SMALL, open_cluster, receive, stored, trim, until
from tests.topic.killable_processes import kill, killable_process, lose_lease, runtime_of

NAME = "t"
ORIGIN = Origin(bytes(range(16)), "0123456789abcdef")
OTHER = Origin(bytes(range(16, 32)), "fedcba9876543210")
TIME_US = 1_700_000_000_000_000
SETTINGS: dict[str, Any] = {**SMALL, "retention_bytes": None}


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with open_cluster(tmp_path_factory.mktemp("origins")) as cluster:
        yield cluster


@pytest.fixture(autouse=True)
def nothing_is_left(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Topics store snapshots when a test says so or a caller waits for them, and not in their first maintenance."""
    with monkeypatch.context() as patch:
        patch.setattr(topics_module, "MAINTENANCE_S", 86_400.0)
        yield
    with cluster.topic(NAME, **SETTINGS) as topic:
        topic.delete()


@pytest.fixture
def topic(cluster: Cluster) -> Iterator[Topic]:
    with cluster.topic(NAME, **SETTINGS) as topic:
        yield topic


def entry(first: int, messages: int = 1, *gaps: Gap, **settings: Any) -> OriginEntry:
    values = [b"%d" % number for number in range(first, first + messages)]
    return OriginEntry(encode_messages(values, **settings), messages, first, TIME_US + first, gaps)


def entries(start: int, stop: int, messages: int = 1) -> list[OriginEntry]:
    return [entry(first, messages) for first in range(start, stop, messages)]


def opened(topic: Topic, session: int = 1, origin: Origin = ORIGIN) -> OriginState:
    return topic.origins.open(origin, session).result(PATIENCE_S)


def replicate(
    topic: Topic, sent: Sequence[OriginEntry], gaps: Sequence[Gap] = (), *, session: int = 1, origin: Origin = ORIGIN
) -> int:
    return topic.origins.replicate(origin, session, sent, gaps).result(PATIENCE_S)


def check_log(topic: Topic, origin: Origin = ORIGIN) -> list[tuple[int, int]]:
    """Compare the whole log with the owner's positions; return (offset at the origin, offset here) of each message."""
    found: list[tuple[int, int]] = []
    attributes: list[OriginAttribute] = []
    last: LastEntry | None = None
    at = 0
    for batch in topic.read():
        keys, firsts = batch.entry_origin_key.tolist(), batch.entry_origin_first.tolist()
        for index in range(batch.entries):
            value = batch.entry_origin(index)
            if value is None:
                assert (keys[index], firsts[index]) == (0, -1)
                continue
            attribute = OriginAttribute.from_bytes(value)
            if attribute.key != origin.key:
                continue
            assert (keys[index], firsts[index]) == (attribute.key, attribute.first)
            count, here = int(batch.entry_count[index]), int(batch.entry_first[index])
            for gap in attribute.gaps:
                assert gap.start == at
                at = gap.end
            assert attribute.first == at
            at = attribute.first + count
            found += zip(range(attribute.first, at), range(here, here + count), strict=True)
            attributes.append(attribute)
            last = LastEntry(attribute.first, at, crc32c(batch.entry_value(index)), attribute.publish_time_us)
    state = topic.origins.all()[origin]
    assert state.last == last and state.stored >= at
    assert all(first < second for first, second in pairwise(found))
    return found


# ---- what comes is stored --------------------------------------------------------------------------------------


def test_entries_are_stored_as_they_were_at_their_origin(topic: Topic) -> None:
    assert opened(topic) == OriginState(0, None)
    sent = entries(0, 6, 2)
    assert replicate(topic, sent) == 6
    assert topic.publish(b"local") == 6
    assert replicate(topic, [entry(6, 2)]) == 8
    assert stored(topic) == {**{at: b"%d" % at for at in range(6)}, 6: b"local", 7: b"6", 8: b"7"}
    assert check_log(topic) == [*((at, at) for at in range(6)), (6, 7), (7, 8)]
    batch = next(iter(topic.read()))
    assert bytes(batch.entry_value(0)) == sent[0].value
    expected = OriginState(8, LastEntry(6, 8, crc32c(entry(6, 2).value), TIME_US + 6))
    assert topic.origins.all() == {ORIGIN: expected}
    assert topic.origins.names(ORIGIN.key) == ORIGIN and topic.origins.names(1) is None


def test_local_entries_have_no_origin(topic: Topic) -> None:
    topic.publish_batch([b"a", b"b"])
    (batch,) = topic.read()
    assert batch.entry_origin_key.tolist() == [0] and batch.entry_origin_first.tolist() == [-1]
    assert batch.entry_origin(0) is None
    for wrong in (-1, 1):
        with pytest.raises(IndexError, match="out of range"):
            batch.entry_origin(wrong)
        with pytest.raises(IndexError):
            batch.entry_value(wrong)


def origin_times(batch: MessageBatch) -> list[tuple[bytes, int | None]]:
    """Return the value of each message and its time at the origin, by the columns; None if it was published here."""
    times = batch.entry_origin_publish_time[batch.entry_index].tolist()
    return [(value, None if time == NO_EVENT_TIME else time) for value, time in zip(batch.values(), times, strict=True)]


def of_messages(messages: Sequence[Message]) -> list[tuple[bytes, int | None]]:
    return [(message.value, message.origin_publish_time) for message in messages]


async def awaited(topic: TopicLike, subscription: str, count: int) -> list[Message]:
    """Receive the first messages of a topic in a coroutine."""
    async with asyncio.timeout(PATIENCE_S), await topic.subscribe_async(subscription, start="earliest") as consumer:
        return [await consumer.receive_async() for _ in range(count)]


def test_consumers_get_publish_times_of_the_origin(cluster: Cluster) -> None:
    """Consumers that wait at the end, and later ones, here and at a client, get the times that readers get."""
    with TopicServer(cluster) as server, connect(f"pyreplog://{server.address}") as client:
        with cluster.topic(NAME, **SETTINGS) as topic, client.topic(NAME) as remote:
            waiting = [each.subscribe("tail" + where) for where, each in (("", topic), ("-remote", remote))]
            opened(topic)
            replicate(topic, [entry(0, 2)])
            topic.publish_batch([b"own", b"too"])
            replicate(topic, [entry(2), entry(3, 3)])
            expected: list[tuple[bytes, int | None]] = [
                (b"0", TIME_US), (b"1", TIME_US), (b"own", None), (b"too", None), (b"2", TIME_US + 2),
                *((b"%d" % at, TIME_US + 3) for at in (3, 4, 5)),
            ]  # fmt: skip
            for consumer in waiting:
                messages = receive(consumer, 8)
                assert of_messages(messages) == expected
                assert min(message.publish_time for message in messages) > TIME_US + 3, "the time of the append here"
        with cluster.topic(NAME, **SETTINGS) as topic, client.topic(NAME) as remote:
            for where, each in (("", topic), ("-remote", remote)):
                assert [pair for batch in each.read() for pair in origin_times(batch)] == expected
                with each.subscribe("batches" + where, start="earliest") as consumer:
                    batches = consumer.batches(timeout=PATIENCE_S)
                    pairs = origin_times(next(batches))
                    while len(pairs) < len(expected):
                        pairs += origin_times(next(batches))
                assert pairs == expected
                assert of_messages(asyncio.run(awaited(each, "awaited" + where, len(expected)))) == expected


def test_a_topic_is_an_origin_of_its_own(cluster: Cluster, topic: Topic) -> None:
    assert topic.origin == Origin(cluster_id(cluster.runtime.metadata), topic.managed.chain.token)


def test_replication_session_from_the_own_origin_is_refused(topic: Topic) -> None:
    with pytest.raises(InvalidArgumentError, match="itself"):
        topic.origins.open(topic.origin, 1)


def test_a_topic_without_replicated_entries_has_no_cursor(cluster: Cluster, topic: Topic) -> None:
    topic.publish(b"a")
    assert topic.origins.all() == {}
    assert [cursor.name for cursor in topic.internal_stats().cursors] == []
    opened(topic)
    assert [cursor.name for cursor in topic.internal_stats().cursors] == ["pyreplog.origins"]
    with pytest.raises(SubscriptionBusyError, match="other clusters"):
        topic.delete_subscription("pyreplog.origins")


def test_repeated_entries_of_an_origin_are_skipped(topic: Topic) -> None:
    opened(topic)
    sent = entries(0, 8, 2)
    assert replicate(topic, sent[:3]) == 6
    assert replicate(topic, sent[:2]) == 6
    assert replicate(topic, sent) == 8
    assert check_log(topic) == [(at, at) for at in range(8)]
    assert (topic.publisher.counts.messages, topic.publisher.counts.duplicates) == (8, 10)


def test_many_calls_at_once_are_stored_in_their_order(topic: Topic) -> None:
    opened(topic)
    futures = [topic.origins.replicate(ORIGIN, 1, [entry(2 * at, 2)]) for at in range(200)]
    local = [topic.submit(b"local") for _ in range(50)]
    assert [future.result(PATIENCE_S) for future in futures][-1] == 400
    for future in local:
        future.result(PATIENCE_S)
    assert [first for first, _ in check_log(topic)] == list(range(400))


def test_entries_of_several_origins_are_kept_apart(topic: Topic) -> None:
    opened(topic)
    opened(topic, 9, OTHER)
    for at in range(5):
        assert replicate(topic, [entry(at)]) == at + 1
        assert replicate(topic, [entry(2 * at, 2)], session=9, origin=OTHER) == 2 * at + 2
    assert [first for first, _ in check_log(topic)] == list(range(5))
    assert [first for first, _ in check_log(topic, OTHER)] == list(range(10))


def test_entries_of_an_origin_with_a_gap_are_refused(topic: Topic) -> None:
    opened(topic)
    replicate(topic, entries(0, 3))
    with pytest.raises(OriginGapError, match="expected 3, found 5"):
        replicate(topic, entries(5, 7))
    assert replicate(topic, [entry(5, 1, Gap(3, 5, GapCause.FILTERED))]) == 6
    assert [first for first, _ in check_log(topic)] == [0, 1, 2, 5]


def test_entries_of_another_history_of_an_origin_are_refused(topic: Topic) -> None:
    opened(topic)
    replicate(topic, entries(0, 6, 3))
    with pytest.raises(OriginHistoryError):
        replicate(topic, [entry(4, 4)])
    with pytest.raises(OriginHistoryError, match="rolled back"):
        replicate(topic, [entry(3, 3)._replace(publish_time_us=1)])
    assert topic.origins.all()[ORIGIN].stored == 6


@pytest.mark.parametrize(
    ("wrong", "error", "says"),
    [
        (entry(0)._replace(value=b"short"), InvalidEntryError, "32 bytes"),
        (entry(0)._replace(value=bytes(40)), InvalidEntryError, "none"),
        (entry(0, 3)._replace(messages=2), InvalidEntryError, "expected 2 messages, found 3"),
        (entry(0)._replace(first=-1), InvalidEntryError, "replicated entry"),
        (OriginEntry(encode_messages([bytes(9 << 20)]), 1, 0, 0, ()), RecordTooLargeError, "at most"),
    ],
)
def test_entries_that_make_no_sense_are_refused(
    topic: Topic, wrong: OriginEntry, error: type[Exception], says: str
) -> None:
    opened(topic)
    with pytest.raises(error, match=says):
        topic.origins.replicate(ORIGIN, 1, [wrong])
    assert replicate(topic, [entry(0)]) == 1


@pytest.mark.parametrize(
    ("origin", "session", "error"),
    [
        (("x", "y"), 1, WrongTypeError),
        (Origin(b"short", "y"), 1, InvalidArgumentError),
        (Origin(bytes(16), ""), 1, InvalidArgumentError),
        (Origin(bytes(16), "x" * 201), 1, InvalidArgumentError),
        (ORIGIN, -1, InvalidArgumentError),
        (ORIGIN, 1 << 63, InvalidArgumentError),
    ],
)
def test_sessions_have_valid_names(topic: Topic, origin: Any, session: int, error: type[Exception]) -> None:
    with pytest.raises(error):
        topic.origins.open(origin, session)


def test_an_origin_has_to_be_opened(topic: Topic) -> None:
    with pytest.raises(OriginSessionError, match="open one before"):
        topic.origins.replicate(ORIGIN, 1, [entry(0)])


def test_a_closed_topic_takes_nothing(cluster: Cluster) -> None:
    topic = cluster.topic(NAME, **SETTINGS)
    opened(topic)
    topic.close()
    with pytest.raises(ClosedError):
        topic.origins.replicate(ORIGIN, 1, [entry(0)])
    with pytest.raises(ClosedError):
        topic.origins.open(ORIGIN, 2)


# ---- sessions --------------------------------------------------------------------------------------------------


def test_a_new_session_fences_older_ones(topic: Topic) -> None:
    opened(topic, 3)
    replicate(topic, entries(0, 2), session=3)
    assert opened(topic, 5).stored == 2
    with pytest.raises(OriginSessionError, match="session 3 is fenced by session 5"):
        replicate(topic, entries(2, 4), session=3)
    with pytest.raises(OriginSessionError):
        opened(topic, 4)
    assert replicate(topic, entries(2, 4), session=5) == 4


def test_fencing_outlives_the_owner(cluster: Cluster) -> None:
    with killable_process(cluster) as one:
        opened(one.topic(NAME, **SETTINGS), 5)
        kill(one)
    with cluster.topic(NAME, **SETTINGS) as topic:
        with pytest.raises(OriginSessionError, match="fenced by session 5"):
            opened(topic, 4)
        assert opened(topic, 5) == OriginState(0, None)


# ---- gaps ------------------------------------------------------------------------------------------------------


def test_trailing_gaps_move_what_is_stored_for_good(cluster: Cluster) -> None:
    """A filter that rejects all messages adds nothing to the log."""
    with killable_process(cluster) as one:
        topic = one.topic(NAME, **SETTINGS)
        opened(topic)
        assert replicate(topic, entries(0, 2), [Gap(2, 5, GapCause.FILTERED)]) == 5
        assert replicate(topic, [], [Gap(5, 9, GapCause.FILTERED)]) == 9
        assert replicate(topic, [], [Gap(3, 8, GapCause.EXPIRED)]) == 9
        assert topic.end == 2
        kill(one)
    with cluster.topic(NAME, **SETTINGS) as topic:
        assert topic.origins.all()[ORIGIN].stored == 9
        assert opened(topic, 2).last == LastEntry(1, 2, crc32c(entry(1).value), TIME_US + 1)
        assert replicate(topic, entries(9, 11), session=2) == 11
        assert [first for first, _ in check_log(topic)] == [0, 1, 9, 10]
        (batch,) = topic.read(2)
        attribute = OriginAttribute.from_bytes(batch.entry_origin(0) or b"")
        assert attribute.gaps == (Gap(2, 9, GapCause.FILTERED),), "the log tells the cause of each gap"


def test_many_trailing_gaps_share_snapshots(cluster: Cluster, topic: Topic) -> None:
    opened(topic)
    before = cluster.topics.cursors.records
    futures = [topic.origins.replicate(ORIGIN, 1, [], [Gap(at, at + 1, GapCause.EXPIRED)]) for at in range(300)]
    assert futures[-1].result(PATIENCE_S) == 300 and all(future.result(PATIENCE_S) for future in futures)
    assert cluster.topics.cursors.records - before < 200
    assert topic.origins.all()[ORIGIN].stored == 300


def test_an_entry_with_many_gaps_may_be_as_large_as_any(cluster: Cluster, topic: Topic) -> None:
    """Gaps that do not fit into the record of the largest entry become one gap."""
    opened(topic)
    room = cluster.runtime.entry_bytes_max - 512  # the limit of `Encoder.check_size`
    value = encode_messages([bytes(room - 100)])
    gaps = tuple(Gap(at, at + 1, GapCause(1 + at % 2)) for at in range(60))
    large = OriginEntry(value, 1, 60, 0, gaps)
    assert replicate(topic, [large]) == 61
    (batch,) = topic.read()
    assert OriginAttribute.from_bytes(batch.entry_origin(0) or b"").gaps == (Gap(0, 60, GapCause.FOREIGN),)


# ---- owners come and go ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("deduplicate", [False, True])
def test_replication_positions_are_recovered_after_a_clean_close(cluster: Cluster, deduplicate: bool) -> None:
    settings = {**SETTINGS, "deduplicate": deduplicate}
    with cluster.topic(NAME, **settings) as topic:
        opened(topic)
        replicate(topic, entries(0, 12, 3))
        before = topic.origins.all()
    with cluster.topic(NAME, **settings) as topic:
        assert topic.origins.mark.offset == topic.end, "nothing has to be read again"
        assert topic.origins.all() == before
        assert opened(topic) == before[ORIGIN]
        assert replicate(topic, entries(0, 18, 3)) == 18
        assert [first for first, _ in check_log(topic)] == list(range(18))


def test_replication_positions_are_recovered_after_a_crash(cluster: Cluster) -> None:
    """Pulsar #25861: the log after the last snapshot is read again."""
    with killable_process(cluster) as one:
        topic = one.topic(NAME, **SETTINGS)
        opened(topic)
        replicate(topic, entries(0, 6))
        topic.origins.store().result(PATIENCE_S)
        replicate(topic, entries(6, 10))
        topic.publish(b"local")
        replicate(topic, [entry(12, 1, Gap(10, 12, GapCause.EXPIRED))])
        expected = topic.origins.all()
        kill(one)
    with cluster.topic(NAME, **SETTINGS) as topic:
        assert topic.origins.mark.offset == 6
        assert topic.origins.all() == expected
        opened(topic, 2)
        assert replicate(topic, [*entries(0, 10), *entries(12, 15)], session=2) == 15
        assert [first for first, _ in check_log(topic)] == [*range(10), *range(12, 15)]


def test_next_owner_resumes_replication_behind_the_entries_that_were_stored(cluster: Cluster) -> None:
    """The next owner has any part of these entries, and knows which part."""
    with killable_process(cluster) as one:
        topic = one.topic(NAME, **SETTINGS)
        opened(topic)
        replicate(topic, entries(0, 3))
        futures = [topic.origins.replicate(ORIGIN, 1, [entry(at)]) for at in range(3, 40)]
        kill(one)
        assert len(futures) == 37
    with cluster.topic(NAME, **SETTINGS) as topic:
        state = opened(topic, 2)
        assert 3 <= state.stored <= 40
        assert len(check_log(topic)) == state.stored == topic.end
        assert replicate(topic, entries(0, 50), session=2) == 50
        assert [first for first, _ in check_log(topic)] == list(range(50))


def test_another_owner_ends_what_waits(cluster: Cluster) -> None:
    with killable_process(cluster) as one:
        topic = one.topic(NAME, **SETTINGS)
        opened(topic)
        replicate(topic, entries(0, 3))
        runtime_of(one).pause()
        lose_lease(one)
        sent = topic.origins.replicate(ORIGIN, 1, entries(3, 6), [Gap(6, 7, GapCause.FOREIGN)])
        again = topic.origins.replicate(ORIGIN, 1, entries(3, 6))
        with cluster.topic(NAME, **SETTINGS) as other:
            assert opened(other, 2).stored == 3
            runtime_of(one).resume()
            for future in (sent, again):
                with pytest.raises((TopicFencedError, ClosedError)):
                    future.result(PATIENCE_S)
            assert replicate(other, entries(3, 8), session=2) == 8
            assert [first for first, _ in check_log(other)] == list(range(8))


def test_entries_that_would_have_to_be_read_again_are_not_trimmed(cluster: Cluster) -> None:
    with killable_process(cluster) as one:
        topic = one.topic(NAME, **SMALL)
        opened(topic)
        replicate(topic, entries(0, 9))
        topic.origins.store().result(PATIENCE_S)
        replicate(topic, entries(9, 20))
        trim(topic)
        assert 6 <= topic.start <= 9
        kill(one)
    with cluster.topic(NAME, **SMALL) as topic:
        assert topic.origins.all()[ORIGIN].stored == 20


def test_producers_of_other_clusters_are_not_those_here(cluster: Cluster) -> None:
    """The sequence numbers of a producer at the origin are not compared with those of a producer of that name here,
    also after a replay."""
    settings = {**SETTINGS, "deduplicate": True}
    with killable_process(cluster) as one:
        topic = one.topic(NAME, **settings)
        opened(topic)
        assert topic.publish(b"here", producer="p", sequence=3) == 0
        assert replicate(topic, [entry(0, 2, producer=b"p", sequences=[2, 7])]) == 2
        assert topic.publish(b"here", producer="p", sequence=5) == 3
        kill(one)
    with cluster.topic(NAME, **settings) as topic:
        assert topic.producer("p").last_sequence == 5
        assert topic.publish(b"here", producer="p", sequence=6) == 4
        opened(topic, 2)
        assert replicate(topic, [entry(2, 1, producer=b"p", sequences=[1])], session=2) == 3


def with_cursor(cluster: Cluster, states: list[GateState]) -> Topic:
    """Return a topic with three entries of an origin, and a cursor with other states."""
    with killable_process(cluster) as one:
        topic = one.topic(NAME, **SETTINGS)
        opened(topic)
        replicate(topic, entries(0, 9, 3))
        kill(one)
    store = cluster.runtime.metadata
    delete_subscription(store, NAME, ORIGINS, None)
    record = SystemCursorRecord(7, TopicPosition(0, 0, 0), snapshot.encode(states)).to_bytes()
    create_subscription(store, NAME, ORIGINS, SubscriptionMetadata(token="t", created_us=0, snapshot=record))
    return cluster.topic(NAME, **SETTINGS)


def test_a_log_that_contradicts_the_cursor_is_another_history(
    cluster: Cluster, caplog: pytest.LogCaptureFixture
) -> None:
    """The topic goes on without that origin: no entry is stored twice or left out."""
    with with_cursor(cluster, [GateState(ORIGIN, 0, 4, None, ()), GateState(OTHER, 0, 0, None, ())]) as topic:
        assert "expected offset 4, found 3" in caplog.text
        with pytest.raises(OriginHistoryError, match="expected offset 4, found 3"):
            opened(topic, 2)
        opened(topic, 2, OTHER)
        assert replicate(topic, entries(0, 2), session=2, origin=OTHER) == 2
        assert topic.publish(b"local") == 11


def test_entries_of_an_unknown_origin_are_logged_once(cluster: Cluster, caplog: pytest.LogCaptureFixture) -> None:
    with with_cursor(cluster, [GateState(OTHER, 0, 0, None, ())]) as topic:
        assert caplog.text.count(f"of an origin with key {ORIGIN.key:016x} that is not known") == 1
        assert topic.origins.all() == {OTHER: OriginState(0, None)}


def test_a_cursor_that_is_damaged_keeps_the_topic_from_being_opened(cluster: Cluster) -> None:
    """Without the cursor, entries would be stored twice."""
    with with_cursor(cluster, []):
        pass
    store = cluster.runtime.metadata
    delete_subscription(store, NAME, ORIGINS, None)
    record = SystemCursorRecord(7, TopicPosition(0, 0, 0), b"damaged!").to_bytes()
    create_subscription(store, NAME, ORIGINS, SubscriptionMetadata(token="t", created_us=0, snapshot=record))
    with pytest.raises(InvalidMetadataError, match="origins snapshot"):
        cluster.topic(NAME, **SETTINGS)
    delete_subscription(store, NAME, ORIGINS, None)


def test_concurrent_publishing_replication_snapshots_and_rolls(cluster: Cluster, topic: Topic) -> None:
    """Threads publish, replicate from two origins with ever new sessions, store snapshots and roll ledgers."""
    ends = {ORIGIN: 120, OTHER: 90}

    def source(origin: Origin) -> None:
        session = at = 0
        while at < ends[origin]:
            session += 1
            at = opened(topic, session, origin).stored
            sent = []
            for first in range(at, min(at + 20, ends[origin])):
                items = [entry(first)] if first % 5 else []
                gaps = [] if first % 5 else [Gap(first, first + 1, GapCause.FILTERED)]
                sent.append(topic.origins.replicate(origin, session, items, gaps))
            if session % 2:
                for future in sent:
                    at = future.result(PATIENCE_S)

    def others() -> int:
        published = 0
        while not all(future.done() for future in replicating):
            topic.publish(b"local")
            published += 1
            if published % 10 == 0:
                topic.origins.store().result(PATIENCE_S)
            if published % 25 == 0:
                topic.managed.roll().result(PATIENCE_S)
        return published

    with ThreadPoolExecutor(3) as pool:
        replicating = [pool.submit(source, origin) for origin in ends]
        publishing = pool.submit(others)
        for done in replicating:
            done.result(PATIENCE_S)
        local = publishing.result(PATIENCE_S)
    for origin, end in ends.items():
        assert [first for first, _ in check_log(topic, origin)] == [first for first in range(end) if first % 5]
        assert topic.origins.all()[origin].stored == end
    assert topic.end == local + sum(end - end // 5 for end in ends.values())


# ---- failures --------------------------------------------------------------------------------------------------


STRIPED: dict[str, Any] = {"ensemble": 2, "write_quorum": 1, "ack_quorum": 1, "durability": "appended",
                           "retention_bytes": None}  # fmt: skip
"""Entries alternate between the two bookies."""


@pytest.fixture
def striped(tmp_path: Path) -> Iterator[tuple[Topic, RequestInterceptor]]:
    with Cluster.embedded(tmp_path, bookies=2, segment_bytes=1 << 20) as cluster:
        topic = cluster.topic(NAME, **STRIPED)
        opened(topic)
        assert replicate(topic, [entry(0)]) == 1
        with RequestInterceptor(cluster) as interceptor:
            yield topic, interceptor


def hold(topic: Topic, interceptor: RequestInterceptor, sent: list[list[OriginEntry]]) -> list[AppendFuture[int]]:
    """Send batches. The ledger confirms the first entry, and one bookie does not answer for the second."""
    ledger = topic.managed.writer.ledger
    assert ledger is not None and ledger.last_add_confirmed == 0
    interceptor.add_rule(interceptor.hold, kind=RequestKind.ADD, bookie=ledger.metadata.last_fragment.ensemble[0])
    futures = [topic.origins.replicate(ORIGIN, 1, batch) for batch in sent]
    until(lambda: ledger.last_add_confirmed == 1)
    return futures


def test_a_part_of_a_batch_is_stored_when_no_ledger_takes_the_rest(
    striped: tuple[Topic, RequestInterceptor], monkeypatch: pytest.MonkeyPatch
) -> None:
    """`pushed` goes back to the stored position. Entries that were sent after the failed one are not stored either."""
    topic, interceptor = striped
    monkeypatch.setattr(chain_writer, "STUCK_S", 0.0)
    futures = hold(topic, interceptor, [entries(1, 4), entries(4, 6), entries(6, 7)])
    interceptor.clear()
    interceptor.add_rule(interceptor.fail, kind=RequestKind.ADD)
    interceptor.apply_to_held(interceptor.fail)
    with pytest.raises(OutcomeUnknownError, match="a part of the messages is stored"):
        futures[0].result(PATIENCE_S)
    for future in futures[1:]:
        with pytest.raises((NotEnoughBookiesError, OutcomeUnknownError)):
            future.result(PATIENCE_S)
    monkeypatch.undo()
    interceptor.clear()
    assert opened(topic).stored == topic.end == 2
    assert replicate(topic, entries(0, 9)) == 9
    assert [first for first, _ in check_log(topic)] == list(range(9))


def test_nothing_behind_a_refused_entry_is_stored(striped: tuple[Topic, RequestInterceptor]) -> None:
    """Bookies refuse one entry and would take later ones: the topic would lack an entry in the middle for ever."""
    topic, interceptor = striped
    refused = [entry(3)]

    def refuse(bookie: str, request: Any, on_reply: Any) -> None:
        action = (
            interceptor.replying(status=ReplyStatus.INVALID)
            if bytes(refused[0].value) in bytes(request.records)
            else None
        )
        (action or interceptor.pass_on)(bookie, request, on_reply)

    interceptor.add_rule(refuse, kind=RequestKind.ADD)
    local = [topic.submit(b"local")]
    futures = [topic.origins.replicate(ORIGIN, 1, [entry(at)]) for at in range(1, 9)]
    local.append(topic.submit(b"local"))
    for future in local:
        assert future.result(PATIENCE_S) > 0
    outcomes = [sent.exception(PATIENCE_S) for sent in futures]
    kept = outcomes.index(next(error for error in outcomes if error is not None))
    assert all(isinstance(error, EntryRefusedError | OutcomeUnknownError) for error in outcomes[kept:])
    interceptor.clear()
    assert opened(topic).stored == 1 + kept <= 3
    assert replicate(topic, entries(0, 9)) == 9
    assert [first for first, _ in check_log(topic)] == list(range(9))


def test_a_ledger_that_fails_in_the_middle_delays_only(striped: tuple[Topic, RequestInterceptor]) -> None:
    topic, interceptor = striped
    futures = hold(topic, interceptor, [entries(1, 4), entries(4, 6), entries(6, 7)])
    again = topic.origins.replicate(ORIGIN, 1, entries(1, 6))  # it waits for the outcome of these entries
    assert not again.done()
    interceptor.clear()
    interceptor.apply_to_held(interceptor.fail)
    assert [future.result(PATIENCE_S) for future in futures] == [4, 6, 7]
    assert again.result(PATIENCE_S) >= 6
    assert topic.managed.writer.failures == 1
    assert [first for first, _ in check_log(topic)] == list(range(7))


def test_a_timeout_takes_nothing_back(striped: tuple[Topic, RequestInterceptor]) -> None:
    """Pulsar #26113: entries without an answer were sent again while they were in flight."""
    topic, interceptor = striped
    (first,) = hold(topic, interceptor, [entries(1, 5)])
    with pytest.raises(OutcomeUnknownError):
        topic.publisher.wait(first, 0.02)
    reopened = topic.origins.open(ORIGIN, 2)
    until(lambda: topic.origins.mark.offset >= 0)
    assert not reopened.done()
    with pytest.raises(OriginSessionError):
        replicate(topic, entries(1, 5))
    interceptor.clear()
    interceptor.release()
    assert reopened.result(PATIENCE_S).stored == 5
    assert replicate(topic, entries(1, 7), session=2) == 7
    assert [first for first, _ in check_log(topic)] == list(range(7))


def test_a_quota_refuses_what_is_replicated(topic: Topic) -> None:
    opened(topic)
    replicate(topic, entries(0, 2))
    topic.publisher.set_quota("refused", "full")
    with pytest.raises(BacklogFullError, match="full"):
        replicate(topic, entries(2, 4))
    assert replicate(topic, entries(0, 2)) == 2
    topic.publisher.set_quota("open", "")
    assert replicate(topic, entries(0, 4)) == 4
