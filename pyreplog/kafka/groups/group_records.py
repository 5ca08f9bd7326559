"""The records of `__consumer_offsets`, with Kafka's keys and values.

Values are decoded by the message codec, with limits. See FORMAT.md, "Records of groups".
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum
from struct import Struct
from typing import Any, NamedTuple

from pyreplog._native.kafka.message_codec import StructSchema
from pyreplog._native.kafka.record_batch import encode_batch, encode_records
from pyreplog.errors import InvalidRequestError
from pyreplog.kafka.groups.group_effects import GroupRecord
from pyreplog.kafka.groups.topic_catalog import NO_TOPIC_ID
from pyreplog.partition.protocol.record_batch import marker_of
from pyreplog.record_batches.batches import read_batch

OFFSET_KEY_VERSIONS = range(2)
GROUP_KEY_VERSION = 2
VALUE_VERSIONS = range(5)
CONSUMER_KEY_VERSIONS = range(3, 9)
"""Key versions of records of consumer groups (KIP-848): one for each kind of record."""
CONSUMER_VALUE_VERSION = 0
WRITTEN_VERSION = 3
"""The version of values that is written, but for offsets with the id of their topic."""
_FLEXIBLE_FROM = 4
_VERSION = Struct(">h")
_MEMBERS_MAX = 1 << 20


class OffsetCommitKey(NamedTuple):
    """The key of a committed offset, version 1."""

    group: str = ""
    topic: str = ""
    partition: int = 0


class GroupMetadataKey(NamedTuple):
    """The key of a group, version 2."""

    group: str = ""


class OffsetCommitValue(NamedTuple):
    """A committed offset.

    Attributes:
        offset: offset of the next record to read.
        leader_epoch: leader epoch of the record before; -1: unknown (from version 3 on).
        metadata: arbitrary text of the client.
        commit_timestamp: time of the commit, ms since 1970.
        expire_timestamp: time of the expiry, ms since 1970; -1: the broker's retention applies (version 1 only).
        topic_id: id of the topic, 16 bytes; NO_TOPIC_ID: unknown (from version 4 on).
    """

    offset: int = 0
    leader_epoch: int = -1
    metadata: str = ""
    commit_timestamp: int = 0
    expire_timestamp: int = -1
    topic_id: bytes = NO_TOPIC_ID


class MemberMetadata(NamedTuple):
    """A member of a stored group. `rebalance_timeout` is missing in version 0: then it is the session time-out."""

    member_id: str = ""
    group_instance_id: str | None = None
    client_id: str = ""
    client_host: str = ""
    rebalance_timeout: int = 0
    session_timeout: int = 0
    subscription: bytes = b""
    assignment: bytes = b""


class GroupMetadataValue(NamedTuple):
    """A stored group, with the assignments of its generation."""

    protocol_type: str = ""
    generation: int = 0
    protocol: str | None = None
    leader: str | None = None
    current_state_timestamp: int = -1
    members: Sequence[MemberMetadata] = ()


class ConsumerGroupRecordKind(IntEnum):
    """The kinds of records of consumer groups, with the versions of their keys."""

    GROUP = 3
    """The epoch of the group."""
    PARTITIONS = 4
    """The topics to which members subscribe, as of the last assignment."""
    MEMBER = 5
    """A member and its subscription."""
    TARGET = 6
    """The epoch of the target assignment."""
    MEMBER_TARGET = 7
    """The target assignment of a member."""
    ASSIGNMENT = 8
    """The current assignment of a member."""


_MEMBER_KINDS = frozenset(
    {
        ConsumerGroupRecordKind.MEMBER,
        ConsumerGroupRecordKind.MEMBER_TARGET,
        ConsumerGroupRecordKind.ASSIGNMENT,
    }
)


class ConsumerGroupKey(NamedTuple):
    """The key of a record of a consumer group; `member_id` is "" if the record is not about a member."""

    kind: ConsumerGroupRecordKind
    group: str = ""
    member_id: str = ""


class EpochValue(NamedTuple):
    """The epoch of a consumer group, or of its target assignment."""

    epoch: int = 0


class SubscribedTopic(NamedTuple):
    """A topic to which members of a consumer group subscribe."""

    topic_id: bytes = bytes(16)
    topic_name: str = ""
    num_partitions: int = 0
    partition_metadata: Sequence[Any] = ()


class SubscribedTopicsValue(NamedTuple):
    """The topics to which members of a consumer group subscribe."""

    topics: Sequence[SubscribedTopic] = ()


class ConsumerMemberValue(NamedTuple):
    """A member of a consumer group."""

    instance_id: str | None = None
    rack_id: str | None = None
    client_id: str = ""
    client_host: str = ""
    subscribed_topic_names: Sequence[str] = ()
    subscribed_topic_regex: str | None = None
    rebalance_timeout_ms: int = -1
    server_assignor: str | None = None


class TopicPartitionsValue(NamedTuple):
    """Partitions of a topic."""

    topic_id: bytes = bytes(16)
    partitions: Sequence[int] = ()


class MemberTargetValue(NamedTuple):
    """The target assignment of a member."""

    topic_partitions: Sequence[TopicPartitionsValue] = ()


class MemberAssignmentValue(NamedTuple):
    """The current assignment of a member. `state` is a value of `MemberState`."""

    member_epoch: int = 0
    previous_member_epoch: int = 0
    state: int = 0
    assigned_partitions: Sequence[TopicPartitionsValue] = ()
    partitions_pending_revocation: Sequence[TopicPartitionsValue] = ()


def _plain(name: str, kind: str, version: int, default: object, *, since: int = 0, until: int = 9, null: bool = False,
           array: bool = False, child: StructSchema | None = None, tag: int = -1) -> tuple[Any, ...]:  # fmt: skip
    present = since <= version <= until
    return name, kind, array, child, null and present, tag, present, True, default


def _offset_value_schema(version: int) -> StructSchema:
    fields = [
        _plain("offset", "int64", version, 0),
        _plain("leader_epoch", "int32", version, -1, since=3),
        _plain("metadata", "string", version, ""),
        _plain("commit_timestamp", "int64", version, 0),
        _plain("expire_timestamp", "int64", version, -1, since=1, until=1),
        _plain("topic_id", "uuid", version, NO_TOPIC_ID, since=_FLEXIBLE_FROM, tag=0),
    ]
    return StructSchema(f"OffsetCommitValue v{version}", OffsetCommitValue, fields, version >= _FLEXIBLE_FROM)


def _group_value_schema(version: int) -> StructSchema:
    flexible = version >= _FLEXIBLE_FROM
    members = [
        _plain("member_id", "string", version, ""),
        _plain("group_instance_id", "string", version, None, since=3, null=True),
        _plain("client_id", "string", version, ""),
        _plain("client_host", "string", version, ""),
        _plain("rebalance_timeout", "int32", version, 0, since=1),
        _plain("session_timeout", "int32", version, 0),
        _plain("subscription", "bytes", version, b""),
        _plain("assignment", "bytes", version, b""),
    ]
    label = f"GroupMetadataValue v{version}"
    fields = [
        _plain("protocol_type", "string", version, ""),
        _plain("generation", "int32", version, 0),
        _plain("protocol", "string", version, None, null=True),
        _plain("leader", "string", version, None, null=True),
        _plain("current_state_timestamp", "int64", version, -1, since=2),
        _plain(
            "members", "struct", version, (), array=True, child=StructSchema(label, MemberMetadata, members, flexible)
        ),
    ]
    return StructSchema(label, GroupMetadataValue, fields, flexible)


_OFFSET_KEY = StructSchema(
    "OffsetCommitKey",
    OffsetCommitKey,
    [_plain("group", "string", 1, ""), _plain("topic", "string", 1, ""), _plain("partition", "int32", 1, 0)],
    False,
)
_GROUP_KEY = StructSchema("GroupMetadataKey", GroupMetadataKey, [_plain("group", "string", 2, "")], False)
_CONSUMER_KEY = StructSchema("ConsumerGroupKey", GroupMetadataKey, [_plain("group", "string", 2, "")], False)


class _MemberKey(NamedTuple):
    """The key of a record about one member of a consumer group."""

    group: str = ""
    member_id: str = ""


_MEMBER_KEY = StructSchema(
    "ConsumerGroupMemberKey", _MemberKey, [_plain("group", "string", 2, ""), _plain("member_id", "string", 2, "")],
    False,
)  # fmt: skip


def _consumer_value(label: str, owner: type, *fields: tuple[Any, ...]) -> StructSchema:
    return StructSchema(f"{label} v{CONSUMER_VALUE_VERSION}", owner, list(fields), True)


def _partitions_of(name: str, label: str) -> tuple[Any, ...]:
    child = _consumer_value(
        label, TopicPartitionsValue, _plain("topic_id", "uuid", 0, bytes(16)),
        _plain("partitions", "int32", 0, (), array=True),
    )  # fmt: skip
    return _plain(name, "struct", 0, (), array=True, child=child)


def _subscribed_topics_schema() -> StructSchema:
    class Racks(NamedTuple):  # written by Kafka before 4.1, and not used
        partition: int = 0
        racks: Sequence[str] = ()

    label = "ConsumerGroupPartitionMetadataValue"
    racks = _consumer_value(
        label, Racks, _plain("partition", "int32", 0, 0), _plain("racks", "string", 0, (), array=True)
    )
    topic = _consumer_value(
        label, SubscribedTopic, _plain("topic_id", "uuid", 0, bytes(16)), _plain("topic_name", "string", 0, ""),
        _plain("num_partitions", "int32", 0, 0),
        _plain("partition_metadata", "struct", 0, (), array=True, child=racks),
    )  # fmt: skip
    return _consumer_value(label, SubscribedTopicsValue, _plain("topics", "struct", 0, (), array=True, child=topic))


def _member_schema() -> StructSchema:
    return _consumer_value(
        "ConsumerGroupMemberMetadataValue", ConsumerMemberValue,
        _plain("instance_id", "string", 0, None, null=True), _plain("rack_id", "string", 0, None, null=True),
        _plain("client_id", "string", 0, ""), _plain("client_host", "string", 0, ""),
        _plain("subscribed_topic_names", "string", 0, (), array=True),
        _plain("subscribed_topic_regex", "string", 0, None, null=True),
        _plain("rebalance_timeout_ms", "int32", 0, -1), _plain("server_assignor", "string", 0, None, null=True),
    )  # fmt: skip


def _assignment_schema() -> StructSchema:
    label = "ConsumerGroupCurrentMemberAssignmentValue"
    return _consumer_value(
        label, MemberAssignmentValue, _plain("member_epoch", "int32", 0, 0),
        _plain("previous_member_epoch", "int32", 0, 0), _plain("state", "int8", 0, 0),
        _partitions_of("assigned_partitions", label), _partitions_of("partitions_pending_revocation", label),
    )  # fmt: skip


_CONSUMER_VALUES: dict[ConsumerGroupRecordKind, StructSchema] = {
    ConsumerGroupRecordKind.GROUP: _consumer_value(
        "ConsumerGroupMetadataValue", EpochValue, _plain("epoch", "int32", 0, 0)
    ),
    ConsumerGroupRecordKind.PARTITIONS: _subscribed_topics_schema(),
    ConsumerGroupRecordKind.MEMBER: _member_schema(),
    ConsumerGroupRecordKind.TARGET: _consumer_value(
        "ConsumerGroupTargetAssignmentMetadataValue", EpochValue, _plain("epoch", "int32", 0, 0)
    ),
    ConsumerGroupRecordKind.MEMBER_TARGET: _consumer_value(
        "ConsumerGroupTargetAssignmentMemberValue", MemberTargetValue,
        _partitions_of("topic_partitions", "ConsumerGroupTargetAssignmentMemberValue"),
    ),
    ConsumerGroupRecordKind.ASSIGNMENT: _assignment_schema(),
}  # fmt: skip
_OFFSET_VALUES = [_offset_value_schema(version) for version in VALUE_VERSIONS]
_GROUP_VALUES = [_group_value_schema(version) for version in VALUE_VERSIONS]


def _version_of(data: bytes | memoryview, what: str) -> int:
    if len(data) < _VERSION.size:
        raise InvalidRequestError(what, "version", 0, "2 bytes", str(len(data)))
    return int(_VERSION.unpack_from(data)[0])


def decode_key(key: bytes | memoryview) -> OffsetCommitKey | GroupMetadataKey | ConsumerGroupKey | None:
    """Decode a key; None: it has a newer version, and its record can be ignored.

    Raises:
        InvalidRequestError: the key is malformed.
    """
    version = _version_of(key, "key of __consumer_offsets")
    if version in OFFSET_KEY_VERSIONS:
        offset: OffsetCommitKey = _OFFSET_KEY.decode(key, start=_VERSION.size)
        return offset
    if version == GROUP_KEY_VERSION:
        group: GroupMetadataKey = _GROUP_KEY.decode(key, start=_VERSION.size)
        return group
    if version in CONSUMER_KEY_VERSIONS:
        kind = ConsumerGroupRecordKind(version)
        schema = _MEMBER_KEY if kind in _MEMBER_KINDS else _CONSUMER_KEY
        return ConsumerGroupKey(kind, *schema.decode(key, start=_VERSION.size))
    return None


def _decode_value(schemas: list[StructSchema], value: bytes | memoryview, what: str) -> Any:
    version = _version_of(value, what)
    if version not in VALUE_VERSIONS:
        raise InvalidRequestError(what, "version", 0, f"0 to {VALUE_VERSIONS[-1]}", str(version))
    return schemas[version].decode(value, start=_VERSION.size, max_items=_MEMBERS_MAX)


def decode_offset(value: bytes | memoryview) -> OffsetCommitValue:
    """Decode a committed offset of any version.

    Raises InvalidRequestError if it is malformed, or has a newer version.
    """
    decoded: OffsetCommitValue = _decode_value(_OFFSET_VALUES, value, "OffsetCommitValue")
    return decoded._replace(topic_id=bytes(decoded.topic_id))


def decode_group(value: bytes | memoryview) -> GroupMetadataValue:
    """Decode a group of any version. Raises InvalidRequestError if it is malformed, or has a newer version."""
    decoded: GroupMetadataValue = _decode_value(_GROUP_VALUES, value, "GroupMetadataValue")
    members = tuple(
        member._replace(
            subscription=bytes(member.subscription),
            assignment=bytes(member.assignment),
            rebalance_timeout=member.rebalance_timeout or member.session_timeout,
        )
        for member in decoded.members
    )
    return decoded._replace(members=members)


def encode_offset_key(group: str, topic: str, partition: int) -> bytes:
    """Encode the key of a committed offset. Raises InvalidArgumentError if a name is too long."""
    return _VERSION.pack(OFFSET_KEY_VERSIONS[-1]) + _OFFSET_KEY.encode(OffsetCommitKey(group, topic, partition))


def encode_group_key(group: str) -> bytes:
    """Encode the key of a group. Raises InvalidArgumentError if the name is too long."""
    return _VERSION.pack(GROUP_KEY_VERSION) + _GROUP_KEY.encode(GroupMetadataKey(group))


def encode_offset(value: OffsetCommitValue, version: int | None = None) -> bytes:
    """Encode a committed offset.

    Args:
        value: the offset.
        version: version of the value; None: 4 for an offset with the id of its topic, and otherwise 3; but 1 for an
            offset with an `expire_timestamp`, as in Kafka.
    """
    if version is None:
        version = WRITTEN_VERSION if value.topic_id == NO_TOPIC_ID else _FLEXIBLE_FROM
        version = version if value.expire_timestamp < 0 else 1
    return _VERSION.pack(version) + _OFFSET_VALUES[version].encode(value)


def encode_group(value: GroupMetadataValue, version: int = WRITTEN_VERSION) -> bytes:
    """Encode a group. Raises InvalidArgumentError if a name is too long."""
    return _VERSION.pack(version) + _GROUP_VALUES[version].encode(value)


def encode_consumer_key(key: ConsumerGroupKey) -> bytes:
    """Encode the key of a record of a consumer group. Raises InvalidArgumentError if a name is too long."""
    if key.kind in _MEMBER_KINDS:
        return _VERSION.pack(key.kind) + _MEMBER_KEY.encode(_MemberKey(key.group, key.member_id))
    return _VERSION.pack(key.kind) + _CONSUMER_KEY.encode(GroupMetadataKey(key.group))


def encode_consumer_value(kind: ConsumerGroupRecordKind, value: tuple[Any, ...]) -> bytes:
    """Encode the value of a record of a consumer group; its class depends on the kind."""
    return _VERSION.pack(CONSUMER_VALUE_VERSION) + _CONSUMER_VALUES[kind].encode(value)


def decode_consumer_value(kind: ConsumerGroupRecordKind, value: bytes | memoryview) -> Any:
    """Decode the value of a record of a consumer group. Raises InvalidRequestError if it is malformed, or newer."""
    schema = _CONSUMER_VALUES[kind]
    version = _version_of(value, schema.label)
    if version != CONSUMER_VALUE_VERSION:
        raise InvalidRequestError(schema.label, "version", 0, str(CONSUMER_VALUE_VERSION), str(version))
    return schema.decode(value, start=_VERSION.size, max_items=_MEMBERS_MAX)


def encode_group_batch(
    records: Sequence[GroupRecord], timestamp_ms: int, producer: tuple[int, int] | None = None
) -> bytes:
    """Return records encoded as a record batch.

    Args:
        records: keys and values, at least one.
        timestamp_ms: timestamp of all records, ms since 1970.
        producer: id and epoch of the producer, if the records belong to its transaction; None: they do not.
    """
    body = encode_records(
        [value for _, value in records], [key for key, _ in records], [timestamp_ms] * len(records), None
    )
    producer_id, epoch = (-1, -1) if producer is None else producer
    return encode_batch(
        body, len(records), base_timestamp=timestamp_ms, max_timestamp=timestamp_ms, producer_id=producer_id,
        producer_epoch=epoch, transactional=producer is not None,
    )  # fmt: skip


_TOPICS = Struct(">hi")
_LENGTH = Struct(">h")


def subscribed_topics(metadata: bytes) -> frozenset[str] | None:
    """Return the topics of a consumer's subscription, the beginning of Kafka's ConsumerProtocolSubscription.

    Returns:
        The topics; None: the bytes are not a subscription.
    """
    if len(metadata) < _TOPICS.size:
        return None
    version, count = _TOPICS.unpack_from(metadata)
    at = _TOPICS.size
    if version < 0 or not 0 <= count <= (len(metadata) - at) // _LENGTH.size:
        return None
    topics = set()
    for _ in range(count):
        if at + _LENGTH.size > len(metadata):
            return None
        (size,) = _LENGTH.unpack_from(metadata, at)
        at += _LENGTH.size
        if size < 0 or at + size > len(metadata):
            return None
        try:
            topics.add(metadata[at : at + size].decode())
        except UnicodeDecodeError:
            return None
        at += size
    return frozenset(topics)


class LoadedBatch(NamedTuple):
    """A decoded batch of the internal partition.

    Attributes:
        base_offset: offset of its first record.
        size: size in bytes.
        producer_id: producer of the transaction that it belongs to or ends; -1: none.
        marker: whether it commits the transaction; None: the batch is not a marker.
        records: keys and values; a key may be None.
    """

    base_offset: int
    size: int
    producer_id: int
    marker: bool | None
    records: list[tuple[bytes | None, bytes | None]]


def decode_group_batch(base_offset: int, data: bytes | memoryview) -> LoadedBatch:
    """Decode a batch of the internal partition.

    Args:
        base_offset: offset of its first record.
        data: the encoded batch.

    Raises:
        InvalidRecordBatchError: the batch is damaged.
        MissingExtraError: the package of its compression codec is not installed.
    """
    marker = marker_of(data)
    if marker is not None:
        return LoadedBatch(base_offset, len(data), marker.producer_id, marker.is_commit, [])
    header, records = read_batch(data)
    pairs = [] if header.control else list(zip(records.keys(), records.values(), strict=True))
    return LoadedBatch(base_offset, len(data), header.producer_id if header.transactional else -1, None, pairs)
