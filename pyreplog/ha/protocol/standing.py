"""How far one replica is, as its master knows. One standing for each name, whatever connections it came by."""

from __future__ import annotations

from collections.abc import Hashable
from typing import NamedTuple

from pyreplog.ha.protocol.mark import ORIGIN, Mark
from pyreplog.ha.protocol.messages import Progress

RATE_US = 1_000_000


class Limits(NamedTuple):
    """When a replica is in sync: so many bytes behind at most, and level with the master so recently."""

    bytes: int
    us: int


class StandingStats(NamedTuple):
    """One replica, for people. rate: bytes per second. lag_us: since it was last level with its master."""

    name: str
    state: str  # "joining", "streaming", "gone"
    observer: bool
    in_sync: bool
    received: Mark
    synced: Mark
    lag_bytes: int
    lag_us: int
    rate: int


class Standing:
    """Of one replica. Its marks count for the commit point once `counts`: it has promised this master's term.

    counted: as much of it as counts, of the mark that is waited for; of an observer nothing does.
    """

    __slots__ = (
        "_base", "_base_us", "_probe", "_probe_us", "_rate", "caught_up_us", "connection", "counted", "counts",
        "left_us", "name", "observer", "proven", "received", "synced",
    )  # fmt: skip

    def __init__(self, name: str, now_us: int) -> None:
        self.name = name
        self.observer = False
        self.connection: Hashable | None = None
        self.received = self.synced = self.proven = self.counted = ORIGIN
        self.counts = False
        self.left_us = self.caught_up_us = now_us
        self._probe, self._probe_us = 0, now_us
        self._base, self._base_us, self._rate = 0, now_us, 0

    def joined(
        self, connection: Hashable, observer: bool, received: Mark, synced: Mark, end: Mark, now_us: int
    ) -> None:
        """It goes on from `received`; nothing of it counts before its first report."""
        self.connection, self.observer, self.counts = connection, observer, False
        self.received, self.synced, self.counted = received, synced, ORIGIN
        self._probe, self._probe_us = end.position, now_us
        self._base, self._base_us, self._rate = received.position, now_us, 0

    def left(self, now_us: int) -> None:
        """What it has reported is still there."""
        self.connection, self.left_us = None, now_us

    def absurdity(self, progress: Progress, sent: int, end: Mark) -> str:
        """What cannot be about a report; "" nothing. sent: position that was sent to it. RocketMQ believes all of this
        (#3015, #1155: an acknowledgement of 2^40 bytes that nobody sent)."""
        received, synced = progress
        position, entry = received
        synced_position, synced_entry = synced
        if position > sent or entry > end.entry:
            return f"it reports {received}, it was sent {sent} of {end}"
        if synced_position > position or synced_entry > entry:
            return f"it reports to have synced {synced} and received {received}"
        before, entry_before = self.received
        if position < before or entry < entry_before:
            return f"it reports {received}, behind {self.received} before"
        before, entry_before = self.synced
        if synced_position < before or synced_entry < entry_before:
            return f"it reports to have synced {synced}, behind {self.synced} before"
        return ""

    def reported(self, progress: Progress, mark: Mark, end: Mark, now_us: int) -> None:
        """mark: the one of the two that is waited for. end: the master's.

        Level with the master is who has what the master had when it was looked at before (Kafka's caught-up time: under
        load nobody ever has all that there is now).
        """
        self.received, self.synced = progress
        self.proven = max(self.proven, self.synced)
        self.counts = True
        if not self.observer:
            self.counted = mark
        if mark.position >= self._probe:
            self.caught_up_us = now_us if mark.position >= end.position else self._probe_us
            self._probe, self._probe_us = end.position, now_us
        if now_us - self._base_us >= RATE_US:
            self._rate = self.rate(now_us)
            self._base, self._base_us = self.received.position, now_us

    def rate(self, now_us: int) -> int:
        """Bytes per second that it received lately; 0 when it left."""
        if self.connection is None:
            return 0
        elapsed_us = now_us - self._base_us
        return self._rate if elapsed_us < RATE_US else (self.received.position - self._base) * 1_000_000 // elapsed_us

    def lag_us(self, mark: Mark, end: Mark, now_us: int) -> int:
        return 0 if self.counts and mark.position >= end.position else now_us - self.caught_up_us

    def is_in_sync(self, mark: Mark, end: Mark, now_us: int, limits: Limits) -> bool:
        """Says who is waited for, never who is safe."""
        return (
            self.connection is not None
            and self.counts
            and end.position - mark.position <= limits.bytes
            and self.lag_us(mark, end, now_us) <= limits.us
        )

    def stats(self, mark: Mark, end: Mark, now_us: int, limits: Limits) -> StandingStats:
        state = "gone" if self.connection is None else "streaming" if self.counts else "joining"
        return StandingStats(
            self.name, state, self.observer, self.is_in_sync(mark, end, now_us, limits), self.received, self.synced,
            max(0, end.position - self.received.position), self.lag_us(mark, end, now_us),
            self.rate(now_us),
        )  # fmt: skip
