"""A bookie in this process: no sockets, no event loop."""

from __future__ import annotations

import logging
import os
import threading
from collections import deque
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Concatenate, ParamSpec, TypeVar

from pyreplog._native.bookie.fast_add import FastAdd
from pyreplog.bookie.bookie import Bookie
from pyreplog.bookie.commit_group import PendingReply
from pyreplog.bookie.config import BookieConfig
from pyreplog.bookie.counts import BookieCounters, Gauges
from pyreplog.bookie.entrylog import DiskLog
from pyreplog.bookie.identity import LOG
from pyreplog.bookie.long_polls import Respond
from pyreplog.bookie.protocol import Reply, Request, RequestKind
from pyreplog.clock import Clock, SystemClock
from pyreplog.errors import LockedError
from pyreplog.handles import Handle
from pyreplog.log.files import Files

logger = logging.getLogger(__name__)

T = TypeVar("T")
P = ParamSpec("P")

_LOOK_S = 5.0

ONE_PROCESS = "a bookie runs in one process at a time"


class LocalBookie(Handle):
    """A bookie over its directory, called from any thread.

    path: the bookie's directory. create: make its log if there is none. incarnation: of its identity (see `opening`);
    None: its log's own. limbo: ledgers of which entries may have been lost (see Bookie). clock, files: as of LedgerLog.
    Errors: LockedError and the others of opening a log.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        config: BookieConfig | None = None,
        *,
        create: bool = True,
        incarnation: bytes | None = None,
        limbo: Collection[int] = (),
        clock: Clock | None = None,
        files: Files | None = None,
    ) -> None:
        self.path = Path(path)
        self._incarnation = incarnation
        self.config = config if config is not None else BookieConfig()
        self._clock: Clock = clock if clock is not None else SystemClock()
        self._lock = threading.Lock()  # around the state machine; not held while a sync runs or a reply is delivered
        self._work = threading.Condition(self._lock)
        self._replies: deque[tuple[Respond, Reply]] = deque()
        self._thread: threading.Thread | None = None
        self._stopping = False
        self.when_clean: Callable[[int], None] | None = None
        """Called after a clean close, with the position where the log ends: everything is on disk."""
        self.when_collected: Callable[[], None] | None = None
        """Called whenever garbage collection has looked at the metadata. May raise OSError."""
        try:
            self.log = DiskLog(self.path / LOG, self.config, create=create, clock=clock, files=files)
        except LockedError as error:
            raise LockedError(error.path, error.pid, ONE_PROCESS) from error
        try:
            self._bookie = Bookie(self.log, self.config, limbo)
        except BaseException:
            self.log.close()
            raise
        super().__init__(f"bookie {self.path}")

    @property
    def incarnation(self) -> bytes:
        """16 random bytes that tell this bookie from one whose directory was emptied."""
        return self._incarnation if self._incarnation is not None else self.log.log.uuid

    def request(self, request: Request, on_reply: Callable[[Reply], object]) -> None:
        """Ask the bookie; never waits for the disk's syncs, and never raises what a reply can say.

        `on_reply(reply)` is called once: before this returns when nothing has to become durable first, else later, from
        the bookie's thread, after a sync that serves all who wait. It may come from any thread that is in a call here,
        runs without a lock, may call `request`; what it raises is logged. Errors: ClosedError, ForkedError.
        """
        self._check_open()
        with self._lock:
            if request.kind == RequestKind.WAIT_LAC:
                self._bookie.expire(self._clock.monotonic_us())
            self._bookie.handle(request, self._later(on_reply))
            if self._bookie.waits or request.kind == RequestKind.WAIT_LAC:
                self._wake()
        self._deliver()

    def add_fast(self, add: FastAdd, respond: Respond | None = None) -> int | None:
        """See Bookie; `respond` is for who commits by himself. Errors: as `request`."""
        self._check_open()
        with self._lock:
            lac = self._bookie.add_fast(add, respond)
        if self._replies:  # to those who waited for the LAC
            self._deliver()
        return lac

    def with_bookie(self, call: Callable[Concatenate[Bookie, P], T], *args: P.args, **more: P.kwargs) -> T:
        """Run `call(bookie, ...)` alone: nothing else is handled meanwhile. It is short, and does not call this."""
        self._check_open()
        with self._lock:
            result = call(self._bookie, *args, **more)
        if self._replies:
            self._deliver()
        return result

    def commit(self, end: Callable[[Bookie, list[PendingReply | FastAdd], Exception | None], T]) -> T | None:
        """A commit, for a driver that commits by itself: `end(bookie, group, error)` is its third step (see Bookie). It
        runs alone, as in `with_bookie`. None: nobody waits for one."""
        self._check_open()
        with self._lock:
            group = self._bookie.begin_commit()
        if not group:
            return None
        error = self._sync()
        with self._lock:
            ended = end(self._bookie, group, error)
        if self._replies:
            self._deliver()
        return ended

    def _sync(self) -> Exception | None:
        """The second step of a commit."""
        began_us = self._clock.monotonic_us()
        error = self._bookie.sync()
        self._bookie.counts.sync_seconds.observe((self._clock.monotonic_us() - began_us) / 1e6)
        return error

    @property
    def counts(self) -> BookieCounters:
        """What it has done."""
        return self._bookie.counts

    def gauges(self) -> Gauges:
        """What it has at the moment. Errors: ClosedError, ForkedError."""
        return self.with_bookie(lambda bookie: bookie.gauges())

    @property
    def failure(self) -> str | None:
        """Why everything is UNKNOWN for good; None: it is not."""
        return self._bookie.failure

    @property
    def read_only(self) -> bool:
        """Whether new entries are refused for lack of space."""
        return self._bookie.read_only

    @property
    def free_bytes(self) -> int:
        """Free space at the last look."""
        return self._bookie.free_bytes

    # ---- replies --------------------------------------------------------------------------------------------

    def _later(self, on_reply: Respond) -> Respond:
        return lambda reply: self._replies.append((on_reply, reply))

    def _deliver(self) -> None:
        """Hand out replies, with no lock held."""
        while self._replies:
            try:
                on_reply, reply = self._replies.popleft()
            except IndexError:  # another thread took the last one
                return
            try:
                on_reply(reply)
            except Exception:  # the others must not go without theirs
                logger.exception("%s: a callback raised", self._what)

    # ---- the thread that syncs ------------------------------------------------------------------------------

    def _wake(self) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="pyreplog-bookie", daemon=True)
            self._thread.start()
        self._work.notify()

    def _run(self) -> None:
        while not self._stopping:
            with self._lock:
                if not self._bookie.waits and not self._stopping:
                    self._work.wait(self._pause_s())
                    self._bookie.expire(self._clock.monotonic_us())
                group = self._bookie.begin_commit()
            if group:
                error = self._sync()
                with self._lock:
                    self._bookie.end_commit(group, error)
            self._deliver()

    def _pause_s(self) -> float:
        """Until the next long poll ends, or it is time to look at the free space."""
        deadline_us = self._bookie.next_deadline_us()
        if deadline_us is None:
            return _LOOK_S
        return min(max(deadline_us - self._clock.monotonic_us(), 0) / 1e6, _LOOK_S)

    # ---- closing --------------------------------------------------------------------------------------------

    def _let_go(self) -> None:
        with self._lock:
            self._stopping = True
            self._work.notify()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join()
        with self._lock:
            self._bookie.commit()
            is_clean = self._bookie.failure is None and self._bookie.sync() is None
            end = self.log.log.end_position if is_clean else 0
            self._bookie.stop("the bookie was closed")
        self._deliver()
        self.log.close()
        if is_clean and self.when_clean is not None:
            self.when_clean(end)
