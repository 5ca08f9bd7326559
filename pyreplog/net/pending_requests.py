"""Requests of a channel that wait for their replies, and until when."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from pyreplog._native.net.pending_requests_base import PendingRequestsBase
from pyreplog.errors import ReplogError

OnReply: TypeAlias = Callable[[memoryview | ReplogError], object]

TICK_US = 10_000
"""Deadlines are looked at no more often than this."""


class PendingRequests(PendingRequestsBase):
    """By correlation id: whom to tell, and the deadline. All but `ask` under its channel's lock.

    Most replies come long before their deadline, so that adding and removing is all that has to be cheap: deadlines
    are in no order, and all of them are looked at when the earliest one that was known has passed - about once per
    timeout, however many requests come and go meanwhile.
    """

    __slots__ = ()

    def overdue(self, now_us: int) -> list[int]:
        """Ids of those whose time is over. They stay until they are removed."""
        return [i for i, (_, deadline_us) in list(self.waiting.items()) if deadline_us <= now_us]

    def next_check_us(self, now_us: int) -> int | None:
        """When to call `overdue` again; None: nothing waits."""
        earliest_us = min((deadline_us for _, deadline_us in self.waiting.values()), default=None)
        if earliest_us is None:
            self.check_us = -1
            return None
        self.check_us = max(earliest_us, now_us + TICK_US)
        return self.check_us
