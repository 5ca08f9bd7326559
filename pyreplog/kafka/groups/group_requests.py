"""What the coordinator of groups takes and gives, in the shape of Kafka's APIs."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import NamedTuple

from pyreplog.kafka.groups.assignors import Partitions
from pyreplog.partition.protocol.error_codes import ErrorCode
from pyreplog.partition.topic_partition import TopicPartition


class GroupState(Enum):
    """The state of a group, with Kafka's names."""

    EMPTY = "Empty"
    """No members; perhaps offsets."""
    PREPARING_REBALANCE = "PreparingRebalance"
    """Members join."""
    COMPLETING_REBALANCE = "CompletingRebalance"
    """All have joined; the assignment of their leader is awaited, or is being stored."""
    STABLE = "Stable"
    """All members have their assignments."""
    ASSIGNING = "Assigning"
    """Of a consumer group: its target assignment is older than its members."""
    RECONCILING = "Reconciling"
    """Of a consumer group: members are on their way to their targets."""
    DEAD = "Dead"
    """It is being deleted, or there is no such group."""


class JoinGroupRequest(NamedTuple):
    """A member joins, or joins again.

    Attributes:
        member_id: "" before it has one.
        instance_id: of a static member (KIP-345).
        client_id: how the client calls itself.
        client_host: from where it comes.
        session_timeout_ms: without a heartbeat for so long, it is removed.
        rebalance_timeout_ms: how long it may take to join again.
        protocol_type: such as `consumer`.
        protocols: (name, metadata) of each assignor, the preferred one first.
        requires_known_member_id: a member without an id is given one, and has to come again (KIP-394; from v4 on).
        supports_skipping_assignment: a leader may be told to assign nothing (KIP-814; from v9 on).
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
    """A member, as its group's leader learns of it."""

    member_id: str
    instance_id: str | None
    metadata: bytes


class JoinGroupResult(NamedTuple):
    """The outcome of a JoinGroup.

    Attributes:
        code: NONE, or the error.
        generation: of the group; -1: an error.
        protocol_type: of the group.
        protocol_name: the assignor that all have.
        leader: the member that assigns.
        member_id: of this member; of MEMBER_ID_REQUIRED the one to come again with.
        members: all of them, for the leader.
        skip_assignment: the leader is to assign nothing.
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
    """A member asks for its assignment; the leader brings those of all.

    Attributes:
        member_id: of the member.
        generation: which it has joined.
        instance_id: of a static member.
        protocol_type: None: the client does not say.
        protocol_name: None: the client does not say.
        assignments: by member id, of the leader.
    """

    member_id: str
    generation: int
    instance_id: str | None = None
    protocol_type: str | None = None
    protocol_name: str | None = None
    assignments: Mapping[str, bytes] = {}


class SyncGroupResult(NamedTuple):
    """The outcome of a SyncGroup."""

    code: ErrorCode
    protocol_type: str | None = None
    protocol_name: str | None = None
    assignment: bytes = b""


class LeavingMember(NamedTuple):
    """A member that leaves. A static one may leave without its member id."""

    member_id: str
    instance_id: str | None = None


class LeaveMemberResult(NamedTuple):
    """The outcome for one member that leaves."""

    member_id: str
    instance_id: str | None
    code: ErrorCode


class LeaveGroupResult(NamedTuple):
    """The outcome of a LeaveGroup."""

    code: ErrorCode
    members: tuple[LeaveMemberResult, ...] = ()


class OffsetToCommit(NamedTuple):
    """An offset to commit.

    Attributes:
        offset: of the next record to read.
        leader_epoch: of the record before; -1: not known.
        metadata: any text.
    """

    offset: int
    leader_epoch: int = -1
    metadata: str = ""


class OffsetCommitRequest(NamedTuple):
    """Offsets to commit.

    Attributes:
        member_id: "": a consumer outside the group protocol.
        generation: of the member; -1: a consumer outside the group protocol.
        offsets: by partition.
        instance_id: of a static member.
        knows_member_epochs: whether the client knows STALE_MEMBER_EPOCH (from v9 on); members of consumer groups must.
    """

    member_id: str
    generation: int
    offsets: Mapping[TopicPartition, OffsetToCommit]
    instance_id: str | None = None
    knows_member_epochs: bool = False


OffsetCommitResult = dict[TopicPartition, ErrorCode]
"""The outcome of a commit or a deletion of offsets, by partition."""


class FetchedOffset(NamedTuple):
    """A committed offset; -1: there is none."""

    offset: int = -1
    leader_epoch: int = -1
    metadata: str = ""
    code: ErrorCode = ErrorCode.NONE


class OffsetFetchResult(NamedTuple):
    """The committed offsets of a group."""

    code: ErrorCode
    offsets: dict[TopicPartition, FetchedOffset]


class DescribedMember(NamedTuple):
    """A member of a group that is described. Metadata and assignment are empty during a rebalance."""

    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    metadata: bytes
    assignment: bytes


class DescribedGroup(NamedTuple):
    """A group (DescribeGroups)."""

    code: ErrorCode
    group_id: str
    state: GroupState = GroupState.DEAD
    protocol_type: str = ""
    protocol: str = ""
    members: tuple[DescribedMember, ...] = ()


class GroupType(Enum):
    """The protocol of a group, with Kafka's names."""

    CLASSIC = "classic"
    """JoinGroup and SyncGroup; a member assigns."""
    CONSUMER = "consumer"
    """ConsumerGroupHeartbeat; the broker assigns (KIP-848)."""


