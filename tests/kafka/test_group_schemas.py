"""Records of `__consumer_offsets`: Kafka's keys and values, as they always were, and what is no record."""

from __future__ import annotations

import json
import struct
from pathlib import Path

import pytest

from pyreplog.errors import InvalidArgumentError, InvalidRequestError
from pyreplog.kafka.groups.group_records import (
    VALUE_VERSIONS,
    ConsumerGroupRecordKind,
    GroupMetadataKey,
    OffsetCommitKey,
    OffsetCommitValue,
    decode_consumer_value,
    decode_group,
    decode_group_batch,
    decode_key,
    decode_offset,
    encode_group,
    encode_group_batch,
    encode_group_key,
    encode_offset,
    encode_offset_key,
    subscribed_topics,
)
from tests.golden import consumer_group_records as consumers
from tests.golden.group_records import EMPTY, GROUP, OFFSET, VERSION, samples
from tests.kafka.group_driver import subscription
from tests.simulation.groups.log import marker

GOLDEN = {
    name: bytes.fromhex(data)
    for name, data in json.loads(
        (Path(__file__).parents[1] / "golden" / f"group-records-v{VERSION}.json").read_text()
    ).items()
}


def test_records_are_read_and_written() -> None:
    assert samples() == GOLDEN
    assert decode_key(GOLDEN["offset key"]) == OffsetCommitKey("g", "größe", 11)
    assert decode_key(GOLDEN["group key"]) == GroupMetadataKey("g")


@pytest.mark.parametrize("version", VALUE_VERSIONS)
def test_every_version_of_a_value_is_read(version: int) -> None:
    offset = decode_offset(GOLDEN[f"offset {version}"])
    assert (offset.offset, offset.metadata, offset.commit_timestamp) == (OFFSET.offset, OFFSET.metadata, OFFSET[3])
    assert offset.leader_epoch == (OFFSET.leader_epoch if version >= 3 else -1)
    assert offset.expire_timestamp == (OFFSET.expire_timestamp if version == 1 else -1)
    group = decode_group(GOLDEN[f"group {version}"])
    assert group[:4] == GROUP[:4] and decode_group(GOLDEN[f"empty group {version}"]) == EMPTY
    for member, wanted in zip(group.members, GROUP.members, strict=True):
        expected = wanted._replace(group_instance_id=wanted.group_instance_id if version >= 3 else None)
        if version == 0:
            expected = expected._replace(rebalance_timeout=wanted.session_timeout)
        assert member == expected


def test_the_table_of_the_format() -> None:
    """FORMAT.md, "Records of groups", field by field: what Kafka writes."""

    def text(value: str | None) -> bytes:
        data = (value or "").encode()
        return struct.pack(">h", -1) if value is None else struct.pack(">h", len(data)) + data

    def data(value: bytes) -> bytes:
        return struct.pack(">i", len(value)) + value

    assert GOLDEN["offset key"] == struct.pack(">h", 1) + text("g") + text("größe") + struct.pack(">i", 11)
    assert GOLDEN["group key"] == struct.pack(">h", 2) + text("g")
    assert GOLDEN["offset 3"] == (
        struct.pack(">hqi", 3, OFFSET.offset, OFFSET.leader_epoch)
        + text(OFFSET.metadata)
        + struct.pack(">q", OFFSET[3])
    )
    members = b"".join(
        text(member.member_id) + text(member.group_instance_id) + text(member.client_id) + text(member.client_host)
        + struct.pack(">ii", member.rebalance_timeout, member.session_timeout)
        + data(member.subscription) + data(member.assignment)
        for member in GROUP.members
    )  # fmt: skip
    assert GOLDEN["group 3"] == (
        struct.pack(">h", 3) + text("consumer") + struct.pack(">i", 41) + text("range") + text("c-1")
        + struct.pack(">qi", GROUP.current_state_timestamp, 2) + members
    )  # fmt: skip


def test_an_offset_with_the_id_of_its_topic_is_version_4() -> None:
    offset = OffsetCommitValue(5, 2, "m", 1_000, topic_id=bytes(range(16)))
    encoded = encode_offset(offset)
    # the id is the tagged field 0, of 16 bytes
    assert encoded == struct.pack(">hqi", 4, 5, 2) + b"\2m" + struct.pack(">q", 1_000) + b"\1\0\x10" + offset.topic_id
    assert decode_offset(encoded) == offset
    assert decode_offset(encode_offset(offset, 3)) == offset._replace(topic_id=bytes(16))


def test_an_offset_that_expires_by_itself_is_version_1() -> None:
    assert encode_offset(OFFSET)[:2] == b"\0\1" and decode_offset(encode_offset(OFFSET)).expire_timestamp == OFFSET[4]
    assert encode_offset(OFFSET._replace(expire_timestamp=-1))[:2] == b"\0\3"


@pytest.mark.parametrize("name", [name for name in GOLDEN if "key" not in name])
def test_every_cut_of_a_value_is_refused(name: str) -> None:
    decode = decode_offset if name.startswith("offset") else decode_group
    for size in range(len(GOLDEN[name])):
        with pytest.raises(InvalidRequestError):
            decode(GOLDEN[name][:size])


@pytest.mark.parametrize("name", ["offset key", "group key"])
def test_every_cut_of_a_key_is_refused(name: str) -> None:
    for size in range(len(GOLDEN[name])):
        with pytest.raises(InvalidRequestError):
            decode_key(GOLDEN[name][:size])


