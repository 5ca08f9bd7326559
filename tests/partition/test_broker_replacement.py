"""Which brokers take the replicas of dead ones: other racks, even loads, few at once."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from pyreplog.partition.metadata.broker_replacement import replace_brokers
from pyreplog.partition.metadata.metadata_cache import PartitionId
from pyreplog.partition.metadata.replica_placement import place_replicas
from pyreplog.partition.protocol.election import reassign
from pyreplog.partition.protocol.partition_state import PartitionState

from .replicas import members


def state(replicas: str) -> PartitionState:
    """Of a partition that its last replica leads."""
    return PartitionState(tuple(replicas), members(*replicas)).led_by(replicas[-1])


def partition(number: int) -> PartitionId:
    return PartitionId("t", number)


def test_another_rack_before_fewer_replicas() -> None:
    racks = {"a": "one", "b": "two", "d": "one", "e": "three"}
    others = [(partition(at), state("e")) for at in range(1, 5)]
    chosen = replace_brokers({"c"}, [(partition(0), state("cab")), *others], racks, 10)
    assert chosen == {partition(0): ("e", "a", "b")}


def test_leaderless_reassigned_and_unreplaceable_replicas_are_left() -> None:
    racks = {"a": "", "b": "", "d": ""}
    leaderless = replace(state("ca"), leader="")
    ordered = reassign(state("ca"), ("a", "c", "b"))
    everywhere = state("abdc").led_by("a")
    present = [
        (partition(0), leaderless),
        (partition(1), ordered),
        (partition(2), everywhere),
        (partition(3), state("a")),
    ]
    assert replace_brokers({"c"}, present, racks, 10) == {}


def test_broker_that_died_during_its_own_replacement_is_replaced() -> None:
    moving = reassign(state("ca"), ("b", "a"), replaced=("c",))
    racks = {"a": "", "d": ""}
    assert replace_brokers({"b", "c"}, [(partition(0), moving)], racks, 10) == {partition(0): ("d", "a")}
    assert replace_brokers({"c"}, [(partition(0), moving)], {**racks, "b": ""}, 10) == {}


def test_replacements_in_progress_count_against_the_limit() -> None:
    moving = [(partition(at), reassign(state("ca"), ("b", "a"), replaced=("c",))) for at in range(3)]
    waiting = [(partition(at), state("ca")) for at in range(3, 9)]
    chosen = replace_brokers({"c"}, [*moving, *waiting], {"a": "", "b": "", "d": ""}, 5)
    assert [*chosen] == [partition(3), partition(4)]


@given(st.integers(2, 7), st.integers(1, 30), st.integers(1, 4), st.integers(1, 4), st.integers(0, 20))
def test_replacements_of_dead_brokers_keep_loads_even(
    brokers: int, partitions: int, factor: int, racks: int, seed: int
) -> None:
    names = {f"b{at}": f"r{at % racks}" for at in range(brokers)}
    factor = min(factor, brokers - 1)
    placed = place_replicas(str(seed), range(partitions), factor, names)
    dead = "b0"
    states = [
        (PartitionId(str(seed), number), PartitionState(each, members(*each)).led_by(each[-1]))
        for number, each in placed.items()
    ]
    alive = {name: rack for name, rack in names.items() if name != dead}
    chosen = replace_brokers({dead}, states, alive, partitions)
    for at, each in states:
        after = chosen.get(at, each.replicas)
        assert dead not in after and len({*after}) == factor
        assert [name for name in after if name in each.replicas] == [name for name in each.replicas if name != dead]
        kept = {names[name] for name in each.replicas if name != dead}
        free = {names[name] for name in alive if name not in each.replicas}
        if dead in each.replicas and free - kept:
            assert {names[name] for name in after} - kept, "a rack that has none of it, if there is one"
