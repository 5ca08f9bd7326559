"""How many messages a consumer asks for."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyreplog.topic.client.consumer import BYTES_MAX, FIRST_PERMITS, Permits


def test_small_queues_are_asked_for_at_once() -> None:
    permits = Permits(10)
    assert permits.first == 10
    permits.delivered(10, 100)
    assert [permits.taken(1) for _ in range(10)] == [0, 0, 0, 0, 5, 0, 0, 0, 0, 5]


def test_large_ones_by_and_by() -> None:
    permits = Permits(8 * FIRST_PERMITS)
    waiting = permits.first
    assert waiting == FIRST_PERMITS
    waiters = []
    for _ in range(6):
        permits.delivered(waiting, waiting)
        waiting = permits.taken(waiting)
        waiters.append(waiting)
    assert waiters == [2 * FIRST_PERMITS, 4 * FIRST_PERMITS, *[8 * FIRST_PERMITS] * 4]


def test_a_consumer_asks_for_few_large_messages() -> None:
    permits = Permits(1 << 20)
    size = 1 << 20
    waiting = permits.first
    for _ in range(20):
        permits.delivered(waiting, waiting * size)
        waiting = permits.taken(waiting)
    assert waiting == BYTES_MAX // size
    permits.delivered(waiting, waiting * 2 * BYTES_MAX)
    assert permits.taken(waiting) >= 1, "however large they are"


@pytest.mark.parametrize("size", [0, 1, 1 << 30])
@given(queue=st.integers(1, 5000), taken=st.lists(st.integers(1, 300), max_size=80))
def test_waiting_messages_are_bounded_and_permits_never_run_out(size: int, queue: int, taken: list[int]) -> None:
    permits = Permits(queue)
    waiting = permits.first
    for wanted in taken:
        assert 1 <= waiting <= queue
        count = min(wanted, waiting)
        permits.delivered(count, count * size)
        waiting += permits.taken(count) - count
