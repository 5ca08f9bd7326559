"""The followers' side of a fetch session: which fetches a request names, and what a lost request means."""

from __future__ import annotations

import pytest

from pyreplog._native.log.log_position import LogPosition
from pyreplog.clock import ManualClock
from pyreplog.partition.catch_up_quota import CatchUpQuota
from pyreplog.partition.fetch_session_handler import REQUESTS_MAX, FetchSessionHandler
from pyreplog.partition.partition import answered
from pyreplog.partition.protocol.epochs import LeaderEpoch
from pyreplog.partition.protocol.error_codes import ErrorCode
from pyreplog.partition.protocol.messages import Fetch, FetchRefused
from pyreplog.partition.protocol.partition_state import Member
from pyreplog.partition.requests import FetchResponses, ReplicaFetchRequest
from pyreplog.partition.topic_partition import TopicPartition

MEMBER, EVENTS, ORDERS = Member("b", 1), TopicPartition("events", 0), TopicPartition("orders", 0)
PAYMENTS = TopicPartition("payments", 0)
SESSION = 1000


@pytest.fixture
def handler() -> FetchSessionHandler:
    return new_handler()


def new_handler(clock: ManualClock | None = None, rate: int | None = None) -> FetchSessionHandler:
    quota = CatchUpQuota(rate, clock or ManualClock(0))
    return FetchSessionHandler(
        MEMBER, SESSION, max_wait_ms=500, max_bytes=1000, quota=quota, is_in_sync=lambda name: name == ORDERS
    )


def fetch(number: int = 1) -> Fetch:
    start, epoch = LogPosition(0, 0), LeaderEpoch(1, "a")
    return Fetch(number, MEMBER, epoch, start, epoch, start, start)


def responses(**numbers: int) -> FetchResponses:
    """Refusals of fetches with these numbers, by topic."""
    return {
        TopicPartition(topic, 0): answered(FetchRefused(number, ErrorCode.FENCED_LEADER_EPOCH))
        for topic, number in numbers.items()
    }


def named(request: ReplicaFetchRequest) -> dict[str, int]:
    """The numbers of the fetches that a request names, by topic."""
    return {name.topic: each.fetch.number for name, each in request.fetches.items()}


def request_of(handler: FetchSessionHandler, now_us: int = 0) -> ReplicaFetchRequest:
    request = handler.next_request(now_us)
    assert request is not None
    return request


def test_a_request_names_new_fetches_alone(handler: FetchSessionHandler) -> None:
    handler.add(EVENTS, fetch(1))
    handler.add(EVENTS, fetch(2))
    first = request_of(handler)
    assert named(first) == {"events": 2} and (first.session, first.is_first) == (SESSION, True)
    handler.add(ORDERS, fetch(1))
    second = request_of(handler)
    assert named(second) == {"orders": 1} and (second.session, second.is_first) == (SESSION, False)
    assert handler.next_request(0) is None, "both are in flight"


def test_while_a_fetch_waits_a_request_is_in_flight(handler: FetchSessionHandler) -> None:
    handler.add(EVENTS, fetch())
    handler.answered(request_of(handler), {})
    empty = request_of(handler)
    assert named(empty) == {}
    handler.answered(empty, responses(events=1))
    assert not handler.is_due(0) and handler.next_request(0) is None, "it has its answer"


def test_an_answer_to_an_older_fetch_is_not_that_of_the_newer_one(handler: FetchSessionHandler) -> None:
    handler.add(EVENTS, fetch(1))
    first = request_of(handler)
    handler.add(EVENTS, fetch(2))
    second = request_of(handler)
    handler.answered(first, responses(events=1))
    handler.answered(second, {})
    assert named(request_of(handler)) == {}, "the second one waits"


def test_fetches_are_collected_while_many_requests_are_in_flight(handler: FetchSessionHandler) -> None:
    requests = []
    for number in range(REQUESTS_MAX):
        handler.add(EVENTS, fetch(number))
        requests.append(request_of(handler))
    handler.add(EVENTS, fetch(10))
    handler.add(ORDERS, fetch(11))
    assert handler.next_request(0) is None
    handler.answered(requests[0], {})
    assert named(request_of(handler)) == {"events": 10, "orders": 11}


def test_a_failed_request_ends_its_session(handler: FetchSessionHandler) -> None:
    """Answers to all fetches of the session may be lost. What happens to its other requests means nothing then."""
    handler.add(EVENTS, fetch(1))
    first = request_of(handler)
    handler.add(ORDERS, fetch(2))
    second = request_of(handler)
    assert {name.topic: each.number for name, each in handler.failed(second).items()} == {"events": 1, "orders": 2}
    handler.add(EVENTS, fetch(3))
    third = request_of(handler)
    assert named(third) == {"events": 3} and (third.session, third.is_first) == (SESSION + 1, True)
    assert handler.failed(first) == {}, "of the session before"
    handler.answered(second, {})
    handler.answered(third, {})
    assert named(request_of(handler)) == {}, "the third one waits"


def test_after_a_failure_requests_are_sent_again(handler: FetchSessionHandler) -> None:
    for number in range(REQUESTS_MAX):
        handler.add(EVENTS, fetch(number))
        request = request_of(handler)
    handler.failed(request)
    handler.add(EVENTS, fetch(10))
    assert handler.is_due(0) and named(request_of(handler)) == {"events": 10}


def test_fetches_that_are_forgotten_are_not_awaited(handler: FetchSessionHandler) -> None:
    handler.add(EVENTS, fetch(1))
    handler.answered(request_of(handler), {})
    handler.add(ORDERS, fetch(1))
    handler.forget(EVENTS)
    handler.forget(ORDERS)
    assert not handler.is_due(0) and handler.next_request(0) is None


def test_the_quota_holds_the_fetches_of_replicas_outside_of_the_isr() -> None:
    clock = ManualClock(0)
    handler = new_handler(clock, rate=1000)
    handler.max_bytes = 4096
    handler.add(EVENTS, fetch(1))
    first = request_of(handler, clock.monotonic_us())
    assert named(first) == {"events": 1}, "the burst of the quota"
    handler.add(PAYMENTS, fetch(2))
    handler.add(ORDERS, fetch(2))
    assert named(request_of(handler, clock.monotonic_us())) == {"orders": 2}, "which is in the ISR"
    throttled_until_us = handler.throttled_until_us
    assert throttled_until_us is not None and not handler.is_due(throttled_until_us - 1)
    clock.advance(throttled_until_us - clock.monotonic_us())
    assert handler.is_due(throttled_until_us) and named(request_of(handler, throttled_until_us)) == {"payments": 2}
    assert handler.throttled_until_us is None
