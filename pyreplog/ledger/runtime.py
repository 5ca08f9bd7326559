"""What the drivers of one cluster share: threads for what blocks, timers, the queue of repairs; and ways to bookies."""

from __future__ import annotations

import logging
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from typing import Any, TypeVar

from pyreplog._native.bookie.fast_add import FastAdd, as_fast_add
from pyreplog._native.machines.serial_executor import check_may_wait
from pyreplog._native.net.answers import Answer
from pyreplog.bookie.collector import Collector
from pyreplog.bookie.local import LocalBookie
from pyreplog.bookie.metrics import bookie_metrics
from pyreplog.bookie.protocol import Reply, Request
from pyreplog.errors import ClosedError, NotConnectedError, ReplogError
from pyreplog.future import AppendFuture
from pyreplog.handles import Handle, make_part_of
from pyreplog.ledger.driver import Add, TimerLike
from pyreplog.ledger.metrics import ClientCounters
from pyreplog.ledger.placement import Candidate
from pyreplog.ledger.protocol.effects import BadCopy, Degraded
from pyreplog.ledger.quarantine import Quarantine
from pyreplog.ledger.repair_notes import note_repair
from pyreplog.ledger.status import BookieStatus, DegradedLedger
from pyreplog.ledger.thread_pool import ThreadPool
from pyreplog.metadata.store import MetadataStore
from pyreplog.metrics import Metric
from pyreplog.net.reactor import Reactor

logger = logging.getLogger(__name__)

T = TypeVar("T")


class _ExpiredTimer:
    """A timer that was due when it was set."""

    def cancel(self) -> bool:
        return False


_GONE_OFF = _ExpiredTimer()


class RuntimeBase:
    """A metadata store, a reactor and a few threads. Any thread may call anything; see `driver.Runtime`."""

    def __init__(self, metadata: MetadataStore, *, entry_bytes_max: int, busy_poll_us: int = 0) -> None:
        self.metadata = metadata
        self.entry_bytes_max = entry_bytes_max
        self.reactor = Reactor(busy_poll_us=busy_poll_us)
        self.reactor.start()
        self._workers = ThreadPool(4, "pyreplog-metadata")
        self._expected: set[AppendFuture[Any]] = set()
        self.counts = ClientCounters()
        self.degraded: dict[int, DegradedLedger] = {}  # of those that are written here
        self._quarantine = Quarantine(self.reactor.clock, random.random)
        self._racks: dict[str, str] = {}  # of bookies, as they registered last
        self.on_bookies: Callable[[], object] = lambda: None
        """Called when bookies came, went, or say something else of themselves."""
        self._closed = False

    def belong_to(self, cluster: Handle) -> None:
        """Whose `close` closes this."""
        for part in (self.metadata, self.reactor):
            make_part_of(part, cluster)

    def expect(self, done: AppendFuture[Any]) -> None:
        self._expected.add(done)
        done.add_done_callback(self._expected.discard)
        if self._closed:
            done.fail(ClosedError("the cluster was closed"))

    def wake_after(self, seconds: float, call: Callable[[], None]) -> TimerLike | None:
        try:
            if seconds <= 0:
                self.reactor.call_soon(call)
                return _GONE_OFF
            return self.reactor.call_later(seconds, call)
        except ReplogError as error:
            logger.debug("a timer was set after its cluster was closed: %s", error)
            return None

    def work(self, job: Callable[[], object]) -> None:
        self._workers.submit(job)

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
        before = self.degraded.get(ledger)
        if degraded is not None and degraded.bookies:
            since_us = self.reactor.clock.now_us() if before is None else before.since_us
            logger.warning(
                "ledger %d goes on degraded: no other bookie can replace %s; the copies there are noted for repair: %s",
                ledger, ", ".join(degraded.bookies), degraded.why,
            )  # fmt: skip
            self.degraded[ledger] = DegradedLedger(ledger, degraded.bookies, since_us, degraded.why)
            return
        if before is not None and degraded is not None:
            logger.warning("ledger %d is degraded no more: %s", ledger, ", ".join(before.bookies))
        self.degraded.pop(ledger, None)

    def suspect(self, bookie: str) -> None:
        self._quarantine.add(bookie)

    def send(self, bookie: str, request: Request, on_reply: Callable[[Reply | Exception], None]) -> None:
        """Ask a bookie; `on_reply` is called, from any thread, maybe before this returns."""
        raise NotImplementedError

    def add(self, adds: Sequence[Add]) -> None:
        """`send`, of ADDs to several bookies."""
        for bookie, request, answer in adds:
            self.send(bookie, request, answer)

    def wait(self, future: AppendFuture[T], timeout: float | None = None) -> T:
        """`future.result(timeout)`; the thread that waits may do the work it waits for. Errors: as `check_may_wait`."""
        if not future.done():
            check_may_wait()
        return future.result(timeout)

    def bookie_statuses(self) -> list[BookieStatus]:
        """The bookies that run now."""
        raise NotImplementedError

    def bookie_metrics(self) -> Iterator[Metric]:
        """Numbers of the bookies in this process."""
        return iter(())

    @property
    def embedded_bookies(self) -> int | None:
        """How many bookies this process has; None: they are elsewhere."""
        return None

    def candidates(self, *, suspects: bool = False) -> list[Candidate]:
        """Bookies that take new entries now, and did not fail lately. suspects: those that did, instead."""
        there = (status for status in self.bookie_statuses() if not status.read_only)
        return [
            Candidate(status.bookie, weight=float(status.free_bytes), rack=status.rack)
            for status in there
            if (status.bookie in self._quarantine) is suspects
        ]

    def racks(self) -> Mapping[str, str]:
        """Return the racks of bookies, for placement: of those that run, and of those that ran since this was made."""
        self._racks.update((status.bookie, status.rack) for status in self.bookie_statuses())
        return self._racks

    def end_calls_by(self, deadline: float) -> None:
        """No call of the metadata store waits any longer; see `MetadataStore.end_calls_by`."""
        self.metadata.end_calls_by(deadline)

    def close(self, timeout: float | None = None) -> None:
        """Who waits for something is told; errors of what is closed come behind the rest. timeout: seconds for the jobs
        of `work`; those that were not begun then are dropped (None: never)."""
        self._closed = True
        with ExitStack() as rest:
            rest.callback(self.metadata.close)
            rest.callback(self.reactor.close)
            rest.callback(self._workers.close, timeout)
            for done in list(self._expected):
                done.fail(ClosedError("the cluster was closed"))


