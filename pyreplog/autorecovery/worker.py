"""ReplicationWorker: replicates the copies of bookies with orders, ledgers with the fewest copies first."""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace

from pyreplog.autorecovery.copy_rate_limiter import CopyRateLimiter
from pyreplog.autorecovery.failed_attempt import FailedAttempt
from pyreplog.autorecovery.leased_keys import SharedKeys, claim_key
from pyreplog.autorecovery.ledger_scan import LedgerScan
from pyreplog.autorecovery.protocol.ledger_replicator import LedgerReplicated, LedgerReplicator
from pyreplog.autorecovery.protocol.priority import fewest_copies
from pyreplog.autorecovery.protocol.rebalance import Move
from pyreplog.autorecovery.replication_driver import replicate
from pyreplog.autorecovery.targets import TargetChooser
from pyreplog.clock import Clock
from pyreplog.errors import ClosedError, NotEnoughBookiesError, ReplogError, UnreadableError
from pyreplog.ledger.ledger_metadata import LedgerMetadata
from pyreplog.ledger.ledger_store import VersionedMetadata
from pyreplog.ledger.runtime import RuntimeBase
from pyreplog.ledger.thread_pool import ThreadPool
from pyreplog.plurals import counted

logger = logging.getLogger(__name__)

_CHUNK = 64
"""Number of ledgers whose metadata are loaded together."""


@dataclass(frozen=True)
class Workload:
    """The work of one pass.

    Attributes:
        sources: ids of the bookies whose copies are replicated again.
        lost: ids of bookies whose data are lost.
        away: ids of bookies that do not run and may return.
        moves: moves of a rebalance, by ledger; with moves there are no sources.
        running: ids of all running bookies.
    """

    sources: frozenset[str]
    lost: frozenset[str]
    away: frozenset[str]
    moves: Mapping[int, Move] = field(default_factory=dict)
    running: frozenset[str] = frozenset()


@dataclass
class WorkerCounters:
    """Counters of a worker.

    Attributes:
        ledgers: number of ledgers that were completed.
        entries: number of entries that were copied.
        bytes: their size in bytes.
        lost_entries: number of entries that were listed as lost.
        conflicts: number of ledgers that another worker had claimed.
        failures: number of failed attempts.
    """

    ledgers: int = 0
    entries: int = 0
    bytes: int = 0
    lost_entries: int = 0
    conflicts: int = 0
    failures: int = 0


@dataclass
class Pass:
    """Progress of one pass; it changes while the pass runs.

    Attributes:
        ledgers_left: number of ledgers that are still to do.
        bytes_left: size of the copies in these ledgers, bytes, as far as their metadata tell.
        one_copy_left: number of ledgers with an entry that had at most one copy when the pass began.
        open: ledgers whose last fragment names a source, which their writer or recovery has to replace.
    """

    ledgers_left: int = 0
    bytes_left: int = 0
    one_copy_left: int = 0
    open: set[int] = field(default_factory=set)