def test_a_count_is_not_believed() -> None:
    at = GOLDEN["empty group 3"].rindex(struct.pack(">i", 0))
    for count in (1, 1 << 20, (1 << 31) - 1):
        with pytest.raises(InvalidRequestError):
            decode_group(GOLDEN["empty group 3"][:at] + struct.pack(">i", count))


def test_group_records_of_later_versions_are_not_guessed() -> None:
    """A key is of another kind of groups, which is not for this coordinator; a value must not be guessed."""
    assert decode_key(b"\0\x09whatever") is None
    for decode in (decode_offset, decode_group):
        with pytest.raises(InvalidRequestError):
            decode(b"\0\5" + GOLDEN["group 3"][2:])
        with pytest.raises(InvalidRequestError):
            decode(b"\xff\xff" + GOLDEN["group 3"][2:])


def test_a_name_that_is_too_long_is_refused() -> None:
    with pytest.raises(InvalidArgumentError):
        encode_group_key("g" * 40_000)
    with pytest.raises(InvalidArgumentError):
        encode_offset_key("g", "t" * 40_000, 0)
    with pytest.raises(InvalidArgumentError):
        encode_group(GROUP._replace(leader="x" * 40_000))


def test_batches_and_markers_of_consumer_offsets_are_decoded() -> None:
    records = [(encode_offset_key("g", "t", 1), encode_offset(OffsetCommitValue(5))), (encode_group_key("g"), None)]
    plain = decode_group_batch(7, encode_group_batch(records, 1_000))
    assert (plain.base_offset, plain.producer_id, plain.marker, plain.records) == (7, -1, None, records)
    transactional = decode_group_batch(0, encode_group_batch(records[:1], 1_000, (4, 2)))
    assert (transactional.producer_id, transactional.marker) == (4, None)
    for committed in (True, False):
        ended = decode_group_batch(0, marker(4, committed=committed))
        assert (ended.producer_id, ended.marker, ended.records) == (4, committed, [])


def test_topics_of_a_subscription_are_decoded() -> None:
    assert subscribed_topics(subscription("a", "größe")) == {"a", "größe"}
    assert subscribed_topics(subscription()) == frozenset()
    whole = subscription("orders", "bills")
    for size in range(len(whole) - 4):
        assert subscribed_topics(whole[:size]) is None
    assert subscribed_topics(b"\0\0\x7f\xff\xff\xff" + b"\0" * 100) is None
    assert subscribed_topics(b"\0\0\0\0\0\1\0\2\xff\xff") is None


# ---- consumer groups -----------------------------------------------------------------------------------------------

MODERN = {
    name: bytes.fromhex(data)
    for name, data in json.loads(
        (Path(__file__).parents[1] / "golden" / f"consumer-group-records-v{consumers.VERSION}.json").read_text()
    ).items()
}


@pytest.mark.parametrize("kind", ConsumerGroupRecordKind)
def test_records_of_consumer_groups_are_read_and_written(kind: ConsumerGroupRecordKind) -> None:
    assert consumers.samples() == MODERN
    key, value = MODERN[f"key {kind.name}"], MODERN[f"value {kind.name}"]
    assert decode_key(key) == consumers.key_of(kind) and decode_consumer_value(kind, value) == consumers.VALUES[kind]
    for size in range(len(value)):
        with pytest.raises(InvalidRequestError):
            decode_consumer_value(kind, value[:size])
    for size in range(len(key)):
        with pytest.raises(InvalidRequestError):
            decode_key(key[:size])
    with pytest.raises(InvalidRequestError):
        decode_consumer_value(kind, b"\0\1" + value[2:])
    assert decode_consumer_value(kind, value[:-1] + b"\1\x09\2ab") == consumers.VALUES[kind], "a tag of later versions"


def test_the_table_of_records_of_consumer_groups() -> None:
    """FORMAT.md, "Records of groups": what Kafka writes."""
    name = struct.pack(">h", 1) + b"g"
    member = struct.pack(">h", 6) + "näher".encode()
    for kind in ConsumerGroupRecordKind:
        is_member = kind.name in ("MEMBER", "MEMBER_TARGET", "ASSIGNMENT")
        assert MODERN[f"key {kind.name}"] == struct.pack(">h", kind) + name + (member if is_member else b"")
    epoch = struct.pack(">hi", 0, 41) + b"\0"
    assert MODERN["value GROUP"] == epoch
    orders = consumers.ORDERS + b"\4" + struct.pack(">iii", 0, 1, 2) + b"\0"
    bills = consumers.BILLS + b"\2" + struct.pack(">i", 1 << 20) + b"\0"
    owned = b"\3" + orders + bills
    assert MODERN["value MEMBER_TARGET"] == b"\0\0" + owned + b"\0"
    revoking = b"\2" + consumers.ORDERS + b"\2" + struct.pack(">i", 7) + b"\0"
    assert MODERN["value ASSIGNMENT"] == struct.pack(">hiib", 0, 40, 39, 1) + owned + revoking + b"\0"
    assert MODERN["value MEMBER"] == (
        b"\0\0\2i\0\2c\x0b/127.0.0.1" + b"\3\x08" + "größe".encode() + b"\7orders" + b"\0"
        + struct.pack(">i", 300_000) + b"\x08uniform\0"
    )  # fmt: skip
    assert MODERN["value PARTITIONS"] == (
        b"\0\0\3" + consumers.ORDERS + b"\7orders" + struct.pack(">i", 3) + b"\1\0"
        + consumers.BILLS + b"\x08" + "größe".encode() + struct.pack(">i", 1) + b"\1\0" + b"\0"
    )  # fmt: skip
