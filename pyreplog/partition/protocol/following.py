"""A replica that follows a leader, as a state machine: fetches, truncates, appends, learns the high watermark.

Every fetch has the epoch in which the log ends, so the leader compares the logs before it sends records or counts the
follower (KIP-320). If they diverge, the log is truncated to the end of the newest epoch that both have (KIP-279), never
to the high watermark, because a follower's lags behind the committed records (KIP-101).
"""

from __future__ import annotations

from enum import Enum

from pyreplog.partition.protocol.effects import (
    AdvanceLogStart,
    AppendRecords,
    FollowingEffect,
    ResetLog,
    SendFetch,
    ShowHighWatermark,
    TrimLog,
    TruncateLog,
)
from pyreplog.partition.protocol.epochs import NO_EPOCH, LeaderEpoch, extended
from pyreplog.partition.protocol.messages import DivergingEpoch, Fetch, FetchedRecords, FetchRefused, FetchResponse
from pyreplog.partition.protocol.partition_state import Member
from pyreplog.partition.protocol.replica_log import ReplicaLog
from pyreplog.stream.log_position import LogPosition
from pyreplog.stream.terms import History


class FetchState(Enum):
    """The state of a follower."""

    IDLE = "idle"
    """It follows no leader."""
    FETCHING = "fetching"
    """A fetch is in flight."""
    TRUNCATING = "truncating"
    """Its log is being truncated."""
    APPENDING = "appending"
    """Records are being appended to its log."""


class FollowingReplica:
    """A follower. Methods return effects, to be carried out in their order. Not for several threads at once.

    Args:
        member: this broker.
        log: the log of this replica.
        high_watermark: the highest one that this replica knows.
        fetch_number: number of the newest earlier fetch of this process: late responses to earlier fetches are ignored.
    """

    def __init__(
        self, member: Member, log: ReplicaLog, high_watermark: LogPosition, fetch_number: int = 0
    ) -> None:  # fmt: skip
        self.member, self.log = member, log
        self.high_watermark = min(high_watermark, log.end)
        self.leader = ""
        self.epoch: LeaderEpoch = NO_EPOCH
        self.state = FetchState.IDLE
        self._number = fetch_number
        self._appending: FetchedRecords | None = None
        self._history = History()  # history of the log after the truncation under way
        self._leader_log_start = 0  # from the leader of this epoch

    def follow(self, leader: str, epoch: LeaderEpoch) -> list[FollowingEffect]:
        """Follow the leader of an epoch, unless the log or an earlier call has a higher epoch.

        After `stop` the same leader may be followed again: a broker may become a replica again in the same epoch.

        Args:
            leader: name of the broker.
            epoch: the leader's epoch.
        """
        if epoch < max(self.epoch, self.log.history.last) or (epoch == self.epoch and self.leader):
            return []
        self.leader, self.epoch, self._leader_log_start = leader, epoch, 0
        if self.state in (FetchState.TRUNCATING, FetchState.APPENDING):
            return []  # `truncated` or `appended` sends the next fetch
        return self._fetch()

    @property
    def fetch_number(self) -> int:
        """Number of the newest fetch; earlier ones are abandoned."""
        return self._number

    def stop(self) -> None:
        """Follow no leader. An append or truncation under way is completed."""
        self.leader = ""
        self._number += 1
        if self.state is FetchState.FETCHING:
            self.state = FetchState.IDLE

    def timed_out(self, number: int) -> list[FollowingEffect]:
        """Fetch again: a fetch got no response in time, or was refused some time ago."""
        return self._fetch() if number == self._number and self.state is FetchState.FETCHING else []

    def answered(self, response: FetchResponse) -> list[FollowingEffect]:
        """Handle a response of the leader. After a refusal the next fetch is sent by `timed_out`."""
        if response.number != self._number or self.state is not FetchState.FETCHING:
            return []
        if isinstance(response, FetchRefused) or response.epoch != self.epoch:
            return []
        if isinstance(response, DivergingEpoch):
            return self._diverged(response)
        if response.position != self.log.end:
            return []
        if response.end > response.position:
            self.state, self._appending = FetchState.APPENDING, response
            return [AppendRecords(response)]
        return [*self._apply_response(response), *self._fetch()]

    def appended(self, end: LogPosition, synced: LogPosition) -> list[FollowingEffect]:
        """Note that the records of AppendRecords are in the log."""
        records = self._appending
        if records is None or self.state is not FetchState.APPENDING:
            return []
        self._appending = None
        history = extended(self.log.history, records.starts)
        self.log = self.log._replace(history=history, end=end, synced=synced)
        return [*self._apply_response(records), *self._fetch()]

    def truncated(self, start: LogPosition, end: LogPosition, synced: LogPosition) -> list[FollowingEffect]:
        """Note that the log was truncated."""
        if self.state is not FetchState.TRUNCATING:
            return []
        log_start = max(min(self.log.log_start, end.entry), start.entry)
        self.log = ReplicaLog(self._history, start, end, synced, log_start)
        self.high_watermark = max(start, min(self.high_watermark, end))  # trimmed records were committed
        return self._fetch()

    def synced(self, synced: LogPosition) -> list[FollowingEffect]:
        """Note up to where the log is synced; a new fetch reports it to the leader at once."""
        if synced <= self.log.synced:
            return []
        self.log = self.log._replace(synced=min(synced, self.log.end))
        return self._fetch() if self.state is FetchState.FETCHING else []

    def trimmed(self, start: LogPosition) -> None:
        """Note that the log begins later."""
        self.log = self.log._replace(start=max(self.log.start, start))

    def _fetch(self) -> list[FollowingEffect]:
        if not self.leader:
            self.state = FetchState.IDLE
            return []
        self._number += 1
        self.state = FetchState.FETCHING
        log = self.log
        fetch = Fetch(
            self._number, self.member, self.epoch, log.end, log.history.last, log.synced, self.high_watermark,
            max(log.log_start, log.start.entry), self._leader_log_start,
        )  # fmt: skip
        return [SendFetch(self.leader, fetch)]

    def _apply_response(self, response: FetchedRecords) -> list[FollowingEffect]:
        """Apply the leader's high watermark and log start, if they advance. A new leader may know a lower high
        watermark than its predecessor. A response of another epoch is ignored: the log may have to be truncated."""
        if response.epoch != self.epoch:
            return []
        effects: list[FollowingEffect] = []
        self._leader_log_start = max(response.deleted_before, response.log_start.entry)
        high_watermark = min(response.high_watermark, self.log.end)
        if high_watermark > self.high_watermark:
            self.high_watermark = high_watermark
            effects.append(ShowHighWatermark(high_watermark))
        if min(response.log_start, self.high_watermark) > self.log.start:
            effects.append(TrimLog(min(response.log_start, self.high_watermark)))
        deleted_before = min(response.deleted_before, self.high_watermark.entry)
        if deleted_before > max(self.log.log_start, self.log.start.entry):
            self.log = self.log._replace(log_start=deleted_before)
            effects.append(AdvanceLogStart(deleted_before))
        return effects

    def _diverged(self, leader: DivergingEpoch) -> list[FollowingEffect]:
        """Truncate the log to the common prefix; if that ends before either log begins, copy the leader's from its
        start."""
        log = self.log
        point = log.history.common_point(log.end, leader.history, leader.end)
        self.state = FetchState.TRUNCATING
        if point is None or point < max(log.start, leader.log_start):
            self._history = leader.history.up_to(leader.log_start)
            return [ResetLog(leader.log_start, self._history)]
        self._history = log.history.up_to(point)
        return [TruncateLog(point)]