class ReplicationWorker:
    """Copies ledgers, several concurrently. One thread at a time calls `run`; any thread may call the rest.

    Args:
        runtime: runtime of the cluster.
        keys: leased keys of this process, for claims.
        scan: index of ledgers by bookie.
        clock: source of time.
    """

    def __init__(self, runtime: RuntimeBase, keys: SharedKeys, scan: LedgerScan, clock: Clock) -> None:
        self._runtime, self._keys, self._scan, self._clock = runtime, keys, scan, clock
        self._copies_at_once = 1
        self._targets = TargetChooser(runtime)
        self.rate_limiter = CopyRateLimiter(None, clock)
        self.counters = WorkerCounters()
        self._lock = threading.Lock()  # guards the counters, the pass, the queue and the failures
        self._pass = Pass()
        self._queue: deque[tuple[int, int]] = deque()  # (ledger, bytes of the copies to make)
        self._failures: dict[int, FailedAttempt] = {}
        self._failed_moves: dict[int, str] = {}  # of the current pass
        self._candidates: frozenset[str] = frozenset()  # bookies that could take copies in the last pass
        self._workload = Workload(frozenset(), frozenset(), frozenset())
        self._allowed: tuple[frozenset[str], frozenset[int]] | None = None  # sources and moves, as set by `restrict`
        self._scanned_for: frozenset[str] = frozenset()  # sources for which all ledgers were read
        self._is_stopping = False

    @property
    def progress(self) -> Pass:
        """The current pass, or the last one. Do not change it."""
        return self._pass

    @property
    def failures(self) -> dict[int, FailedAttempt]:
        """The last failed attempts, by ledger."""
        with self._lock:
            return dict(self._failures)

    @property
    def failed_moves(self) -> dict[int, str]:
        """The errors of moves in the last pass, by ledger."""
        with self._lock:
            return dict(self._failed_moves)

    def stop(self) -> None:
        """Make `run` return after the ledgers in progress. Any thread may call it."""
        self._is_stopping = True

    def restrict(self, sources: Collection[str], moves: Collection[int] = ()) -> None:
        """Exclude bookies and moves that are not given, because their orders or moves were withdrawn.

        This applies to the running pass, and to passes that start later. Any thread may call it.
        """
        with self._lock:
            self._allowed = frozenset(sources), frozenset(moves)
            self._workload = self._restricted(self._workload)

    def _restricted(self, load: Workload) -> Workload:
        """Return the part of a workload that the last `restrict` allows; called with the lock held."""
        if self._allowed is None:
            return load
        sources, moves = self._allowed
        kept = {ledger: move for ledger, move in load.moves.items() if ledger in moves}
        return replace(load, sources=load.sources & sources, moves=kept)

    # ---- one pass -------------------------------------------------------------------------------------------

    def run(self, workload: Workload, copies_at_once: int) -> Pass:
        """Copy the ledgers of a workload, except those in back-off and those that another worker has claimed.

        Args:
            workload: the work of the pass.
            copies_at_once: number of ledgers that are copied concurrently.

        Returns:
            The counters of the pass.

        Raises:
            ReplogError: errors of the metadata store, when it cannot be read at all.
        """
        if workload.moves:
            queue = deque((move.ledger, move.size) for move in workload.moves.values())
            current = Pass(len(queue), sum(size for _, size in queue))
        else:
            self._refresh_scan(workload)
            queue, current = self._queue_by_copies(workload)
        with self._lock:
            self._workload, self._queue, self._pass = self._restricted(workload), queue, current
            self._failed_moves = {}
        self._copies_at_once = copies_at_once
        threads = min(copies_at_once, len(queue))
        if threads:
            pool = ThreadPool(threads, "pyreplog-replication")
            for _ in range(threads):
                pool.submit(self._copy_queued)
            pool.close()
        return current

    def _refresh_scan(self, workload: Workload) -> None:
        """Update the index of the ledgers that name a source."""
        if workload.sources <= self._scanned_for:
            self._scan.refresh()
        else:  # another worker may have named a source since the last scan
            self._scan.scan()
        self._scanned_for = workload.sources

    def _queue_by_copies(self, workload: Workload) -> tuple[deque[tuple[int, int]], Pass]:
        """Return the ledgers to copy, those with the fewest copies first, and the counters of the pass."""
        current, gone = Pass(), workload.lost | workload.away | workload.sources
        ledgers = {int(ledger) for source in workload.sources for ledger in self._scan.ledgers_of(source)}
        ledgers -= self._in_back_off(ledgers)
        urgent: list[tuple[int, int, int]] = []
        for ids in _chunks(sorted(ledgers), 4096):
            for stored in self._scan.read(ids):
                copies, size = fewest_copies(stored.metadata, gone), bytes_on(stored.metadata, workload.sources)
                urgent.append((copies, stored.metadata.ledger, size))
                current.bytes_left += size
                current.one_copy_left += copies <= 1
        urgent.sort()
        current.ledgers_left = len(urgent)
        return deque((ledger, size) for _, ledger, size in urgent), current

    def _in_back_off(self, ledgers: set[int]) -> set[int]:
        """Return the ledgers in back-off. A new bookie ends the back-off of ledgers that lacked one."""
        candidates = frozenset(candidate.bookie for candidate in self._runtime.candidates())
        now_us = self._clock.monotonic_us()
        with self._lock:
            has_more = not candidates <= self._candidates
            self._candidates = candidates
            self._failures = {ledger: failure for ledger, failure in self._failures.items() if ledger in ledgers}
            return {
                ledger
                for ledger, failure in self._failures.items()
                if failure.retry_us > now_us and not (failure.lacks_bookie and has_more)
            }

    def _copy_queued(self) -> None:
        """Copy ledgers until the queue is empty. Several threads run it."""
        while not self._is_stopping:
            with self._lock:
                chunk = [self._queue.popleft() for _ in range(min(len(self._queue), self._chunk_size()))]
            if not chunk:
                return
            self._copy_chunk(dict(chunk))

    def _chunk_size(self) -> int:
        """Return the size of the next chunk: small towards the end, so that all threads have work."""
        return max(1, min(_CHUNK, len(self._queue) // (2 * self._copies_at_once)))

    def _copy_chunk(self, sizes: dict[int, int]) -> None:
        try:
            stored = {each.metadata.ledger: each for each in self._scan.read(sizes)}
        except ReplogError as error:
            stored = {}
            for ledger in sizes:
                self._note_failure(ledger, error)
        for ledger, size in sizes.items():
            if ledger in stored and not self._is_stopping:
                self._copy_claimed(stored[ledger])
            with self._lock:
                self._pass.ledgers_left -= 1
                self._pass.bytes_left -= size

    # ---- one ledger -----------------------------------------------------------------------------------------

    def _copy_claimed(self, stored: VersionedMetadata) -> None:
        ledger, began_us = stored.metadata.ledger, self._clock.monotonic_us()
        try:
            if not self._keys.take(claim_key(ledger)):
                with self._lock:
                    self.counters.conflicts += 1
                return
            try:
                self._copy(stored)
            finally:
                self._keys.release(claim_key(ledger))
        except ClosedError:
            self._is_stopping = True
        except ReplogError as error:
            if not isinstance(error, NotEnoughBookiesError):
                self.rate_limiter.slow_down(began_us)
            self._note_failure(ledger, error)

    def _copy(self, stored: VersionedMetadata) -> None:
        """Copy one ledger, away from the sources. Raises the errors of a LedgerReplicator."""
        load, metadata = self._workload, stored.metadata
        move = load.moves.get(metadata.ledger)
        sources = load.sources if move is None else frozenset({move.source})
        if sources.isdisjoint(metadata.bookies()):
            return
        choose = self._targets.choose if move is None else self._targets.only(move.target)
        machine = LedgerReplicator(
            metadata, stored.version, sources, lost=load.lost, away=load.away, choose=choose,
            others=load.running, throttle=self.rate_limiter.spend,
        )  # fmt: skip
        self._count_copies(metadata.ledger, replicate(metadata.ledger, machine, self._runtime, self._clock, self._scan))

    def _count_copies(self, ledger: int, replicated: LedgerReplicated) -> None:
        with self._lock:
            counters = self.counters
            counters.entries += replicated.entries
            counters.bytes += replicated.bytes
            counters.lost_entries += replicated.lost
            if replicated.is_open:
                self._pass.open.add(ledger)
            if not replicated.kept:
                counters.ledgers += not replicated.is_open
                self._failures.pop(ledger, None)
        if replicated.kept:  # back off, or each pass would search for these entries
            text = f"{counted(replicated.kept, 'entry', 'have')} copies only on bookies that are away, or no copy"
            self._note_failure(ledger, UnreadableError(ledger, text))

    def _note_failure(self, ledger: int, error: ReplogError) -> None:
        """Schedule the next attempt for a ledger; a failed move is given up instead, since no copy is missing."""
        if (move := self._workload.moves.get(ledger)) is not None:
            lacks = f"{move.target} does not take the copies any more, or entries would have copies in fewer racks"
            with self._lock:
                self._failed_moves[ledger] = lacks if isinstance(error, NotEnoughBookiesError) else str(error)
                self.counters.failures += 1
            return
        with self._lock:
            now_us, is_first = self._clock.monotonic_us(), not self._failures
            failure = self._failures[ledger] = FailedAttempt.after(self._failures.get(ledger), error, now_us)
            self.counters.failures += 1
        logger.log(
            logging.WARNING if is_first else logging.DEBUG, "ledger %d was not copied, and will be retried in %d s: %s",
            ledger, (failure.retry_us - now_us) // 1_000_000, error,
        )  # fmt: skip


def bytes_on(metadata: LedgerMetadata, bookies: Collection[str]) -> int:
    """Estimate the bytes of a closed ledger on some bookies, from its length; 0 if the ledger is not closed."""
    entries = metadata.last_entry + 1
    if not entries:
        return 0
    held = sum(len(stripe) for bookie in bookies for stripe in metadata.holdings(bookie))
    return metadata.length * held // entries


def _chunks(ledgers: list[int], size: int) -> Iterable[list[int]]:
    return (ledgers[start : start + size] for start in range(0, len(ledgers), size))
