"""AutoRecovery: runs the auditor and the worker of one process on the timers and threads of a cluster."""

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
"""Maximum number of seconds between rounds while the metadata store is unavailable."""
_STOP_S = 30.0
"""Seconds that `close` waits for ledgers in progress."""


class AutoRecovery(Handle):
    """Replicates lost copies again while it is open. Any number of processes of a cluster may run one.

    One of them is the auditor; all of them copy. Close it before its cluster, or use `with`.

    Args:
        cluster: an open cluster.
        clock: source of time.
        copies: whether this process runs a worker, which copies.

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
        self._rate_limiter = CopyRateLimiter(None, clock)  # for repairs
        self._repairs = CopyRepairs(self._runtime, self._rate_limiter, clock)
        self._replicas_check = ReplicasCheck(self._runtime, self._scan, self._rate_limiter, clock)
        self._is_auditor = False
        self._audit = Audit()
        self._listed_lost = 0  # number of entries; 0 if not the auditor
        self._failure: ReplogError | None = None  # error of the last round
        self._meter = _Meter(clock)
        self._since_us = clock.now_us()
        self._round_lock = threading.Lock()  # held during a round
        self._copy_thread: threading.Thread | None = None  # runs a pass of the worker
        self._repair_thread: threading.Thread | None = None  # runs repairs and checks of replicas
        self._pause_s = 0.0
        self._stop_s: float | None = _STOP_S
        super().__init__(f"auto-recovery of process {owner}")
        if isinstance(self._keys, LeasedKeys):
            make_part_of(self._keys, self)

    @property
    def owner(self) -> str:
        """Unique name of this process in the cluster: host, process id, random digits."""
        return self._keys.owner

    @property
    def is_auditor(self) -> bool:
        """Whether this process was the auditor in the last round."""
        return self._is_auditor

    @property
    def audit(self) -> Audit:
        """The auditor's result in the last round of this process; empty if it was not the auditor."""
        return self._audit

    @property
    def open_ledgers(self) -> OpenLedgersReport:
        """The result of the last look at ledgers that are not closed; empty if this process was not the auditor."""
        return self._open_report

    @property
    def listed_lost(self) -> int:
        """Number of entries that were listed as lost in the last round; 0 if this process is not the auditor."""
        return self._listed_lost

    @property
    def hold_s(self) -> float:
        """Seconds for which auto-recovery has been on hold, as known to this auditor; 0: it is not on hold."""
        hold = self._audit.hold
        return 0.0 if hold is None else max(self._clock.now_us() - hold.since_us, 1) / 1e6

    @property
    def failure(self) -> ReplogError | None:
        """Error that ended the last round early; None: it succeeded."""
        return self._failure

    @property
    def is_copying(self) -> bool:
        """Whether a pass of the worker is running."""
        thread = self._copy_thread
        return thread is not None and thread.is_alive()

    @property
    def is_repairing(self) -> bool:
        """Whether noted copies are being repaired, or replicas compared."""
        thread = self._repair_thread
        return thread is not None and thread.is_alive()

    @property
    def repairs(self) -> CopyRepairs:
        """The repairs of noted copies, which run in the auditor's process."""
        return self._repairs

    @property
    def replicas_check(self) -> ReplicasCheck:
        """The check of the copies of closed ledgers, which runs in the auditor's process."""
        return self._replicas_check

    # ---- rounds ---------------------------------------------------------------------------------------------

    def start(self, after_s: float = 0.0) -> None:
        """Start rounds on the threads of the cluster.

        Args:
            after_s: seconds until the first round.

        Raises:
            ClosedError: this object was closed.
        """
        self._check_open()
        self._next_round(after_s)

    def _next_round(self, seconds: float) -> None:
        self._runtime.wake_after(seconds, lambda: self._runtime.work(self._timed_round))

    def _timed_round(self) -> None:
        """Run a round, and schedule the next one, with exponential back-off while rounds fail."""
        try:
            config = self.round()
        except ClosedError:
            return
        except ReplogError as error:
            self._pause_s = min(max(2 * self._pause_s, 1.0), _PAUSE_MAX_S)
            if self._failure is None or type(self._failure) is not type(error):
                logger.warning("a round of auto-recovery failed, and will be retried: %s", error)
            self._failure = error
        else:
            self._failure, self._pause_s = None, config.round_ms / 1000
        self._next_round(self._pause_s)

    def round(self) -> AutoRecoveryConfig:
        """Run one round of the auditor, if this process is the auditor, and start a worker's pass if there are orders.

        `start` runs it periodically. Any thread may call it; concurrent calls are serialised.

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
                self._start_pass(self._worker, config)
            self._open_report = self._recover_open_ledgers(config) if self._is_auditor else OpenLedgersReport()
            if self._is_auditor:
                self._start_repairs(config)
                self._publish_status()
            return config

    def _start_pass(self, worker: ReplicationWorker, config: AutoRecoveryConfig) -> None:
        """Start a pass of the worker if there is work and no pass is running. Orders take precedence over moves."""
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
        """Return the moves of a rebalance by ledger; empty, after a warning, if the stored list cannot be read."""
        try:
            stored = find_moves(self._store)
        except InvalidMetadataError as error:
            logger.warning("the moves of a rebalance cannot be read, and are not carried out: %s", error)
            return {}
        return {} if stored is None else {move.ledger: move for move in stored.moves}

    def _recover_open_ledgers(self, config: AutoRecoveryConfig) -> OpenLedgersReport:
        """Recover ledgers without a writer whose last fragment names a bookie with an order."""
        orders = () if self._audit.hold is not None else self._audit.orders
        self._open_ledgers.quiet_us = config.writer_silence_ms * 1000
        return self._open_ledgers.check(self._scan.open_ledgers(orders))

    def _start_repairs(self, config: AutoRecoveryConfig) -> None:
        """Start to repair noted copies and to check some ledgers, unless both are already running."""
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
        """Run one pass of the worker, on its own thread."""
        try:
            worker.run(workload, copies_at_once)
            if workload.moves:
                settle_moves(self._store, workload.moves.values(), worker.failed_moves)
        except ClosedError:
            logger.debug("a pass of the worker ended, because the cluster was closed")
        except ReplogError as error:
            logger.warning("a pass of the worker failed, and the next round starts another: %s", error)

    def _repair(self, check_ms: int, lost: frozenset[str]) -> None:
        """Compare the replicas of some ledgers, and repair noted copies, on its own thread."""
        try:
            self._replicas_check.run(check_ms, lost)
            self._repairs.run(lost)
        except ClosedError:
            logger.debug("repairs ended, because the cluster was closed")
        except ReplogError as error:
            logger.warning("repairs failed, and the next round starts them again: %s", error)

    # ---- status ---------------------------------------------------------------------------------------------

    def worker_status(self) -> WorkerStatus:
        """Return the counters of this process's worker, and its remaining work."""
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
        """Return the auditor's result, with the ledgers that this process's worker could not copy."""
        audit, worker, opened = self._audit, self._worker, self._open_report
        failures = {} if worker is None else worker.failures
        failed = {ledger: str(failure.error) for ledger, failure in failures.items()}
        failed = {**self._repairs.failures, **failed, **opened.failed}
        alarms = list(audit.alarms)
        if lacking := sum(failure.lacks_bookie for failure in failures.values()):
            text = f"{counted(lacking, 'ledger')} cannot be copied: no other bookie can take their copies; add a bookie"
            alarms.append(Alarm("no-target", text))
        if opened.needs_operator:
            ledger, why = min(opened.needs_operator.items())
            count = counted(len(opened.needs_operator), "ledger", "have")
            text = f"{count} no writer any more, such as ledger {ledger}: {why}"
            alarms.append(Alarm("open-ledgers", text))
        checked = self._replicas_check.progress
        if checked is not None and checked.differing:
            ledger, text = min(checked.differing.items())
            count = counted(len(checked.differing), "ledger")
            text = f"copies of {count} differ, such as those of ledger {ledger}: {text}"
            alarms.append(Alarm("copies-differ", text))
        waiting = sorted({*opened.waiting, *opened.notified, *opened.recovering})
        return AutoRecoveryStatus(
            self.owner, self._clock.now_us(), {bookie: audit.named.get(bookie, 0) for bookie in audit.orders},
            tuple(alarms), dict(sorted(failed.items())[:FAILED_MAX]), tuple(waiting[:OPEN_MAX]),
        )  # fmt: skip

    def _publish_status(self) -> None:
        """Store the status if something other than the time changed, or the stored one is a minute old."""
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

    # ---- closing --------------------------------------------------------------------------------------------

    def close(self, timeout: float | None = _STOP_S) -> None:
        """Stop the rounds and the copying.

        Finished copies stay, and other processes continue. Closing twice has no effect.

        Args:
            timeout: seconds to wait for the ledgers in progress; None: no limit. Copies that are still in progress then
                end when the cluster is closed.
        """
        self._stop_s = timeout
        super().close()

    def _do_close(self) -> None:
        """Stop the pass after the ledgers in progress, wait for it, and release the keys."""
        for running in (self._worker, self._repairs, self._replicas_check):
            if running is not None:
                running.stop()
        with self._round_lock:  # no pass starts after this
            threads = [thread for thread in (self._copy_thread, self._repair_thread) if thread is not None]
        for thread in threads:
            if thread is not threading.current_thread():
                thread.join(self._stop_s)
        self._keys.close()


class _Meter:
    """Measures the rate of bytes between calls of `measure`."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._at_us, self._bytes = clock.monotonic_us(), 0
        self.bytes_per_s = 0

    def measure(self, total: int) -> None:
        """Update the rate from the total number of bytes so far."""
        now_us = self._clock.monotonic_us()
        if now_us > self._at_us:
            self.bytes_per_s = (total - self._bytes) * 1_000_000 // (now_us - self._at_us)
        self._at_us, self._bytes = now_us, total
