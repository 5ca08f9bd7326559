"""Counters of a bookie since it was opened."""

from __future__ import annotations

from typing import NamedTuple

from pyreplog._native.bookie.fast_add import AddCounters
from pyreplog._native.system.histogram import Histogram
from pyreplog.bookie.protocol import ReplyStatus, RequestKind


class BookieCounters(AddCounters):
    """Counts requests and commits, never single entries. One thread at a time writes; any thread may read.

    sync_seconds: durations of syncs; filled by the driver, because the state machine has no clock.
    """

    def __init__(self) -> None:
        super().__init__(Histogram(4**n for n in range(10)), RequestKind, ReplyStatus)
        self.read_bytes = self.fences = 0
        self.sync_seconds = Histogram((3e-5, 1e-4, 3e-4, 1e-3, 3e-3, 1e-2, 3e-2, 0.1, 0.3, 1, 3))


class Gauges(NamedTuple):
    """Current numbers of a bookie. limbo: known ledgers in limbo, among those that were used since it was opened."""

    ledger_states: int
    limbo: int
    long_polls: int