class ListedGroup(NamedTuple):
    """A group (ListGroups)."""

    group_id: str
    protocol_type: str
    state: GroupState
    group_type: GroupType = GroupType.CLASSIC


class ListGroupsResult(NamedTuple):
    """The groups of this broker; COORDINATOR_LOAD_IN_PROGRESS: there may be more."""

    code: ErrorCode
    groups: tuple[ListedGroup, ...]


class ConsumerHeartbeat(NamedTuple):
    """A member of a consumer group joins, lives, or leaves. None: what it said last counts.

    Attributes:
        member_id: "": the coordinator chooses it (v0).
        member_epoch: of the member; 0: it joins, -1: it leaves, -2: a static member leaves and comes back.
        client_id: how the client calls itself.
        client_host: from where it comes.
        instance_id: of a static member.
        rack_id: where it runs.
        rebalance_timeout_ms: how long it may take to give partitions up; -1: what it said last counts.
        topics: names that it subscribes to.
        regex: a pattern of names that it subscribes to.
        server_assignor: which it prefers.
        owned: the partitions that it uses.
        chooses_id: the client has to choose its member id (v1).
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
        """Whether the member says all of itself, and so is told its assignment again."""
        has_all = self.rebalance_timeout_ms != -1 and self.owned is not None
        return self.member_epoch == 0 or (has_all and (self.topics is not None or self.regex is not None))


class ConsumerHeartbeatResult(NamedTuple):
    """The outcome of a ConsumerGroupHeartbeat.

    Attributes:
        code: NONE, or the error.
        text: of the error.
        member_id: of the member.
        member_epoch: of the member from now on.
        heartbeat_interval_ms: when it is to come again.
        assignment: what it may use; None: as before.
    """

    code: ErrorCode
    text: str | None = None
    member_id: str | None = None
    member_epoch: int = 0
    heartbeat_interval_ms: int = 0
    assignment: Partitions | None = None


class DescribedConsumer(NamedTuple):
    """A member of a consumer group that is described."""

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
    """A group (ConsumerGroupDescribe)."""

    code: ErrorCode
    group_id: str
    text: str | None = None
    state: GroupState = GroupState.DEAD
    group_epoch: int = 0
    assignment_epoch: int = 0
    assignor: str = ""
    members: tuple[DescribedConsumer, ...] = ()
