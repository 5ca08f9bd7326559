"""Requests and results of the group coordinator, in the shape of Kafka's APIs."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import NamedTuple

from pyreplog.kafka.groups.assignors import Partitions
from pyreplog.kafka.groups.topic_catalog import NO_TOPIC_ID
from pyreplog.partition.protocol.error_codes import ErrorCode
from pyreplog.partition.topic_partition import TopicPartition


class GroupState(Enum):
    """The state of a group, with Kafka's names."""

    EMPTY = "Empty"
    """The group has no members; it may have offsets."""
    PREPARING_REBALANCE = "PreparingRebalance"
    """The members are joining."""
    COMPLETING_REBALANCE = "CompletingRebalance"
    """All members have joined, and the leader's assignment is awaited or being stored."""
    STABLE = "Stable"
    """All members have their assignments."""
    ASSIGNING = "Assigning"
    """Only in a consumer group: the target assignment is older than the members."""
    RECONCILING = "Reconciling"
    """Only in a consumer group: members have not reached their targets yet."""
    DEAD = "Dead"
    """The group is being deleted, or does not exist."""


class JoinGroupRequest(NamedTuple):
    """A request of a member to join or rejoin.

    Attributes:
        member_id: id of the member; "": it has none yet.
        instance_id: instance id of a static member (KIP-345); None: the member is dynamic.
        client_id: client id of the client.
        client_host: host of the client.
        session_timeout_ms: milliseconds without a heartbeat after which the member is removed.
        rebalance_timeout_ms: milliseconds that the member may take to rejoin.
        protocol_type: type of the protocol, such as `consumer`.
        protocols: (name, metadata) of each assignor, the preferred one first.
        requires_known_member_id: whether a member without an id gets one, and has to send the request again (KIP-394;
            from v4 on).
        supports_skipping_assignment: whether a leader can be told not to assign (KIP-814; from v9 on).
    """

    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    session_timeout_ms: int
    rebalance_timeout_ms: int
    protocol_type: str
    protocols: tuple[tuple[str, bytes], ...]
    requires_known_member_id: bool = False
    supports_skipping_assignment: bool = False


class JoinedMember(NamedTuple):
    """A member, as the group's leader receives it."""

    member_id: str
    instance_id: str | None
    metadata: bytes


class JoinGroupResult(NamedTuple):
    """The result of a JoinGroup.

    Attributes:
        code: NONE, or the error code.
        generation: generation of the group; -1 after an error.
        protocol_type: type of the group's protocol.
        protocol_name: chosen assignor, which all members support.
        leader: id of the member that assigns.
        member_id: id of this member; with MEMBER_ID_REQUIRED, the id to send in the next request.
        members: all members, for the leader only.
        skip_assignment: whether the leader must not assign.
    """

    code: ErrorCode
    generation: int = -1
    protocol_type: str | None = None
    protocol_name: str | None = None
    leader: str = ""
    member_id: str = ""
    members: tuple[JoinedMember, ...] = ()
    skip_assignment: bool = False


class SyncGroupRequest(NamedTuple):
    """A request of a member for its assignment; the leader sends the assignments of all members.

    Attributes:
        member_id: id of the member.
        generation: generation that the member has joined.
        instance_id: instance id of a static member; None: the member is dynamic.
        protocol_type: protocol type that the client expects; None: not sent.
        protocol_name: assignor that the client expects; None: not sent.
        assignments: assignments by member id, from the leader only.
    """

    member_id: str
    generation: int
    instance_id: str | None = None
    protocol_type: str | None = None
    protocol_name: str | None = None
    assignments: Mapping[str, bytes] = {}


class SyncGroupResult(NamedTuple):
    """The result of a SyncGroup."""

    code: ErrorCode
    protocol_type: str | None = None
    protocol_name: str | None = None
    assignment: bytes = b""


class LeavingMember(NamedTuple):
    """A member that leaves. A static member may leave without its member id."""

    member_id: str
    instance_id: str | None = None


class LeaveMemberResult(NamedTuple):
    """The result for one member that leaves."""

    member_id: str
    instance_id: str | None
    code: ErrorCode


class LeaveGroupResult(NamedTuple):
    """The result of a LeaveGroup."""

    code: ErrorCode
    members: tuple[LeaveMemberResult, ...] = ()


class OffsetToCommit(NamedTuple):
    """An offset to commit.

    Attributes:
        offset: offset of the next record to read.
        leader_epoch: leader epoch of the record before; -1: unknown.
        metadata: arbitrary text of the client.
        topic_id: id of the topic, 16 bytes; NO_TOPIC_ID: unknown.
    """

    offset: int
    leader_epoch: int = -1
    metadata: str = ""
    topic_id: bytes = NO_TOPIC_ID


