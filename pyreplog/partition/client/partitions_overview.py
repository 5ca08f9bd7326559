"""PartitionsOverview: all partitions and brokers of a cluster at one moment, from metadata and the leaders' answers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from pyreplog.partition.partition_status import BrokerStatus, PartitionStatus
from pyreplog.partition.requests import PartitionDescription
from pyreplog.partition.topic_partition import TopicPartition


class PartitionsOverview(NamedTuple):
    """The partitions and brokers of a cluster, made by `PartitionClient.overview`.

    Attributes:
        partitions: the partitions, by topic and number.
        brokers: the brokers, by name.
        descriptions: the leaders' answers, by partition; partitions without an answer are missing.
        notes: brokers that did not answer, with the error; one line each.
    """

    partitions: tuple[PartitionStatus, ...] = ()
    brokers: tuple[BrokerStatus, ...] = ()
    descriptions: Mapping[TopicPartition, PartitionDescription] = {}
    notes: tuple[str, ...] = ()
