"""The power of all brokers is cut at once, and what no disk had synced is lost, of each another part.

Topics have three replicas and min ISR 2. If they require a sync, nothing that was acknowledged with acks=-1 is lost. If
they count what replicas have received, something is: otherwise these rounds would prove nothing.
"""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest

from tests.thorough import one_in

from ..runner import run_checked
from .schedule import Plan, Schedule

ROUNDS = 1000 // one_in(20)


def plan_of(random: Random, *, requires_sync: bool) -> Plan:
    """The network, the store and the disks are drawn; nothing fails but the power."""
    return replace(
        Plan.draw(random), brokers=3, replicas=3, min_isr=2, requires_sync=requires_sync, unclean=False, is_frugal=False,
        faults=0, crashes_between=0.0, power_cuts=True, trims=False, reassigns=False, acks_all=1.0,
        sync_s=random.choice((0.002, 0.005, 0.02) if requires_sync else (0.05, 0.1)), transactional=0,
    )  # fmt: skip


class PowerCutOfAll(Schedule):
    """A run in which all brokers lose their power twice."""

    def __init__(self, seed: int, *, requires_sync: bool) -> None:
        random = Random(seed)
        super().__init__(seed, plan=plan_of(random, requires_sync=requires_sync))
        self.lost = 0
        for _ in range(2):
            self.world.at(0.05 + random.random() * (self.plan.busy_s - 0.05), self._cut)

    def _cut(self) -> None:
        acknowledged = dict(self.invariants.acknowledged)
        for broker in self.brokers:
            broker.crash(power=True)
            self.world.after(0.01 * self.world.random.random(), broker.start)
        longest = max((broker.disk.records for broker in self.brokers), key=len)
        held = {at: record.value for at, record in enumerate(longest)}
        self.lost += sum(held.get(at) != value for at, value in acknowledged.items())


@pytest.mark.parametrize("requires_sync", [True, False])
def test_acknowledged_records_survive_if_they_are_synced(seed: int, requires_sync: bool) -> None:
    acknowledged = lost = unclean = 0
    for number in range(ROUNDS):
        run = PowerCutOfAll((seed << 20) + number, requires_sync=requires_sync)
        run_checked(run)
        acknowledged += run.invariants.acks
        lost += run.lost
        unclean += run.invariants.unclean
    assert acknowledged > 10 * ROUNDS
    assert (lost == unclean == 0) if requires_sync else (lost > 0 and unclean > 0), (lost, unclean)