class OffsetCommitRequest(NamedTuple):
    """A request to commit offsets.

    Attributes:
        member_id: id of the member; "": a consumer outside the group protocol.
        generation: generation or epoch of the member; -1: a consumer outside the group protocol.
        offsets: offsets by partition.
        instance_id: instance id of a static member; None: the member is dynamic.
        knows_member_epochs: whether the client understands STALE_MEMBER_EPOCH (from v9 on), as members of consumer
            groups must.
    """

    member_id: str
    generation: int
    offsets: Mapping[TopicPartition, OffsetToCommit]
    instance_id: str | None = None
    knows_member_epochs: bool = False


OffsetCommitResult = dict[TopicPartition, ErrorCode]
"""The error codes of a commit or a deletion of offsets, by partition."""


class FetchedOffset(NamedTuple):
    """A committed offset; -1: none is committed."""

    offset: int = -1
    leader_epoch: int = -1
    metadata: str = ""
    code: ErrorCode = ErrorCode.NONE


class OffsetFetchResult(NamedTuple):
    """The committed offsets of a group."""

    code: ErrorCode
    offsets: dict[TopicPartition, FetchedOffset]


class DescribedMember(NamedTuple):
    """A member in a description of a group. Metadata and assignment are empty during a rebalance."""

    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    metadata: bytes
    assignment: bytes


class DescribedGroup(NamedTuple):
    """The description of a classic group (DescribeGroups)."""

    code: ErrorCode
    group_id: str
    state: GroupState = GroupState.DEAD
    protocol_type: str = ""
    protocol: str = ""
    members: tuple[DescribedMember, ...] = ()


class GroupType(Enum):
    """The protocol of a group, with Kafka's names."""

    CLASSIC = "classic"
    """JoinGroup and SyncGroup; a member computes the assignment."""
    CONSUMER = "consumer"
    """ConsumerGroupHeartbeat; the broker computes the assignment (KIP-848)."""


class ListedGroup(NamedTuple):
    """A group in a list (ListGroups)."""

    group_id: str
    protocol_type: str
    state: GroupState
    group_type: GroupType = GroupType.CLASSIC


class ListGroupsResult(NamedTuple):
    """The groups of this broker. With COORDINATOR_LOAD_IN_PROGRESS there may be more."""

    code: ErrorCode
    groups: tuple[ListedGroup, ...]


class ConsumerHeartbeat(NamedTuple):
    """A heartbeat, with which a member joins, stays, or leaves. A field that is None has not changed.

    Attributes:
        member_id: id of the member; "": the coordinator chooses it (v0).
        member_epoch: epoch of the member; 0: it joins, -1: it leaves, -2: a static member leaves temporarily.
        client_id: client id of the client.
        client_host: host of the client.
        instance_id: instance id of a static member; None: the member is dynamic.
        rack_id: rack of the client.
        rebalance_timeout_ms: milliseconds that the member may take to revoke partitions; -1: not changed.
        topics: names of topics to which it subscribes.
        regex: regular expression for names of topics to which it subscribes.
        server_assignor: assignor that it prefers.
        owned: partitions that it currently uses.
        chooses_id: whether the client has to choose its member id (v1).
    """

    member_id: str
    member_epoch: int
    client_id: str = ""
    client_host: str = ""
    instance_id: str | None = None
    rack_id: str | None = None
    rebalance_timeout_ms: int = -1
    topics: frozenset[str] | None = None
    regex: str | None = None
    server_assignor: str | None = None
    owned: Partitions | None = None
    chooses_id: bool = False

    @property
    def is_full(self) -> bool:
        """Whether the heartbeat has all fields; then the response contains the assignment even if it is unchanged."""
        has_all = self.rebalance_timeout_ms != -1 and self.owned is not None
        return self.member_epoch == 0 or (has_all and (self.topics is not None or self.regex is not None))


class ConsumerHeartbeatResult(NamedTuple):
    """The result of a ConsumerGroupHeartbeat.

    Attributes:
        code: NONE, or the error code.
        text: text of the error.
        member_id: id of the member.
        member_epoch: new epoch of the member.
        heartbeat_interval_ms: milliseconds until the next heartbeat.
        assignment: partitions that the member may use; None: unchanged.
    """

    code: ErrorCode
    text: str | None = None
    member_id: str | None = None
    member_epoch: int = 0
    heartbeat_interval_ms: int = 0
    assignment: Partitions | None = None


class DescribedConsumer(NamedTuple):
    """A member in a description of a consumer group."""

    member_id: str
    instance_id: str | None
    rack_id: str | None
    member_epoch: int
    client_id: str
    client_host: str
    topics: tuple[str, ...]
    regex: str | None
    assignment: Partitions
    target: Partitions


class DescribedConsumerGroup(NamedTuple):
    """The description of a consumer group (ConsumerGroupDescribe)."""

    code: ErrorCode
    group_id: str
    text: str | None = None
    state: GroupState = GroupState.DEAD
    group_epoch: int = 0
    assignment_epoch: int = 0
    assignor: str = ""
    members: tuple[DescribedConsumer, ...] = ()
