"""One consumer group of KIP-848: a state machine without I/O. Members send heartbeats, and the broker assigns."""

from __future__ import annotations

import logging
from collections import Counter, deque
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any, NamedTuple

from pyreplog.errors import InvalidArgumentError
from pyreplog.kafka.groups.assignors import ASSIGNORS, MemberSubscription, Partitions, TopicIdPartition
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
    ConsumerGroupKey,
    ConsumerGroupRecordKind,
    ConsumerMemberValue,
    EpochValue,
    MemberAssignmentValue,
    MemberTargetValue,
    SubscribedTopic,
    SubscribedTopicsValue,
    TopicPartitionsValue,
    decode_consumer_value,
    encode_consumer_key,
    encode_consumer_value,
    encode_offset_key,
)
from pyreplog.kafka.groups.group_requests import (
    ConsumerHeartbeat,
    ConsumerHeartbeatResult,
    DescribedConsumer,
    DescribedConsumerGroup,
    FetchedOffset,
    GroupState,
    GroupType,
    ListedGroup,
    OffsetCommitRequest,
    OffsetCommitResult,
    OffsetFetchResult,
)
from pyreplog.kafka.groups.offset_commits import DeleteOffsets, OffsetCommits, StoreOffsets
from pyreplog.kafka.groups.reconciliation import (
    JOINING_EPOCH,
    LEAVING_EPOCH,
    STATIC_LEAVING_EPOCH,
    ConsumerMember,
    MemberState,
    reconcile,
)
from pyreplog.kafka.groups.topic_catalog import KnownTopic, TopicCatalog
from pyreplog.kafka.groups.topic_pattern import TopicPattern
from pyreplog.partition.protocol.error_codes import ErrorCode
from pyreplog.partition.topic_partition import TopicPartition

logger = logging.getLogger(__name__)

_CONSUMER = "consumer"
_MATCHES_NOTHING = TopicPattern("[^[:ascii:]]")
_RECORDS_AT_ONCE = 5_000  # maximum records of one append, beyond which no more heartbeats are added
_REFRESH_US = 100_000  # minimum interval between two reads of the topic catalog

Effects = list[GroupEffect]
Kind = ConsumerGroupRecordKind


class _RefusalError(Exception):
    """A heartbeat is refused; it has changed nothing."""

    def __init__(self, code: ErrorCode, text: str) -> None:
        super().__init__(text)
        self.code, self.text = code, text


@dataclass
class _StoreRecords:
    """Append of records in flight, with the responses to send when it is committed."""

    records: Mapping[ConsumerGroupKey, bytes | None]
    answers: list[tuple[Any, ConsumerHeartbeatResult]] = field(default_factory=list)


class _DeleteRecords(NamedTuple):
    """Append of tombstones in flight: for all records of the group, and possibly for its offsets.

    Attributes:
        request: request to respond to.
        result: response after success.
        failed: returns the response for an error.
        offsets: partitions whose offsets are deleted as well; None: offsets are kept.
        size: number of tombstones.
    """

    request: Any
    result: Any
    failed: Callable[[ErrorCode], Any]
    offsets: Collection[TopicPartition] | None
    size: int


class _Live(NamedTuple):
    """A committed record that is live, and its offset `at`."""

    value: bytes
    at: int


def check_heartbeat(beat: ConsumerHeartbeat, config: ConsumerGroupConfig) -> ConsumerHeartbeatResult | None:
    """Validate a heartbeat without the group's state. Returns the error response; None: it is valid."""

    def invalid(text: str) -> ConsumerHeartbeatResult:
        return ConsumerHeartbeatResult(ErrorCode.INVALID_REQUEST, text)

    for name, value in (("InstanceId", beat.instance_id), ("RackId", beat.rack_id)):
        if value == "":
            return invalid(f"{name}: expected a name, or null for none, found an empty one")
    epoch = beat.member_epoch
    if epoch < STATIC_LEAVING_EPOCH:
        return invalid(f"MemberEpoch: expected -2 or more, found {epoch}")
    if not beat.member_id and (epoch != JOINING_EPOCH or beat.chooses_id):
        return invalid("MemberId: expected an id, found an empty one")
    if epoch == STATIC_LEAVING_EPOCH and beat.instance_id is None:
        return invalid("InstanceId: expected the name of a static member, which alone may have epoch -2, found null")
    if epoch == JOINING_EPOCH:
        if beat.rebalance_timeout_ms < 0:
            return invalid(f"RebalanceTimeoutMs: expected 0 or more of a new member, found {beat.rebalance_timeout_ms}")
        if beat.owned is None or beat.owned:
            return invalid("TopicPartitions: expected an empty list of a new member")
        if not beat.topics and not beat.regex:
            return invalid("SubscribedTopicNames: expected topics, or a regular expression, of a new member")
    if beat.server_assignor is not None and beat.server_assignor not in config.assignor_names:
        known = ", ".join(config.assignor_names)
        return ConsumerHeartbeatResult(
            ErrorCode.UNSUPPORTED_ASSIGNOR, f"ServerAssignor: expected one of {known}, found {beat.server_assignor}"
        )
    if beat.regex:
        try:
            TopicPattern(beat.regex)
        except InvalidArgumentError as error:
            return ConsumerHeartbeatResult(ErrorCode.INVALID_REGULAR_EXPRESSION, f"SubscribedTopicRegex: {error}")
    return None


