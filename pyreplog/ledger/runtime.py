"""Services that the drivers of one cluster share: worker threads, timers, notes of repairs, requests to bookies."""

from __future__ import annotations

import logging
import random
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from contextlib import ExitStack
from threading import get_ident
from typing import Any, TypeVar

from pyreplog._native.bookie.fast_add import LATER, FastAdd, as_fast_add
from pyreplog._native.machines.serial_executor import check_may_wait
from pyreplog._native.net.add_replies import Answer
from pyreplog.bookie.bookie_state import BookiePhase
from pyreplog.bookie.collector import Collector
from pyreplog.bookie.local_bookie import LocalBookie
from pyreplog.bookie.metrics import bookie_metrics
from pyreplog.bookie.protocol import Reply, Request
from pyreplog.bookie.scrub import IDLE_S, ScrubProgress
from pyreplog.errors import ClosedError, NotConnectedError, ReplogError
from pyreplog.future import AppendFuture, set_exception
from pyreplog.handles import Handle, make_part_of
from pyreplog.ledger.driver import Add, TimerLike
from pyreplog.ledger.metrics import ClientCounters
from pyreplog.ledger.placement import Candidate
from pyreplog.ledger.protocol.effects import BadCopy, Degraded
from pyreplog.ledger.quarantine import Quarantine
from pyreplog.ledger.registrations import LEAVING_PHASES, BookieStates
from pyreplog.ledger.repair_notes import note_repair
from pyreplog.ledger.status import BookieStatus, DegradedLedger
from pyreplog.ledger.thread_pool import ThreadPool
from pyreplog.metadata.store import MetadataStore
from pyreplog.metrics import Metric
from pyreplog.net.reactor import Reactor
from pyreplog.net.sockets import weak_callback
from pyreplog.waiting_threads import waiting_threads

logger = logging.getLogger(__name__)

T = TypeVar("T")

READ_AGAIN_S = 1.0
"""Seconds between a failed read of registrations, or of bookies' states, and the next one."""
STATES_S = 5.0
"""Seconds for which opening an embedded cluster waits for the states of its bookies."""
_SCRUB_PAUSE_S = 0.5
"""At least so long between two steps of the scrub, each of which takes 0.2 seconds at most."""


class _ExpiredTimer:
    """A timer that had already expired when it was set, so that it cannot be cancelled."""

    def cancel(self) -> bool:
        return False


_EXPIRED_TIMER = _ExpiredTimer()


