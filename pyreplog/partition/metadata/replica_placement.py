"""Which brokers replicate the partitions of a topic: even loads of leaders and of replicas, racks apart."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

import mmh3

from pyreplog.errors import InvalidArgumentError


def place_replicas(
    topic_id: str,
    partitions: Iterable[int],
    replication_factor: int,
    racks: Mapping[str, str],
    present: Iterable[tuple[str, ...]] = (),
) -> dict[int, tuple[str, ...]]:
    """Choose the replicas of new partitions, the preferred leader first.

    The first replica goes to the broker that is the preferred leader of fewest partitions, each other one to the
    broker with fewest replicas in a rack that has none of the partition yet, so far as there are racks. Where that
    leaves a choice, a hash of the partition decides, so that all controllers choose the same. (Kafka deals the brokers
    out in turn, from a random one on, and does not look at what they have.)

    Args:
        topic_id: id of the topic.
        partitions: numbers of the new partitions.
        replication_factor: replicas of each.
        racks: broker -> its rack, "" if it has none: the brokers that may be chosen.
        present: replicas of partitions that exist, of all topics.

    Returns:
        Partition -> names of brokers.

    Raises:
        InvalidArgumentError: there are fewer brokers than replicas.
    """
    if replication_factor > len(racks):
        raise InvalidArgumentError(
            f"replication_factor: expected at most {len(racks)}, the number of brokers, found {replication_factor}"
        )
    leaders: Counter[str] = Counter()
    replicas: Counter[str] = Counter()
    for members in present:
        leaders[members[0]] += 1
        replicas.update(members)
    placed = {}
    for partition in sorted(partitions):
        tie = {broker: mmh3.hash(f"{topic_id}/{partition}/{broker}", signed=False) for broker in racks}
        chosen = [min(racks, key=lambda broker: (leaders[broker], replicas[broker], tie[broker]))]
        while len(chosen) < replication_factor:
            in_rack = Counter(racks[broker] for broker in chosen if racks[broker])
            chosen.append(
                min(
                    (broker for broker in racks if broker not in chosen),
                    key=lambda broker: (in_rack[racks[broker]], replicas[broker], leaders[broker], tie[broker]),
                )
            )
        leaders[chosen[0]] += 1
        replicas.update(chosen)
        placed[partition] = tuple(chosen)
    return placed
