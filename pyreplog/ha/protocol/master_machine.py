"""The state machine of a master: its replicas, the commit point, and whether a higher term has fenced it.

Rules and their sources:

- Progress belongs to a member, not to a connection, and is checked before it counts. (RocketMQ counts connections and
  does not check.)
- The commit point is the k-th largest position of the other members, bounded by the master's own position. It moves
  only with records of the master's term (Raft, §5.4.2).
- A change of the members is joint consensus (Raft, §6).
- After a timeout the master commits without replicas, until enough of them have caught up (MySQL's semi-synchronous
  replication, rpl_semi_sync).
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
"""Microseconds for which one request of a candidate holds appends back: within them it asks again, or for promises."""

HOLD_MOST_US = 5_000_000
"""Most microseconds for which appends are held back; they are admitted for at least as long before the next time."""


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
    """The state machine of the master `name` in one term.

    Methods return effects, which the caller carries out in order. Not thread-safe.

    Args:
        name: the master.
        source: the present log; its history ends with the term of this master.
        synced: end of the log on the disk.
        members: the members, as in this node's file.
        config: settings.
        committed: the commit point, as far as it is known.
        owed: end of the entries that a master committed without replicas, and readers saw; None: none.
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
        self._stored = {name}  # nodes that have stored the present members
        self._changing_from = source.end  # the former members alone may have acknowledged everything before it
        self._limits = InSyncLimits(config.in_sync_bytes, config.in_sync_ms * 1000)
        self._refused = 0
        self._holding_for = ""  # the candidate for which appends are held back
        self._held_since_us, self._held_until_us = -2 * HOLD_MOST_US, 0
        self._stalled_at: LogPosition | None = None
        self._stalled_since_us = 0  # when the commit point reached `_stalled_at`
        self._retention_hold = RetentionHold(config.retention_hold_bytes, config.retention_hold_ms * 1000)

    # ---- state ----------------------------------------------------------------------------------------------

    @property
    def asynchronous(self) -> bool:
        """Whether the master commits without replicas now."""
        return self.fallback.is_alone

    def _mark(self, replica: Progress) -> LogPosition:
        return replica.synced if self.config.ack == "synced" else replica.received

    @property
    def commit(self) -> Commit:
        """The message with the commit point, which is sent to replicas at intervals."""
        return Commit(self.committed, self._start.position, self.fallback.owed is not None)

    def in_sync(self, now_us: int) -> list[str]:
        """Return the names of the other members that are connected and caught up."""
        return [
            name
            for name, replica in self._progress_by_name.items()
            if name in self.members.all_names
            and not replica.observer
            and replica.is_in_sync(self._mark(replica), self._end, now_us, self._limits)
        ]

    def admit(self, now_us: int) -> None:
        """Check that appends are admitted now; called before each append.

        Raises:
            HigherTermError: a higher term has fenced this master.
            NotMasterError: the master hands over.
            NotEnoughReplicasError: fewer replicas than `min_in_sync` are caught up.
        """
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
        """Return the position from which on the log is kept for replicas; None: no replica needs any of it."""
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
        """Hold appends back for a candidate that asks to take over, so that it catches up.

        Has no effect unless the candidate is a member that follows with a small lag. A candidate may ask again, which
        extends the time up to `HOLD_MOST_US`.
        """
        replica = self._progress_by_name.get(member)
        follows = replica is not None and replica.connection is not None and replica.counts and not replica.observer
        if replica is None or not follows or member not in self.members.all_names:
            return
        if self._end.position - replica.received.position > self._limits.bytes:
            return
        if not self.successor(now_us):
            if now_us < self._held_since_us + 2 * HOLD_MOST_US:
                return
            self._holding_for, self._held_since_us = member, now_us
        if self._holding_for == member:
            self._held_until_us = min(now_us + HOLD_US, self._held_since_us + HOLD_MOST_US)

    def release(self, member: str) -> None:
        """Admit appends again: this candidate does not take over."""
        if member == self._holding_for:
            self._holding_for = ""
            self._held_since_us = -2 * HOLD_MOST_US

    def successor(self, now_us: int) -> str:
        """Return the candidate for which appends are held back; "": none."""
        return self._holding_for if now_us < self._held_until_us else ""

    # ---- the log --------------------------------------------------------------------------------------------

    def appended(self, end: LogPosition, synced: LogPosition, now_us: int) -> list[Effect]:
        """Report the ends of the log after appends; once per batch is enough. Call it before any report of a replica
        about these entries."""
        self.grew(end, synced)
        return self._advance(now_us)

    def trimmed(self, start: LogPosition) -> None:
        """Report the start of the log after a trim."""
        self._start = start

    # ---- replicas -------------------------------------------------------------------------------------------

    def join(self, connection: Hashable, join: Join, now_us: int) -> list[Effect]:
        """Accept or refuse a replica that wants to follow."""
        if self.fenced is not None:
            return [Disconnect(connection, self._higher_term_refusal(self.fenced))]
        if connection in self._connected:
            return self._drop(
                connection, Refuse(RefusalCode.ABSURD, "it has joined on this connection already"), now_us
            )
        if (refusal := self._admission_refusal(join)) is not None:
            is_newer = refusal.code == RefusalCode.HIGHER_TERM and self._is_member(join)
            fencing = self.fence(join.promised, now_us) if is_newer else []
            return [*fencing, *self._refuse(connection, refusal)]
        answer = check_join(join, self._source())
        if isinstance(answer, Refuse):
            return self._refuse(connection, answer)
        return [
            *self._admit(connection, join, answer.resume, now_us),
            SendMessage(connection, answer),
            *self._send_members(connection),
        ]

    def _is_member(self, join: Join) -> bool:
        return not join.observer and join.member in self.members.all_names

    def _admission_refusal(self, join: Join) -> Refuse | None:
        """Return why a replica cannot follow, apart from its log's contents; None: it can."""
        name, replica = join.member, self._progress_by_name.get(join.member)
        if name == self.name or not (join.observer or self._is_member(join)):
            names = ", ".join(self.members.quorum.names)
            return Refuse(RefusalCode.NOT_A_MEMBER, f"{name} is no replica of {self.name}; members are {names}: add it")
        if join.uuid not in (NO_UUID, self._uuid):  # the terms that it promised belong to another log
            return foreign(join.uuid, self._uuid)
        known = join.history.last if join.observer else join.promised
        if known.is_absurd(self.term):
            return Refuse(RefusalCode.ABSURD, f"no group that is at term {self.term} has promised {known}: {NEW_COPY}")
        if known > self.term:
            return self._higher_term_refusal(known)
        if replica is not None and not join.observer and self._lacks(join.synced, replica.proven):
            had = f"{name} had synced {replica.proven.position}, now {join.synced.position}"
            return Refuse(RefusalCode.LOST, f"{had}: {NEW_COPY}")
        return None

    def _lacks(self, synced: LogPosition, proven: LogPosition) -> bool:
        """Return whether a replica lost records that it had synced.

        Behind the last record of a segment its end is either that position or the start of the next segment, because a
        power cut may lose the blank between the two.
        """
        is_next = proven.position % self._segment_bytes == 0 and proven.entry == synced.entry
        return synced < proven and not (is_next and proven.position - synced.position < self._segment_bytes)

    def _admit(self, connection: Hashable, join: Join, resume: LogPosition, now_us: int) -> list[Effect]:
        """Attach a replica to its connection, and close its earlier connection, if any."""
        replica = self._progress_by_name.setdefault(join.member, Progress(join.member, now_us))
        effects: list[Effect] = []
        if replica.connection is not None:
            del self._connected[replica.connection]
            again = f"{join.member} has connected again; if this replica still runs, two have the same name"
            effects.append(Disconnect(replica.connection, Refuse(RefusalCode.REPLACED, again)))
        self._connected[connection] = replica
        replica.joined(connection, join.observer, resume, min(join.synced, resume), self._end, now_us)
        return effects

    def _source(self) -> StreamedLog:
        return StreamedLog(self._uuid, self._segment_bytes, self.term, self._history, self._start, self._end)

    def _send_members(self, connection: Hashable) -> list[Effect]:
        return [SendMessage(connection, MembershipUpdate(self.members))]

    def _higher_term_refusal(self, higher: Term) -> Refuse:
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
        """Report the end of a connection. The reported progress of its replica still counts: the records are there."""
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
        """Return whether enough replicas are level with the master, or were at any time since the fallback began."""
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
        """Check timeouts. Call it a few times within `fallback_after_ms`."""
        if self.committed != self._stalled_at or self.own.entry <= self.committed.entry:
            self._stalled_at, self._stalled_since_us = self.committed, now_us
        if self.fenced is not None or not self.fallback.is_due(now_us):
            return []
        self.fallback.begin(self.committed, now_us)
        return [ModeChanged(True), *self._advance(now_us)]

    def stalled_us(self, now_us: int) -> int:
        """Return for how long entries have waited without any commit, measured at the calls of `tick`."""
        if self._stalled_at is None or self.own.entry <= self.committed.entry:
            return 0
        return max(0, now_us - self._stalled_since_us)

    def absent(self) -> list[str]:
        """Return the members that do not follow. The caller sends them `probe` at intervals, so that a master which all
        members left learns of the higher term."""
        here = {replica.name for replica in self._connected.values() if not replica.observer}
        return sorted(self.members.all_names - here - {self.name})

    @property
    def probe(self) -> Prepare:
        """A PREPARE of this term. A member that promised a higher term answers with that term."""
        return Prepare(self.term, self._uuid, self.members.stamp)

    def vote_rejected(self, rejection: VoteRejected, now_us: int) -> list[Effect]:
        """Report a member's rejection of `probe`."""
        if rejection.code != RefusalCode.HIGHER_TERM or rejection.promised.is_absurd(self.term):
            return []
        return self.fence(rejection.promised, now_us)

    def fence(self, term: Term, now_us: int) -> list[Effect]:
        """Stop acknowledging: a higher term exists, or this node is about to promise one."""
        if self.fenced is not None or term <= self.term:
            return []
        self.fenced = term
        hang_ups = [Disconnect(connection, self._higher_term_refusal(term)) for connection in self._connected]
        for connection in list(self._connected):
            self.disconnected(connection, now_us)
        return [Fenced(term), *hang_ups]

    # ---- members --------------------------------------------------------------------------------------------

    def change_members(self, names: Iterable[str], sync_replicas: int, *, force: bool = False) -> list[Effect]:
        """Begin a change of the members; it is complete when `members.former` is None.

        Args:
            names: names of all members.
            sync_replicas: replicas that an append waits for.
            force: change at once. Members that cannot be asked may then elect a node that lacks acknowledged records.

        Raises:
            HigherTermError: a higher term has fenced this master.
            ChangeUnderWayError: an earlier change is not complete.
            InvalidArgumentError: the arguments are invalid, or the master is not among `names`.
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
        """Undo a change that could not be stored: `members` are on the disk. All replicas have to join again."""
        self.members, self._stored = members, {self.name}

    def _adopt(self, members: Members) -> list[Effect]:
        gone = self.members.all_names - members.all_names
        self.members, self._stored = members, {self.name}
        effects: list[Effect] = [StoreMembers(members)]
        for connection, replica in list(self._connected.items()):
            effects += self._send_members(connection)
            if replica.name in gone and not replica.observer:
                del self._connected[connection]
                effects.append(Disconnect(connection, Refuse(RefusalCode.NOT_A_MEMBER, f"{replica.name} was removed")))
        for name in gone:
            if name in self._progress_by_name and not self._progress_by_name[name].observer:
                del self._progress_by_name[name]
        return effects

    def members_stored(self, connection: Hashable, version: int, now_us: int) -> list[Effect]:
        """Report that a replica has stored a version of the members. After its first version it counts for commits."""
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
        """Complete the change, if each election learns of the new members, and they have all entries from before it."""
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