class EmbeddedRuntime(RuntimeBase):
    """Bookies of this process, called directly. bookies: by their ids. collectors: their garbage collection."""

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

    def send(self, bookie: str, request: Request, on_reply: Callable[[Reply | Exception], None]) -> None:
        there = self.bookies.get(bookie)
        if there is None:
            on_reply(NotConnectedError(f"there is no bookie {bookie}"))
            return
        try:
            there.request(request, on_reply)
        except ReplogError as error:
            on_reply(error)

    def add(self, adds: Sequence[Add]) -> None:
        """What all are asked is looked at once."""
        asked, plain = None, None
        for bookie, request, answer in adds:
            if request is not asked:
                asked, plain = request, as_fast_add(request)
            if plain is None or not self._add(bookie, plain, answer):
                self.send(bookie, request, answer)

    def _add(self, bookie: str, add: FastAdd, answer: Answer) -> bool:
        """False: nothing was done that may not be done again."""
        there = self.bookies.get(bookie)
        try:
            stored = there is not None and there.add_fast(add) is not None
        except ReplogError:
            return False
        return stored and answer.stored()

    def bookie_statuses(self) -> list[BookieStatus]:
        return [BookieStatus(name, "", "", there.read_only, there.free_bytes) for name, there in self.bookies.items()]

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
        """Do a round of garbage collection on every bookie now, and set the timer for the next one."""
        for bookie, collector in self._collectors.items():
            try:
                while not self._closed and collector.step():
                    continue
            except (ReplogError, OSError) as error:
                logger.warning("bookie %s: garbage collection: %s", bookie, error)
        self.wake_after(self._collect_s, self._collect_later)

    def close(self, timeout: float | None = None) -> None:
        with ExitStack() as rest:
            for bookie in self.bookies.values():
                rest.callback(bookie.close)
            super().close(timeout)
