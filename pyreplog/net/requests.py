"""Requests of a channel that wait for their replies, and until when."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from pyreplog.errors import ReplogError

OnReply: TypeAlias = Callable[[memoryview | ReplogError], object]

TICK_US = 10_000
"""Deadlines are looked at no more often than this."""


class Requests:
    """By correlation id: whom to tell, and the deadline. Not for several threads at once: its channel has the lock.

    Most replies come long before their deadline, so that adding and removing is all that has to be cheap: deadlines
    are in no order, and all of them are looked at when the earliest one that was known has passed - about once per
    timeout, however many requests come and go meanwhile.
    """

    __slots__ = ("_check_us", "waiting")

    def __init__(self) -> None:
        self.waiting: dict[int, tuple[OnReply, int]] = {}  # correlation id -> whom to tell, deadline
        self._check_us: int | None = None  # when `overdue` is to be called

    def add(self, correlation_id: int, on_reply: OnReply, deadline_us: int) -> bool:
        """Whether `overdue` is to be called earlier than was known, at `deadline_us`."""
        self.waiting[correlation_id] = on_reply, deadline_us
        if self._check_us is None or deadline_us < self._check_us:
            self._check_us = deadline_us
            return True
        return False

    def overdue(self, now_us: int) -> list[int]:
        """Ids of those whose time is over. They stay until they are removed."""
        return [i for i, (_, deadline_us) in list(self.waiting.items()) if deadline_us <= now_us]

    def next_check_us(self, now_us: int) -> int | None:
        """When to call `overdue` again; None: nothing waits."""
        earliest_us = min((deadline_us for _, deadline_us in self.waiting.values()), default=None)
        self._check_us = None if earliest_us is None else max(earliest_us, now_us + TICK_US)
        return self._check_us
