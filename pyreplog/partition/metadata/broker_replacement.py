"""Chooses brokers for the replicas of permanently dead brokers: as `replica_placement`, one replica at a time."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Set

import mmh3

from pyreplog.partition.metadata.metadata_cache import PartitionId
from pyreplog.partition.protocol.partition_state import PartitionState


def replace_brokers(
    dead: Set[str], partitions: Iterable[tuple[PartitionId, PartitionState]], racks: Mapping[str, str], limit: int
) -> dict[PartitionId, tuple[str, ...]]:  # fmt: skip
    """Choose replacements for the replicas of dead brokers.

    Each replica goes to the broker with fewest replicas, if possible in a rack without another replica of the
    partition, and has the dead one's place in the order of preference. A partition without a leader is skipped, because
    it cannot be copied. So is one that an operator reassigns, and one for which all brokers are replicas.

    Args:
        dead: brokers that are permanently dead.
        partitions: all partitions with their states, from which the loads of the brokers are counted.
        racks: broker -> its rack, "" without one: the brokers that may be chosen.
        limit: most partitions, including those whose replacement is under way.

    Returns:
        Partition -> its new replicas, the preferred leader first.
    """
    leaders: Counter[str] = Counter()
    replicas: Counter[str] = Counter()
    waiting: list[tuple[PartitionId, PartitionState]] = []
    for partition, state in partitions:
        present = state.target or state.replicas
        leaders[present[0]] += 1
        replicas.update(present)
        is_ours = not state.target or state.replaced
        if state.leader and is_ours and not dead.isdisjoint(present):
            waiting.append((partition, state))
        elif state.replaced:
            limit -= 1
    chosen: dict[PartitionId, tuple[str, ...]] = {}
    for partition, state in sorted(waiting, key=lambda item: item[0]):
        if len(chosen) >= limit:
            break
        present = state.target or state.replicas
        target = _replaced(partition, present, dead, racks, leaders, replicas)
        if target != present:
            chosen[partition] = target
            leaders[target[0]] += 1
            replicas.update(name for name in target if name not in present)
    return chosen


def _replaced(
    partition: PartitionId, present: tuple[str, ...], dead: Set[str], racks: Mapping[str, str],
    leaders: Counter[str], replicas: Counter[str],
) -> tuple[str, ...]:  # fmt: skip
    target = list(present)
    for place, name in enumerate(present):
        free = [broker for broker in racks if broker not in target and broker not in dead]
        if name not in dead or not free:
            continue
        in_rack = Counter(racks[broker] for broker in target if broker != name and racks.get(broker))
        tie = {broker: mmh3.hash(f"{partition.topic_id}/{partition.number}/{broker}", signed=False) for broker in free}
        target[place] = min(
            free,
            key=lambda broker: (
                in_rack[racks[broker]], replicas[broker], leaders[broker] if place == 0 else 0, tie[broker],
            ),
        )  # fmt: skip
    return tuple(target)
