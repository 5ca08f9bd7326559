"""ClassicGroup: a state machine without I/O for one group of Kafka's classic protocol."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from pyreplog.kafka.groups.consumer_group_config import ConsumerGroupConfig
from pyreplog.kafka.groups.error_codes import code_of_store
from pyreplog.kafka.groups.group_effects import (
    AppendRecords,
    GroupDeleted,
    GroupDissolved,
    GroupEffect,
    GroupRecord,
    Moment,
    Respond,
)
from pyreplog.kafka.groups.group_offsets import GroupOffsets
from pyreplog.kafka.groups.group_records import (
    GroupMetadataValue,
    MemberMetadata,
    encode_group,
    encode_group_key,
    encode_offset_key,
    subscribed_topics,
)
from pyreplog.kafka.groups.group_requests import (
    DescribedGroup,
    DescribedMember,
    GroupState,
    JoinedMember,
    JoinGroupRequest,
    JoinGroupResult,
    LeaveGroupResult,
    LeaveMemberResult,
    LeavingMember,
    ListedGroup,
    OffsetCommitRequest,
    OffsetFetchResult,
    SyncGroupRequest,
    SyncGroupResult,
)
from pyreplog.kafka.groups.offset_commits import DeleteOffsets, OffsetCommits, StoreOffsets
from pyreplog.partition.protocol.error_codes import ErrorCode
from pyreplog.partition.topic_partition import TopicPartition

_GENERATION_MAX = (1 << 31) - 1
_CONSUMER = "consumer"

Effects = list[GroupEffect]


@dataclass
class _Member:
    """A member of the group.

    `awaiting_join` and `awaiting_sync` are requests without a response, `deadline_us` is the end of its session.
    """

    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    session_timeout_ms: int
    rebalance_timeout_ms: int
    protocols: tuple[tuple[str, bytes], ...]
    assignment: bytes = b""
    awaiting_join: Any = None
    awaiting_sync: Any = None
    is_new: bool = False
    deadline_us: int = 0
    skips_assignment: bool = False

    @property
    def waits(self) -> bool:
        """Whether a pending request keeps the session alive.

        That of a new member does not: it waits for a limited time.
        """
        return self.awaiting_sync is not None or (self.awaiting_join is not None and not self.is_new)

    def metadata(self, protocol: str | None) -> bytes:
        return next((metadata for name, metadata in self.protocols if name == protocol), b"")


class _StoreAssignment(NamedTuple):
    """Append of the group with the assignments of a generation. Members get their assignments when it is committed."""

    generation: int
    assignments: Mapping[str, bytes]
    value: bytes


class _StoreGroup(NamedTuple):
    """Append of the group: without members, unchanged, or with a new id of a static member, which waits for it."""

    value: bytes
    request: Any = None
    result: JoinGroupResult | None = None


class _DeleteGroup(NamedTuple):
    """Append of tombstones for the group and its offsets."""

    request: Any
    partitions: Collection[TopicPartition]


class _Dissolve(NamedTuple):
    """Append of a tombstone for the group. Its offsets stay, for a group of another protocol."""

    request: Any
    result: Any
    failed: Callable[[ErrorCode], Any]


@dataclass
class _Stored:
    """The group's record in the log: its value, its offset (-1: there is none), and the number of appends in flight."""

    value: bytes | None = None
    at: int = -1
    in_flight: int = field(default=0)


