"""Waits for the answers of other brokers."""

from __future__ import annotations

import pytest

from pyreplog.errors import NotConnectedError, PeerTimeoutError
from pyreplog.future import AppendFuture, set_exception, set_result
from pyreplog.partition.broker_answers import wait_for_answer


def test_an_answer_is_returned() -> None:
    future = AppendFuture[int]()
    set_result(future, 7)
    assert wait_for_answer(future, 60.0, lambda: False, "no answer") == 7


def test_an_error_of_the_connection_ends_the_wait_at_once() -> None:
    """It is a TimeoutError, as that of a wait without an answer."""
    future, checks = AppendFuture[int](), list[None]()
    set_exception(future, PeerTimeoutError("the connection timed out"))
    with pytest.raises(PeerTimeoutError):
        wait_for_answer(future, 1.0, lambda: bool(checks.append(None)), "no answer")
    assert not checks


@pytest.mark.parametrize(("timeout", "is_over"), [(0.0, False), (60.0, True)])
def test_a_wait_ends_with_its_time_or_its_condition(timeout: float, is_over: bool) -> None:
    with pytest.raises(NotConnectedError, match="no answer"):
        wait_for_answer(AppendFuture[int](), timeout, lambda: is_over, "no answer")
