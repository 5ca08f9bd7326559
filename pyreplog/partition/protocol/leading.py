"""A replica that leads a partition in one epoch, as a state machine.

The rules for safety, with Kafka's names: while the outcome of a change of the ISR is unknown, the members of both ISRs
count (maximal ISR, KIP-497); nothing is committed under min ISR (KIP-966); a follower counts with the incarnation that
fetched (KIP-903), and once its log has the record of this epoch (KIP-320). A deposed leader that does not know of its
successor commits no record that the successor lacks: that was a member of its maximal ISR, or the ISR was under min
ISR.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from pyreplog._native.partition.leading_replica_base import HighWatermark, LeadingReplicaBase
from pyreplog.partition.protocol.effects import (
    AlterIsr,
    AppendLeaderEpoch,
    HighWatermarkAdvanced,
    LeadershipLost,
    LeadingEffect,
    LoadState,
    ReadRecords,
    SendFetchResponse,
)
from pyreplog.partition.protocol.epochs import LeaderEpoch, has_prefix, starts_between
from pyreplog.partition.protocol.error_codes import ACKS_ALL, NO_ERROR, ErrorCode
from pyreplog.partition.protocol.isr import FollowerProgress, FollowerState, Isr
from pyreplog.partition.protocol.messages import DivergingEpoch, Fetch, FetchedRecords, FetchRefused
from pyreplog.partition.protocol.partition_state import Brokers, Member, PartitionState, is_lost, may_join_isr
from pyreplog.partition.protocol.replica_log import ReplicaLog
from pyreplog.stream.log_position import LogPosition


@dataclass(frozen=True, kw_only=True)
class ReplicaConfig:
    """Settings of the replicas of one topic.

    Attributes:
        requires_sync: whether only synced records of a replica count, so that a power failure of all replicas loses no
            committed record. Kafka has no such level.
        lag_us: microseconds after which a follower that is not caught up leaves the ISR (`replica.lag.time.max.ms`).
    """

    requires_sync: bool = False
    lag_us: int = 30_000_000


class LeadingReplica(LeadingReplicaBase):
    """The leader of one epoch. Methods return effects, to be carried out in their order; one thread at a time.

    Args:
        member: this broker.
        version: version of the partition's key.
        state: its value, which makes this broker the leader.
        log: the log of this replica.
        high_watermark: the highest one that this replica knows.
        config: settings.
        brokers: the registrations.
        now_us: monotonic time, microseconds.
    """

    isr: Isr
    config: ReplicaConfig
    epoch: LeaderEpoch
    start: LogPosition
    end: LogPosition
    synced: LogPosition
    _followers: dict[Member, FollowerState]
    _high_watermark_advanced = HighWatermarkAdvanced  # which native code makes

    def __init__(
        self, member: Member, version: int, state: PartitionState, log: ReplicaLog, high_watermark: LogPosition,
        config: ReplicaConfig, brokers: Brokers, now_us: int,
    ) -> None:  # fmt: skip
        assert state.leading_member == member, f"expected a state that {member} leads, found {state}"
        self.member, self.config, self.epoch = member, config, state.epoch
        self.isr = Isr(version, state)
        self.history = log.history.begin(state.epoch, log.end)
        self.start, self.end, self.synced = log.start, log.end, log.synced
        self.log_start = log.log_start
        self.is_deposed = False
        self._brokers = brokers
        self._high_watermark = HighWatermark(min(high_watermark, log.end), log.end)
        self._followers = {other: FollowerState(now_us) for other in state.isr if other != member}
        self._began_us = now_us

    def begin(self) -> list[LeadingEffect]:
        """Begin the epoch."""
        return [AppendLeaderEpoch(self.epoch)]

    @property
    def latest(self) -> LogPosition | None:
        """The latest offset for ListOffsets; None: OFFSET_NOT_AVAILABLE."""
        return self._high_watermark.value if self._high_watermark.is_known else None

    # ---- appends --------------------------------------------------------------------------------------------

    def admit(self, acks: int) -> ErrorCode:
        """Return NONE if records may be appended, otherwise the error."""
        if self.is_deposed:
            return ErrorCode.NOT_LEADER_OR_FOLLOWER
        if acks == ACKS_ALL and self.isr.is_under_min:
            return ErrorCode.NOT_ENOUGH_REPLICAS
        return NO_ERROR

    def check_enough_replicas_reach_offset(self, required: LogPosition) -> ErrorCode | None:
        """Return the error code of a produce with acks=-1 whose records end at `required`; None: it has to wait.

        NOT_ENOUGH_REPLICAS_AFTER_APPEND and NOT_LEADER_OR_FOLLOWER leave the records in the log: they may be committed
        later, and may be lost.
        """
        if self.is_deposed:
            return ErrorCode.NOT_LEADER_OR_FOLLOWER
        if self._high_watermark.value < required:
            return None
        return NO_ERROR if self.isr.is_maximal_enough else ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND

    def trimmed(self, start: LogPosition) -> None:
        """Note that the log begins later, at most at the high watermark."""
        assert start <= self.high_watermark, f"start: expected at most {self.high_watermark}, found {start}"
        self.start = max(self.start, start)

    def deleted(self, before: int) -> None:
        """Note that the records before an offset are deleted; the offset is at most the high watermark."""
        assert before <= self.high_watermark.entry, f"before: expected at most {self.high_watermark}, found {before}"
        self.log_start = max(self.log_start, before)

    @property
    def low_watermark(self) -> int:
        """Offset before which all live replicas have deleted the records (KIP-107). A dead replica learns of it from
        its leader before it may join the ISR again."""
        starts = [max(self.log_start, self.start.entry)]
        for name in self.isr.committed.replicas:
            registration = self._brokers.get(name)
            if name != self.member.broker and registration is not None and not registration.is_fenced:
                follower = self._followers.get(Member(name, registration.incarnation))
                starts.append(0 if follower is None else follower.log_start)
        return min(starts)

    def progress(self, now_us: int) -> list[FollowerProgress]:
        """Return the progress of the followers, in the order of their names, for the newest incarnation of each. A
        replica that is not in the ISR and has never fetched from this leader is missing."""
        newest: dict[str, FollowerProgress] = {}
        for member in sorted(self._followers):
            if member.broker in self.isr.committed.replicas:
                follower = self._followers[member]
                mark = self._mark(follower)
                is_at_end = mark is not None and mark >= self.end
                behind_us = 0 if is_at_end else max(now_us - follower.caught_up_us, 0)
                newest[member.broker] = FollowerProgress(member, -1 if mark is None else mark.entry, behind_us)
        return list(newest.values())

    def in_sync_with(self, offset: int) -> list[str]:
        """Return the brokers of the in-sync followers whose logs have an offset, or end there; the longest log first.

        They are the replicas from which a consumer can read at that offset (KIP-392).
        """
        ends: dict[str, int] = {}
        for member in self.isr.committed.isr:
            follower = self._followers.get(member)
            if follower is None or follower.last_epoch != self.epoch or not may_join_isr(member, self._brokers):
                continue
            if follower.log_start <= offset <= follower.received.entry:
                ends[member.broker] = follower.received.position
        return sorted(ends, key=lambda name: -ends[name])

    # ---- fetches --------------------------------------------------------------------------------------------

    def fetched(self, fetch: Fetch, now_us: int) -> list[LeadingEffect]:
        """Note a follower's fetch, which reports its progress, and answer it."""
        if (code := self._fetch_error(fetch)) is not NO_ERROR:
            return [SendFetchResponse(fetch, FetchRefused(fetch.number, code))]
        is_trimmed = fetch.position < self.start
        if is_trimmed or not has_prefix(self.history, self.start, self.end, fetch.last_epoch, fetch.position):
            answer = DivergingEpoch(fetch.number, self.epoch, self.history, self.start, self.end)
            return [SendFetchResponse(fetch, answer)]
        follower = self._followers.get(fetch.member)
        if follower is None:
            follower = self._followers[fetch.member] = FollowerState(self._began_us - self.config.lag_us - 1)
            self._forget_lost()
        follower.fetched(fetch, self.end, now_us, requires_sync=self.config.requires_sync)
        return [*self._expand(now_us), *self._advance(now_us), ReadRecords(fetch)]

    def response(self, fetch: Fetch, end: LogPosition, records: object) -> FetchedRecords:
        """Return the response to a fetch that `fetched` answered with ReadRecords.

        Args:
            fetch: the fetch.
            end: where the records end.
            records: the records from the fetch's position on.
        """
        starts = starts_between(self.history, fetch.position, end)
        return FetchedRecords(
            fetch.number,
            self.epoch,
            fetch.position,
            end,
            starts,
            self.high_watermark,
            self.start,
            records,
            self.log_start,
        )

    def has_news(self, fetch: Fetch) -> bool:
        """Return whether a fetch is answered at once: the leader has records, a high watermark or a log start that the
        follower does not know. Other fetches wait until one of these changes."""
        return (
            fetch.position < self.end
            or fetch.high_watermark < min(self.high_watermark, fetch.position)
            or fetch.leader_log_start < max(self.log_start, self.start.entry)
        )

    def waited(self, member: Member, until_us: int) -> None:
        """Note that a follower's fetch, which had nothing to return, was still waiting at a time: the follower had all
        of the log then, as if it had fetched again.

        Args:
            member: the follower.
            until_us: monotonic time, microseconds.
        """
        follower = self._followers.get(member)
        if follower is not None and (mark := self._mark(follower)) is not None and mark >= follower.received:
            follower.caught_up_us = max(follower.caught_up_us, until_us)

    def _fetch_error(self, fetch: Fetch) -> ErrorCode:
        if self.is_deposed:
            return ErrorCode.NOT_LEADER_OR_FOLLOWER
        if fetch.epoch < self.epoch:
            return ErrorCode.FENCED_LEADER_EPOCH
        if fetch.epoch > self.epoch or fetch.member.broker not in self.isr.committed.replicas:
            return ErrorCode.UNKNOWN_LEADER_EPOCH
        if is_lost(fetch.member, self._brokers):
            return ErrorCode.STALE_BROKER_EPOCH
        return NO_ERROR

    def _forget_lost(self) -> None:
        keep = {*self.isr.maximal}
        self._followers = {
            member: follower
            for member, follower in self._followers.items()
            if member in keep or not is_lost(member, self._brokers)
        }

    def _mark(self, follower: FollowerState) -> LogPosition | None:
        """Return the position of a follower that counts; None: its log has no record of this epoch."""
        if follower.last_epoch != self.epoch:
            return None
        return follower.synced if self.config.requires_sync else follower.received

    def _is_caught_up(self, follower: FollowerState, now_us: int) -> bool:
        mark = self._mark(follower)
        return follower.is_caught_up(self.start if mark is None else mark, self.end, now_us, self.config.lag_us)

    # ---- high watermark -------------------------------------------------------------------------------------

    def _marks_of_others(self, now_us: int) -> Iterator[LogPosition | None]:
        """Iterate over the positions of all other replicas that count: those of the maximal ISR, and followers about to
        join. Otherwise a leader that is alone in the ISR would advance the high watermark with each append, and a
        follower close behind could never reach it."""
        maximal = self.isr.maximal
        for member in maximal:
            if member != self.member:
                follower = self._followers.get(member)
                yield None if follower is None else self._mark(follower)
        for member, follower in self._followers.items():
            mark = self._mark(follower)
            if mark is None or member in maximal or not self._may_join(member):
                continue
            if self._is_caught_up(follower, now_us):
                yield mark

    # ---- ISR ------------------------------------------------------------------------------------------------

    def _may_join(self, member: Member) -> bool:
        return member.broker in self.isr.committed.replicas and may_join_isr(member, self._brokers)

    def _expand(self, now_us: int) -> list[LeadingEffect]:
        """Propose that followers join which have all committed records: their logs reach the high watermark, and into
        this epoch (KAFKA-7128), because earlier leaders may have committed more than this leader knows. A follower that
        lags so much that it would leave again at once is not proposed."""
        if self.is_deposed or self.isr.pending is not None:
            return []
        joining = [
            member
            for member, follower in self._followers.items()
            if member not in self.isr.committed.isr and self._may_join(member)
            if (mark := self._mark(follower)) is not None
            and mark > self._high_watermark.epoch_start
            and mark >= self.high_watermark
            and self._is_caught_up(follower, now_us)
        ]
        if not joining:
            return []
        names = {member.broker for member in joining}
        staying = [member for member in self.isr.committed.isr if member.broker not in names]
        return [self._alter([*staying, *joining])]

    def check_isr(self, now_us: int) -> list[LeadingEffect]:
        """Propose that followers leave which were not caught up for too long, were lost, or whose brokers are dead or
        stopping: appends would wait for them. Called periodically. Followers that were about to join and lag now do not
        count for the high watermark any more."""
        if self.is_deposed:
            return []
        isr = self.isr.committed.isr
        staying = [member for member in isr if member == self.member or self._may_stay(member, now_us)]
        is_leaving = len(staying) < len(isr) and self.isr.pending is None
        return [*([self._alter(staying)] if is_leaving else ()), *self._advance(now_us)]

    def _may_stay(self, member: Member, now_us: int) -> bool:
        registration = self._brokers.get(member.broker)
        # An older registration than the member's is no proof.
        is_recent = registration is not None and registration.incarnation >= member.incarnation
        if is_recent and not may_join_isr(member, self._brokers):
            return False
        follower = self._followers.get(member)
        return follower is not None and self._is_caught_up(follower, now_us)

    def _alter(self, isr: list[Member]) -> AlterIsr:
        unclean = {} if self.config.requires_sync else self._brokers
        return self.isr.propose(self.isr.committed.with_isr(isr, unclean))

    def altered(self, version: int, now_us: int) -> list[LeadingEffect]:
        """Note that the change under way is committed."""
        if self.is_deposed or self.isr.pending is None or version <= self.isr.version:
            return []
        self.isr.adopt(version, self.isr.pending)
        return [*self._expand(now_us), *self._advance(now_us)]

    def conflicted(self) -> list[LeadingEffect]:
        """Load the state: the key has another version, so the proposal is not repeated (KAFKA-2729)."""
        return [] if self.is_deposed or self.isr.pending is None else [LoadState()]

    def alter_unknown(self) -> list[LeadingEffect]:
        """Repeat the proposal under the same version, because its outcome is unknown."""
        pending = self.isr.pending
        return [] if self.is_deposed or pending is None else [AlterIsr(self.isr.version, pending)]

    def state_changed(self, version: int, state: PartitionState, now_us: int) -> list[LeadingEffect]:
        """Note a value of the partition's key, from a read or a watch; versions may come in any order."""
        if self.is_deposed or version <= self.isr.version:
            return []
        if state.epoch != self.epoch or state.leading_member != self.member:
            self.is_deposed = True
            return [LeadershipLost(version, state)]
        for member in {*self.isr.committed.isr} - {*state.isr}:  # its log failed: its records are unknown now
            self._followers.pop(member, None)
        for member in state.isr:  # a member that another process added counts as caught up
            if member != self.member and member not in self._followers:
                self._followers[member] = FollowerState(now_us)
        self.isr.adopt(version, state)
        return [*self._expand(now_us), *self._advance(now_us)]

    def brokers_changed(self, brokers: Brokers, now_us: int) -> list[LeadingEffect]:
        """Note new registrations of brokers."""
        self._brokers = brokers
        self._forget_lost()
        return [*self.check_isr(now_us), *self._expand(now_us), *self._advance(now_us)]
