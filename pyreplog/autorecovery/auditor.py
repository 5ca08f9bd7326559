"""Auditor: decides which bookies are gone, and orders that their copies are replicated again.

One process at a time holds the auditor's key. The decisions are those of `protocol.absence`; each is carried out by a
compare-and-set, so two concurrent auditors do no harm.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Set
from dataclasses import dataclass, field

import numpy as np

from pyreplog.autorecovery.config import AutoRecoveryConfig
from pyreplog.autorecovery.hold import find_hold
from pyreplog.autorecovery.leased_keys import AUDITOR, SharedKeys
from pyreplog.autorecovery.ledger_scan import LedgerScan
from pyreplog.autorecovery.lost_entries import bookies_of_lost, had_last_copies
from pyreplog.autorecovery.orders import list_orders, place_order, withdraw_order
from pyreplog.autorecovery.protocol.absence import (
    Alarm,
    AuditorView,
    Decision,
    ForgetState,
    NoteState,
    PlaceOrder,
    WithdrawOrder,
    decide,
)
from pyreplog.autorecovery.timed_reason import TimedReason
from pyreplog.bookie.bookie_state import BookiePhase, BookieState, bookie_state_key, list_bookie_states
from pyreplog.bookie.identity import known_bookies
from pyreplog.clock import Clock
from pyreplog.ledger.runtime import RuntimeBase
from pyreplog.metadata.changes import change_key
from pyreplog.plurals import counted

logger = logging.getLogger(__name__)

_SCANS_TO_RETIRE = 2
_REFRESH_US = 60_000_000
"""Microseconds between two rounds that read the metadata of open ledgers, while no bookie is away."""
_REREAD = 2048
"""Maximum number of ledgers, of each bookie with an order, that are read again in a round: other workers may have
changed them."""


@dataclass(frozen=True)
class Audit:
    """The result of one round of the auditor.

    Attributes:
        named: number of ledgers that name each bookie.
        registered: ids of running bookies.
        states: state of each bookie that has one.
        orders: order of each bookie that has one.
        alarms: conditions that need an operator.
        hold: the hold, if auto-recovery is suspended.
    """

    named: Mapping[str, int] = field(default_factory=dict)
    registered: frozenset[str] = frozenset()
    states: Mapping[str, BookieState] = field(default_factory=dict)
    orders: Mapping[str, TimedReason] = field(default_factory=dict)
    alarms: tuple[Alarm, ...] = ()
    hold: TimedReason | None = None


class Auditor:
    """Examines the cluster in rounds. One thread at a time calls it.

    Args:
        runtime: runtime of the cluster.
        keys: leased keys of this process.
        scan: index of ledgers by bookie.
        clock: source of time.
    """

    def __init__(self, runtime: RuntimeBase, keys: SharedKeys, scan: LedgerScan, clock: Clock) -> None:
        self._runtime, self._store = runtime, runtime.metadata
        self._keys, self._scan, self._clock = keys, scan, clock
        # monotonic; when this process began to follow registrations with its keys held
        self._follows_since_us: int | None = None
        self._scanned_us = self._refreshed_us = 0
        self._reread_from: dict[str, int] = {}  # first ledger to read again, of each bookie with an order
        self._scanned_for: set[str] = set()  # bookies that no ledger named, and for which a full scan was made
        self._unnamed: dict[str, int] = {}  # the first scan at which no ledger named a bookie with a state

    def is_elected(self) -> bool:
        """Return whether this process is the auditor, after trying to become it. Raises errors of the store."""
        return self._keys.take(AUDITOR)

    def resign(self) -> None:
        """Release the auditor's key, so that another process can become the auditor."""
        self._keys.release(AUDITOR)

    def round(self, config: AutoRecoveryConfig) -> Audit:
        """Examine the cluster once, and carry out the decisions.

        Args:
            config: settings of the cluster.

        Returns:
            The result, with the orders that exist after the round.

        Raises:
            ReplogError: errors of the metadata store. The next round continues.
        """
        settled = self._is_settled(config)
        registered = frozenset(status.bookie for status in self._runtime.bookie_statuses())
        states, orders = list_bookie_states(self._store), list_orders(self._store)
        hold = find_hold(self._store)
        self._read_ledgers(config, registered, states.keys() | orders.keys())
        self._reread(orders.keys())
        named, garbled = self._scan.named(), self._scan.garbled
        view = AuditorView(
            named=named, registered=registered, states=states, orders=orders.keys(), now_us=self._clock.now_us(),
            settled=settled, hold=hold is not None, is_complete=not garbled,
        )  # fmt: skip
        decisions = decide(view, config.delay_ms * 1000)
        for decision in decisions:
            self._carry_out(decision, states)
        self._retire(states, named)
        alarms = [decision for decision in decisions if isinstance(decision, Alarm)]
        alarms += self._alarms_of(config, hold, garbled)
        if any(isinstance(decision, PlaceOrder | WithdrawOrder) for decision in decisions):
            orders = list_orders(self._store)
        return Audit(named, registered, states, orders, tuple(alarms), hold)

    def _is_settled(self, config: AutoRecoveryConfig) -> bool:
        """Return whether registrations were followed without interruption for long enough to know all that exist."""
        if self._runtime.embedded_bookies is not None:
            return True
        now_us = self._clock.monotonic_us()
        if not self._keys.is_held:
            self._follows_since_us = None
            return False
        if self._follows_since_us is None:
            self._follows_since_us = now_us
        return now_us - self._follows_since_us >= config.settle_ms * 1000

    # ---- ledgers --------------------------------------------------------------------------------------------

    def _read_ledgers(self, config: AutoRecoveryConfig, registered: frozenset[str], noted: Set[str]) -> None:
        """Update the scan: read all ledgers if it is old, or if a bookie seems to be named by no ledger.

        There may be thousands of open ledgers. While no bookie is away, they are read only once in `_REFRESH_US`.
        """
        now_us = self._clock.monotonic_us()
        if not self._scan.scans or now_us - self._scanned_us >= config.rescan_ms * 1000:
            self._scan_all(now_us)
            return
        absent = (set(known_bookies(self._store)) - registered) | noted
        if absent or now_us - self._refreshed_us >= _REFRESH_US:
            self._scan.refresh()
            self._refreshed_us = now_us
        else:
            self._scan.find_new()
        unnamed = absent - self._scan.named().keys()
        self._scanned_for &= unnamed
        if unnamed - self._scanned_for:
            self._scan_all(now_us)
            self._scanned_for |= unnamed - self._scan.named().keys()

    def _reread(self, bookies: Set[str]) -> None:
        """Read again some of the ledgers that name bookies with orders, others in each round."""
        self._reread_from = {bookie: self._reread_from.get(bookie, 0) for bookie in bookies}
        for bookie, first in self._reread_from.items():
            ledgers = self._scan.ledgers_of(bookie)
            turn = ledgers[np.searchsorted(ledgers, first) :][:_REREAD]
            self._reread_from[bookie] = int(turn[-1]) + 1 if len(turn) == _REREAD else 0
            self._scan.read(turn.tolist())

    def _scan_all(self, now_us: int) -> None:
        self._scan.scan()
        self._scanned_us = self._refreshed_us = now_us

    def _retire(self, states: Mapping[str, BookieState], named: Mapping[str, int]) -> None:
        """Retire lost bookies that no ledger named at two scans. Their ids cannot register again.

        A bookie that had the last copies of listed lost entries is not retired: its disk may return.
        """
        unnamed = {
            bookie for bookie, state in states.items() if state.phase is BookiePhase.LOST and bookie not in named
        }
        lost = bookies_of_lost(self._store) if unnamed else {}
        # the disk may return with the last copies
        unnamed = {bookie for bookie in unnamed if not had_last_copies(lost, bookie)}
        self._unnamed = {bookie: self._unnamed.get(bookie, self._scan.scans) for bookie in unnamed}
        for bookie, first_scan in self._unnamed.items():
            if self._scan.scans >= first_scan + _SCANS_TO_RETIRE - 1 and not self._scan.garbled:
                retired = BookieState(BookiePhase.RETIRED, self._clock.now_us(), states[bookie].reason)
                self._carry_out(NoteState(bookie, retired), states)

    # ---- decisions ------------------------------------------------------------------------------------------

    def _carry_out(self, decision: Decision, states: Mapping[str, BookieState]) -> None:
        """Write a decision, unless another process changed the key. Raises errors of the store."""
        now_us = self._clock.now_us()
        if isinstance(decision, PlaceOrder):
            logger.warning("the copies of bookie %s are made again: %s", decision.bookie, decision.reason)
            place_order(self._store, decision.bookie, TimedReason(now_us, decision.reason))
        elif isinstance(decision, WithdrawOrder):
            logger.warning(
                "the order to make the copies of bookie %s again is withdrawn: %s", decision.bookie, decision.reason
            )
            withdraw_order(self._store, decision.bookie)
        elif isinstance(decision, NoteState):
            reason = decision.state.reason or "it is not registered"
            logger.warning("bookie %s is %s: %s", decision.bookie, decision.state.phase, reason)
            self._replace(decision.bookie, states.get(decision.bookie), decision.state)
        elif isinstance(decision, ForgetState):
            logger.info("bookie %s is an ordinary member again", decision.bookie)
            self._replace(decision.bookie, states.get(decision.bookie), None)

    def _replace(self, bookie: str, known: BookieState | None, state: BookieState | None) -> None:
        """Replace the state of a bookie by compare-and-set with the state that the decision was based on."""
        before = None if known is None else known.encode()
        after = None if state is None else state.encode()
        change_key(self._store, bookie_state_key(bookie), lambda value: after if value == before else value)

    # ---- alarms ---------------------------------------------------------------------------------------------

    def _alarms_of(
        self, config: AutoRecoveryConfig, hold: TimedReason | None, garbled: Mapping[int, str]
    ) -> list[Alarm]:
        alarms: list[Alarm] = []
        now_us = self._clock.now_us()
        if hold is not None and now_us - hold.since_us > config.hold_alarm_ms * 1000:
            hours = (now_us - hold.since_us) // 3_600_000_000
            alarms.append(Alarm("hold-forgotten", f"auto-recovery has been on hold for {hours} hours: {hold.reason}"))
        if garbled:
            ledger, why = min(garbled.items())
            alarms.append(
                Alarm(
                    "garbled",
                    f"the metadata of {counted(len(garbled), 'ledger')} cannot be read, such as those of ledger "
                    f"{ledger}: {why}",
                )
            )
        return alarms
