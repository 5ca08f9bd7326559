"""ReplicationDriver: runs a LedgerReplicator, and lists lost entries for it."""

from __future__ import annotations

import logging
from typing import cast

from pyreplog.autorecovery.ledger_scan import LedgerScan
from pyreplog.autorecovery.lost_entries import note_lost, ranges_of
from pyreplog.autorecovery.protocol.effects import NoteLost, ReplicationEffect
from pyreplog.autorecovery.protocol.ledger_replicator import LedgerReplicated, LedgerReplicator
from pyreplog.clock import Clock
from pyreplog.errors import ReplogError
from pyreplog.ledger.driver import Driver, Machine
from pyreplog.ledger.ledger_store import VersionedMetadata
from pyreplog.ledger.runtime import RuntimeBase

logger = logging.getLogger(__name__)


def replicate(
    ledger: int, machine: LedgerReplicator, runtime: RuntimeBase, clock: Clock, scan: LedgerScan
) -> LedgerReplicated:
    """Run the state machine that copies a ledger, wait for its end, and update the scan with the resulting metadata.

    Raises:
        ReplogError: errors of the LedgerReplicator and of the metadata store.
    """
    driver = ReplicationDriver(ledger, machine, runtime, clock)
    driver.post(machine.start)
    replicated: LedgerReplicated = runtime.wait(driver.done)
    current = None if replicated.is_deleted else VersionedMetadata(replicated.metadata, replicated.version)
    scan.take(ledger, current)
    return replicated


class ReplicationDriver(Driver):
    """A `ledger.driver.Driver` that also carries out `NoteLost`."""

    def __init__(self, ledger: int, machine: LedgerReplicator, runtime: RuntimeBase, clock: Clock) -> None:
        super().__init__(ledger, cast(Machine, machine), runtime)  # this class handles NoteLost
        self._replicator, self._clock = machine, clock

    def _carry_out(self, effect: ReplicationEffect) -> None:
        if isinstance(effect, NoteLost):
            self._runtime.work(lambda: self._note_lost(effect))
        else:
            super()._carry_out(effect)

    def _note_lost(self, effect: NoteLost) -> None:
        machine = self._replicator
        now_us = self._clock.now_us()
        ranges = [lost for bookie, entries in effect.by_bookie for lost in ranges_of(entries, bookie, now_us)]
        try:
            note_lost(self._runtime.metadata, self._ledger, ranges)
        except ReplogError as error:
            logger.warning(
                "ledger %d: %d lost entries are not listed yet: %s", self._ledger, len(effect.entries), error
            )
            self.post(machine.store_unknown)
            return
        logger.error(
            "ledger %d has lost %d entries, from %d to %d: their last copies were on %s",
            self._ledger, len(effect.entries), effect.entries[0], effect.entries[-1],
            ", ".join(bookie for bookie, _ in effect.by_bookie),
        )  # fmt: skip
        self.post(machine.noted)
