"""Rules of delivery that hold for each type of subscription, in random runs."""

from __future__ import annotations

import pytest

from tests.topic.dispatch_simulation import Simulation

USUAL = ("publish", "flow", "flow", "ack", "ack", "read", "read", "read", "attach", "detach", "time")
REWINDS = (*USUAL, "rewind", "redeliver", "fail", "foreign")
MOVES = (*REWINDS, "skip", "cumulative", "seek")
REFUSALS = (*REWINDS, "nack", "nack", "dead", "delay", "late")
TYPES = ("exclusive", "failover", "shared", "key_shared")
NARROW = {"max_unacked": 60, "max_unacked_consumer": 25}


def run(seed: int, acts: tuple[str, ...], **settings: object) -> None:
    simulation = Simulation(seed, acts, **settings)
    for _ in range(300):
        simulation.step()
    simulation.drain()


@pytest.mark.parametrize("kind", TYPES)
@pytest.mark.parametrize("seed", range(12))
def test_rules_of_delivery_hold_while_consumers_come_and_go(kind: str, seed: int) -> None:
    run(seed, USUAL, type=kind, **(NARROW if seed % 2 else {}))


@pytest.mark.parametrize("kind", TYPES)
@pytest.mark.parametrize("seed", range(12))
def test_rules_of_delivery_hold_with_rewinds_and_failed_reads(kind: str, seed: int) -> None:
    run(seed, REWINDS, type=kind, **(NARROW if seed % 2 else {}))


@pytest.mark.parametrize("kind", TYPES)
@pytest.mark.parametrize("seed", range(12))
def test_rules_of_delivery_hold_with_random_skips_and_seeks(kind: str, seed: int) -> None:
    run(seed, MOVES, type=kind, **(NARROW if seed % 2 else {}))


@pytest.mark.parametrize("kind", TYPES)
@pytest.mark.parametrize("seed", range(12))
def test_refusals_delays_and_dead_letters(kind: str, seed: int) -> None:
    times = {"ack_timeout_ms": 2000} if seed % 3 == 0 else {}
    more = {"max_redeliveries": seed % 4} if seed % 2 else {}
    run(seed, REFUSALS, type=kind, nack_min_ms=seed % 2 * 100, **NARROW, **times, **more)


@pytest.mark.parametrize("kind", ("shared", "key_shared"))
@pytest.mark.parametrize("seed", range(24))
def test_rooms_of_dead_letters_are_full(kind: str, seed: int) -> None:
    """Messages that find no room in the dead-letter topic are tried again later."""
    room = {"max_unacked": 4 + seed % 3 * 8, "max_unacked_consumer": 4 + seed % 2 * 20}
    acts = (
        "publish",
        "publish",
        "flow",
        "flow",
        "read",
        "read",
        "nack",
        "nack",
        "nack",
        "attach",
        "detach",
        "ack",
        "time",
    )
    run(seed, (*acts, "dead")[seed % 2 :], type=kind, nack_min_ms=0, max_redeliveries=seed % 3, **room)
