"""Failures drawn at random, beside the model on paper: rates are so high that ledgers are lost.

The simulation counts few coincidences of failures, each of which takes many ledgers. So the model is to lie within the
95 % interval, widened by a stated factor for what the model simplifies.
"""

from __future__ import annotations

import math
from typing import Any

import pytest

from pyreplog.autorecovery.durability_model import PlanInputs, loss_rates, make_plan
from pyreplog.autorecovery.durability_simulation import DurabilitySimulation, SimulatedDurability
from pyreplog.autorecovery.poisson_interval import Interval
from pyreplog.errors import ConfigError
from tests.thorough import one_in

FACTOR = 1.5
HIGH: dict[str, Any] = {
    "bookies": 30, "racks": 10, "ledgers": 1500, "ledger_bytes": 1e7, "operator_s": 3600.0, "outages_per_year": 0.0,
    "disk_failures_per_year": 0.0, "node_failures_per_year": 0.0, "rack_failures_per_year": 0.0,
}  # fmt: skip


def inputs(**settings: Any) -> PlanInputs:
    """Disks are as full as they would be: new bookies get ledgers by their free space."""
    given = {**HIGH, **settings}
    stored = given["ledgers"] * given["ledger_bytes"] * given.get("write_quorum", 3)
    return PlanInputs(**{"disk_bytes": 2.2 * stored / given["bookies"], **given})


def simulate(years: float, seed: int = 1, raised: float = 1.0, **settings: Any) -> SimulatedDurability:
    return DurabilitySimulation(inputs(**settings), seed=seed, raised=raised).run(years)


def agrees(expected: float, interval: Interval) -> bool:
    return interval.low / FACTOR <= expected <= interval.high * FACTOR and interval.high < 8 * interval.low


TWO = {"write_quorum": 2, "ack_quorum": 1}
CASES: dict[str, tuple[float, dict[str, Any]]] = {
    "two copies, bookies": (20, {"ensemble": 2, "node_failures_per_year": 15, **TWO}),
    "two copies, racks": (15, {"ensemble": 2, "rack_failures_per_year": 30, **TWO}),
    "two of three, bookies and racks": (
        15, {"ensemble": 3, "node_failures_per_year": 10, "rack_failures_per_year": 10, **TWO},
    ),
    "three copies, bookies": (0.5, {"node_failures_per_year": 500}),
    "three copies, racks": (1.5, {"rack_failures_per_year": 400}),
    "three of five": (0.5, {"ensemble": 5, "node_failures_per_year": 400}),
    "two racks": (6, {"racks": 2, "node_failures_per_year": 60, "rack_failures_per_year": 4}),
    "slow copies": (2.5, {"node_failures_per_year": 140, "copy_bytes_per_s": 1e5}),
}  # fmt: skip


def test_the_model_agrees_with_what_is_lost(seed: int) -> None:
    share = one_in(4)
    for name in [*CASES][seed % share :: share]:
        years, settings = CASES[name]
        plan, simulation = make_plan(inputs(**settings)), simulate(years, **settings)
        durability = plan.durability
        assert simulation.coincidences >= 6, name
        assert agrees(durability.cluster_losses, simulation.losses_per_year), name
        assert agrees(durability.cluster_events, simulation.events_per_year), name


def test_the_model_agrees_with_the_traffic_and_the_times() -> None:
    settings = {"node_failures_per_year": 50, "rack_failures_per_year": 10, "outages_per_year": 200.0}
    plan, simulation = make_plan(inputs(**settings)), simulate(1, **settings)
    traffic, rates = plan.traffic, loss_rates(inputs(**settings))
    assert simulation.copied_for_bookies == pytest.approx(traffic.lost_bookies, rel=0.1)
    assert simulation.copied_for_racks == pytest.approx(traffic.lost_racks, rel=0.2)
    assert simulation.copied_for_outages == pytest.approx(traffic.outages, rel=0.2)
    assert simulation.copied_per_year == pytest.approx(traffic.total, rel=0.1)
    assert simulation.single_s == pytest.approx(rates.single_s, rel=0.1)
    assert simulation.rack_s == pytest.approx(rates.rack_s, rel=0.1)


