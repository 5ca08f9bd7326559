"""Chooses the replicas of a topic's partitions: leaders and replicas are balanced, and spread over racks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

import mmh3

from pyreplog.errors import InvalidArgumentError


class ReplicaCounts:
    """The numbers of replicas of brokers, updated partition by partition. Not for several threads at once.

    Attributes:
        leaders: broker -> number of partitions of which it is the preferred leader.
        replicas: broker -> number of its replicas.
    """

    def __init__(self) -> None:
        self.leaders: Counter[str] = Counter()
        self.replicas: Counter[str] = Counter()
        self._present: dict[str, dict[int, tuple[str, ...]]] = {}  # replicas of the partitions, by topic id and number

    def set(self, topic_id: str, partition: int, replicas: tuple[str, ...]) -> None:
        """Note the present replicas of a partition, the preferred leader first; (): it was deleted."""
        present = self._present.setdefault(topic_id, {})
        if before := present.pop(partition, ()):
            self.leaders[before[0]] -= 1
            self.replicas.subtract(before)
        if replicas:
            present[partition] = replicas
            self.leaders[replicas[0]] += 1
            self.replicas.update(replicas)

    def remove_topic(self, topic_id: str) -> None:
        """Note that a topic was deleted."""
        for partition in list(self._present.get(topic_id, ())):
            self.set(topic_id, partition, ())
        self._present.pop(topic_id, None)


def place_replicas(
    topic_id: str, partitions: Iterable[int], replication_factor: int, racks: Mapping[str, str],
    present: ReplicaCounts | None = None, dead: Mapping[str, str] | None = None,
) -> dict[int, tuple[str, ...]]:  # fmt: skip
    """Choose the replicas of new partitions, the preferred leader first.

    The first replica goes to the broker that is the preferred leader of fewest partitions, each other one to the broker
    with fewest replicas, if possible in a rack without another replica of the partition. Ties are broken by a hash of
    the partition, so that all controllers choose the same brokers. (Kafka assigns brokers round-robin, beginning with a
    random one, regardless of their loads.)

    Args:
        topic_id: id of the topic.
        partitions: numbers of the new partitions.
        replication_factor: replicas of each.
        racks: broker -> its rack, "" without one: the brokers that may be chosen.
        present: replicas of the existing partitions of all topics; None: no partition exists. It is not changed.
        dead: further brokers and their racks, which are chosen only if there are too few others, and never as the
            preferred leader; None: there are none.

    Returns:
        Partition -> names of brokers.

    Raises:
        InvalidArgumentError: there are fewer brokers than replicas.
    """
    spare = dead or {}
    if not racks or replication_factor > len(racks) + len(spare):
        raise InvalidArgumentError(
            f"replication_factor: expected at most {len(racks) + len(spare)}, the number of brokers, of which "
            f"{len(racks)} are alive, found {replication_factor}"
        )
    counts = ReplicaCounts() if present is None else present
    leaders, replicas = counts.leaders.copy(), counts.replicas.copy()
    placed = {}
    for partition in sorted(partitions):
        tie = {broker: mmh3.hash(f"{topic_id}/{partition}/{broker}", signed=False) for broker in (*racks, *spare)}
        chosen = [min(racks, key=lambda broker: (leaders[broker], replicas[broker], tie[broker]))]
        while len(chosen) < replication_factor:
            known = racks if len(chosen) < len(racks) else {**racks, **spare}
            in_rack = Counter(known[broker] for broker in chosen if known[broker])
            chosen.append(
                min(
                    (broker for broker in known if broker not in chosen),
                    key=lambda broker: (in_rack[known[broker]], replicas[broker], leaders[broker], tie[broker]),
                )
            )
        leaders[chosen[0]] += 1
        replicas.update(chosen)
        placed[partition] = tuple(chosen)
    return placed
