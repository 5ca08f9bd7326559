"""PendingRequests: requests of a channel that wait for their replies, with their deadlines."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from pyreplog._native.net.pending_requests_base import PendingRequestsBase
from pyreplog.errors import ReplogError

OnReply: TypeAlias = Callable[[memoryview | ReplogError], object]

TICK_US = 10_000
"""Shortest interval between checks of deadlines."""


class PendingRequests(PendingRequestsBase):
    """Callbacks and deadlines by correlation id. All calls except `ask` are made under the channel's lock.

    Most replies arrive long before their deadline, so only adding and removing must be cheap: deadlines are not sorted,
    and all of them are checked when the earliest known one has passed, about once per timeout.
    """

    __slots__ = ()

    def overdue(self, now_us: int) -> list[int]:
        """Return the ids of requests whose deadline has passed. They stay until they are removed."""
        return [i for i, (_, deadline_us) in list(self.waiting.items()) if deadline_us <= now_us]

    def next_check_us(self, now_us: int) -> int | None:
        """Return when to call `overdue` again; None: no request waits."""
        earliest_us = min((deadline_us for _, deadline_us in self.waiting.values()), default=None)
        if earliest_us is None:
            self.check_us = -1
            return None
        self.check_us = max(earliest_us, now_us + TICK_US)
        return self.check_us
