"""Sessions of followers' fetches: what has nothing to tell waits and is in no answer; what changes is told at once."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pyreplog.errors import ClosedError
from pyreplog.future import AppendFuture
from pyreplog.partition.fetch_session import FetchSessionCache
from pyreplog.partition.protocol.error_codes import ErrorCode
from pyreplog.partition.protocol.messages import Fetch, FetchedRecords, FetchRefused
from pyreplog.partition.protocol.partition_state import Member
from pyreplog.partition.requests import FetchResponses, ReplicaFetch, ReplicaFetchRequest
from pyreplog.partition.topic_partition import TopicPartition

from .managers import EVENTS, LAG_US, Broker, Cluster, messages

ORDERS = TopicPartition("orders", 0)
B = Member("b", 1)


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    """Both partitions have no records, and b and c know it."""
    cluster = Cluster(tmp_path, topics=(EVENTS, ORDERS))
    for topic in (EVENTS, ORDERS):
        cluster.lead("a", topic)
    cluster.settle()
    for name in "bc":
        cluster.brokers[name].is_fetching = False
    yield cluster
    cluster.close()


@pytest.fixture
def a(cluster: Cluster) -> Broker:
    return cluster.brokers["a"]


def fetch(leader: Broker, topic: TopicPartition, number: int = 1, **fields: Any) -> Fetch:
    """As b asks that has all, and knows all."""
    log = leader.logs[topic]
    end, epoch = log.end_mark, log.leading_epoch
    assert epoch is not None
    return Fetch(number, B, epoch, end, log.history.last, end, end)._replace(**fields)


def ask(
    leader: Broker, *topics: TopicPartition, session: int = 1000, is_first: bool = False, number: int = 1,
    max_wait_ms: int = 500, max_bytes: int = 1 << 20, member: Member = B, **fields: Any,
) -> AppendFuture[FetchResponses]:  # fmt: skip
    fetches = {topic: ReplicaFetch(fetch(leader, topic, number, **fields)._replace(member=member)) for topic in topics}
    request = ReplicaFetchRequest(member, session, is_first, max_wait_ms, max_bytes, fetches)
    return leader.manager.fetch_for_replicas(request)


def append(leader: Broker, topic: TopicPartition, value: bytes = b"x") -> None:
    leader.manager.append_records(1, {topic: messages(value)}).result(0)


def partitions_of(future: AppendFuture[FetchResponses]) -> list[TopicPartition]:
    return sorted(future.result(0))


def test_response_contains_only_partitions_with_news(cluster: Cluster, a: Broker) -> None:
    first = ask(a, EVENTS, ORDERS, is_first=True)
    assert not first.done()
    append(a, ORDERS)
    assert partitions_of(first) == [ORDERS]
    response = first.result(0)[ORDERS].response
    assert isinstance(response, FetchedRecords) and response.end == a.logs[ORDERS].end_mark
    second = ask(a, ORDERS, number=2)
    append(a, EVENTS)
    assert partitions_of(second) == [EVENTS], "which was named in the first request alone"


def test_a_request_whose_time_is_over_gets_an_empty_answer_and_its_fetches_wait_on(cluster: Cluster, a: Broker) -> None:
    first = ask(a, EVENTS, is_first=True)
    cluster.advance_ms(501)
    assert partitions_of(first) == []
    append(a, EVENTS)
    assert partitions_of(ask(a)) == [EVENTS], "what has changed between two requests"
    append(a, EVENTS)
    assert partitions_of(ask(a, max_wait_ms=0)) == [], "it is answered once"


def test_the_oldest_request_is_answered(cluster: Cluster, a: Broker) -> None:
    first = ask(a, EVENTS, is_first=True)
    second = ask(a, ORDERS)
    append(a, ORDERS)
    assert partitions_of(first) == [ORDERS] and not second.done()
    append(a, EVENTS)
    assert partitions_of(second) == [EVENTS]


def test_the_newest_fetch_of_a_partition_counts(cluster: Cluster, a: Broker) -> None:
    first = ask(a, EVENTS, is_first=True, number=5)
    ask(a, EVENTS, number=6)
    ask(a, EVENTS, number=4)
    append(a, EVENTS)
    response = first.result(0)[EVENTS].response
    assert response is not None and response.number == 6
    assert partitions_of(ask(a, max_wait_ms=0)) == [], "the others count for nothing"


def test_refused_partition_is_answered_at_once(cluster: Cluster, a: Broker) -> None:
    other = TopicPartition("others", 0)
    first = ask(a, EVENTS, is_first=True)
    fetches = {other: ReplicaFetch(fetch(a, EVENTS))}
    second = a.manager.fetch_for_replicas(ReplicaFetchRequest(B, 1000, False, 500, 1000, fetches))
    assert partitions_of(second) == [other] and not first.done()
    assert second.result(0)[other].response == FetchRefused(1, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)


def test_fetch_is_answered_with_not_leader_when_the_leader_steps_down(cluster: Cluster, a: Broker) -> None:
    first = ask(a, EVENTS, is_first=True)
    cluster.lead("c")
    cluster.deliver()
    assert partitions_of(first) == [EVENTS]
    assert first.result(0)[EVENTS].response == FetchRefused(1, ErrorCode.NOT_LEADER_OR_FOLLOWER)


def test_fetch_is_answered_when_the_log_start_moves(cluster: Cluster, a: Broker) -> None:
    """Followers delete what the leader has deleted, though nothing is appended."""
    for name in "bc":
        cluster.brokers[name].is_fetching = True
    append(a, EVENTS)
    cluster.settle()
    for name in "bc":
        cluster.brokers[name].is_fetching = False
    first = ask(a, EVENTS, is_first=True)
    assert a.partition.delete_records(-1).code is ErrorCode.NONE
    response = first.result(0)[EVENTS].response
    assert isinstance(response, FetchedRecords) and response.deleted_before == a.log.log_start > 0
    again = ask(a, EVENTS, number=2)
    assert again.done(), "it does not know of it yet"
    assert not ask(a, EVENTS, number=3, leader_log_start=response.deleted_before).done()


def test_partition_without_room_in_a_response_is_in_the_next_one(cluster: Cluster, a: Broker) -> None:
    ask(a, EVENTS, ORDERS, is_first=True, max_wait_ms=0)
    append(a, EVENTS, bytes(5000))
    append(a, ORDERS, bytes(5000))
    assert partitions_of(ask(a, max_bytes=1)) == [EVENTS], "one batch comes, however long it is"
    assert partitions_of(ask(a, max_bytes=1)) == [ORDERS]


@pytest.mark.parametrize("session", [999, 1001])
def test_a_session_that_is_not_there_is_refused(cluster: Cluster, a: Broker, session: int) -> None:
    ask(a, EVENTS, is_first=True)
    with pytest.raises(ClosedError, match=f"fetch session {session} of b is not open"):
        ask(a, EVENTS, session=session).result(0)


def test_a_new_session_ends_the_one_before_it(cluster: Cluster, a: Broker) -> None:
    first = ask(a, EVENTS, is_first=True)
    second = ask(a, ORDERS, session=1001, is_first=True)
    with pytest.raises(ClosedError, match="fetch session 1000 has ended"):
        first.result(0)
    append(a, EVENTS)
    assert not second.done(), "a fetch of the session before it"
    append(a, ORDERS)
    assert partitions_of(second) == [ORDERS]


def test_a_broker_that_starts_again_begins_a_session(cluster: Cluster, a: Broker) -> None:
    """Even if it draws the number of the one before it: what was sent to the process before it is lost."""
    first = ask(a, EVENTS, is_first=True)
    second = ask(a, EVENTS, is_first=True)
    with pytest.raises(ClosedError, match="fetch session 1000 has ended"):
        first.result(0)
    append(a, EVENTS)
    assert partitions_of(second) == [EVENTS]


def test_a_late_request_of_an_earlier_incarnation_ends_no_session(cluster: Cluster, a: Broker) -> None:
    cluster.register("b", 2)
    first = ask(a, EVENTS, is_first=True, member=Member("b", 2))
    with pytest.raises(ClosedError):
        ask(a, EVENTS, session=1, is_first=True).result(0)
    append(a, EVENTS)
    assert partitions_of(first) == [EVENTS]


def test_a_follower_that_waits_is_in_sync_as_long_as_its_broker_asks(cluster: Cluster, a: Broker) -> None:
    """Its fetch may be old: it counts as caught up until the last request, of whichever partition."""
    session = {"session": 2000}
    ask(a, EVENTS, is_first=True, **session)
    for _ in range(5):
        cluster.advance_ms(LAG_US // 2000)
        ask(a, **session)
        a.manager.check_isr()
    append(a, EVENTS)
    a.manager.check_isr()
    assert "b" in {member.broker for member in cluster.states[EVENTS][1].isr}
    cluster.advance_ms(LAG_US // 1000 + 1)
    a.manager.check_isr()
    assert "b" not in {member.broker for member in cluster.states[EVENTS][1].isr}, "it was told of a record"


def test_a_broker_that_ends_answers_all(cluster: Cluster, a: Broker) -> None:
    first = ask(a, EVENTS, is_first=True)
    a.manager.close_sessions()
    with pytest.raises(ClosedError):
        first.result(0)


def test_with_a_session_more_than_there_are_slots_the_oldest_one_ends(cluster: Cluster, a: Broker) -> None:
    cache = FetchSessionCache(a.manager.partition, a.purgatory, cluster.clock, slots=1)
    first = cache.fetch(ReplicaFetchRequest(B, 1000, True, 500, 1000, {EVENTS: ReplicaFetch(fetch(a, EVENTS))}))
    again = cache.fetch(ReplicaFetchRequest(B, 1001, True, 500, 1000, {}))
    with pytest.raises(ClosedError, match="fetch session 1000 has ended"):
        first.result(0)
    cache.fetch(ReplicaFetchRequest(Member("c", 1), 1000, True, 500, 1000, {}))
    with pytest.raises(ClosedError, match="fetch session 1001 has ended"):
        again.result(0)
    with pytest.raises(ClosedError, match="fetch session 1001 of b is not open"):
        cache.fetch(ReplicaFetchRequest(B, 1001, False, 500, 1000, {})).result(0)