class RuntimeBase:
    """A metadata store, a reactor and worker threads; implements `driver.Runtime`. Any thread may use it."""

    def __init__(self, metadata: MetadataStore, *, entry_bytes_max: int, busy_poll_us: int = 0) -> None:
        self.metadata = metadata
        self.entry_bytes_max = entry_bytes_max
        self.reactor = Reactor(busy_poll_us=busy_poll_us)
        self.reactor.start()
        self._workers = ThreadPool(4, "pyreplog-metadata")
        self._expected: set[AppendFuture[Any]] = set()
        self.counts = ClientCounters()
        self.degraded: dict[int, DegradedLedger] = {}  # of the ledgers that this client writes
        self._quarantine = Quarantine(self.reactor.clock, random.random)
        self._racks: dict[str, str] = {}  # of bookies, as they registered last
        self.on_bookies: Callable[[], object] = lambda: None
        """Called when bookies registered, left, or changed their registration, and when their states changed."""
        self.before_store_closes: Callable[[], object] = lambda: None
        """Called by `close` when the jobs have ended, and the store is still open."""
        self._closed = False
        try:
            self.bookie_states = BookieStates(
                metadata, weak_callback(self._states_changed), weak_callback(self._read_again)
            )
        except BaseException:
            self._workers.close()
            self.reactor.close()
            raise

    def belong_to(self, cluster: Handle) -> None:
        """Make the store and the reactor parts of the cluster, whose `close` closes this runtime."""
        for part in (self.metadata, self.reactor):
            make_part_of(part, cluster)

    def expect(self, future: AppendFuture[Any]) -> None:
        self._expected.add(future)
        future.add_done_callback(self._expected.discard)
        if self._closed:
            set_exception(future, ClosedError("the cluster was closed"))

    def wake_after(self, seconds: float, call: Callable[[], None]) -> TimerLike | None:
        try:
            if seconds <= 0:
                self.reactor.call_soon(call)
                return _EXPIRED_TIMER
            return self.reactor.call_later(seconds, call)
        except ReplogError as error:
            logger.debug("a timer was set after its cluster was closed: %s", error)
            return None

    def work(self, job: Callable[[], object]) -> None:
        self._workers.submit(job)

    def _states_changed(self, _: Set[str]) -> None:
        """Report changed states.

        The watch of the store holds the runtime weakly, so that an unclosed cluster can be collected.
        """
        self.on_bookies()

    def _read_again(self, read: Callable[[], None]) -> None:
        self.wake_after(READ_AGAIN_S, lambda: self.work(read))

    def note_waiting(self, change: int) -> None:
        self.counts.wait_for_metadata(change)

    def report(self, ledger: int, bad: BadCopy) -> None:
        self.counts.find_bad_copy()
        self.work(lambda: self._note(ledger, bad))

    def _note(self, ledger: int, bad: BadCopy) -> None:
        try:
            note_repair(self.metadata, ledger, bad.bookie, bad.entry)
        except ReplogError as error:
            logger.warning("ledger %d, entry %d on %s: not noted for repair: %s", ledger, bad.entry, bad.bookie, error)

    def note_lacking(self, ledger: int, copies: Sequence[BadCopy]) -> None:
        now_us = self.reactor.clock.now_us()
        for bad in copies:
            if note_repair(self.metadata, ledger, bad.bookie, bad.entry, lacking_since_us=now_us):
                self.counts.find_bad_copy()

    def note_degraded(self, ledger: int, degraded: Degraded | None) -> None:
        previous = self.degraded.get(ledger)
        if degraded is not None and degraded.bookies:
            since_us = self.reactor.clock.now_us() if previous is None else previous.since_us
            logger.warning(
                "ledger %d goes on degraded: no other bookie can replace %s; the copies there are noted for repair: %s",
                ledger, ", ".join(degraded.bookies), degraded.why,
            )  # fmt: skip
            self.degraded[ledger] = DegradedLedger(ledger, degraded.bookies, since_us, degraded.why)
            return
        if previous is not None and degraded is not None:
            logger.warning("ledger %d is not degraded any more: %s", ledger, ", ".join(previous.bookies))
        self.degraded.pop(ledger, None)

    def suspect(self, bookie: str) -> None:
        self._quarantine.add(bookie)

    def send(self, bookie: str, request: Request, on_reply: Callable[[Reply | Exception], None]) -> None:
        """Send a request to a bookie; `on_reply` is called by any thread, perhaps before this method returns."""
        raise NotImplementedError

    def add(self, adds: Sequence[Add]) -> None:
        """Send ADDs to several bookies, as `send` does."""
        for bookie, request, answer in adds:
            self.send(bookie, request, answer)

    def wait(self, future: AppendFuture[T], timeout: float | None = None) -> T:
        """Return `future.result(timeout)`; the waiting thread may run the reactor. Raises as `check_may_wait`."""
        if not future.done():
            check_may_wait()
        return future.result(timeout)

    def bookie_statuses(self) -> list[BookieStatus]:
        """Return the bookies that run now."""
        raise NotImplementedError

    def absent_bookies(self) -> list[BookieStatus]:
        """Return the bookies that do not run, and are away, lost, draining or retired."""
        running = {status.bookie for status in self.bookie_statuses()}
        states = self.bookie_states.items()
        return [BookieStatus(name, "", "", False, 0, state.phase) for name, state in states if name not in running]

    def bookie_metrics(self) -> Iterator[Metric]:
        """Return the metrics of the bookies in this process."""
        return iter(())

    @property
    def embedded_bookies(self) -> int | None:
        """Number of bookies in this process; None: the bookies run in other processes."""
        return None

    def candidates(self, *, suspects: bool = False) -> list[Candidate]:
        """Return the bookies that take entries now and did not fail lately; with `suspects`, those that did fail.

        Bookies that are draining, lost or retired are never among them.
        """
        return [
            Candidate(status.bookie, weight=float(status.free_bytes), rack=status.rack)
            for status in self._writable(suspects)
            if status.phase not in LEAVING_PHASES
        ]

    def draining(self) -> set[str]:
        """Return the bookies that are draining, take entries now and did not fail lately: they keep their places."""
        return {status.bookie for status in self._writable(False) if status.phase is BookiePhase.DRAINING}

    def _writable(self, suspects: bool) -> Iterator[BookieStatus]:
        for status in self.bookie_statuses():
            if not status.read_only and (status.bookie in self._quarantine) is suspects:
                yield status

    def leaving_bookies(self) -> list[str]:
        """Return the ids of bookies that are lost, retired or draining, in this order."""
        return self.bookie_states.leaving()

    def racks(self) -> Mapping[str, str]:
        """Return the racks of bookies, for placement: of those that run, and of those that ran since this was made."""
        self._racks.update((status.bookie, status.rack) for status in self.bookie_statuses())
        return self._racks

    def end_calls_by(self, deadline: float) -> None:
        """Let no call of the metadata store wait beyond `deadline`; see `MetadataStore.end_calls_by`."""
        self.metadata.end_calls_by(deadline)

    def close(self, timeout: float | None = None) -> None:
        """Fail the expected futures with ClosedError, then close threads, reactor and store; errors come last.

        timeout: seconds for the jobs of `work`; jobs that have not begun by then are dropped. None: wait for all.
        """
        self._closed = True
        self.bookie_states.close()
        with ExitStack() as cleanup:
            cleanup.callback(self.metadata.close)
            cleanup.callback(self.before_store_closes)
            cleanup.callback(self.reactor.close)
            cleanup.callback(self._workers.close, timeout)
            for future in list(self._expected):
                set_exception(future, ClosedError("the cluster was closed"))


