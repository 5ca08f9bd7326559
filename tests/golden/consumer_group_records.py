"""Writes tests/golden/consumer-group-records-v1.json: keys and values of consumer groups in `__consumer_offsets`.

Run it once for a new version of the file, never again for an old one: old bytes must stay readable.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

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
    encode_consumer_key,
    encode_consumer_value,
)

VERSION = 1
Kind = ConsumerGroupRecordKind
ORDERS, BILLS = bytes(range(16)), bytes(range(16, 32))
OWNED = (TopicPartitionsValue(ORDERS, (0, 1, 2)), TopicPartitionsValue(BILLS, (1 << 20,)))
VALUES: dict[ConsumerGroupRecordKind, tuple[Any, ...]] = {
    Kind.GROUP: EpochValue(41),
    Kind.PARTITIONS: SubscribedTopicsValue((SubscribedTopic(ORDERS, "orders", 3), SubscribedTopic(BILLS, "größe", 1))),
    Kind.MEMBER: ConsumerMemberValue("i", None, "c", "/127.0.0.1", ("größe", "orders"), None, 300_000, "uniform"),
    Kind.TARGET: EpochValue(40),
    Kind.MEMBER_TARGET: MemberTargetValue(OWNED),
    Kind.ASSIGNMENT: MemberAssignmentValue(40, 39, 1, OWNED, (TopicPartitionsValue(ORDERS, (7,)),)),
}
MEMBERS = (Kind.MEMBER, Kind.MEMBER_TARGET, Kind.ASSIGNMENT)


def key_of(kind: ConsumerGroupRecordKind) -> ConsumerGroupKey:
    """Return the key of a sample."""
    return ConsumerGroupKey(kind, "g", "näher" if kind in MEMBERS else "")


def samples() -> dict[str, bytes]:
    """Return what the file holds, by name."""
    keys = {f"key {kind.name}": encode_consumer_key(key_of(kind)) for kind in Kind}
    return keys | {f"value {kind.name}": encode_consumer_value(kind, value) for kind, value in VALUES.items()}


def main() -> None:
    path = Path(__file__).with_name(f"consumer-group-records-v{VERSION}.json")
    assert not path.exists(), f"{path} is there: never write it again"
    path.write_text(json.dumps({name: data.hex() for name, data in samples().items()}, indent=1) + "\n")


if __name__ == "__main__":
    main()