class ConsumerGroup:
    """A consumer group. Events carry the time, and return effects. Not thread-safe.

    A request is an arbitrary object, which the effect `Respond` returns with its result. The state of the group is
    determined by its records. At most one append of records is in flight; heartbeats that arrive meanwhile are queued
    and share the next append. So no response contains state that is not committed, and after a failed append the state
    is restored from the log. Offsets are appended independently, for members of the newest state.

    Args:
        group_id: name of the group.
        config: settings of the coordinator.
        topics: the topics of the cluster.
        new_member_id: returns a new, unique member id for a client id.
        offsets: offsets of an earlier group of another protocol with this name; None: there are none.
    """

    def __init__(
        self, group_id: str, config: ConsumerGroupConfig, topics: TopicCatalog, new_member_id: Callable[[str], str],
        offsets: GroupOffsets | None = None,
    ) -> None:  # fmt: skip
        self.group_id = group_id
        self.group_epoch = 0
        self.assignment_epoch = 0
        self.offsets = GroupOffsets() if offsets is None else offsets
        self._config, self._catalog, self._new_member_id = config, topics, new_member_id
        self._commits = OffsetCommits(group_id, self.offsets, config)
        self._members: dict[str, ConsumerMember] = {}
        self._static: dict[str, str] = {}  # member ids by instance id
        self._targets: dict[str, Partitions] = {}
        self._holders: dict[TopicIdPartition, str] = {}  # member that has, or has not released, a partition
        self._subscribed: Counter[str] = Counter()  # number of members that name a topic
        self._patterns: dict[str, TopicPattern] = {}  # patterns of members, by regular expression
        self._topics: dict[str, KnownTopic] = {}  # topics at the last assignment
        self._refresh_us = 0
        self._late_us: int | None = None  # earliest deadline of a member
        self._session_us: dict[str, int] = {}  # end of each member's session
        self._revoking_us: dict[str, int] = {}  # end of each member's time for revocation
        self._records: dict[ConsumerGroupKey, _Live] = {}  # live records in the log
        self._changes: dict[ConsumerGroupKey, bytes | None] = {}  # records for the next append
        self._in_flight: object = None  # token of the append in flight
        self._is_in_doubt = False
        self._queue: deque[tuple[Any, ConsumerHeartbeat]] = deque()
        self._is_dead = False
        self._effects: Effects = []

    # ---- properties and descriptions ------------------------------------------------------------------------

    @property
    def size(self) -> int:
        """Number of members."""
        return len(self._members)

    @property
    def state(self) -> GroupState:
        """The state of the group, for clients."""
        if self._is_dead:
            return GroupState.DEAD
        if not self._members:
            return GroupState.EMPTY
        if self.group_epoch > self.assignment_epoch:
            return GroupState.ASSIGNING
        is_stable = all(
            member.state is MemberState.STABLE and member.epoch == self.assignment_epoch
            for member in self._members.values()
        )
        return GroupState.STABLE if is_stable else GroupState.RECONCILING

    @property
    def is_vacant(self) -> bool:
        """Whether the group has no members and no appends in flight: another protocol may take its name and offsets."""
        return not (self._members or self._in_flight or self._queue or self._is_dead)

    @property
    def is_recorded(self) -> bool:
        """Whether the log has, or may have, a record of the group."""
        return bool(self._records) or self._in_flight is not None

    @property
    def is_forgettable(self) -> bool:
        """Whether the group has no state, so that it may be removed from memory."""
        return self.is_vacant and not self._records and self.offsets.is_empty

    @property
    def next_expiry_us(self) -> int | None:
        """When `expire` has to be called, monotonic microseconds; None: not before another event."""
        return self._late_us if self._in_flight is None and not self._is_dead else None

    def listed(self) -> ListedGroup:
        """Return the group as in a response of ListGroups."""
        return ListedGroup(self.group_id, _CONSUMER, self.state, GroupType.CONSUMER)

    def describe_consumers(self) -> DescribedConsumerGroup:
        """Return the group as in a response of ConsumerGroupDescribe."""
        members = tuple(
            DescribedConsumer(
                member.member_id, member.instance_id, member.rack_id, member.epoch, member.client_id,
                member.client_host, tuple(sorted(member.topics)), member.regex, member.assigned,
                self._targets.get(member.member_id, frozenset()),
            )
            for _, member in sorted(self._members.items())
        )  # fmt: skip
        return DescribedConsumerGroup(
            ErrorCode.NONE, self.group_id, None, self.state, self.group_epoch, self.assignment_epoch,
            self._preferred_assignor(), members,
        )  # fmt: skip

    def _take_effects(self) -> Effects:
        effects, self._effects = self._effects, []
        return effects

    def _respond(self, request: Any, result: Any) -> None:
        if request is not None:
            self._effects.append(Respond(request, result))

    def _expire_at(self, us: int) -> None:
        self._late_us = us if self._late_us is None else min(self._late_us, us)

    # ---- heartbeats -----------------------------------------------------------------------------------------

    def heartbeat(self, request: Any, beat: ConsumerHeartbeat, now: Moment) -> Effects:
        """Handle a heartbeat that `check_heartbeat` accepted: a member joins, stays, or leaves.

        Args:
            request: gets a `ConsumerHeartbeatResult` when all state in it is committed.
            beat: the heartbeat.
            now: current time.
        """
        if self._in_flight is not None:
            member = self._members.get(beat.member_id)
            if member is not None and beat.member_epoch in (member.epoch, member.previous_epoch):
                self._touch(member.member_id, now)
        if self._is_in_doubt:
            self._respond(request, ConsumerHeartbeatResult(ErrorCode.COORDINATOR_NOT_AVAILABLE))
        else:
            self._queue.append((request, beat))
            self._serve_queue(now)
        return self._take_effects()

    def _serve_queue(self, now: Moment) -> None:
        """Handle all queued heartbeats in one append."""
        while self._queue and self._in_flight is None:
            answers = []
            self._remove_late(now)
            while self._queue and len(self._changes) < _RECORDS_AT_ONCE:
                request, beat = self._queue.popleft()
                answers.append((request, self._serve(beat, now)))
            self._store(answers)

    def _store(self, answers: list[tuple[Any, ConsumerHeartbeatResult]]) -> None:
        if not self._changes:
            for request, result in answers:
                self._respond(request, result)
            return
        records, self._changes = self._changes, {}
        self._append(_StoreRecords(records, answers))

    def _append(self, token: _StoreRecords) -> None:
        self._in_flight = token
        records: list[GroupRecord] = [(encode_consumer_key(key), value) for key, value in token.records.items()]
        self._effects.append(AppendRecords(token, records))

    def _serve(self, beat: ConsumerHeartbeat, now: Moment) -> ConsumerHeartbeatResult:
        try:
            if beat.member_epoch in (LEAVING_EPOCH, STATIC_LEAVING_EPOCH):
                return self._leave(beat)
            return self._join_or_stay(beat, now)
        except _RefusalError as refusal:
            return ConsumerHeartbeatResult(refusal.code, refusal.text)

    def _join_or_stay(self, beat: ConsumerHeartbeat, now: Moment) -> ConsumerHeartbeatResult:
        before = self._member_of(beat)
        member = self._updated(before, beat)
        is_other = member.member_id not in self._members or _subscription(member) != _subscription(before)
        self._set(member)
        if is_other or now.us >= self._refresh_us:
            self._refresh(now, is_changed=is_other)
        if self.group_epoch > self.assignment_epoch:
            self._assign()
        target = self._targets.get(member.member_id, frozenset())
        reconciled = reconcile(
            member, self.assignment_epoch, target, beat.owned if beat.member_epoch == before.epoch else None,
            lambda partition: self._holders.get(partition, member.member_id) != member.member_id,
        )  # fmt: skip
        self._set(reconciled)
        self._touch(member.member_id, now)
        if reconciled.state is not MemberState.UNREVOKED_PARTITIONS:
            self._revoking_us.pop(member.member_id, None)
        elif reconciled is not member:
            self._revoking_us[member.member_id] = now.us + reconciled.rebalance_timeout_ms * 1000
            self._expire_at(self._revoking_us[member.member_id])
        has_assignment = beat.is_full or reconciled.assigned != before.assigned
        return ConsumerHeartbeatResult(
            ErrorCode.NONE, None, member.member_id, reconciled.epoch, self._config.consumer_heartbeat_interval_ms,
            reconciled.assigned if has_assignment else None,
        )  # fmt: skip

    def _member_of(self, beat: ConsumerHeartbeat) -> ConsumerMember:
        """Return the member of a heartbeat. A joining member is new, or takes over from a static member."""
        is_joining = beat.member_epoch == JOINING_EPOCH
        member_id = beat.member_id or self._new_member_id(beat.client_id)
        static_id = None if beat.instance_id is None else self._static.get(beat.instance_id)
        member = self._members.get(member_id)
        if is_joining and member is None and static_id is None:
            if len(self._members) >= self._config.consumer_max_size:
                raise _RefusalError(
                    ErrorCode.GROUP_MAX_SIZE_REACHED,
                    f"group {self.group_id} has {len(self._members)} members, which is the most that it may have",
                )
            return ConsumerMember(member_id)
        if is_joining and static_id is not None:
            old = self._members[static_id]
            if static_id != member_id or old.epoch == STATIC_LEAVING_EPOCH:
                return self._take_over(old, member_id, beat.instance_id)
        if beat.instance_id is not None and not (is_joining and static_id is None):
            member = self._check_static(beat.instance_id, member_id)
        if member is None:
            raise _RefusalError(
                ErrorCode.UNKNOWN_MEMBER_ID, f"group {self.group_id} has no member {member_id}: it has to join again"
            )
        self._check_epoch(member, beat)
        return member

    def _take_over(self, old: ConsumerMember, member_id: str, instance_id: str | None) -> ConsumerMember:
        """Return a static member that rejoins under another id, with the state of the old one."""
        if old.epoch != STATIC_LEAVING_EPOCH:
            raise _RefusalError(
                ErrorCode.UNRELEASED_INSTANCE_ID,
                f"static member {instance_id}: expected one that has left, found member {old.member_id}, whose session "
                "has not ended",
            )
        if member_id in self._members and member_id != old.member_id:
            raise _RefusalError(ErrorCode.INVALID_REQUEST, f"MemberId: {member_id} is that of another member")
        target = self._targets.get(old.member_id, frozenset())
        self._forget(old)
        self._set_target(member_id, target)
        member = old._replace(
            member_id=member_id, epoch=JOINING_EPOCH, previous_epoch=JOINING_EPOCH, state=MemberState.STABLE
        )
        self._set(member)
        return member

    def _check_static(self, instance_id: str, member_id: str) -> ConsumerMember:
        known = self._static.get(instance_id)
        if known is None:
            raise _RefusalError(
                ErrorCode.UNKNOWN_MEMBER_ID, f"group {self.group_id} has no static member {instance_id}"
            )
        if known != member_id:
            raise _RefusalError(
                ErrorCode.FENCED_INSTANCE_ID, f"static member {instance_id} is member {known}, no longer {member_id}"
            )
        return self._members[known]

    def _check_epoch(self, member: ConsumerMember, beat: ConsumerHeartbeat) -> None:
        """Check the epoch of a heartbeat.

        Raises _RefusalError unless it is the member's, or the previous one: a response may have been lost. With the
        previous epoch the member must own only partitions that it still holds, and it cannot know which partitions it
        has to revoke.
        """
        if beat.member_epoch == member.epoch:
            return
        is_behind = member.previous_epoch == beat.member_epoch < member.epoch
        if is_behind and beat.owned is not None and beat.owned <= member.held:
            return
        raise _RefusalError(
            ErrorCode.FENCED_MEMBER_EPOCH,
            f"member {member.member_id}: expected epoch {member.epoch}, found {beat.member_epoch}: it has to give all "
            "partitions up and join again",
        )

    def _updated(self, member: ConsumerMember, beat: ConsumerHeartbeat) -> ConsumerMember:
        return member._replace(
            instance_id=member.instance_id if beat.instance_id is None else beat.instance_id,
            rack_id=member.rack_id if beat.rack_id is None else beat.rack_id,
            client_id=beat.client_id, client_host=beat.client_host,
            topics=member.topics if beat.topics is None else beat.topics,
            regex=member.regex if beat.regex is None else beat.regex or None,
            rebalance_timeout_ms=(
                member.rebalance_timeout_ms if beat.rebalance_timeout_ms < 0 else beat.rebalance_timeout_ms
            ),
            server_assignor=member.server_assignor if beat.server_assignor is None else beat.server_assignor,
        )  # fmt: skip

    def _touch(self, member_id: str, now: Moment) -> None:
        self._session_us[member_id] = now.us + self._config.consumer_session_timeout_ms * 1000
        self._expire_at(self._session_us[member_id])

    def _leave(self, beat: ConsumerHeartbeat) -> ConsumerHeartbeatResult:
        if beat.instance_id is not None:
            member = self._check_static(beat.instance_id, beat.member_id)
        elif beat.member_id in self._members:
            member = self._members[beat.member_id]
        else:
            raise _RefusalError(ErrorCode.UNKNOWN_MEMBER_ID, f"group {self.group_id} has no member {beat.member_id}")
        if beat.member_epoch == STATIC_LEAVING_EPOCH:
            self._set(member._replace(epoch=STATIC_LEAVING_EPOCH, state=MemberState.STABLE, revoking=frozenset()))
            self._revoking_us.pop(member.member_id, None)
        else:
            self._remove([member])
        return ConsumerHeartbeatResult(ErrorCode.NONE, None, member.member_id, beat.member_epoch)

    # ---- members and their records --------------------------------------------------------------------------

    def _put(self, kind: ConsumerGroupRecordKind, value: tuple[Any, ...] | None, member_id: str = "") -> None:
        """Set the next value of a record; None: delete it."""
        key = ConsumerGroupKey(kind, self.group_id, member_id)
        encoded = None if value is None else encode_consumer_value(kind, value)
        live = self._records.get(key)
        if encoded == (None if live is None else live.value):
            self._changes.pop(key, None)
        else:
            self._changes[key] = encoded

    def _set(self, member: ConsumerMember) -> None:
        """Update a member and its records."""
        before = self._members.get(member.member_id)
        if before is member or before == member:
            return
        self._index(before, member)
        self._put(Kind.MEMBER, _member_value(member), member.member_id)
        self._put(Kind.ASSIGNMENT, _assignment_value(member), member.member_id)

    def _forget(self, member: ConsumerMember) -> None:
        self._index(member, None)
        for kind in (Kind.ASSIGNMENT, Kind.MEMBER_TARGET, Kind.MEMBER):
            self._put(kind, None, member.member_id)
        for table in (self._targets, self._session_us, self._revoking_us):
            table.pop(member.member_id, None)

    def _index(self, before: ConsumerMember | None, member: ConsumerMember | None) -> None:
        """Update all indexes that are derived from members."""
        if before is not None:
            del self._members[before.member_id]
            for partition in before.held:
                if self._holders.get(partition) == before.member_id:
                    del self._holders[partition]
            if member is None or member.topics != before.topics:
                self._subscribed -= Counter(before.topics)
            if before.instance_id is not None and self._static.get(before.instance_id) == before.member_id:
                del self._static[before.instance_id]
        if member is not None:
            self._members[member.member_id] = member
            self._holders.update(dict.fromkeys(member.held, member.member_id))
            if before is None or member.topics != before.topics:
                self._subscribed.update(member.topics)
            if member.regex is not None and member.regex not in self._patterns:
                self._patterns[member.regex] = _pattern_of(member.regex)
            if member.instance_id is not None:
                self._static[member.instance_id] = member.member_id

    def _set_target(self, member_id: str, target: Partitions) -> None:
        if self._targets.get(member_id) != target:
            self._targets[member_id] = target
            self._put(Kind.MEMBER_TARGET, MemberTargetValue(_by_topic(target)), member_id)

    def _remove(self, members: Iterable[ConsumerMember]) -> None:
        """Remove members. Their partitions are reassigned at the next heartbeat of another member."""
        for member in members:
            self._forget(member)
        topics = self._known_topics()
        if topics != self._topics:
            self._set_topics(topics)
        self._bump()

    def _bump(self) -> None:
        self.group_epoch += 1
        self._put(Kind.GROUP, EpochValue(self.group_epoch))

    def _set_topics(self, topics: dict[str, KnownTopic]) -> None:
        self._topics = topics
        value = SubscribedTopicsValue(
            [SubscribedTopic(topic.topic_id, name, topic.partitions) for name, topic in topics.items()]
        )
        self._put(Kind.PARTITIONS, value)

    # ---- assignments ----------------------------------------------------------------------------------------

    def _refresh(self, now: Moment, *, is_changed: bool) -> None:
        """Read the topic catalog, and begin another group epoch if topics or members have changed."""
        self._refresh_us = now.us + _REFRESH_US
        topics = self._known_topics()
        if topics != self._topics:
            self._set_topics(topics)
            is_changed = True
        if is_changed:
            self._bump()

    def _known_topics(self) -> dict[str, KnownTopic]:
        names = set(self._subscribed)
        regexes = {member.regex for member in self._members.values() if member.regex is not None}
        self._patterns = {regex: self._patterns[regex] for regex in regexes}
        if regexes:
            names |= {name for name in self._catalog.names() if self._is_matched(name)}
        known = ((name, self._catalog.topic(name)) for name in sorted(names))
        return {name: topic for name, topic in known if topic is not None}

    def _is_matched(self, topic: str) -> bool:
        """Return whether a member subscribes to a topic by a regular expression."""
        return any(pattern.matches(topic) for pattern in self._patterns.values())

    def _preferred_assignor(self) -> str:
        names = self._config.assignor_names
        votes = Counter(member.server_assignor for member in self._members.values())
        return max(names, key=lambda name: votes[name])

    def _assign(self) -> None:
        """Compute the target assignment of the current group epoch."""
        matched = {
            regex: {topic.topic_id for name, topic in self._topics.items() if pattern.matches(name)}
            for regex, pattern in self._patterns.items()
        }
        members = {
            member_id: MemberSubscription(
                {self._topics[name].topic_id for name in member.topics if name in self._topics}
                | matched.get(member.regex or "", set()),
                self._targets.get(member_id, frozenset()), member.instance_id,
            )
            for member_id, member in self._members.items()
        }  # fmt: skip
        partitions = {topic.topic_id: topic.partitions for topic in self._topics.values()}
        for member_id, target in ASSIGNORS[self._preferred_assignor()](members, partitions).items():
            self._set_target(member_id, target)
        self.assignment_epoch = self.group_epoch
        self._put(Kind.TARGET, EpochValue(self.assignment_epoch))

    # ---- time-outs ------------------------------------------------------------------------------------------

    def expire(self, now: Moment) -> Effects:
        """Remove members whose sessions have expired, or that did not revoke partitions in time."""
        if self.next_expiry_us is not None:
            self._remove_late(now)
            self._store([])
        return self._take_effects()

    def _remove_late(self, now: Moment) -> None:
        if self._late_us is None or self._late_us > now.us:
            return
        times = (self._session_us, self._revoking_us)
        late = {name for table in times for name, until_us in table.items() if until_us <= now.us}
        if late:
            self._remove([self._members[name] for name in sorted(late)])
        self._late_us = min((until_us for table in times for until_us in table.values()), default=None)

    # ---- offsets --------------------------------------------------------------------------------------------

    def commit(
        self, request: Any, commit: OffsetCommitRequest, now: Moment, producer: tuple[int, int] | None = None,
        verification: int | None = None,
    ) -> Effects:  # fmt: skip
        """Commit offsets of a member with its epoch, or, in an empty group, of any client.

        Args:
            request: completed with an `OffsetCommitResult`.
            commit: the offsets to commit; `generation` is the member's epoch.
            now: current time.
            producer: id and epoch of the producer, if the offsets belong to its transaction; they apply when it
                commits.
            verification: verification token of the transaction.
        """
        code = self._check_commit(commit, is_transactional=producer is not None)
        if code is not ErrorCode.NONE:
            self._respond(request, dict.fromkeys(commit.offsets, code))
            return self._take_effects()
        return self._commits.commit(request, commit, now, producer, verification)

    def _check_commit(self, commit: OffsetCommitRequest, *, is_transactional: bool) -> ErrorCode:
        if self._is_dead:
            return ErrorCode.COORDINATOR_NOT_AVAILABLE
        if commit.generation < 0:
            is_outsider = not commit.member_id and commit.instance_id is None
            if not self._members or (is_transactional and is_outsider):
                return ErrorCode.NONE
        member = self._members.get(commit.member_id)
        if member is None:
            return ErrorCode.UNKNOWN_MEMBER_ID
        if not is_transactional and not commit.knows_member_epochs:
            return ErrorCode.UNSUPPORTED_VERSION
        if commit.generation != member.epoch:
            return ErrorCode.ILLEGAL_GENERATION if is_transactional else ErrorCode.STALE_MEMBER_EPOCH
        return ErrorCode.NONE

    def fetch(
        self, partitions: Iterable[TopicPartition] | None, *, require_stable: bool, member_id: str | None = None,
        member_epoch: int = -1,
    ) -> OffsetFetchResult:  # fmt: skip
        """Return committed offsets.

        Args:
            partitions: partitions to return; None: all with a committed offset.
            require_stable: whether to refuse partitions with an offset in an open transaction.
            member_id: member that asks; None: the client is no member.
            member_epoch: epoch of the member; another epoch than the current one is refused.
        """
        if member_id is not None or member_epoch >= 0:
            member = self._members.get(member_id or "")
            code = ErrorCode.UNKNOWN_MEMBER_ID if member is None else ErrorCode.STALE_MEMBER_EPOCH
            if member is None or member.epoch != member_epoch:
                return OffsetFetchResult(code, {name: FetchedOffset(code=code) for name in partitions or ()})
        return self._commits.fetch(partitions, require_stable=require_stable)

    def delete_offsets(self, request: Any, partitions: Collection[TopicPartition]) -> Effects:
        """Delete offsets of topics to which no member subscribes (KIP-496)."""
        results: OffsetCommitResult = {}
        for partition in partitions:
            is_subscribed = partition.topic in self._subscribed or self._is_matched(partition.topic)
            results[partition] = ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC if is_subscribed else ErrorCode.NONE
            if self._is_dead:
                results[partition] = ErrorCode.GROUP_ID_NOT_FOUND
        return self._commits.delete(request, results)

    def delete_topics(self, topics: Mapping[str, Collection[bytes]]) -> Effects:
        """Delete the offsets of topics that were deleted: a new topic of that name begins without offsets.

        Args:
            topics: see `OffsetCommits.delete_topics`.
        """
        return self._commits.delete_topics(topics)

    def expire_offsets(self, now: Moment) -> Effects:
        """Delete expired offsets, and the group if nothing else is left of it (KIP-211)."""
        if self._is_dead:
            return self._take_effects()
        subscribed = self._subscribed.keys() | self._topics.keys()
        expired = self.offsets.expired(now.wall_ms, self._config.offsets_retention_ms, None, subscribed)
        if expired:
            return self._commits.expire(expired)
        if self.is_vacant and self._records and self.offsets.is_empty:
            self._delete_records(None, ErrorCode.NONE, ErrorCode, ())
        return self._take_effects()

    # ---- deletion -------------------------------------------------------------------------------------------

    def delete(self, request: Any) -> Effects:
        """Delete an empty group and its offsets."""
        if self._is_dead:
            self._respond(request, ErrorCode.GROUP_ID_NOT_FOUND)
        elif self._members:
            self._respond(request, ErrorCode.NON_EMPTY_GROUP)
        elif not self.is_vacant:
            self._respond(request, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
        else:
            self._delete_records(request, ErrorCode.NONE, ErrorCode, self.offsets.recorded_partitions())
        return self._take_effects()

    def dissolve(self, request: Any, result: Any, failed: Callable[[ErrorCode], Any]) -> Effects:
        """Delete the records of an empty group, but keep its offsets.

        Args:
            request: gets its response when the records are deleted.
            result: response after success.
            failed: returns the response for an error.
        """
        if self.is_vacant:
            self._delete_records(request, result, failed, None)
        else:
            self._respond(request, failed(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS))
        return self._take_effects()

    def _delete_records(
        self, request: Any, result: Any, failed: Callable[[ErrorCode], Any], offsets: Collection[TopicPartition] | None
    ) -> None:
        self._is_dead = True
        names = [] if offsets is None else sorted(offsets)
        records: list[GroupRecord] = [(encode_offset_key(self.group_id, *partition), None) for partition in names]
        records += [(encode_consumer_key(key), None) for key in self._records]
        token = _DeleteRecords(request, result, failed, None if offsets is None else names, len(records))
        if not records:  # the group was never stored
            self._deleted(token, 0)
            return
        self.offsets.begin(names)
        self._in_flight = token
        self._effects.append(AppendRecords(token, records))

    def _deleted(self, token: _DeleteRecords, at: int) -> None:
        for partition in token.offsets or ():
            self.offsets.apply_deletion(partition, at + token.size)
        self._records.clear()
        self._effects.append(GroupDissolved() if token.offsets is None else GroupDeleted())
        self._respond(token.request, token.result)
        self._refuse_queue(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)

    def _refuse_queue(self, code: ErrorCode) -> None:
        while self._queue:
            self._respond(self._queue.popleft()[0], ConsumerHeartbeatResult(code))

    # ---- outcomes of appends --------------------------------------------------------------------------------

    def appended(self, token: object, at: int, now: Moment) -> Effects:
        """Apply records that were committed, the first one at offset `at`. The calls follow the order of the log."""
        if isinstance(token, StoreOffsets | DeleteOffsets):
            return self._commits.appended(token, at)
        if token is not self._in_flight:
            return self._take_effects()
        self._in_flight, self._is_in_doubt = None, False
        match token:
            case _StoreRecords():
                self._apply_records(token.records, at)
                for request, result in token.answers:
                    self._respond(request, result)
            case _DeleteRecords():
                self.offsets.end(token.offsets or ())
                self._deleted(token, at)
                return self._take_effects()
        self._serve_queue(now)
        return self._take_effects()

    def _apply_records(self, records: Mapping[ConsumerGroupKey, bytes | None], at: int) -> None:
        for number, (key, value) in enumerate(records.items()):
            self._apply_record(key, value, at + number)

    def _apply_record(self, key: ConsumerGroupKey, value: bytes | None, at: int) -> None:
        if value is None:
            self._records.pop(key, None)
        else:
            self._records[key] = _Live(value, at)

    def append_failed(self, token: object, code: ErrorCode, now: Moment) -> Effects:
        """Undo an append that failed: restore the state from the committed records."""
        if isinstance(token, StoreOffsets | DeleteOffsets):
            self._commits.append_failed(token)
            return self._commits.respond_with_error(token, code)
        if token is not self._in_flight:
            return self._take_effects()
        self._in_flight, self._is_in_doubt = None, False
        self._respond_failure(token, code)
        match token:
            case _StoreRecords():
                self._restore(now)
            case _DeleteRecords():
                self.offsets.end(token.offsets or ())
                self._is_dead = False
        self._serve_queue(now)
        return self._take_effects()

    def append_unknown(self, token: object, code: ErrorCode, now: Moment) -> Effects:
        """Send error responses for an append with an unknown outcome.

        Only `appended` may follow; until then no heartbeat is handled.
        """
        if isinstance(token, StoreOffsets | DeleteOffsets):
            return self._commits.respond_with_error(token, code)
        if token is self._in_flight:
            self._is_in_doubt = True
            self._respond_failure(token, code)
            self._refuse_queue(ErrorCode.COORDINATOR_NOT_AVAILABLE)
        return self._take_effects()

    def _respond_failure(self, token: object, code: ErrorCode) -> None:
        if isinstance(token, _StoreRecords):
            for request, _ in token.answers:
                self._respond(request, ConsumerHeartbeatResult(code_of_store(code)))
            token.answers.clear()
        elif isinstance(token, _DeleteRecords):
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
        stale = [key for key, live in self._records.items() if live.at < before]
        if stale and self._in_flight is None and not effects:
            self._append(_StoreRecords({key: self._records[key].value for key in stale[:records_max]}))
        return self._take_effects(), is_left or bool(stale)

    # ---- loading --------------------------------------------------------------------------------------------

    def load_record(self, key: ConsumerGroupKey, value: bytes | None, at: int) -> None:
        """Apply a record of the group while the internal partition is loaded. The state is computed in `loaded`.

        Raises:
            InvalidRequestError: the record is malformed, or has a newer version.
        """
        if value is not None:
            decode_consumer_value(key.kind, value)
        self._apply_record(key, value, at)

    def loaded(self, now: Moment) -> None:
        """Finish loading: the sessions of all members, and the time-outs of revocations, begin."""
        self._restore(now)

    def _restore(self, now: Moment) -> None:
        """Compute the state from the committed records. Known deadlines are kept."""
        self._changes = {}
        self.group_epoch = self.assignment_epoch = 0
        self._members, self._static, self._holders, self._subscribed = {}, {}, {}, Counter()
        self._topics, self._targets, self._patterns, self._refresh_us = {}, {}, {}, 0
        members: dict[str, ConsumerMember] = {}
        for key, live in sorted(self._records.items()):
            value = decode_consumer_value(key.kind, live.value)
            name = key.member_id
            match key.kind:
                case Kind.GROUP:
                    self.group_epoch = value.epoch
                case Kind.PARTITIONS:
                    self._topics = {
                        each.topic_name: KnownTopic(bytes(each.topic_id), each.num_partitions) for each in value.topics
                    }
                case Kind.MEMBER:
                    members[name] = _with_metadata(ConsumerMember(name), value)
                case Kind.TARGET:
                    self.assignment_epoch = value.epoch
                case Kind.MEMBER_TARGET:
                    self._targets[name] = _flat(value.topic_partitions)
                case Kind.ASSIGNMENT if name in members:
                    members[name] = _with_assignment(members[name], value)
        for member in members.values():
            self._index(None, member)
        session_us = now.us + self._config.consumer_session_timeout_ms * 1000
        self._session_us = {name: self._session_us.get(name, session_us) for name in members}
        self._revoking_us = {
            name: self._revoking_us.get(name, now.us + member.rebalance_timeout_ms * 1000)
            for name, member in members.items()
            if member.state is MemberState.UNREVOKED_PARTITIONS
        }
        for until_us in (*self._session_us.values(), *self._revoking_us.values()):
            self._expire_at(until_us)

    def unload(self) -> Effects:
        """Fail pending requests with NOT_COORDINATOR, because another broker serves the group now.

        Appends in flight have an unknown outcome; the driver fails their requests.
        """
        self._refuse_queue(ErrorCode.NOT_COORDINATOR)
        self._is_dead = True
        return self._take_effects()


def _pattern_of(regex: str) -> TopicPattern:
    """Return the pattern of a stored member.

    A newer version may have more syntax; such a pattern matches nothing here.
    """
    try:
        return TopicPattern(regex)
    except InvalidArgumentError as error:
        logger.warning("a member's regular expression matches no topic here: %s", error)
        return _MATCHES_NOTHING


def _subscription(member: ConsumerMember) -> tuple[frozenset[str], str | None]:
    return member.topics, member.regex


def _by_topic(partitions: Partitions) -> tuple[TopicPartitionsValue, ...]:
    return tuple(
        TopicPartitionsValue(topic_id, tuple(each.partition for each in group))
        for topic_id, group in groupby(sorted(partitions), key=lambda each: each.topic_id)
    )


def _flat(topics: Iterable[TopicPartitionsValue]) -> Partitions:
    return frozenset(TopicIdPartition(bytes(topic.topic_id), number) for topic in topics for number in topic.partitions)


def _member_value(member: ConsumerMember) -> ConsumerMemberValue:
    return ConsumerMemberValue(
        member.instance_id, member.rack_id, member.client_id, member.client_host, tuple(sorted(member.topics)),
        member.regex, member.rebalance_timeout_ms, member.server_assignor,
    )  # fmt: skip


def _with_metadata(member: ConsumerMember, value: ConsumerMemberValue) -> ConsumerMember:
    return member._replace(
        instance_id=value.instance_id, rack_id=value.rack_id, client_id=value.client_id, client_host=value.client_host,
        topics=frozenset(value.subscribed_topic_names), regex=value.subscribed_topic_regex or None,
        rebalance_timeout_ms=value.rebalance_timeout_ms, server_assignor=value.server_assignor,
    )  # fmt: skip


def _assignment_value(member: ConsumerMember) -> MemberAssignmentValue:
    return MemberAssignmentValue(
        member.epoch, member.previous_epoch, member.state, _by_topic(member.assigned), _by_topic(member.revoking)
    )


def _with_assignment(member: ConsumerMember, value: MemberAssignmentValue) -> ConsumerMember:
    """Return a member with a stored assignment.

    An unknown state is treated as UNRELEASED_PARTITIONS, so that the member keeps its partitions and is reconciled
    again.
    """
    known = value.state in tuple(MemberState)
    return member._replace(
        epoch=value.member_epoch, previous_epoch=value.previous_member_epoch,
        state=MemberState(value.state) if known else MemberState.UNRELEASED_PARTITIONS,
        assigned=_flat(value.assigned_partitions), revoking=_flat(value.partitions_pending_revocation),
    )  # fmt: skip
