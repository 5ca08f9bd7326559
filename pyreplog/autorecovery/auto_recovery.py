"""AutoRecovery: the auditor and the worker of one process, run by the timers and threads of a cluster."""

from __future__ import annotations

import logging
import os
import secrets
import socket
import threading
from contextlib import suppress
from dataclasses import replace

from pyreplog.autorecovery.auditor import Audit, Auditor
from pyreplog.autorecovery.config import AutoRecoveryConfig, load_config
from pyreplog.autorecovery.copy_rate_limiter import CopyRateLimiter
from pyreplog.autorecovery.copy_repairs import CopyRepairs
from pyreplog.autorecovery.hold import find_hold
from pyreplog.autorecovery.leased_keys import LeasedKeys, LocalKeys, SharedKeys
from pyreplog.autorecovery.ledger_scan import LedgerScan
from pyreplog.autorecovery.lost_entries import count_lost
from pyreplog.autorecovery.open_ledger_recovery import OpenLedgerRecovery, OpenLedgersReport
from pyreplog.autorecovery.orders import list_orders
from pyreplog.autorecovery.protocol.absence import Alarm
from pyreplog.autorecovery.protocol.rebalance import Move
from pyreplog.autorecovery.rebalance_moves import find_moves, settle_moves
from pyreplog.autorecovery.replicas_check import ReplicasCheck
from pyreplog.autorecovery.status import FAILED_MAX, HEARTBEAT_US, OPEN_MAX, STATUS, AutoRecoveryStatus
from pyreplog.autorecovery.worker import ReplicationWorker, Workload
from pyreplog.autorecovery.worker_status import WorkerStatus, worker_key
from pyreplog.bookie.bookie_state import BookiePhase, list_bookie_states
from pyreplog.clock import Clock
from pyreplog.errors import ClosedError, InvalidMetadataError, ReplogError
from pyreplog.handles import Handle, make_part_of
from pyreplog.ledger.cluster import LedgerCluster
from pyreplog.metadata.changes import change_key
from pyreplog.plurals import counted

logger = logging.getLogger(__name__)

_PAUSE_MAX_S = 60.0
"""Seconds between rounds while the metadata store is away, at most."""
_STOP_S = 30.0
"""Seconds for the ledgers that are being copied when this is closed."""


