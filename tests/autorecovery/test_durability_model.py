"""The model on paper: closed forms where there are some, directions where there are none, and its bounds."""

from __future__ import annotations

import math
from dataclasses import asdict
from typing import Any

import pytest

from pyreplog.autorecovery.durability_model import YEAR_S, PlanInputs, loss_rates, make_plan
from pyreplog.autorecovery.loss_chain import Loss, RackState, rack_layout, stationary
from pyreplog.errors import ConfigError

ALONE: dict[str, Any] = {"rack_failures_per_year": 0.0, "bits_per_latent_error": 1e30}
"""Bookies are lost by themselves alone, and every bit can be read."""


def losses(**settings: Any) -> float:
    return make_plan(PlanInputs(**settings)).durability.ledger_losses


@pytest.mark.parametrize(("quorum", "ensemble", "windows"), [(1, 1, 1), (2, 2, 1), (3, 3, 1), (3, 5, 5), (4, 4, 1)])
def test_losses_of_bookies_alone_have_a_closed_form(quorum: int, ensemble: int, windows: int) -> None:
    inputs = PlanInputs(write_quorum=quorum, ensemble=ensemble, ack_quorum=1, **ALONE)
    rate, back = inputs.bookie_losses_per_year, loss_rates(inputs).single_s / YEAR_S
    expected = windows * quorum * rate * (rate * back) ** (quorum - 1)
    assert losses(write_quorum=quorum, ensemble=ensemble, ack_quorum=1, **ALONE) == pytest.approx(expected, rel=0.03)


def test_ledgers_that_lack_most_come_first() -> None:
    """A rebuild of days: the second loss of a ledger's copies meets few ledgers, which are copied at once."""
    slow = {"copy_bytes_per_s": 1e5, "ledgers": 10**8, "ledger_bytes": 1e7, **ALONE}
    rates = loss_rates(PlanInputs(**slow))
    rate, back = rates.bookie, rates.single_s / YEAR_S
    assert losses(**slow) < 3 * rate * (rate * back) ** 2 / 3


def test_single_rack_loses_all_copies_when_it_is_lost() -> None:
    assert losses(racks=1) == pytest.approx(-math.expm1(-0.1), rel=1e-6)
    assert make_plan(PlanInputs(racks=1)).durability.cluster_probability == pytest.approx(-math.expm1(-0.1), rel=1e-3)


def test_more_racks_and_more_copies_lose_less() -> None:
    by_racks = [losses(racks=racks) for racks in (1, 2, 3, 40)]
    assert by_racks == sorted(by_racks, reverse=True) and by_racks[0] > 900 * by_racks[1] > 900 * by_racks[2]
    by_copies = [losses(ensemble=5, write_quorum=copies, ack_quorum=1) for copies in (1, 2, 3, 4)]
    assert by_copies == sorted(by_copies, reverse=True) and by_copies[2] > 1e3 * by_copies[3]


def test_a_longer_delay_and_rarer_scrubs_lose_more() -> None:
    assert losses(delay_s=6000) > 10 * losses(delay_s=600) > 10 * losses(delay_s=60)
    assert losses(scrub_days=1400) > 10 * losses()
    assert losses(bits_per_latent_error=1e13) > 10 * losses()


def test_the_last_copy_may_be_unreadable() -> None:
    """Two copies, one of them lost: each rebuild reads the other one."""
    inputs = PlanInputs(
        write_quorum=2, ensemble=2, ack_quorum=1, rack_failures_per_year=0.0, node_failures_per_year=1e-9
    )
    per_year = 2 * inputs.bookie_losses_per_year * inputs.unreadable(1)
    assert inputs.unreadable(1) == pytest.approx(8 * 2**30 * 1e-15 * (1 + 26 * 7 / 365.25), rel=1e-4)
    durability = make_plan(inputs).durability
    assert durability.ledger_losses * durability.latent_share == pytest.approx(per_year, rel=1e-3)


