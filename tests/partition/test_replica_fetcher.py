"""The fetcher of followers batches fetches, sends them again after a back-off, and drops those to a former leader."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any, cast

import pytest

from pyreplog.clock import ManualClock, SystemClock
from pyreplog.errors import PeerError
from pyreplog.future import AppendFuture, set_exception, set_result
from pyreplog.partition.config import BrokerConfig
from pyreplog.partition.partition import Partition
from pyreplog.partition.protocol.epochs import LeaderEpoch
from pyreplog.partition.protocol.error_codes import ErrorCode
from pyreplog.partition.protocol.messages import Fetch, FetchedRecords, FetchRefused, FetchResponse
from pyreplog.partition.protocol.partition_state import Member
from pyreplog.partition.replica_fetcher import ReplicaFetcher
from pyreplog.partition.requests import FetchPartitionData, FetchResponses, ReplicaFetchRequest
from pyreplog.partition.topic_partition import TopicPartition
from pyreplog.stream.log_position import ORIGIN
from tests.waiting import until

EPOCH = LeaderEpoch(1, "a")
MEMBER = Member("c", 1)
BACKOFF_MS = 50


def fetch(number: int) -> Fetch:
    return Fetch(number, MEMBER, EPOCH, ORIGIN, EPOCH, ORIGIN, ORIGIN)


def records(number: int) -> FetchedRecords:
    return FetchedRecords(number, EPOCH, ORIGIN, ORIGIN, (), ORIGIN, ORIGIN, None)


class Replica:
    """Stands for a partition: notes what it is told, and fetches again when it got records."""

    def __init__(self, name: TopicPartition, fetcher: Callable[[], ReplicaFetcher]) -> None:
        self.name, self._fetcher = name, fetcher
        self.events: list[str] = []
        self.leader = "a"
        self.is_in_sync = True

    def fetch_answered(self, response: FetchResponse) -> None:
        self.events.append(f"answered {response.number}")
        if isinstance(response, FetchedRecords):
            self._fetcher().send_fetch(self.name, self.leader, fetch(response.number + 1))

    def fetch_timed_out(self, number: int) -> None:
        self.events.append(f"timed out {number}")

    def follow_again(self) -> None:
        self.events.append("follows again")


class Brokers:
    """The transport; requests wait until a test answers them."""

    def __init__(self) -> None:
        self.requests: list[tuple[str, ReplicaFetchRequest, AppendFuture[FetchResponses]]] = []
        self.failing, self.failures = False, 0
        self._lock = threading.Lock()

    def fetch(self, broker: str, request: ReplicaFetchRequest) -> AppendFuture[FetchResponses]:
        if self.failing:
            self.failures += 1
            raise PeerError("there is no way")
        future = AppendFuture[FetchResponses]()
        with self._lock:
            self.requests.append((broker, request, future))
        return future


class Setting:
    def __init__(self, catch_up_bytes_per_s: int | None = None) -> None:
        self.clock, self.brokers = ManualClock(1), Brokers()
        self.replicas = {name: Replica(name, lambda: self.fetcher) for name in (T0, T1, T2)}
        self.fetcher = ReplicaFetcher(
            MEMBER, self.brokers, lambda name: cast("Partition | None", self.replicas.get(name)),
            BrokerConfig(backoff_ms=BACKOFF_MS, catch_up_bytes_per_s=catch_up_bytes_per_s), self.clock,
        )  # fmt: skip

    def request(self, index: int) -> tuple[str, list[TopicPartition], AppendFuture[FetchResponses]]:
        until(lambda: len(self.brokers.requests) > index)
        broker, request, future = self.brokers.requests[index]
        return broker, sorted(request.fetches), future

    def answer(self, index: int, *responses: tuple[TopicPartition, FetchResponse]) -> None:
        data = {name: FetchPartitionData(ErrorCode.NONE, response=response) for name, response in responses}
        set_result(self.request(index)[2], data)


T0, T1, T2 = (TopicPartition("flights", number) for number in range(3))


@pytest.fixture
def setting() -> Iterator[Setting]:
    setting = Setting()
    yield setting
    setting.fetcher.close()


def test_fetches_that_came_of_one_answer_are_one_request(setting: Setting) -> None:
    setting.fetcher.send_fetch(T0, "a", fetch(1))
    assert setting.request(0)[:2] == ("a", [T0])
    setting.fetcher.send_fetch(T1, "a", fetch(1))
    assert setting.request(1)[:2] == ("a", [T1]), "it does not wait for the first one's records"
    setting.answer(0, (T0, records(1)))
    assert setting.request(2)[:2] == ("a", [T0])
    assert setting.replicas[T0].events == ["answered 1"] and setting.replicas[T1].events == []


def test_so_many_requests_are_under_way_at_most(setting: Setting) -> None:
    for number in range(4):
        setting.fetcher.send_fetch(T0, "a", fetch(number))
        setting.request(number)
    setting.fetcher.send_fetch(T1, "a", fetch(1))
    setting.fetcher.send_fetch(T2, "a", fetch(1))
    setting.answer(0, (T0, FetchRefused(0, ErrorCode.NOT_LEADER_OR_FOLLOWER)))
    assert setting.request(4)[1] == [T1, T2], "what waited is sent together"
    assert len(setting.brokers.requests) == 5


def test_a_refusal_is_answered_at_once_and_timed_out_after_a_backoff(setting: Setting) -> None:
    setting.fetcher.send_fetch(T0, "a", fetch(7))
    setting.answer(0, (T0, FetchRefused(7, ErrorCode.FENCED_LEADER_EPOCH)))
    replica = setting.replicas[T0]
    until(lambda: replica.events == ["answered 7"])
    setting.clock.advance(BACKOFF_MS * 1000)
    until(lambda: replica.events == ["answered 7", "timed out 7"])


@pytest.mark.parametrize("how", ["the transport raises", "no answer"])
def test_a_fetch_without_an_answer_times_out_after_a_backoff(setting: Setting, how: str) -> None:
    setting.brokers.failing = how == "the transport raises"
    setting.fetcher.send_fetch(T0, "a", fetch(7))
    if setting.brokers.failing:
        until(lambda: setting.brokers.failures)
    else:
        set_exception(setting.request(0)[2], PeerError("lost"))
    replica = setting.replicas[T0]
    setting.brokers.failing = False
    setting.fetcher.send_fetch(T1, "a", fetch(1))
    until(lambda: any(T1 in request.fetches for _, request, _ in setting.brokers.requests))
    assert replica.events == []
    until(lambda: setting.clock.advance(BACKOFF_MS * 1000) or replica.events == ["timed out 7"])


def test_a_fetch_that_the_leader_has_is_not_sent_again(setting: Setting) -> None:
    """An empty request waits for its answer, and one is enough."""
    setting.fetcher.send_fetch(T0, "a", fetch(1))
    setting.request(0)
    setting.fetcher.send_fetch(T1, "a", fetch(1))
    setting.request(1)
    setting.answer(0)
    setting.fetcher.send_fetch(T2, "a", fetch(1))
    assert setting.request(2)[1] == [T2], "while there was one under way there was none to send"
    setting.answer(1)
    setting.answer(2)
    assert setting.request(3)[1] == []
    setting.answer(3, (T1, records(1)), (T0, FetchRefused(1, ErrorCode.NOT_LEADER_OR_FOLLOWER)))
    assert setting.request(4)[1] == [T1]
    assert setting.replicas[T0].events == ["answered 1"]
    (_, first, _), *others = setting.brokers.requests
    assert first.is_first
    assert {(request.session, request.is_first) for _, request, _ in others} == {(first.session, False)}


def test_with_a_request_that_fails_all_that_wait_time_out(setting: Setting) -> None:
    """Answers may be lost with it. What an earlier session brings yet counts; its failures do not."""
    for number, name in enumerate((T0, T1, T2)):
        setting.fetcher.send_fetch(name, "a", fetch(1))
        setting.request(number)
    setting.answer(0)
    set_exception(setting.request(1)[2], PeerError("lost"))
    times_out = [[f"timed out {number}"] for number in (1, 1, 1)]
    replicas = [*setting.replicas.values()]
    until(
        lambda: setting.clock.advance(BACKOFF_MS * 1000) or [replica.events for replica in replicas] == times_out
    )  # fmt: skip
    setting.fetcher.send_fetch(T0, "a", fetch(2))
    setting.request(3)
    _, first, _ = setting.brokers.requests[3]
    assert first.session != setting.brokers.requests[0][1].session and first.is_first
    set_exception(setting.request(2)[2], PeerError("lost, too"))
    setting.fetcher.send_fetch(T1, "a", fetch(2))
    setting.request(4)
    _, second, _ = setting.brokers.requests[4]
    assert (second.session, second.is_first) == (first.session, False)


def test_the_former_leader_is_not_asked_any_more(setting: Setting) -> None:
    for number in range(4):  # as many as may be under way
        setting.fetcher.send_fetch(T0, "a", fetch(number))
        setting.request(number)
    setting.fetcher.send_fetch(T1, "a", fetch(1))
    setting.fetcher.send_fetch(T1, "b", fetch(2))
    assert setting.request(4)[:2] == ("b", [T1])
    setting.fetcher.send_fetch(T2, "a", fetch(1))
    setting.answer(0)
    assert setting.request(5)[:2] == ("a", [T2])


def test_a_partition_follows_again_after_a_backoff(setting: Setting) -> None:
    setting.fetcher.retry_later(T0)
    assert setting.replicas[T0].events == []
    until(lambda: setting.clock.advance(BACKOFF_MS * 1000) or setting.replicas[T0].events == ["follows again"])


def test_a_call_that_comes_while_the_thread_waits_is_made(setting: Setting) -> None:
    """It waits without an end: the pause is that of the call that came."""
    setting.fetcher.retry_later(T0)
    until(lambda: setting.clock.advance(BACKOFF_MS * 1000) or setting.replicas[T0].events == ["follows again"])
    clock = SystemClock()
    replicas = {T1: Replica(T1, lambda: fetcher)}
    fetcher = ReplicaFetcher(
        MEMBER,
        setting.brokers,
        lambda name: cast("Partition | None", replicas.get(name)),
        BrokerConfig(backoff_ms=20),
        clock,
    )
    try:
        for count in range(1, 6):
            until(lambda: all(thread.is_alive() for thread in threading.enumerate()))
            fetcher.retry_later(T1)
            until(lambda count=count: replicas[T1].events == ["follows again"] * count)
    finally:
        fetcher.close()


def test_a_fetch_concerns_the_threads_of_its_own_leaders_alone(setting: Setting) -> None:
    """Not those of all brokers: with many of them each fetch would take many locks."""
    for number, leader in enumerate(("b", "c", "d")):
        setting.fetcher.send_fetch(T1, leader, fetch(1))
        setting.request(number)  # one that was not sent yet would be forgotten
    setting.fetcher.send_fetch(T0, "a", fetch(1))
    setting.request(3)
    setting.fetcher.forget(T0)
    setting.fetcher.send_fetch(T0, "b", fetch(2))
    assert setting.request(4)[:2] == ("b", [T0])


def test_a_partition_that_fails_stops_no_other(
    setting: Setting, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_: Any) -> None:
        raise RuntimeError("this one fails")

    setting.fetcher.send_fetch(T0, "a", fetch(1))
    setting.request(0)
    monkeypatch.setattr(setting.replicas[T0], "fetch_answered", fail)
    setting.answer(0, (T0, records(1)))
    until(lambda: "this one fails" in caplog.text)
    setting.fetcher.send_fetch(T1, "a", fetch(1))
    assert setting.request(1)[1] == [T1]


RATE = 100_000  # bytes per second; a tenth of that at once


@pytest.fixture
def limited() -> Iterator[Setting]:
    setting = Setting(RATE)
    yield setting
    setting.fetcher.close()


def brought(number: int, size: int) -> FetchedRecords:
    return records(number)._replace(end=ORIGIN._replace(position=size))


def max_bytes(setting: Setting, index: int, name: TopicPartition) -> int:
    return setting.brokers.requests[index][1].fetches[name].max_bytes


def test_replicas_that_catch_up_share_a_limit(limited: Setting) -> None:
    """What was fetched beyond it is waited for, and what was not fetched is allowed to others."""
    limited.replicas[T0].is_in_sync = limited.replicas[T1].is_in_sync = False
    limited.fetcher.send_fetch(T0, "a", fetch(1))
    assert limited.request(0)[1] == [T0] and max_bytes(limited, 0, T0) == RATE // 10
    limited.fetcher.send_fetch(T1, "a", fetch(1))  # held
    limited.fetcher.send_fetch(T2, "a", fetch(1))
    assert limited.request(1)[1] == [T2] and max_bytes(limited, 1, T2) > RATE, "one of the ISR is not held back"
    limited.answer(0, (T0, brought(1, 2 * RATE)))  # one batch of two seconds
    until(lambda: limited.replicas[T0].events == ["answered 1"])
    limited.answer(1, (T2, brought(1, RATE)))
    assert limited.request(2)[1] == [T2]
    limited.clock.advance(1_800_000)
    limited.answer(2, (T2, brought(2, 0)))
    assert limited.request(3)[1] == [T2], "the others are held for 1.9 s"
    until(lambda: limited.clock.advance(10_000) or len(limited.brokers.requests) == 5)
    limited.answer(3, (T2, brought(3, 0)))
    (caught_up,) = limited.brokers.requests[4][1].fetches
    limited.answer(4, (caught_up, brought(1, 1)))  # hardly anything: the rest is given back
    assert caught_up in (T0, T1)
    until(lambda: limited.clock.advance(1000) or len(limited.brokers.requests) == 6)


def test_a_replica_that_joins_the_isr_is_held_back_no_more(limited: Setting) -> None:
    limited.replicas[T0].is_in_sync = limited.replicas[T1].is_in_sync = False
    limited.fetcher.send_fetch(T0, "a", fetch(1))
    limited.request(0)
    limited.fetcher.send_fetch(T1, "a", fetch(1))  # held
    limited.answer(0, (T0, brought(1, 100 * RATE)))
    limited.replicas[T1].is_in_sync = True
    limited.fetcher.send_fetch(T1, "a", fetch(2))
    assert limited.request(1)[1] == [T1]


def test_a_fetch_that_is_held_is_forgotten_with_its_replica(limited: Setting) -> None:
    limited.replicas[T0].is_in_sync = limited.replicas[T1].is_in_sync = False
    limited.fetcher.send_fetch(T0, "a", fetch(1))
    limited.request(0)
    limited.fetcher.send_fetch(T1, "a", fetch(1))
    limited.fetcher.send_fetch(T2, "a", fetch(1))
    limited.request(1)  # by now the other one is held
    limited.fetcher.forget(T1)
    limited.answer(0, (T0, brought(1, 0)))
    until(lambda: limited.clock.advance(200_000) or len(limited.brokers.requests) >= 3)
    assert all(T1 not in request.fetches for _, request, _ in limited.brokers.requests)


def test_after_the_close_nothing_is_sent(setting: Setting) -> None:
    setting.fetcher.send_fetch(T0, "a", fetch(1))
    setting.request(0)
    setting.fetcher.close()
    setting.fetcher.send_fetch(T1, "a", fetch(1))
    setting.fetcher.retry_later(T0)
    setting.answer(0, (T0, records(1)))
    assert len(setting.brokers.requests) == 1 and setting.replicas[T0].events == []
