"""The master of a replica group, as a state machine: its replicas, the commit point, and whether it is master still.

Rules and their sources: progress is a member's, not a connection's, and judged before it counts (RocketMQ counts
connections and believes everything); the commit point is the k-th largest mark of the others, bounded by
the master's own, and moves only with records of its own term (Raft, §5.4.2); joint consensus while members change
(Raft, §6); after too long a wait the master goes on alone, and comes back by itself (MySQL semi-sync, rpl_semi_sync).
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from dataclasses import dataclass
from typing import Literal

from pyreplog._native.ha.commit_point import CommitPointBase
from pyreplog.config import Settings
from pyreplog.errors import ConfigError, HigherTermError, InvalidArgumentError, NotEnoughReplicasError, NotMasterError
from pyreplog.ha.protocol.async_fallback import AsyncFallback
from pyreplog.ha.protocol.effects import Disconnect, Effect, Fenced, ModeChanged, Replicated, SendMessage, StoreMembers
from pyreplog.ha.protocol.joining import NEW_COPY, StreamedLog, check_join, foreign
from pyreplog.ha.protocol.members import Members, Quorum
from pyreplog.ha.protocol.messages import (
    NO_UUID,
    Commit,
    Join,
    MembershipUpdate,
    Prepare,
    RefusalCode,
    Refuse,
    VoteRejected,
)
from pyreplog.ha.protocol.replica_progress import InSyncLimits, Progress
from pyreplog.ha.protocol.retention_hold import RetentionHold
from pyreplog.ha.protocol.stats import GroupStats
from pyreplog.stream.log_position import ORIGIN, LogPosition
from pyreplog.stream.terms import Term

AckMode = Literal["received", "synced"]
ACK_MODES: tuple[AckMode, ...] = ("received", "synced")

HOLD_US = 2_000_000
"""A candidate to which the master hands over has so long before it asks again, or for promises."""

HOLD_MOST_US = 5_000_000
"""Appends are held back so long at most, and not again before as much time is over."""


@dataclass(frozen=True, kw_only=True)
class GroupConfig(Settings):
    """Settings of a master.

    The number of replicas that an append waits for, `sync_replicas`, belongs to the members, since elections need it.

    Attributes:
        ack: what a replica must have done with an entry before it counts. "received": the entry is in its log.
            "synced": the entry is on its disk, and on that of the master.
        min_in_sync: refuse appends while fewer replicas (members other than the master) are connected and caught up.
        in_sync_bytes: a replica that is caught up lags at most so many bytes.
        in_sync_ms: a replica that is caught up was level with the master at most so many milliseconds ago.
        fallback_after_ms: milliseconds without an answer after which the master waits for no replica, until enough
            have caught up (as MySQL's `rpl_semi_sync` does); None: never.
        retention_hold_bytes: bytes of log, at most, that retention keeps for replicas that lag.
        retention_hold_ms: milliseconds for which the log is kept for a replica that has left.

    See docs/ha.md.
    """

    ack: AckMode = "synced"
    min_in_sync: int = 0
    in_sync_bytes: int = 64 << 20
    in_sync_ms: int = 15_000
    fallback_after_ms: int | None = None
    retention_hold_bytes: int = 64 << 30
    retention_hold_ms: int = 600_000

    def __post_init__(self) -> None:
        if self.ack not in ACK_MODES:
            raise ConfigError(f"ack: expected one of {', '.join(ACK_MODES)}, found {self.ack!r}")
        self._check_int("min_in_sync", 0, 255)
        self._check_int("fallback_after_ms", 0, 1 << 40, optional=True)
        for name in ("in_sync_bytes", "in_sync_ms", "retention_hold_bytes", "retention_hold_ms"):
            self._check_int(name, 0, 1 << 62)


class MasterMachine(CommitPointBase):
    """The master `name` of one term. Methods return effects, to be carried out in their order.

    source: the log as it is now; its term is this one, its history ends with it. synced: end of what is on disk.
    members: as of this node's file. committed: commit point as far as it is known. owed: end of what readers see that
    a master showed on its own; None: nothing. Not for several threads at once.
    """

    config: GroupConfig
    members: Members
    fenced: Term | None
    committed: LogPosition
    fallback: AsyncFallback

    def __init__(
        self, name: str, source: StreamedLog, synced: LogPosition, members: Members, config: GroupConfig, *,
        committed: LogPosition,
        owed: LogPosition | None = None,
    ) -> None:  # fmt: skip
        limit_ms = config.fallback_after_ms
        fallback = AsyncFallback(None if limit_ms is None else limit_ms * 1000, owed)
        super().__init__(name, members, config, fallback, source.end, synced, committed, source.term_start, ORIGIN)
        self.term, self._start = source.term, source.start
        self._uuid, self._segment_bytes, self._history = source.uuid, source.segment_bytes, source.history
        self._stored = {name}  # the nodes that have the present members on disk
        self._changing_from = source.end  # all that former members alone may have acknowledged, to whichever process
        self._limits = InSyncLimits(config.in_sync_bytes, config.in_sync_ms * 1000)
        self._refused = 0
        self._heir = ""  # to whom it is handing over
        self._held_since_us, self._held_until_us = -2 * HOLD_MOST_US, 0
        self._stalled_at: LogPosition | None = None
        self._stalled_since_us = 0  # since when the commit point is there
        self._retention_hold = RetentionHold(config.retention_hold_bytes, config.retention_hold_ms * 1000)

    # ---- where it stands ------------------------------------------------------------------------------------

    @property
    def asynchronous(self) -> bool:
        """Whether it went on alone, waiting for nobody."""
        return self.fallback.is_alone

    def _mark(self, replica: Progress) -> LogPosition:
        return replica.synced if self.config.ack == "synced" else replica.received

    @property
    def commit(self) -> Commit:
        """What replicas are told now and then."""
        return Commit(self.committed, self._start.position, self.fallback.owed is not None)

    def in_sync(self, now_us: int) -> list[str]:
        """Names of the other members that are connected and caught up."""
        return [
            name
            for name, replica in self._progress_by_name.items()
            if name in self.members.all_names
            and not replica.observer
            and replica.is_in_sync(self._mark(replica), self._end, now_us, self._limits)
        ]

    def admit(self, now_us: int) -> None:
        """Called before anything is appended. HigherTermError; NotMasterError, while it hands over;
        NotEnoughReplicasError."""
        if self.fenced is not None:
            raise HigherTermError(f"term {self.term} is over: {self.fenced} was promised", self.fenced)
        if heir := self.successor(now_us):
            raise NotMasterError(f"{self.name} is handing over to {heir}")
        least = self.config.min_in_sync
        if least and len(present := self.in_sync(now_us)) < least:
            raise NotEnoughReplicasError(
                f"min_in_sync: expected {least} replicas connected and caught up, found {', '.join(present) or 'none'}"
            )

    def floor(self, now_us: int) -> int | None:
        """Position from which on the log is kept for replicas; None: for none."""
        others = self.members.all_names - {self.name}
        return self._retention_hold.floor(self._progress_by_name, others, self._start, self._end, now_us)

    def stats(self, now_us: int) -> GroupStats:
        replicas = tuple(
            replica.stats(self._mark(replica), self._end, now_us, self._limits)
            for replica in self._progress_by_name.values()
        )
        return GroupStats(
            self.term, self.fenced, self.members, self.committed, self.asynchronous, self.fallback.owed is not None,
            self.fallback.count, self.fallback.commits, self._refused, self._reports, replicas,
        )  # fmt: skip

    # ---- handing over ---------------------------------------------------------------------------------------

    def hold(self, member: str, now_us: int) -> None:
        """A candidate asks to take over, once or again: if it follows and lags little, nothing is admitted for a while,
        so that it catches up."""
        replica = self._progress_by_name.get(member)
        follows = replica is not None and replica.connection is not None and replica.counts and not replica.observer
        if replica is None or not follows or member not in self.members.all_names:
            return
        if self._end.position - replica.received.position > self._limits.bytes:
            return
        if not self.successor(now_us):
            if now_us < self._held_since_us + 2 * HOLD_MOST_US:
                return
            self._heir, self._held_since_us = member, now_us
        if self._heir == member:
            self._held_until_us = min(now_us + HOLD_US, self._held_since_us + HOLD_MOST_US)

    def release(self, member: str) -> None:
        """That candidate does not take over."""
        if member == self._heir:
            self._heir = ""
            self._held_since_us = -2 * HOLD_MOST_US

    def successor(self, now_us: int) -> str:
        """For whom it holds appends back; "" nobody."""
        return self._heir if now_us < self._held_until_us else ""

    # ---- the log --------------------------------------------------------------------------------------------

    def appended(self, end: LogPosition, synced: LogPosition, now_us: int) -> list[Effect]:
        """The log ends there now. To be told before any report of that; once per batch is enough."""
        self.grew(end, synced)
        return self._advance(now_us)

    def trimmed(self, start: LogPosition) -> None:
        """The log begins there now."""
        self._start = start

    # ---- replicas -------------------------------------------------------------------------------------------

    def join(self, connection: Hashable, join: Join, now_us: int) -> list[Effect]:
        """A replica wants to follow: it is accepted or refused."""
        if self.fenced is not None:
            return [Disconnect(connection, self._over(self.fenced))]
        if connection in self._connected:
            return self._drop(
                connection, Refuse(RefusalCode.ABSURD, "it has joined on this connection already"), now_us
            )
        if (refusal := self._unwelcome(join)) is not None:
            is_newer = refusal.code == RefusalCode.HIGHER_TERM and self._is_member(join)
            fencing = self.fence(join.promised, now_us) if is_newer else []
            return [*fencing, *self._refuse(connection, refusal)]
        answer = check_join(join, self._source())
        if isinstance(answer, Refuse):
            return self._refuse(connection, answer)
        return [
            *self._admit(connection, join, answer.resume, now_us),
            SendMessage(connection, answer),
            *self._tell(connection),
        ]

    def _is_member(self, join: Join) -> bool:
        return not join.observer and join.member in self.members.all_names

    def _unwelcome(self, join: Join) -> Refuse | None:
        """Why it cannot follow, whatever its log looks like."""
        name, replica = join.member, self._progress_by_name.get(join.member)
        if name == self.name or not (join.observer or self._is_member(join)):
            names = ", ".join(self.members.quorum.names)
            return Refuse(RefusalCode.NOT_A_MEMBER, f"{name} is no replica of {self.name}; members are {names}: add it")
        if join.uuid not in (NO_UUID, self._uuid):  # what it promised to others is not about this log
            return foreign(join.uuid, self._uuid)
        known = join.history.last if join.observer else join.promised
        if known.is_absurd(self.term):
            return Refuse(RefusalCode.ABSURD, f"no group that is at term {self.term} has promised {known}: {NEW_COPY}")
        if known > self.term:
            return self._over(known)
        if replica is not None and not join.observer and self._lacks(join.synced, replica.proven):
            had = f"{name} had synced {replica.proven.position}, now {join.synced.position}"
            return Refuse(RefusalCode.LOST, f"{had}: {NEW_COPY}")
        return None

    def _lacks(self, synced: LogPosition, proven: LogPosition) -> bool:
        """Whether records that were proven to be on a disk are not. Behind the last one of a segment is either its end
        or the next segment's beginning, as long as the blank between the two may be lost to a power cut."""
        is_next = proven.position % self._segment_bytes == 0 and proven.entry == synced.entry
        return synced < proven and not (is_next and proven.position - synced.position < self._segment_bytes)

    def _admit(self, connection: Hashable, join: Join, resume: LogPosition, now_us: int) -> list[Effect]:
        """Its earlier connection, if any, ends."""
        replica = self._progress_by_name.setdefault(join.member, Progress(join.member, now_us))
        effects: list[Effect] = []
        if replica.connection is not None:
            del self._connected[replica.connection]
            again = f"{join.member} has connected again; if this one is left behind, two have that name"
            effects.append(Disconnect(replica.connection, Refuse(RefusalCode.REPLACED, again)))
        self._connected[connection] = replica
        replica.joined(connection, join.observer, resume, min(join.synced, resume), self._end, now_us)
        return effects

    def _source(self) -> StreamedLog:
        return StreamedLog(self._uuid, self._segment_bytes, self.term, self._history, self._start, self._end)

    def _tell(self, connection: Hashable) -> list[Effect]:
        return [SendMessage(connection, MembershipUpdate(self.members))]

    def _over(self, higher: Term) -> Refuse:
        return Refuse(
            RefusalCode.HIGHER_TERM, f"term {self.term} is over, {higher} was promised: look for the newer master"
        )

    def _refuse(self, connection: Hashable, refusal: Refuse) -> list[Effect]:
        self._refused += 1
        return [Disconnect(connection, refusal)]

    def _drop(self, connection: Hashable, refusal: Refuse, now_us: int) -> list[Effect]:
        self.disconnected(connection, now_us)
        return self._refuse(connection, refusal)

    def disconnected(self, connection: Hashable, now_us: int) -> None:
        """What its replica has reported still counts: it is there."""
        replica = self._connected.pop(connection, None)
        if replica is not None:
            replica.disconnected(now_us)
            if replica.observer:
                del self._progress_by_name[replica.name]

    def _absurd(self, connection: Hashable, absurdity: str, now_us: int, /) -> list[Effect]:
        name = self._connected[connection].name
        return self._drop(connection, Refuse(RefusalCode.ABSURD, f"{name}: {absurdity}"), now_us)

    # ---- the commit point -----------------------------------------------------------------------------------

    def _advance(self, now_us: int, /) -> list[Effect]:
        if self.fenced is not None:
            return []
        effects: list[Effect] = []
        fallback = self.fallback
        replicated = reached = self.replicated
        if fallback.is_alone and self._have_caught_up():
            fallback.end()
            effects.append(ModeChanged(False))
        if fallback.is_alone and self._synced.position > self._term_start.position:
            fallback.commits += self._synced > self.committed
            reached = self._synced
            fallback.shows(reached)
        effects += self._commit_up_to(reached)
        if fallback.owed is not None and fallback.settles(replicated):
            effects.append(Replicated())
        if fallback.limit_us is not None:
            fallback.wait(self.own, self.committed, now_us)
        if self.members.former is not None:
            effects += self._complete_change()
        return effects

    def _have_caught_up(self) -> bool:
        """Whether enough replicas are level with the master, or were since it went on alone."""
        level = {
            name
            for name, replica in self._progress_by_name.items()
            if replica.counts
            and not replica.observer
            and (self._mark(replica) >= self._end or replica.caught_up_us > self.fallback.since_us)
        }
        level.add(self.name)
        return all(len(level.intersection(quorum.names)) > quorum.k for quorum in self.members.quorums)

    def tick(self, now_us: int) -> list[Effect]:
        """Time has passed. To be called a few times within `fallback_after_ms`."""
        if self.committed != self._stalled_at or self.own.entry <= self.committed.entry:
            self._stalled_at, self._stalled_since_us = self.committed, now_us
        if self.fenced is not None or not self.fallback.is_due(now_us):
            return []
        self.fallback.begin(self.committed, now_us)
        return [ModeChanged(True), *self._advance(now_us)]

    def stalled_us(self, now_us: int) -> int:
        """For how long entries have waited to be committed, and none was; as of the ticks."""
        if self._stalled_at is None or self.own.entry <= self.committed.entry:
            return 0
        return max(0, now_us - self._stalled_since_us)

    def absent(self) -> list[str]:
        """Members that do not follow. To be sent `probe` every now and then, so that a master that everybody left hears
        why."""
        here = {replica.name for replica in self._connected.values() if not replica.observer}
        return sorted(self.members.all_names - here - {self.name})

    @property
    def probe(self) -> Prepare:
        """The question of a candidate of this term. A member that promised a higher term answers with that term."""
        return Prepare(self.term, self._uuid, self.members.stamp)

    def vote_rejected(self, rejection: VoteRejected, now_us: int) -> list[Effect]:
        """A member's answer to `probe`."""
        if rejection.code != RefusalCode.HIGHER_TERM or rejection.promised.is_absurd(self.term):
            return []
        return self.fence(rejection.promised, now_us)

    def fence(self, term: Term, now_us: int) -> list[Effect]:
        """A higher term was met, or is about to be promised: nothing is acknowledged from now on."""
        if self.fenced is not None or term <= self.term:
            return []
        self.fenced = term
        hang_ups = [Disconnect(connection, self._over(term)) for connection in self._connected]
        for connection in list(self._connected):
            self.disconnected(connection, now_us)
        return [Fenced(term), *hang_ups]

    # ---- members --------------------------------------------------------------------------------------------

    def change_members(self, names: Iterable[str], sync_replicas: int, *, force: bool = False) -> list[Effect]:
        """Begin a change; `members.former` is None again when it is complete. force: at once, though members that
        cannot be asked may elect a node that lacks acknowledged records.

        HigherTermError; ChangeUnderWayError; InvalidArgumentError.
        """
        if self.fenced is not None:
            raise HigherTermError(f"term {self.term} is over: {self.fenced} was promised", self.fenced)
        wanted = Quorum.of(names, sync_replicas)
        if self.name not in wanted.names:
            raise InvalidArgumentError(f"{self.name} is the master and stays a member: promote another one first")
        begun = self.members.forced(wanted) if force else self.members.change(wanted)
        self._changing_from = self._end
        return [*self._adopt(begun), *self._complete_change()]

    def discard_members(self, members: Members) -> None:
        """The disk did not take the last change: these are on it, and in force. All replicas have to join again."""
        self.members, self._stored = members, {self.name}

    def _adopt(self, members: Members) -> list[Effect]:
        gone = self.members.all_names - members.all_names
        self.members, self._stored = members, {self.name}
        effects: list[Effect] = [StoreMembers(members)]
        for connection, replica in list(self._connected.items()):
            effects += self._tell(connection)
            if replica.name in gone and not replica.observer:
                del self._connected[connection]
                effects.append(Disconnect(connection, Refuse(RefusalCode.NOT_A_MEMBER, f"{replica.name} was removed")))
        for name in gone:
            if name in self._progress_by_name and not self._progress_by_name[name].observer:
                del self._progress_by_name[name]
        return effects

    def members_stored(self, connection: Hashable, version: int, now_us: int) -> list[Effect]:
        """A replica has the members of that version on disk. From the first ones on it counts for the commit point."""
        replica = self._connected.get(connection)
        if replica is None or self.fenced is not None:
            return []
        if version == self.members.stamp.version:
            self._stored.add(replica.name)
        if replica.knows_members:
            return self._complete_change()
        replica.stored_members(self._mark(replica))
        return self._advance(now_us)

    def _complete_change(self) -> list[Effect]:
        """When every election hears of the new members, and they have all that there was before."""
        if (
            self.members.former is None
            or self.asynchronous
            or not self.members.is_known_to_old(frozenset(self._stored))
        ):
            return []
        reached = self.replicated
        if reached is None or reached < self._changing_from:
            return []
        return self._adopt(self.members.completed())