class AutoRecovery(Handle):
    """Has lost copies made again while it is open. Any number of processes of a cluster may run one.

    One of them is the auditor, all of them copy. Close it before its cluster, or use `with`.

    Args:
        cluster: an open cluster.
        clock: source of time.
        copies: whether this process copies, too.

    Example:
        ```python
        with LedgerCluster.connect("zk://host:2181/pyreplog") as cluster:
            with AutoRecovery(cluster, SystemClock()) as recovery:
                recovery.start()
                stop.wait()
        ```

    See docs/operations.md.
    """

    def __init__(self, cluster: LedgerCluster, clock: Clock, *, copies: bool = True) -> None:
        self._runtime, self._store, self._clock = cluster.runtime, cluster.metadata, clock
        owner = f"{socket.gethostname()}:{os.getpid()}:{secrets.token_hex(4)}"
        is_alone = self._runtime.embedded_bookies is not None
        self._keys: SharedKeys = LocalKeys(owner) if is_alone else LeasedKeys(self._store, owner)
        self._scan = LedgerScan(self._store)
        self._auditor = Auditor(self._runtime, self._keys, self._scan, clock)
        self._worker = ReplicationWorker(self._runtime, self._keys, self._scan, clock) if copies else None
        self._open_ledgers = OpenLedgerRecovery(cluster, clock)
        self._open_report = OpenLedgersReport()
        self._rate_limiter = CopyRateLimiter(None, clock)  # of repairs
        self._repairs = CopyRepairs(self._runtime, self._rate_limiter, clock)
        self._replicas_check = ReplicasCheck(self._runtime, self._scan, self._rate_limiter, clock)
        self._is_auditor = False
        self._audit = Audit()
        self._listed_lost = 0  # entries, as the auditor
        self._failure: ReplogError | None = None  # of the last round
        self._meter = _Meter(clock)
        self._since_us = clock.now_us()
        self._round_lock = threading.Lock()  # held by a round
        self._copy_thread: threading.Thread | None = None  # a pass of the worker
        self._repair_thread: threading.Thread | None = None  # repairs, and checks of replicas
        self._pause_s = 0.0
        self._stop_s: float | None = _STOP_S
        super().__init__(f"auto-recovery of process {owner}")
        if isinstance(self._keys, LeasedKeys):
            make_part_of(self._keys, self)

    @property
    def owner(self) -> str:
        """Text that no other process of the cluster has: host, process id, random digits."""
        return self._keys.owner

    @property
    def is_auditor(self) -> bool:
        """Whether this process was the auditor at the last round."""
        return self._is_auditor

    @property
    def audit(self) -> Audit:
        """What this process found as the auditor, at its last round; empty before that."""
        return self._audit

    @property
    def open_ledgers(self) -> OpenLedgersReport:
        """What this process found of ledgers that are not closed, as the auditor, at its last round."""
        return self._open_report

    @property
    def listed_lost(self) -> int:
        """Number of entries that were listed as lost at the last round; 0 if this process is not the auditor."""
        return self._listed_lost

    @property
    def hold_s(self) -> float:
        """Seconds for which auto-recovery is on hold, as this process knows it as the auditor; 0: it is not."""
        hold = self._audit.hold
        return 0.0 if hold is None else max(self._clock.now_us() - hold.since_us, 1) / 1e6

    @property
    def failure(self) -> ReplogError | None:
        """Why the last round ended early; None: it did not."""
        return self._failure

    @property
    def is_copying(self) -> bool:
        """Whether a pass of the worker runs."""
        thread = self._copy_thread
        return thread is not None and thread.is_alive()

    @property
    def is_repairing(self) -> bool:
        """Whether copies that were noted are repaired, or replicas compared."""
        thread = self._repair_thread
        return thread is not None and thread.is_alive()

    @property
    def repairs(self) -> CopyRepairs:
        """The repairs of copies that were noted. They run in the auditor's process."""
        return self._repairs

    @property
    def replicas_check(self) -> ReplicasCheck:
        """The check of the copies of closed ledgers. It runs in the auditor's process."""
        return self._replicas_check

    # ---- rounds ---------------------------------------------------------------------------------------------

    def start(self, after_s: float = 0.0) -> None:
        """Begin with rounds on the threads of the cluster.

        Args:
            after_s: seconds until the first one.

        Raises:
            ClosedError: this object was closed.
        """
        self._check_open()
        self._next_round(after_s)

    def _next_round(self, seconds: float) -> None:
        self._runtime.wake_after(seconds, lambda: self._runtime.work(self._timed_round))

    def _timed_round(self) -> None:
        """Run a round, and schedule the next one: later and later while rounds fail."""
        try:
            config = self.round()
        except ClosedError:
            return
        except ReplogError as error:
            self._pause_s = min(max(2 * self._pause_s, 1.0), _PAUSE_MAX_S)
            if self._failure is None or type(self._failure) is not type(error):
                logger.warning("auto-recovery waits, and tries again: %s", error)
            self._failure = error
        else:
            self._failure, self._pause_s = None, config.round_ms / 1000
        self._next_round(self._pause_s)

    def round(self) -> AutoRecoveryConfig:
        """Look at the cluster once, if this process is the auditor; begin to copy if there are orders.

        `start` calls it at intervals. Any thread may call it; calls wait for each other.

        Returns:
            The settings of the cluster.

        Raises:
            ReplogError: errors of the metadata store.
        """
        with self._round_lock:
            self._check_open()
            config = load_config(self._store)
            self._is_auditor = self._auditor.is_elected()
            self._audit = self._auditor.round(config) if self._is_auditor else Audit()
            self._listed_lost = count_lost(self._store) if self._is_auditor else 0
            if self._worker is not None:
                self._begin_copies(self._worker, config)
            self._open_report = self._recover_open_ledgers(config) if self._is_auditor else OpenLedgersReport()
            if self._is_auditor:
                self._begin_repairs(config)
                self._publish_status()
            return config

    def _begin_copies(self, worker: ReplicationWorker, config: AutoRecoveryConfig) -> None:
        """Start a pass of the worker if there is something to copy or to move and none runs. Orders come first."""
        is_held = find_hold(self._store) is not None
        orders = frozenset() if is_held else frozenset(list_orders(self._store))
        moves = {} if is_held or orders else self._moves()
        worker.rate_limiter.limit(config.bytes_per_s)
        worker.restrict(orders, moves)
        if (orders or moves) and not self.is_copying:
            workload = replace(self._workload(orders), moves=moves)
            self._copy_thread = threading.Thread(
                target=self._copy, args=(worker, workload, config.copies_at_once), name="pyreplog-replication",
                daemon=True,
            )  # fmt: skip
            self._copy_thread.start()
        self._meter.measure(worker.counters.bytes)
        if worker.counters.bytes or worker.progress.ledgers_left:
            self._keys.publish(worker_key(self.owner), self.worker_status().encode())

    def _moves(self) -> dict[int, Move]:
        """Return the moves of a rebalance, by ledger. A list that cannot be read hinders nothing else."""
        try:
            stored = find_moves(self._store)
        except InvalidMetadataError as error:
            logger.warning("nothing is moved: %s", error)
            return {}
        return {} if stored is None else {move.ledger: move for move in stored.moves}

    def _recover_open_ledgers(self, config: AutoRecoveryConfig) -> OpenLedgersReport:
        """Recover ledgers that have no writer any more and name a bookie with an order in their last fragment."""
        orders = () if self._audit.hold is not None else self._audit.orders
        self._open_ledgers.quiet_us = config.writer_silence_ms * 1000
        return self._open_ledgers.look(self._scan.open_ledgers(orders))

    def _begin_repairs(self, config: AutoRecoveryConfig) -> None:
        """Repair copies that were noted and check some ledgers, unless that is under way."""
        if self._audit.hold is not None or self.is_repairing:
            return
        self._rate_limiter.limit(config.bytes_per_s)
        lost = self._workload(frozenset()).lost
        self._repair_thread = threading.Thread(
            target=self._repair, args=(config.check_ms, lost), name="pyreplog-repairs", daemon=True
        )
        self._repair_thread.start()

    def _workload(self, orders: frozenset[str]) -> Workload:
        states = list_bookie_states(self._store)
        running = frozenset(status.bookie for status in self._runtime.bookie_statuses())
        gone = (BookiePhase.LOST, BookiePhase.RETIRED)
        lost = frozenset(bookie for bookie, state in states.items() if state.phase in gone) - running
        return Workload(orders, lost, (orders | states.keys()) - running - lost, running=running)

    def _copy(self, worker: ReplicationWorker, workload: Workload, copies_at_once: int) -> None:
        """Run one pass of the worker. On a thread of its own."""
        try:
            worker.run(workload, copies_at_once)
            if workload.moves:
                settle_moves(self._store, workload.moves.values(), worker.failed_moves)
        except ClosedError:
            logger.debug("a pass of copies ended, because the cluster was closed")
        except ReplogError as error:
            logger.warning("the pass of copies ended early, the next round begins another: %s", error)

    def _repair(self, check_ms: int, lost: frozenset[str]) -> None:
        """Compare the replicas of some ledgers, and repair noted copies. On a thread of its own."""
        try:
            self._replicas_check.run(check_ms, lost)
            self._repairs.run(lost)
        except ClosedError:
            logger.debug("repairs ended, because the cluster was closed")
        except ReplogError as error:
            logger.warning("repairs ended early, the next round begins others: %s", error)

    # ---- status ---------------------------------------------------------------------------------------------

    def worker_status(self) -> WorkerStatus:
        """Return what this process has copied, and has left to copy."""
        worker = self._worker
        if worker is None:
            return WorkerStatus(self._since_us)
        done, left = worker.counters, worker.progress
        return WorkerStatus(
            self._since_us, done.ledgers, done.entries, done.bytes, done.lost_entries, done.failures,
            self._meter.bytes_per_s, left.ledgers_left, max(left.bytes_left, 0),
            left.one_copy_left if left.ledgers_left else 0,
        )  # fmt: skip

    def status(self) -> AutoRecoveryStatus:
        """Return what this process found as the auditor, and what its worker could not copy."""
        audit, worker, opened = self._audit, self._worker, self._open_report
        failures = {} if worker is None else worker.failures
        failed = {ledger: str(failure.error) for ledger, failure in failures.items()}
        failed = {**self._repairs.failures, **failed, **opened.failed}
        alarms = list(audit.alarms)
        if lacking := sum(failure.lacks_bookie for failure in failures.values()):
            text = f"{counted(lacking, 'ledger')} cannot be copied: no other bookie can take their copies; add one"
            alarms.append(Alarm("no-target", text))
        if opened.needs_operator:
            ledger, why = min(opened.needs_operator.items())
            count = counted(len(opened.needs_operator), "ledger", "have")
            text = f"{count} no writer any more, of ledger {ledger}: {why}"
            alarms.append(Alarm("open-ledgers", text))
        checked = self._replicas_check.progress
        if checked is not None and checked.differing:
            ledger, text = min(checked.differing.items())
            text = f"copies of {counted(len(checked.differing), 'ledger')} differ, of ledger {ledger}: {text}"
            alarms.append(Alarm("copies-differ", text))
        waiting = sorted({*opened.waiting, *opened.nudged, *opened.recovering})
        return AutoRecoveryStatus(
            self.owner, self._clock.now_us(), {bookie: audit.named.get(bookie, 0) for bookie in audit.orders},
            tuple(alarms), dict(sorted(failed.items())[:FAILED_MAX]), tuple(waiting[:OPEN_MAX]),
        )  # fmt: skip

    def _publish_status(self) -> None:
        """Store the status, if anything but the time has changed, or the stored one is a minute old."""
        status = self.status()

        def change(value: bytes | None) -> bytes:
            with suppress(InvalidMetadataError):
                stored = None if value is None else AutoRecoveryStatus.decode(value)
                if stored is not None:
                    follows = replace(status.following(stored.progress), kept=stored.kept)
                    is_recent = 0 <= status.at_us - stored.at_us < HEARTBEAT_US
                    is_same = is_recent and replace(follows, at_us=stored.at_us) == stored
                    return (stored if is_same else follows).encode()
            return status.following(()).encode()

        change_key(self._store, STATUS, change)

    # ---- the end --------------------------------------------------------------------------------------------

    def close(self, timeout: float | None = _STOP_S) -> None:
        """End the rounds and the copies. What was copied stays, and other processes go on. A second call does nothing.

        Args:
            timeout: seconds to wait for the ledgers that are being copied; None: as long as it takes. Copies that are
                still on their way then end with the cluster.
        """
        self._stop_s = timeout
        super().close()

    def _do_close(self) -> None:
        """Have the pass end after the ledgers that are being copied, and release the keys."""
        for running in (self._worker, self._repairs, self._replicas_check):
            if running is not None:
                running.stop()
        with self._round_lock:  # no pass begins from now on
            threads = [thread for thread in (self._copy_thread, self._repair_thread) if thread is not None]
        for thread in threads:
            if thread is not threading.current_thread():
                thread.join(self._stop_s)
        self._keys.close()


class _Meter:
    """Measures bytes per second between its calls."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._at_us, self._bytes = clock.monotonic_us(), 0
        self.bytes_per_s = 0

    def measure(self, total: int) -> None:
        """Take the number of all bytes so far."""
        now_us = self._clock.monotonic_us()
        if now_us > self._at_us:
            self.bytes_per_s = (total - self._bytes) * 1_000_000 // (now_us - self._at_us)
        self._at_us, self._bytes = now_us, total
