"""Writes tests/golden/partition-metadata-v2.json: values that the metadata store keeps of partitions.

Run it once for a new version of the format, never again for an old one: old values must stay readable.
"""

from __future__ import annotations

import json
from pathlib import Path

from pyreplog.metadata.values import MetadataValue
from pyreplog.partition.metadata.broker_registration import BrokerAvailability, BrokerIdentity, BrokerMetadata
from pyreplog.partition.metadata.topic_metadata import TopicMetadata
from pyreplog.partition.protocol.epochs import LeaderEpoch
from pyreplog.partition.protocol.partition_state import Member, PartitionState

VERSION = 2
VALUES: dict[str, MetadataValue] = {
    "topic": TopicMetadata(
        topic_id="00112233445566778899aabbccddeeff", partitions=6, replication_factor=3, min_isr=2, requires_sync=True,
        unclean_election=True, assignment={0: ("a", "b", "c"), 5: ("c", "a", "b")}, created_us=1_750_000_000_000_000,
        is_deleted=True, settings={"retention.ms": 604_800_000, "message.timestamp.type": "LogAppendTime"},
    ),
    "first state": PartitionState(("a", "b"), (Member("a", 1), Member("b", 1)), 2),
    "state": PartitionState(
        ("c", "a", "b"), (Member("a", 3),), 2, (Member("b", 1), Member("c", 7)), "a", LeaderEpoch(9, "a"), ("c", "b"),
        True, ("b", "a"), ("a",),
    ),
    "state without a leader": PartitionState(
        ("a", "b"), (Member("b", 2),), 1, (), "", LeaderEpoch(4, "a"), (), False
    ),
    "broker": BrokerMetadata(directory="ffeeddccbbaa99887766554433221100", incarnation=4, rack="north"),
    "availability": BrokerAvailability(incarnation=4, address="[::1]:9093", is_stopping=True),
}  # fmt: skip
EARLIER: dict[str, dict[str, object]] = {"topic": {"settings": {}}, "state": {"original": (), "replaced": ()}}
"""What version 1 did not have, and its readers do without."""
IDENTITY = BrokerIdentity("broker-1", "ffeeddccbbaa99887766554433221100", "00" * 16, 4, is_stored=True)


def main() -> None:
    path = Path(__file__).with_name(f"partition-metadata-v{VERSION}.json")
    assert not path.exists(), f"{path} is there: never write it again"
    values = {name: json.loads(value.encode()) for name, value in VALUES.items()}
    path.write_text(json.dumps({**values, "identity": IDENTITY.encode().decode()}, indent=1) + "\n")


if __name__ == "__main__":
    main()