def test_many_ledgers_are_lost_together() -> None:
    """With so many ledgers that each set of three bookies has some, more ledgers do not make a loss more probable."""
    few, many = (
        make_plan(
            PlanInputs(
                bookies=10, racks=1, ledgers=count, ledger_bytes=1e9 / count, metadata_operations_per_s=1e9, **ALONE
            )
        ).durability
        for count in (1_000_000, 10_000_000)
    )
    assert few.cluster_probability == pytest.approx(many.cluster_probability, rel=0.01)
    assert many.cluster_losses == pytest.approx(10 * few.cluster_losses, rel=0.01)
    sets, rate = math.comb(10, 3), few.ledger_losses
    assert few.cluster_probability == pytest.approx(sets * rate, rel=0.01)


def test_racks_that_are_lost_take_many_sets() -> None:
    """Of five racks with two bookies each, two are lost together in ten ways, whatever bookies are in them."""
    state = (RackState(1, is_lost=True), RackState(1, is_lost=True))
    assert Loss(state, 1e-3, is_latent=False).events(1e9, 5, 2) == pytest.approx(10 * 1e-3)
    rack_states = (RackState(1, lost=1), RackState(1, is_lost=True))
    # A quorum of two copies has this state in two ways: 5 racks * 8 bookies of the others, half of it for each.
    assert Loss(rack_states, 1e-3, is_latent=False).events(1e9, 5, 2) == pytest.approx(5 * 4 * 2 / 2 * 1e-3)


@pytest.mark.parametrize(
    ("quorum", "racks", "layout"), [(3, 40, (1, 1, 1)), (3, 2, (1, 2)), (5, 2, (2, 3)), (4, 1, (4,))]
)
def test_copies_are_spread_over_racks(quorum: int, racks: int, layout: tuple[int, ...]) -> None:
    assert rack_layout(quorum, racks) == layout


def test_the_smallest_share_of_a_chain_is_exact() -> None:
    flows = [[0.0, 1e-12, 0.0], [1e9, 0.0, 1e-12], [1.0, 0.0, 0.0]]
    shares = stationary(flows)
    assert shares[1] == pytest.approx(1e-21, rel=1e-12) and shares[2] == pytest.approx(1e-33, rel=1e-12)
    assert sum(shares) == pytest.approx(1.0)


def test_a_rebuild_has_three_bounds() -> None:
    by_bytes = make_plan(PlanInputs()).rebuild
    assert by_bytes.copying_s == pytest.approx(by_bytes.bookie_bytes / (999 * 50e6)) and by_bytes.waiting_s == 600
    by_metadata = make_plan(PlanInputs(ledger_bytes=1e6, metadata_operations_per_s=10.0)).rebuild
    assert by_metadata.copying_s == pytest.approx(3000 * 6 / 10)
    by_one_ledger = make_plan(PlanInputs(ledgers=1000, ledger_bytes=1e11)).rebuild
    assert by_one_ledger.copying_s == pytest.approx(1e11 / 50e6)
    by_disk = make_plan(PlanInputs(copy_bytes_per_s=1e12)).rebuild
    assert by_disk.disk_share == pytest.approx(1.0) and by_disk.network_share == pytest.approx(75e6 / 1.25e9)


def test_nothing_is_copied_where_a_third_of_the_bookies_is_away_or_none_is_to_spare() -> None:
    assert PlanInputs(racks=2).waiting_s(500) == PlanInputs().operator_s
    assert PlanInputs(racks=3, bookies=999).waiting_s(333) == 600
    no_spare = PlanInputs(bookies=3, racks=3, ledgers=10)
    assert no_spare.waiting_s(1) == no_spare.operator_s and make_plan(no_spare).traffic.outages == 0


