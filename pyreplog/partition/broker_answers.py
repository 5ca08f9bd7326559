"""Waits for the answer of another broker, in a thread that has to end when its own broker closes."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

from pyreplog.errors import NotConnectedError
from pyreplog.future import AppendFuture

T = TypeVar("T")

_CHECK_S = 0.1
"""Seconds between two checks of the condition that ends a wait."""


def wait_for_answer(future: AppendFuture[T], timeout: float, is_over: Callable[[], bool], text: str) -> T:
    """Return the answer of another broker. Blocks.

    Args:
        future: the future of the answer.
        timeout: seconds to wait at most.
        is_over: whether the wait is to end early.
        text: text of the error if there is no answer.

    Raises:
        NotConnectedError: there was no answer in time, or the wait was over.
        PeerError: the connection to the broker failed.
    """
    deadline = time.monotonic() + timeout
    while True:
        try:
            return future.result(_CHECK_S)
        except TimeoutError:  # of this wait, or of the connection
            if future.done():
                return future.result(0)
            if is_over() or time.monotonic() >= deadline:
                raise NotConnectedError(text) from None