def test_a_bookie_that_returns_ends_the_work() -> None:
    """Copying takes ten minutes, outages end a minute after the delay: little is copied."""
    settings = {
        "outages_per_year": 50.0, "outage_s": 60.0, "delay_s": 60.0, "copy_bytes_per_s": 100.0, "ledgers": 15_000,
        "ledger_bytes": 1e3,
    }  # fmt: skip
    simulation, plan = simulate(1, **settings), make_plan(inputs(**settings))
    whole = simulation.long_outages * plan.rebuild.bookie_bytes
    assert plan.rebuild.copying_s > 500 and simulation.copied_for_outages < whole / 5
    assert simulation.copied_for_outages == pytest.approx(plan.traffic.outages, rel=0.5)


def test_the_last_copy_may_be_unreadable() -> None:
    settings = {"ensemble": 2, "node_failures_per_year": 10, "bits_per_latent_error": 1e11, **TWO}
    simulation, plan = simulate(3, **settings), make_plan(inputs(**settings)).durability
    assert simulation.latent_per_year == pytest.approx(plan.cluster_losses * plan.latent_share, rel=0.15)
    assert simulation.losses_per_year.estimate >= simulation.latent_per_year


def test_raised_failures_count_less() -> None:
    """The same cluster, with failures as stated and raised tenfold for a tenth of the time."""
    settings = {"ensemble": 2, "rack_failures_per_year": 6, **TWO}
    expected = make_plan(inputs(**settings)).durability
    simulation = simulate(4, raised=10, **settings)
    assert simulation.coincidences >= 10 and simulation.raised == 10
    assert agrees(expected.cluster_losses, simulation.losses_per_year)
    assert simulation.copied_for_racks == pytest.approx(make_plan(inputs(**settings)).traffic.lost_racks, rel=0.1)


def test_simulation_without_losses_gives_an_upper_bound() -> None:
    """The rule of three: three in the years that were simulated, less for failures that were raised."""
    simulation = simulate(10, node_failures_per_year=0.1)
    assert (simulation.ledgers_lost, simulation.coincidences) == (0, 0) and simulation.bookie_losses > 0
    assert simulation.losses_per_year.high == pytest.approx(0.3, rel=0.3)
    raised = simulate(10, raised=10, node_failures_per_year=0.1)
    assert raised.ledgers_lost == 0 and raised.losses_per_year.high == pytest.approx(0.3e-3, rel=0.3)


def test_simulation_without_failures_loses_nothing() -> None:
    simulation = simulate(10)
    assert simulation.losses_per_year == (0, 0, pytest.approx(0.3)) and simulation.copied_per_year == 0
    assert math.isnan(simulation.single_s)


def test_a_seed_repeats_a_run() -> None:
    settings = {"node_failures_per_year": 20, "rack_failures_per_year": 5, "outages_per_year": 20.0}
    first, same, other = (simulate(1, seed=seed, **settings) for seed in (3, 3, 4))
    assert first == same != other


def test_without_a_spare_bookie_copies_wait_for_the_replacement() -> None:
    simulation = simulate(5, bookies=3, racks=3, ledgers=50, node_failures_per_year=5)
    assert simulation.single_s == pytest.approx(3600, rel=0.05) and simulation.copied_for_bookies > 0


def test_half_of_the_bookies_is_away() -> None:
    """Nothing is copied until the successors prove that they are lost."""
    simulation = simulate(20, racks=2, bookies=10, rack_failures_per_year=1)
    assert simulation.rack_s == pytest.approx(3600, rel=0.05)


def test_loss_of_a_single_rack_loses_all_ledgers() -> None:
    simulation = simulate(20, racks=1, ledgers=100, rack_failures_per_year=0.5)
    assert simulation.ledgers_lost == 100 * simulation.coincidences == 100 * simulation.rack_losses > 0


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"raised": 0.5}, "raised: expected 1 to"),
        ({"years": 0}, "years: expected more than 0"),
        ({"ledgers": 10**8}, "takes up to"),
    ],
)
def test_impossible_runs_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        simulate(**{"years": 1, **settings})
