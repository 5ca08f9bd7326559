"""Assignors of the broker: every partition has one owner that subscribes to its topic, members are even, little moves."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from random import Random

import pytest

from pyreplog.kafka.groups.assignors import ASSIGNORS, MemberSubscription, Partitions, TopicIdPartition
from tests.kafka.consumer_group_driver import partitions, topic_id

A, B, C = (topic_id(name) for name in "abc")


def check(
    assigned: Mapping[str, Partitions], members: Mapping[str, MemberSubscription], topics: Mapping[bytes, int]
) -> None:
    assert assigned.keys() == members.keys()
    owners = Counter(partition for each in assigned.values() for partition in each)
    assert not owners or max(owners.values()) == 1
    wanted = frozenset[bytes]().union(*(member.topics for member in members.values()))
    assert owners.keys() == {
        TopicIdPartition(topic, n) for topic in wanted & topics.keys() for n in range(topics[topic])
    }
    assert all(each.topic_id in members[name].topics for name, mine in assigned.items() for each in mine)


def draw(random: Random) -> tuple[dict[str, MemberSubscription], dict[bytes, int]]:
    topics = {topic: random.randint(0, 9) for topic in random.sample([A, B, C], random.randint(1, 3))}
    members = {}
    for number in range(random.randint(1, 6)):
        chosen = (
            set(topics) if random.random() < 0.5 else set(random.sample(sorted(topics), random.randint(0, len(topics))))
        )
        instance = f"i{number}" if random.random() < 0.3 else None
        members[f"m{number}"] = MemberSubscription(frozenset(chosen), frozenset(), instance)
    return members, topics


@pytest.mark.parametrize("name", ASSIGNORS)
def test_every_partition_has_one_owner(name: str, seed: int) -> None:
    random = Random(seed)
    for _ in range(200):
        members, topics = draw(random)
        for _ in range(3):
            assigned = ASSIGNORS[name](members, topics)
            check(assigned, members, topics)
            assert assigned == ASSIGNORS[name](dict(reversed(members.items())), topics)
            members = {name: member._replace(target=assigned[name]) for name, member in members.items()}
            assert ASSIGNORS[name](members, topics) == assigned, "nothing has changed, and so nothing moves"
            gone = random.choice(sorted(members))
            if len(members) > 1:
                del members[gone]
            members[f"new{random.random()}"] = MemberSubscription(frozenset(topics))


def test_uniform_is_even_and_moves_no_more_than_it_must(seed: int) -> None:
    random = Random(seed)
    topics = {A: random.randint(1, 9), B: random.randint(1, 9)}
    everything = frozenset(topics)
    members = {f"m{number}": MemberSubscription(everything) for number in range(random.randint(1, 6))}
    total = sum(topics.values())
    for step in range(20):
        assigned = ASSIGNORS["uniform"](members, topics)
        sizes = sorted(map(len, assigned.values()))
        assert sizes[-1] - sizes[0] <= 1 and sum(sizes) == total
        left = {each for member in members.values() for each in member.target}
        moved = sum(len(assigned[name] - member.target) for name, member in members.items())
        share = -(-total // len(members))
        excess = sum(max(len(member.target) - share, 0) for member in members.values())
        newest = [name for name, member in members.items() if not member.target]
        assert moved <= total - len(left) + excess + sum(len(assigned[name]) for name in newest)
        members = {name: member._replace(target=assigned[name]) for name, member in members.items()}
        if random.random() < 0.5 and len(members) > 1:
            del members[random.choice(sorted(members))]
        else:
            members[f"n{step}"] = MemberSubscription(everything)


def test_uniform_assignor_balances_members_with_different_subscriptions() -> None:
    members = {"both": MemberSubscription(frozenset({A, B})), "one": MemberSubscription(frozenset({A}))}
    assigned = ASSIGNORS["uniform"](members, {A: 4, B: 4})
    assert assigned == {"both": partitions("b", range(4)), "one": partitions("a", range(4))}


def test_range_assigns_topics_of_one_size_alike() -> None:
    everything = frozenset({A, B})
    members = {name: MemberSubscription(everything) for name in ("m0", "m1")}
    assert ASSIGNORS["range"](members, {A: 3, B: 3}) == {
        "m0": partitions("a", [0, 1]) | partitions("b", [0, 1]), "m1": partitions("a", [2]) | partitions("b", [2]),
    }  # fmt: skip


def test_range_keeps_what_static_members_have_when_they_restart() -> None:
    def members(first: str, second: str) -> dict[str, MemberSubscription]:
        everything = frozenset({A})
        return {
            "m0": MemberSubscription(everything),
            first: MemberSubscription(everything, instance_id="i1"),
            second: MemberSubscription(everything, instance_id="i2"),
        }

    before = ASSIGNORS["range"](members("m1", "m2"), {A: 5})
    after = ASSIGNORS["range"](members("x", "a"), {A: 5})
    assert (before["m1"], before["m2"], before["m0"]) == (after["x"], after["a"], after["m0"])
    assert before["m1"] == partitions("a", [0, 1])