def test_rack_loss_shows_remaining_copies_and_whether_writes_continue() -> None:
    rack_loss = make_plan(PlanInputs()).rack_loss
    assert (rack_loss.bookies, rack_loss.copies_left, rack_loss.ledgers_lost, rack_loss.writes_continue) == (
        25,
        2,
        False,
        True,
    )
    two = make_plan(PlanInputs(racks=2)).rack_loss
    assert (two.copies_left, two.writes_continue) == (1, False) and two.fill_after > 1
    assert make_plan(PlanInputs(racks=1)).rack_loss.ledgers_lost


def test_traffic_is_that_of_losses_and_of_long_outages() -> None:
    traffic = make_plan(PlanInputs(write_bytes_per_s=1e9)).traffic
    copy = 1e6 * 3 * 2**30 / 1000
    assert traffic.lost_bookies == pytest.approx(54 * copy) and traffic.lost_racks == pytest.approx(100 * copy)
    assert traffic.outages == pytest.approx(12_000 * math.exp(-2) * copy, rel=0.15)
    assert traffic.total == pytest.approx(traffic.lost_bookies + traffic.lost_racks + traffic.outages)
    assert traffic.share_of_writes == pytest.approx(traffic.total / (3e9 * YEAR_S))
    assert make_plan(PlanInputs(delay_s=3600)).traffic.outages < traffic.outages / 1000


def test_a_plan_has_the_cost_and_availability_of_the_closed_forms() -> None:
    cost = make_plan(PlanInputs(entry_bytes=64.0, compacted_live_share=0.5, ledgers=1000)).cost
    assert cost.storage_factor == pytest.approx(3 * 2 / 0.75) and cost.write_amplification == pytest.approx(3 * 2 / 0.5)
    plan = make_plan(PlanInputs(rack_failures_per_year=0.0, disk_failures_per_year=0.0, node_failures_per_year=0.0))
    away = 12 * 300 / YEAR_S
    assert plan.availability.without_spare == pytest.approx(3 * away**2, rel=1e-3)
    assert plan.availability.with_spare == pytest.approx(3 * (away / 30) ** 2, rel=1e-3)


def test_limits_of_a_plan_are_where_its_bounds_meet() -> None:
    inputs = PlanInputs()
    limits = make_plan(inputs).limits
    assert limits.ledgers_by_scan == 6_000_000
    at_bound = PlanInputs(ledgers=int(limits.ledgers_by_rebuild), ledger_bytes=1e6 * 2**30 / limits.ledgers_by_rebuild)
    assert at_bound.bookie_bytes == pytest.approx(inputs.bookie_bytes, rel=1e-3)
    copying_s = at_bound.ledgers_per_bookie * 6 / 5000
    assert at_bound.copying_s(1) == pytest.approx(copying_s, rel=0.01) == pytest.approx(64.5, rel=0.01)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"racks": 0}, "racks: expected 1 to 100000, found 0"),
        ({"racks": 2000}, "racks: expected at most the 1000 bookies, found 2000"),
        ({"bookies": 2}, "bookies: expected at least the ensemble of 3, found 2"),
        ({"ensemble": 3, "write_quorum": 4}, "at most the ensemble size.: expected 1 to 3, found 4"),
        ({"ack_quorum": True}, "ack_quorum: expected an int, found True"),
        ({"outage_s": 0.0}, "outage_s: expected 0.001 to 1e"),
        ({"delay_s": "600"}, "delay_s: expected a number, found '600'"),
        ({"delay_s": math.nan}, "delay_s: expected 0 to"),
        ({"ledger_bytes": 1e10}, "do not fit on 1000 bookies of 1 disks"),
    ],
)
def test_impossible_clusters_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        PlanInputs(**settings)


def test_a_cluster_in_which_nothing_fails() -> None:
    nothing = dict.fromkeys(
        ["disk_failures_per_year", "node_failures_per_year", "rack_failures_per_year", "outages_per_year"], 0.0
    )
    plan = make_plan(PlanInputs(**nothing))
    assert plan.durability.cluster_losses == 0 and plan.durability.ledger_nines == math.inf
    assert plan.traffic.total == 0 and asdict(plan)["availability"]["with_spare"] == 0
