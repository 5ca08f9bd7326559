"""Partitions, brokers and consumer groups of a cluster, from its metadata store and its brokers."""

from __future__ import annotations

from typing import NamedTuple

from pyreplog.errors import ReplogError
from pyreplog.kafka.groups.group_status import GroupStatus
from pyreplog.kafka.groups.groups_overview import GroupsWatch
from pyreplog.metadata.store import MetadataStore
from pyreplog.net.credentials import Credentials
from pyreplog.net.handshake import Secret
from pyreplog.partition.client.partition_client import PartitionClient
from pyreplog.partition.client.partition_producer import ProducerConfig
from pyreplog.partition.metadata.topic_metadata import find_topic, list_topics
from pyreplog.partition.partition_status import BrokerStatus, PartitionStatus
from pyreplog.tables.options import ReadOptions

TIMEOUT_S = 10.0
"""A broker that does not answer in this time is unknown."""


class PartitionsSnapshot(NamedTuple):
    """Partitions, brokers and consumer groups at the moment of a report.

    Attributes:
        partitions: partitions of the chosen topics.
        brokers: all brokers.
        groups: consumer groups with an offset in a chosen topic; if all topics are chosen, all groups.
        notes: unknown parts, with the reasons; one line each.
    """

    partitions: tuple[PartitionStatus, ...] = ()
    brokers: tuple[BrokerStatus, ...] = ()
    groups: tuple[GroupStatus, ...] = ()
    notes: tuple[str, ...] = ()


def topics_of_partitions(store: MetadataStore, options: ReadOptions) -> list[str]:
    """Return the names of the topics of partitions that options choose. Raises errors of the store."""
    names = []
    for name in () if options.ledgers is not None else list_topics(store):
        is_chosen = not options.reads_topics
        if options.topics is not None:
            is_chosen = name in options.topics
        elif options.topics_pattern is not None:
            is_chosen = options.topics_pattern.fullmatch(name) is not None
        topic = find_topic(store, name) if is_chosen else None
        if topic is not None and not topic.is_deleted:
            names.append(name)
    return names


def partitions_snapshot(
    url: str, credentials: Credentials, topics: list[str], *, is_all: bool, as_of_us: int, window_ms: int
) -> PartitionsSnapshot:
    """Ask the brokers of a cluster. A request that a broker does not answer is no error: `notes` names it.

    Args:
        url: URL of the metadata store.
        credentials: credentials for the brokers.
        topics: names of the chosen topics.
        is_all: whether these are all topics.
        as_of_us: the moment, microseconds since 1970.
        window_ms: milliseconds over which rates are computed.

    Raises:
        ConfigError: a file with credentials cannot be read.
    """
    secret, tls = Secret.of(credentials.read_secret()), credentials.context()
    try:
        config = ProducerConfig(timeout_s=TIMEOUT_S)
        with PartitionClient.connect(url, secret=secret, tls=tls, config=config) as client:
            seen = GroupsWatch(client, window_ms / 1000).sample(as_of_us, None if is_all else topics)
    except ReplogError as error:
        return PartitionsSnapshot(notes=(f"could not ask: partitions: {error}",))
    notes = tuple(f"could not ask: {note}" for note in seen.notes)
    return PartitionsSnapshot(seen.overview.partitions, seen.overview.brokers, seen.groups, notes)