class ClassicGroup:
    """A group of the classic protocol. Events carry the time, and return effects. Not thread-safe.

    A request is an arbitrary object, which the effect `Respond` returns with its result. Every request gets a response,
    even if the group is unloaded (`unload`). Responses are sent only after a commit to the log: an assignment when its
    generation is committed, the success of an offset commit when the offset is committed.

    Args:
        group_id: name of the group.
        config: settings of the coordinator.
        new_member_id: returns a new, unique member id for a client id.
        offsets: offsets of an earlier group of another protocol with this name; None: there are none.
    """

    def __init__(
        self, group_id: str, config: ConsumerGroupConfig, new_member_id: Callable[[str], str],
        offsets: GroupOffsets | None = None,
    ) -> None:  # fmt: skip
        self.group_id = group_id
        self.state = GroupState.EMPTY
        self.generation = 0
        self.protocol_type: str | None = None
        self.protocol: str | None = None
        self.leader: str | None = None
        self.offsets = GroupOffsets() if offsets is None else offsets
        self.next_expiry_us: int | None = None
        """When `expire` has to be called, monotonic microseconds; None: not before another event."""
        self._config, self._new_member_id = config, new_member_id
        self._commits = OffsetCommits(group_id, self.offsets, config)
        self._members: dict[str, _Member] = {}
        self._static: dict[str, str] = {}  # member ids by instance id
        self._invited: dict[str, int] = {}  # ids that were given out, and when they expire
        self._supported: Counter[str] = Counter()  # number of members that support a protocol
        self._state_ms: int | None = None
        self._rebalance_us: int | None = None  # end of the join phase
        self._initial_left_us: int | None = None  # remaining extension of the first join phase
        self._has_new_member = False
        self._sync_us: int | None = None  # end of the sync phase
        self._unsynced: set[str] = set()
        self._storing: _StoreAssignment | None = None
        self._stored = _Stored()
        self._effects: Effects = []

    @property
    def size(self) -> int:
        """Number of members."""
        return len(self._members)

    @property
    def is_forgettable(self) -> bool:
        """Whether the group has no state, so that it may be removed from memory."""
        return (
            not self._members and not self._invited and self.offsets.is_empty
            and self._stored.value is None and not self._stored.in_flight and self.state is GroupState.EMPTY
        )  # fmt: skip

    @property
    def is_vacant(self) -> bool:
        """Whether the group has no members and no unused member ids: another protocol may take its name and offsets."""
        return self.state is GroupState.EMPTY and not self._members and not self._invited

    @property
    def is_recorded(self) -> bool:
        """Whether the log has, or may have, a record of the group, which `dissolve` deletes."""
        return self._stored.value is not None or bool(self._stored.in_flight)

    def _take_effects(self) -> Effects:
        effects, self._effects = self._effects, []
        return effects

    def _respond(self, request: Any, result: Any) -> None:
        if request is not None:
            self._effects.append(Respond(request, result))

    def _expire_at(self, us: int) -> None:
        self.next_expiry_us = us if self.next_expiry_us is None else min(self.next_expiry_us, us)

    # ---- joining --------------------------------------------------------------------------------------------

    def join(self, request: Any, join: JoinGroupRequest, now: Moment) -> Effects:
        """Let a member join, or rejoin.

        The response comes when all members have joined, or the rebalance has timed out.
        """
        code = self._check_join(join)
        if code is not ErrorCode.NONE:
            self._respond(request, JoinGroupResult(code, member_id=join.member_id))
        elif join.member_id:
            self._join_again(request, join, now)
        else:
            self._join_first(request, join, now)
        return self._take_effects()

    def _check_join(self, join: JoinGroupRequest) -> ErrorCode:
        if self.state is GroupState.DEAD:
            return ErrorCode.COORDINATOR_NOT_AVAILABLE
        if not self._has_room_for(join):
            return ErrorCode.GROUP_MAX_SIZE_REACHED
        names = [name for name, _ in join.protocols]
        if not join.protocol_type or not names:
            return ErrorCode.INCONSISTENT_GROUP_PROTOCOL
        if self._members:
            is_common = any(self._supported[name] == len(self._members) for name in names)
            if join.protocol_type != self.protocol_type or not is_common:
                return ErrorCode.INCONSISTENT_GROUP_PROTOCOL
        return ErrorCode.NONE

    def _has_room_for(self, join: JoinGroupRequest) -> bool:
        member_id = join.member_id or self._static.get(join.instance_id or "", "")
        if member_id in self._members and self.state is not GroupState.PREPARING_REBALANCE:
            return True
        if not member_id and join.requires_known_member_id and len(self._invited) >= self._config.max_size:
            return False
        if self.state is GroupState.PREPARING_REBALANCE:
            member = self._members.get(member_id)
            joined = sum(other.awaiting_join is not None for other in self._members.values())
            return (member is not None and member.awaiting_join is not None) or joined < self._config.max_size
        return len(self._members) < self._config.max_size

    def _join_first(self, request: Any, join: JoinGroupRequest, now: Moment) -> None:
        member_id = self._new_member_id(join.instance_id or join.client_id)
        if join.instance_id is not None and join.instance_id in self._static:
            self._replace_static(request, join, member_id, now)
        elif join.instance_id is None and join.requires_known_member_id:
            deadline = now.us + join.session_timeout_ms * 1000
            self._invited[member_id] = deadline
            self._expire_at(deadline)
            self._respond(request, JoinGroupResult(ErrorCode.MEMBER_ID_REQUIRED, member_id=member_id))
        else:
            self._add(request, join, member_id, now)

    def _join_again(self, request: Any, join: JoinGroupRequest, now: Moment) -> None:
        member_id = join.member_id
        if member_id in self._invited:
            if join.instance_id is None:
                self._add(request, join, member_id, now)
            else:
                self._respond(request, JoinGroupResult(ErrorCode.UNKNOWN_MEMBER_ID, member_id=member_id))
            return
        code = self._check_member(member_id, join.instance_id)
        if code is not ErrorCode.NONE:
            self._respond(request, JoinGroupResult(code, member_id=member_id))
            return
        member = self._members[member_id]
        is_same = member.protocols == join.protocols
        if self.state is GroupState.PREPARING_REBALANCE:
            self._update(request, member, join, now)
            self._try_complete_join(now)
        elif is_same and (self.state is GroupState.COMPLETING_REBALANCE or member_id != self.leader):
            self._touch(member, now)
            self._respond(request, self._joined(member))
        else:
            self._update(request, member, join, now)
            self._prepare_rebalance(now)

    def _add(self, request: Any, join: JoinGroupRequest, member_id: str, now: Moment) -> None:
        self._invited.pop(member_id, None)
        member = _Member(
            member_id, join.instance_id, join.client_id, join.client_host, join.session_timeout_ms,
            join.rebalance_timeout_ms, join.protocols, awaiting_join=request, is_new=True,
            skips_assignment=join.supports_skipping_assignment,
        )  # fmt: skip
        if not self._members:
            self.protocol_type = join.protocol_type
        self._members[member_id] = member
        self._supported.update({name for name, _ in join.protocols})
        if join.instance_id is not None:
            self._static[join.instance_id] = member_id
        if self.leader is None:
            self.leader = member_id
        self._touch(member, now, self._config.new_member_join_timeout_ms)
        if self.state is GroupState.PREPARING_REBALANCE:
            self._has_new_member = True
            self._try_complete_join(now)
        else:
            self._prepare_rebalance(now)

    def _update(self, request: Any, member: _Member, join: JoinGroupRequest, now: Moment) -> None:
        """Set the member's join request in this rebalance. An earlier pending request fails."""
        self._respond(member.awaiting_join, self._join_error(member, ErrorCode.REBALANCE_IN_PROGRESS))
        self._supported.subtract({name for name, _ in member.protocols})
        self._supported.update({name for name, _ in join.protocols})
        member.protocols, member.awaiting_join = join.protocols, request
        member.client_id, member.client_host = join.client_id, join.client_host
        member.session_timeout_ms, member.rebalance_timeout_ms = join.session_timeout_ms, join.rebalance_timeout_ms
        member.skips_assignment = join.supports_skipping_assignment
        self._touch(member, now, self._config.new_member_join_timeout_ms if member.is_new else None)

    def _replace_static(self, request: Any, join: JoinGroupRequest, member_id: str, now: Moment) -> None:
        """Give a static member that rejoins without its id a new id, and fence the process with the old id."""
        assert join.instance_id is not None
        old_id = self._static[join.instance_id]
        member, was_leader = self._members.pop(old_id), self.leader == old_id
        self._respond(member.awaiting_join, self._join_error(member, ErrorCode.FENCED_INSTANCE_ID))
        self._respond(member.awaiting_sync, SyncGroupResult(ErrorCode.FENCED_INSTANCE_ID))
        member.awaiting_join = member.awaiting_sync = None
        member.member_id = member_id
        self._members[member_id] = member
        self._static[join.instance_id] = member_id
        self._unsynced.discard(old_id)
        if was_leader:
            self.leader = member_id
        chosen = self.protocol
        self._update(request, member, join, now)
        if self.state is GroupState.STABLE and self._choose_protocol() == chosen:
            member.awaiting_join = None
            result = self._joined(member)
            # the client cannot skip the assignment: name the old id as leader, so that it acts as a follower
            if was_leader and not join.supports_skipping_assignment:
                result = result._replace(leader=old_id, members=())
            elif was_leader:
                result = result._replace(skip_assignment=True)
            self._store(_StoreGroup(encode_group(self._value(now, self._assignments())), request, result))
        elif self.state is GroupState.PREPARING_REBALANCE:
            self._try_complete_join(now)
        else:
            self._prepare_rebalance(now)

    def _joined(self, member: _Member) -> JoinGroupResult:
        is_leader = member.member_id == self.leader
        return JoinGroupResult(
            ErrorCode.NONE, self.generation, self.protocol_type, self.protocol, self.leader or "",
            member.member_id, self._joined_members() if is_leader else (),
        )  # fmt: skip

    def _joined_members(self) -> tuple[JoinedMember, ...]:
        return tuple(
            JoinedMember(member.member_id, member.instance_id, member.metadata(self.protocol))
            for member in self._members.values()
        )

    def _join_error(self, member: _Member, code: ErrorCode) -> JoinGroupResult:
        return JoinGroupResult(code, member_id=member.member_id)

    # ---- rebalances -----------------------------------------------------------------------------------------

    def _prepare_rebalance(self, now: Moment) -> None:
        """Begin a rebalance, in which all members have to rejoin."""
        if self.state is GroupState.COMPLETING_REBALANCE:
            self._give_up_sync(ErrorCode.REBALANCE_IN_PROGRESS, now)
        longest_us = self._longest_rebalance_us()
        if self.state is GroupState.EMPTY:
            delay_us = self._config.initial_rebalance_delay_ms * 1000
            self._initial_left_us = max(longest_us - delay_us, 0) if delay_us else None
            self._rebalance_us = now.us + (delay_us or longest_us)
            self._has_new_member = False
        else:
            self._initial_left_us = None
            self._rebalance_us = now.us + longest_us
        self._set_state(GroupState.PREPARING_REBALANCE, now)
        self._sync_us, self._storing = None, None
        self._unsynced.clear()
        self._expire_at(self._rebalance_us)
        self._try_complete_join(now)

    def _longest_rebalance_us(self) -> int:
        return max((member.rebalance_timeout_ms for member in self._members.values()), default=0) * 1000

    def _give_up_sync(self, code: ErrorCode, now: Moment) -> None:
        for member in self._members.values():
            member.assignment = b""
            if member.awaiting_sync is not None:
                self._respond(member.awaiting_sync, SyncGroupResult(code))
                member.awaiting_sync = None
                self._touch(member, now)
        self._storing = None

    def _try_complete_join(self, now: Moment) -> None:
        if self.state is not GroupState.PREPARING_REBALANCE or self._initial_left_us is not None or self._invited:
            return
        if all(member.awaiting_join is not None for member in self._members.values()):
            self._complete_join(now)

    def _join_expired(self, now: Moment) -> None:
        if self._initial_left_us and self._has_new_member:
            self._has_new_member = False
            delay_us = min(self._config.initial_rebalance_delay_ms * 1000, self._initial_left_us)
            self._initial_left_us -= delay_us
            self._rebalance_us = now.us + delay_us
            return
        self._initial_left_us = None
        self._complete_join(now)

    def _complete_join(self, now: Moment) -> None:
        """Begin the next generation with the members that have joined.

        Static members stay until their sessions expire.
        """
        for member in list(self._members.values()):
            if member.awaiting_join is None and member.instance_id is None:
                self._remove(member)
        joined = [member for member in self._members.values() if member.awaiting_join is not None]
        if self._members and not joined:
            self._rebalance_us = now.us + self._longest_rebalance_us()
            self._expire_at(self._rebalance_us)
            return
        self._rebalance_us, self._initial_left_us = None, None
        self.generation = self.generation % _GENERATION_MAX + 1
        if not self._members:
            self._become_empty(now)
            return
        leader = self._members.get(self.leader or "")
        if leader is None or leader.awaiting_join is None:
            self.leader = joined[0].member_id
        self.protocol = self._choose_protocol()
        self._set_state(GroupState.COMPLETING_REBALANCE, now)
        for member in self._members.values():
            member.assignment = b""
        for member in joined:
            self._respond(member.awaiting_join, self._joined(member))
            member.awaiting_join, member.is_new = None, False
            self._unsynced.add(member.member_id)
            self._touch(member, now)
        self._sync_us = now.us + self._longest_rebalance_us()
        self._expire_at(self._sync_us)

    def _become_empty(self, now: Moment) -> None:
        self.protocol = self.leader = None
        self._set_state(GroupState.EMPTY, now)
        self._store(_StoreGroup(encode_group(self._value(now, {}))))

    def _choose_protocol(self) -> str | None:
        """Return the protocol with the most votes.

        Each member votes for its first protocol that all members support.
        """
        votes: Counter[str] = Counter()
        for member in self._members.values():
            common = (name for name, _ in member.protocols if self._supported[name] == len(self._members))
            first = next(common, None)
            if first is not None:
                votes[first] += 1
        return max(sorted(votes), key=lambda name: votes[name], default=None)

    def _set_state(self, state: GroupState, now: Moment) -> None:
        self.state, self._state_ms = state, now.wall_ms

    # ---- assignments ----------------------------------------------------------------------------------------

    def sync(self, request: Any, sync: SyncGroupRequest, now: Moment) -> Effects:
        """Return a member's assignment. The response comes when the leader's assignments are committed."""
        code = self._check_sync(sync)
        if code is not ErrorCode.NONE:
            self._respond(request, SyncGroupResult(code))
            return self._take_effects()
        member = self._members[sync.member_id]
        self._touch(member, now)
        if self.state is GroupState.STABLE:
            self._unsynced.discard(member.member_id)
            self._respond(request, self._synced(member))
            return self._take_effects()
        self._respond(member.awaiting_sync, SyncGroupResult(ErrorCode.REBALANCE_IN_PROGRESS))
        member.awaiting_sync = request
        self._unsynced.discard(member.member_id)
        if member.member_id == self.leader and self._storing is None:
            assignments = {other: bytes(sync.assignments.get(other, b"")) for other in self._members}
            value = encode_group(self._value(now, assignments))
            self._storing = _StoreAssignment(self.generation, assignments, value)
            self._store(self._storing)
        return self._take_effects()

    def _check_sync(self, sync: SyncGroupRequest) -> ErrorCode:
        code = self._check_generation(sync.member_id, sync.instance_id, sync.generation)
        if code is not ErrorCode.NONE:
            return code
        for expected, found in ((self.protocol_type, sync.protocol_type), (self.protocol, sync.protocol_name)):
            if found is not None and found != expected:
                return ErrorCode.INCONSISTENT_GROUP_PROTOCOL
        if self.state is GroupState.PREPARING_REBALANCE:
            return ErrorCode.REBALANCE_IN_PROGRESS
        return ErrorCode.NONE

    def _synced(self, member: _Member) -> SyncGroupResult:
        return SyncGroupResult(ErrorCode.NONE, self.protocol_type, self.protocol, member.assignment)

    def _assignments(self) -> dict[str, bytes]:
        return {member.member_id: member.assignment for member in self._members.values()}

    def _assignment_committed(self, stored: _StoreAssignment, now: Moment) -> None:
        """The assignments are committed: respond to all members that wait."""
        if self._storing is not stored:
            return
        self._storing = None
        self._set_state(GroupState.STABLE, now)
        for member in self._members.values():
            member.assignment = stored.assignments.get(member.member_id, b"")
            if member.awaiting_sync is not None:
                self._respond(member.awaiting_sync, self._synced(member))
                member.awaiting_sync = None
                self._touch(member, now)

    def _assignment_failed(self, stored: _StoreAssignment, code: ErrorCode, now: Moment) -> None:
        if self._storing is stored:
            self._give_up_sync(code_of_store(code), now)
            self._prepare_rebalance(now)

    def _value(self, now: Moment, assignments: Mapping[str, bytes]) -> GroupMetadataValue:
        members = tuple(
            MemberMetadata(
                member.member_id, member.instance_id, member.client_id, member.client_host,
                member.rebalance_timeout_ms, member.session_timeout_ms, member.metadata(self.protocol),
                assignments[member.member_id],
            )
            for member in self._members.values() if member.member_id in assignments
        )  # fmt: skip
        return GroupMetadataValue(
            self.protocol_type or "", self.generation, self.protocol, self.leader, now.wall_ms, members
        )

    def _store(self, token: _StoreAssignment | _StoreGroup) -> None:
        self._stored.in_flight += 1
        self._effects.append(AppendRecords(token, [(encode_group_key(self.group_id), token.value)]))

    # ---- heartbeats and leaving -----------------------------------------------------------------------------

    def heartbeat(self, request: Any, member_id: str, instance_id: str | None, generation: int, now: Moment) -> Effects:
        """Extend the session of a member. The response tells whether it has to rejoin."""
        code = self._check_generation(member_id, instance_id, generation)
        if code is ErrorCode.NONE:
            self._touch(self._members[member_id], now)
            if self.state is GroupState.PREPARING_REBALANCE:
                code = ErrorCode.REBALANCE_IN_PROGRESS
        self._respond(request, code)
        return self._take_effects()

    def leave(self, request: Any, leaving: Iterable[LeavingMember], now: Moment) -> Effects:
        """Remove members that leave."""
        if self.state is GroupState.DEAD:
            self._respond(request, LeaveGroupResult(ErrorCode.COORDINATOR_NOT_AVAILABLE))
            return self._take_effects()
        results = tuple(
            LeaveMemberResult(each.member_id, each.instance_id, self._leave_one(each, now)) for each in leaving
        )
        self._respond(request, LeaveGroupResult(ErrorCode.NONE, results))
        return self._take_effects()

    def _leave_one(self, leaving: LeavingMember, now: Moment) -> ErrorCode:
        member_id, instance_id = leaving
        if member_id in self._invited and instance_id is None:
            del self._invited[member_id]
            self._try_complete_join(now)
            return ErrorCode.NONE
        if instance_id is not None and not member_id:
            member_id = self._static.get(instance_id, "")
        code = self._check_member(member_id, instance_id)
        if code is ErrorCode.NONE:
            self._remove_and_rebalance([self._members[member_id]], now)
        return code

    def _check_member(self, member_id: str, instance_id: str | None) -> ErrorCode:
        if instance_id is not None:
            known = self._static.get(instance_id)
            if known is None:
                return ErrorCode.UNKNOWN_MEMBER_ID
            return ErrorCode.NONE if known == member_id else ErrorCode.FENCED_INSTANCE_ID
        return ErrorCode.NONE if member_id in self._members else ErrorCode.UNKNOWN_MEMBER_ID

    def _check_generation(self, member_id: str, instance_id: str | None, generation: int) -> ErrorCode:
        if self.state is GroupState.DEAD:
            return ErrorCode.COORDINATOR_NOT_AVAILABLE
        code = self._check_member(member_id, instance_id)
        if code is ErrorCode.NONE and generation != self.generation:
            return ErrorCode.ILLEGAL_GENERATION
        return code

    def _touch(self, member: _Member, now: Moment, timeout_ms: int | None = None) -> None:
        member.deadline_us = now.us + (member.session_timeout_ms if timeout_ms is None else timeout_ms) * 1000
        self._expire_at(member.deadline_us)

    def _remove(self, member: _Member) -> None:
        self._respond(member.awaiting_join, self._join_error(member, ErrorCode.UNKNOWN_MEMBER_ID))
        self._respond(member.awaiting_sync, SyncGroupResult(ErrorCode.UNKNOWN_MEMBER_ID))
        del self._members[member.member_id]
        self._unsynced.discard(member.member_id)
        self._supported.subtract({name for name, _ in member.protocols})
        self._supported = +self._supported
        if member.instance_id is not None and self._static.get(member.instance_id) == member.member_id:
            del self._static[member.instance_id]
        if self.leader == member.member_id:
            self.leader = next(iter(self._members), None)

    def _remove_and_rebalance(self, members: Iterable[_Member], now: Moment) -> None:
        for member in members:
            self._remove(member)
        if self.state is GroupState.PREPARING_REBALANCE:
            self._try_complete_join(now)
        elif self.state in (GroupState.STABLE, GroupState.COMPLETING_REBALANCE):
            self._prepare_rebalance(now)

    # ---- time-outs ------------------------------------------------------------------------------------------

    def expire(self, now: Moment) -> Effects:
        """Remove members whose sessions have expired, and end join and sync phases that have timed out."""
        if self.next_expiry_us is None or self.next_expiry_us > now.us:
            return self._take_effects()
        invited = len(self._invited)
        self._invited = {member_id: until for member_id, until in self._invited.items() if until > now.us}
        expired = [member for member in self._members.values() if member.deadline_us <= now.us and not member.waits]
        if expired:
            self._remove_and_rebalance(expired, now)
        elif len(self._invited) < invited:
            self._try_complete_join(now)
        if self._rebalance_us is not None and self._rebalance_us <= now.us:
            self._join_expired(now)
        if self._sync_us is not None and self._sync_us <= now.us:
            self._sync_us = None
            late = [self._members[member_id] for member_id in sorted(self._unsynced)]
            if late:
                self._remove_and_rebalance(late, now)
        deadlines = [member.deadline_us for member in self._members.values() if not member.waits]
        deadlines += self._invited.values()
        deadlines += [us for us in (self._rebalance_us, self._sync_us) if us is not None]
        self.next_expiry_us = min(deadlines, default=None)
        return self._take_effects()

    # ---- offsets --------------------------------------------------------------------------------------------

    def commit(
        self, request: Any, commit: OffsetCommitRequest, now: Moment, producer: tuple[int, int] | None = None,
        verification: int | None = None,
    ) -> Effects:  # fmt: skip
        """Commit offsets of a member of this generation, or of a consumer outside the group protocol.

        Args:
            request: completed with an `OffsetCommitResult`.
            commit: the offsets to commit.
            now: current time.
            producer: id and epoch of the producer, if the offsets belong to its transaction; they apply when it
                commits.
            verification: verification token of the transaction.
        """
        code = self._check_commit(commit, is_transactional=producer is not None)
        if code is not ErrorCode.NONE:
            self._respond(request, dict.fromkeys(commit.offsets, code))
            return self._take_effects()
        member = self._members.get(commit.member_id)
        if member is not None:
            self._touch(member, now)
        self._effects += self._commits.commit(request, commit, now, producer, verification)
        return self._take_effects()

    def _check_commit(self, commit: OffsetCommitRequest, *, is_transactional: bool) -> ErrorCode:
        if self.state is GroupState.DEAD:
            return ErrorCode.COORDINATOR_NOT_AVAILABLE
        if commit.generation < 0 and self.state is GroupState.EMPTY:
            return ErrorCode.NONE  # also of a client with an instance id, as librdkafka with `assign`
        if commit.generation < 0 and not commit.member_id and commit.instance_id is None:
            return ErrorCode.NONE if is_transactional else ErrorCode.UNKNOWN_MEMBER_ID
        code = self._check_generation(commit.member_id, commit.instance_id, commit.generation)
        if code is not ErrorCode.NONE:
            return code
        if self.state is GroupState.COMPLETING_REBALANCE and not is_transactional:
            return ErrorCode.REBALANCE_IN_PROGRESS
        return ErrorCode.NONE

    def fetch(
        self, partitions: Iterable[TopicPartition] | None, *, require_stable: bool, member_id: str | None = None,
        member_epoch: int = -1,
    ) -> OffsetFetchResult:  # fmt: skip
        """Return committed offsets.

        Args:
            partitions: partitions to return; None: all with a committed offset.
            require_stable: whether to refuse partitions with an offset in an open transaction.
            member_id: member that asks; ignored by this protocol.
            member_epoch: epoch of the member; ignored by this protocol.
        """
        return self._commits.fetch(partitions, require_stable=require_stable)

    def delete_offsets(self, request: Any, partitions: Collection[TopicPartition]) -> Effects:
        """Delete offsets of topics to which no member subscribes, or any offsets of an empty group (KIP-496)."""
        results = {partition: self._check_deletion(partition.topic) for partition in partitions}
        self._effects += self._commits.delete(request, results)
        return self._take_effects()

    def delete_topics(self, topics: Mapping[str, Collection[bytes]]) -> Effects:
        """Delete the offsets of topics that were deleted: a new topic of that name begins without offsets.

        Args:
            topics: see `OffsetCommits.delete_topics`.
        """
        self._effects += self._commits.delete_topics(topics)
        return self._take_effects()

    def _check_deletion(self, topic: str) -> ErrorCode:
        if self.state is GroupState.DEAD:
            return ErrorCode.GROUP_ID_NOT_FOUND
        if self.state is GroupState.EMPTY:
            return ErrorCode.NONE
        subscribed = self._subscribed()
        if self.protocol_type != _CONSUMER or subscribed is None:
            return ErrorCode.NON_EMPTY_GROUP
        return ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC if topic in subscribed else ErrorCode.NONE

    def _subscribed(self) -> frozenset[str] | None:
        """Return the topics to which members subscribe with any of their protocols; None: not all are known."""
        topics: set[str] = set()
        for member in self._members.values():
            for _, metadata in member.protocols:
                subscribed = subscribed_topics(metadata)
                if subscribed is None:
                    return None
                topics |= subscribed
        return frozenset(topics)

    def expire_offsets(self, now: Moment) -> Effects:
        """Delete expired offsets, and the group if nothing else is left of it (KIP-211)."""
        subscribed: Collection[str] | None = None
        since = None
        if self.protocol_type is None:
            subscribed = ()
        elif self.state is GroupState.EMPTY:
            subscribed, since = (), self._state_ms
        elif self.state is GroupState.STABLE and self.protocol_type == _CONSUMER:
            subscribed = self._subscribed()
        if subscribed is None or self.state is GroupState.DEAD:
            return self._take_effects()
        retention_ms = self._config.offsets_retention_ms
        expired = self.offsets.expired(now.wall_ms, retention_ms, since, subscribed)
        if expired:
            self._effects += self._commits.expire(expired)
        elif self._is_deletable:
            self._delete(None)
        return self._take_effects()

    @property
    def _is_deletable(self) -> bool:
        """Whether the record of the group may be deleted, so that generations restart at 1."""
        return (
            self.state is GroupState.EMPTY and not self._members and not self._invited and self.offsets.is_empty
            and self._stored.value is not None and not self._stored.in_flight
        )  # fmt: skip

    # ---- deletion and description ---------------------------------------------------------------------------

    def delete(self, request: Any) -> Effects:
        """Delete an empty group and its offsets."""
        if self.state is GroupState.DEAD:
            self._respond(request, ErrorCode.GROUP_ID_NOT_FOUND)
        elif self.state is not GroupState.EMPTY or self._invited:
            self._respond(request, ErrorCode.NON_EMPTY_GROUP)
        else:
            self._delete(request)
        return self._take_effects()

    def _delete(self, request: Any) -> None:
        self.state = GroupState.DEAD
        token = _DeleteGroup(request, self.offsets.recorded_partitions())
        self.offsets.begin(token.partitions)
        self._stored.in_flight += 1
        records: list[GroupRecord] = [
            (encode_offset_key(self.group_id, *partition), None) for partition in sorted(token.partitions)
        ]
        self._effects.append(AppendRecords(token, [*records, (encode_group_key(self.group_id), None)]))

    def dissolve(self, request: Any, result: Any, failed: Callable[[ErrorCode], Any]) -> Effects:
        """Delete the record of an empty group, but keep its offsets.

        Args:
            request: gets its response when the record is deleted.
            result: response after success.
            failed: returns the response for an error.
        """
        if not self.is_vacant or self._stored.in_flight:
            self._respond(request, failed(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS))
            return self._take_effects()
        self.state = GroupState.DEAD
        self._stored.in_flight += 1
        token = _Dissolve(request, result, failed)
        self._effects.append(AppendRecords(token, [(encode_group_key(self.group_id), None)]))
        return self._take_effects()

    def describe(self) -> DescribedGroup:
        """Return the group as in a response of DescribeGroups."""
        is_stable = self.state is GroupState.STABLE
        members = tuple(
            DescribedMember(
                member.member_id, member.instance_id, member.client_id, member.client_host,
                member.metadata(self.protocol) if is_stable else b"", member.assignment if is_stable else b"",
            )
            for member in self._members.values()
        )  # fmt: skip
        protocol = self.protocol or "" if is_stable else ""
        return DescribedGroup(ErrorCode.NONE, self.group_id, self.state, self.protocol_type or "", protocol, members)

    def listed(self) -> ListedGroup:
        """Return the group as in a response of ListGroups."""
        return ListedGroup(self.group_id, self.protocol_type or "", self.state)

    # ---- outcomes of appends --------------------------------------------------------------------------------

    def appended(self, token: object, at: int, now: Moment) -> Effects:
        """Apply records that were committed, the first one at offset `at`. The calls follow the order of the log."""
        match token:
            case _StoreAssignment():
                self._set_stored(token.value, at)
                self._assignment_committed(token, now)
            case _StoreGroup():
                self._set_stored(token.value, at)
                self._respond(token.request, token.result)
            case StoreOffsets() | DeleteOffsets():
                self._effects += self._commits.appended(token, at)
                if isinstance(token, DeleteOffsets) and token.request is None and self._is_deletable:
                    self._delete(None)
            case _DeleteGroup():
                self.offsets.end(token.partitions)
                for partition in token.partitions:
                    self.offsets.apply_deletion(partition, at + len(token.partitions))
                self._set_stored(None, at + len(token.partitions))
                self._respond(token.request, ErrorCode.NONE)
                self._effects.append(GroupDeleted())
            case _Dissolve():
                self._set_stored(None, at)
                self._effects.append(GroupDissolved())
                self._respond(token.request, token.result)
        return self._take_effects()

    def _set_stored(self, value: bytes | None, at: int) -> None:
        self._stored = _Stored(value, at, self._stored.in_flight - 1)

    def append_failed(self, token: object, code: ErrorCode, now: Moment) -> Effects:
        """Undo an append that failed."""
        match token:
            case _StoreAssignment() | _StoreGroup():
                self._stored.in_flight -= 1
            case StoreOffsets() | DeleteOffsets():
                self._commits.append_failed(token)
            case _DeleteGroup():
                self.offsets.end(token.partitions)
                self._stored.in_flight -= 1
                self.state = GroupState.EMPTY
            case _Dissolve():
                self._stored.in_flight -= 1
                self.state = GroupState.EMPTY
        self._respond_failure(token, code, now)
        return self._take_effects()

    def append_unknown(self, token: object, code: ErrorCode, now: Moment) -> Effects:
        """Send error responses for an append with an unknown outcome. Only `appended` may follow."""
        self._respond_failure(token, code, now)
        return self._take_effects()

    def _respond_failure(self, token: object, code: ErrorCode, now: Moment) -> None:
        match token:
            case _StoreAssignment():
                self._assignment_failed(token, code, now)
            case _StoreGroup():
                if token.request is not None and token.result is not None:
                    self._respond(token.request, JoinGroupResult(code_of_store(code), member_id=token.result.member_id))
            case StoreOffsets() | DeleteOffsets():
                self._effects += self._commits.respond_with_error(token, code)
            case _DeleteGroup():
                self._respond(token.request, code)
            case _Dissolve():
                self._respond(token.request, token.failed(code_of_store(code)))

    def rewrite(self, before: int, records_max: int) -> tuple[Effects, bool]:
        """Append live records again that are before an offset of the internal partition.

        Args:
            before: the offset.
            records_max: maximum number of records per call.

        Returns:
            Effects, and whether live records before the offset are left, or appends of them are in flight.
        """
        effects, is_left = self._commits.rewrite(before, records_max)
        self._effects += effects
        stored = self._stored
        if stored.value is not None and stored.at < before:
            is_left = True
            if not stored.in_flight and not effects:
                self._store(_StoreGroup(stored.value))
        return self._take_effects(), is_left

    # ---- loading --------------------------------------------------------------------------------------------

    def load_group(self, value: GroupMetadataValue | None, encoded: bytes | None, at: int) -> None:
        """Apply a record of the group while the internal partition is loaded. The sessions begin in `loaded`."""
        self._stored = _Stored(encoded, at)
        self._members.clear()
        self._static.clear()
        self._supported.clear()
        self.generation, self.protocol, self.leader = 0, None, None
        self.protocol_type, self._state_ms, self.state = None, None, GroupState.EMPTY
        if value is None:
            return
        self.generation, self.protocol, self.leader = value.generation, value.protocol, value.leader
        self.protocol_type = value.protocol_type or None
        self._state_ms = value.current_state_timestamp if value.current_state_timestamp >= 0 else None
        for each in value.members:
            protocols = () if value.protocol is None else ((value.protocol, each.subscription),)
            self._members[each.member_id] = _Member(
                each.member_id, each.group_instance_id, each.client_id, each.client_host, each.session_timeout,
                each.rebalance_timeout, protocols, each.assignment,
            )  # fmt: skip
            self._supported.update({name for name, _ in protocols})
            if each.group_instance_id is not None:
                self._static[each.group_instance_id] = each.member_id
        if self._members:
            self.state = GroupState.STABLE

    def loaded(self, now: Moment) -> None:
        """Finish loading: the sessions of all members begin."""
        for member in self._members.values():
            self._touch(member, now)

    def unload(self) -> Effects:
        """Fail pending requests with NOT_COORDINATOR, because another broker serves the group now.

        Appends in flight have an unknown outcome; the driver fails their requests.
        """
        code = ErrorCode.NOT_COORDINATOR
        for member in self._members.values():
            self._respond(member.awaiting_join, self._join_error(member, code))
            self._respond(member.awaiting_sync, SyncGroupResult(code))
            member.awaiting_join = member.awaiting_sync = None
        self.state, self._storing = GroupState.DEAD, None
        return self._take_effects()
