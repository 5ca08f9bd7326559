"""Server-side assignors of consumer groups (KIP-848): pure functions from subscriptions to assignments."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Set
from typing import NamedTuple


class TopicIdPartition(NamedTuple):
    """A partition, identified by the topic's id: a topic may be deleted and created again under the same name.

    Attributes:
        topic_id: id of the topic, 16 bytes.
        partition: number of the partition.
    """

    topic_id: bytes
    partition: int


Partitions = frozenset[TopicIdPartition]


class MemberSubscription(NamedTuple):
    """The input of an assignor for one member.

    Attributes:
        topics: ids of the existing topics to which it subscribes.
        target: its partitions in the previous target assignment.
        instance_id: instance id of a static member; None: the member is dynamic.
    """

    topics: Set[bytes]
    target: Partitions = frozenset()
    instance_id: str | None = None


Assignor = Callable[[Mapping[str, MemberSubscription], Mapping[bytes, int]], dict[str, Partitions]]
"""Takes subscriptions by member id and numbers of partitions by topic id; returns partitions by member id."""


def assign_range(members: Mapping[str, MemberSubscription], topics: Mapping[bytes, int]) -> dict[str, Partitions]:
    """Assign each subscriber of a topic a range of its partitions, so that topics of equal size are co-partitioned.

    Static members come first, ordered by instance id, so that a restart of one moves no partitions.

    Args:
        members: subscriptions by member id.
        topics: numbers of partitions by topic id.

    Returns:
        Partitions of every member, by member id.
    """
    ordered = sorted(members, key=lambda name: _range_order(name, members[name]))
    assigned: dict[str, set[TopicIdPartition]] = {name: set() for name in members}
    for topic, count in topics.items():
        subscribers = [name for name in ordered if topic in members[name].topics]
        if not subscribers:
            continue
        share, extra = divmod(count, len(subscribers))
        start = 0
        for at, name in enumerate(subscribers):
            end = start + share + (at < extra)
            assigned[name].update(TopicIdPartition(topic, number) for number in range(start, end))
            start = end
    return {name: frozenset(partitions) for name, partitions in assigned.items()}


def _range_order(name: str, member: MemberSubscription) -> tuple[bool, str]:
    return member.instance_id is None, name if member.instance_id is None else member.instance_id


def assign_uniform(members: Mapping[str, MemberSubscription], topics: Mapping[bytes, int]) -> dict[str, Partitions]:
    """Assign all members equally many partitions, and move as few partitions as possible.

    If all members subscribe to the same topics, their numbers of partitions differ by at most one. Otherwise no single
    move from one member to another would make the numbers more equal.

    Args:
        members: subscriptions by member id.
        topics: numbers of partitions by topic id.

    Returns:
        Partitions of every member, by member id.
    """
    assigned, free = _keep(members, topics)
    subscribers = {topic: [name for name in sorted(members) if topic in members[name].topics] for topic in topics}
    for partition in sorted(free, key=lambda each: (len(subscribers[each.topic_id]), each)):
        candidates = subscribers[partition.topic_id]
        if candidates:
            assigned[min(candidates, key=lambda name: len(assigned[name]))].add(partition)
    while _even_out(assigned, subscribers):
        pass
    return {name: frozenset(partitions) for name, partitions in assigned.items()}


def _keep(
    members: Mapping[str, MemberSubscription], topics: Mapping[bytes, int]
) -> tuple[dict[str, set[TopicIdPartition]], set[TopicIdPartition]]:
    """Return the partitions that members keep of their targets, at most a fair share, and the unassigned ones."""
    free = {TopicIdPartition(topic, number) for topic, count in topics.items() for number in range(count)}
    total, assigned = len(free), dict[str, set[TopicIdPartition]]()
    is_homogeneous = len({frozenset(member.topics) for member in members.values()}) <= 1
    share, extra = divmod(total, len(members) or 1)
    # Members that may keep the most get the extra partitions, so that these do not move.
    for name in sorted(members, key=lambda name: (-len(members[name].target), name)):
        member = members[name]
        kept = sorted(each for each in member.target & free if each.topic_id in member.topics)
        if is_homogeneous and len(kept) > share:
            kept = kept[: share + (extra > 0)]
            extra -= len(kept) > share
        assigned[name] = set(kept)
        free -= assigned[name]
    return assigned, free


def _even_out(assigned: dict[str, set[TopicIdPartition]], subscribers: Mapping[bytes, list[str]]) -> bool:
    """Move partitions from members with more to members with fewer. Returns whether one was moved."""
    has_moved, least = False, min(map(len, assigned.values()), default=0)
    for name in sorted(assigned, key=lambda name: (-len(assigned[name]), name)):
        mine = assigned[name]
        if len(mine) - least <= 1:  # members are in descending order of their numbers
            break
        for partition in sorted(mine):
            other = min(subscribers[partition.topic_id], key=lambda name: len(assigned[name]))
            if len(mine) - len(assigned[other]) > 1:
                mine.remove(partition)
                assigned[other].add(partition)
                has_moved = True
    return has_moved


ASSIGNORS: Mapping[str, Assignor] = {"uniform": assign_uniform, "range": assign_range}
"""Assignors by the name that clients send (`group.remote.assignor`)."""