class EmbeddedRuntime(RuntimeBase):
    """The runtime of a cluster whose bookies run in this process and are called directly.

    bookies, collectors: the bookies and their garbage collectors, by bookie id.
    """

    def __init__(
        self,
        metadata: MetadataStore,
        bookies: Mapping[str, LocalBookie],
        collectors: Mapping[str, Collector],
        *,
        entry_bytes_max: int,
        collect_s: float,
    ) -> None:
        super().__init__(metadata, entry_bytes_max=entry_bytes_max)
        self.bookies, self._collectors, self._collect_s = dict(bookies), dict(collectors), collect_s
        self.wake_after(collect_s, self._collect_later)
        self.bookie_states.wait(STATES_S)
        self._scrub_timer = self.wake_after(IDLE_S, self._scrub_later)
        for bookie in self.bookies.values():
            bookie.scrubber.on_request = weak_callback(self._scrub_requested)

    def send(self, bookie: str, request: Request, on_reply: Callable[[Reply | Exception], None]) -> None:
        local = self.bookies.get(bookie)
        if local is None:
            on_reply(NotConnectedError(f"there is no bookie {bookie}"))
            return
        try:
            local.request(request, on_reply)
        except ReplogError as error:
            on_reply(error)

    def add(self, adds: Sequence[Add]) -> None:
        """Send ADDs; consecutive ones with the same request object are checked for the fast path once."""
        checked, fast = None, None
        for bookie, request, answer in adds:
            if request is not checked:
                checked, fast = request, as_fast_add(request)
            lac = None if fast is None else self._add_fast(bookie, fast, answer)
            if lac == LATER:  # the bookie keeps the FastAdd
                checked = None
            elif lac is None or not answer.stored():
                self.send(bookie, request, answer)

    def _add_fast(self, bookie: str, add: FastAdd, answer: Answer) -> int | None:
        """Try the fast path; return None if the request has to be sent in the general way, which is then safe."""
        local = self.bookies.get(bookie)
        try:
            if local is None:
                return None
            return local.request_fast(add, answer, commits_here=get_ident() in waiting_threads)
        except ReplogError:
            return None

    def wait(self, future: AppendFuture[T], timeout: float | None = None) -> T:
        """Wait as `RuntimeBase.wait` does. A thread that waits without a limit syncs one of the bookies itself.

        A thread that waits for a limited time does not sync, because a sync may take longer.
        """
        thread = get_ident()
        is_announced = thread in waiting_threads  # so that bookies were not woken for its entries
        waiting_threads.discard(thread)
        busy = [bookie for bookie in self.bookies.values() if bookie.has_work()]
        commits = bool(busy) and timeout is None and not future.done()
        if is_announced:
            for bookie in busy[int(commits) :]:
                bookie.wake()
        if commits:
            check_may_wait()
            busy[0].commit_here()
        return super().wait(future, timeout)

    def bookie_statuses(self) -> list[BookieStatus]:
        return [
            BookieStatus(
                name,
                "",
                "",
                local.read_only,
                local.free_bytes,
                self.bookie_states.phase(name),
                scrub=local.scrubber.report().last,
                verified_since_us=local.scrubber.verified_since_us(),
            )
            for name, local in self.bookies.items()
        ]

    @property
    def embedded_bookies(self) -> int | None:
        return len(self.bookies)

    def bookie_metrics(self) -> Iterator[Metric]:
        for name, bookie in self.bookies.items():
            yield from bookie_metrics(name, bookie, self._collectors[name], None)

    def belong_to(self, cluster: Handle) -> None:
        super().belong_to(cluster)
        for bookie in self.bookies.values():
            make_part_of(bookie, cluster)

    def _collect_later(self) -> None:
        self.work(self.collect)

    def collect(self) -> None:
        """Run a round of garbage collection on every bookie, and schedule the next round."""
        for bookie, collector in self._collectors.items():
            try:
                while not self._closed and collector.step():
                    continue
            except (ReplogError, OSError) as error:
                logger.warning("bookie %s: garbage collection: %s", bookie, error)
        self.wake_after(self._collect_s, self._collect_later)

    def _scrub_later(self) -> None:
        self.work(self.scrub)

    def scrub(self) -> None:
        """Verify the segments of every bookie that are due, and schedule the next step."""
        delay_s = IDLE_S
        for bookie in self.bookies.values():
            if not self._closed:
                delay_s = min(delay_s, bookie.scrubber.step())
        self._scrub_timer = self.wake_after(max(delay_s, _SCRUB_PAUSE_S), self._scrub_later)
        if any(bookie.scrubber.is_requested for bookie in self.bookies.values()):  # requested during this step
            self._scrub_requested()

    def scrub_now(self) -> None:
        """Verify all segments of all bookies at the highest rate, `scrub_bytes_per_s`, from now on."""
        for bookie in self.bookies.values():
            bookie.scrubber.scrub_now()

    def _scrub_requested(self) -> None:
        """Run the next step soon. A bookie calls it while it handles a request."""
        if self._scrub_timer is not None and self._scrub_timer.cancel():  # else a step runs, or is scheduled
            self._scrub_later()

    def scrub_progress(self) -> dict[str, ScrubProgress]:
        """Return the progress of the verification of each bookie's segments."""
        return {name: bookie.scrubber.progress() for name, bookie in self.bookies.items()}

    def close(self, timeout: float | None = None) -> None:
        with ExitStack() as cleanup:
            for bookie in self.bookies.values():
                cleanup.callback(bookie.close)
            super().close(timeout)
