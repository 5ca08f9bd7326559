"""LocalBookie: a bookie in this process, without sockets or an event loop."""

from __future__ import annotations

import logging
import os
import threading
from collections import deque
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Concatenate, ParamSpec, TypeVar

from pyreplog._native.bookie.fast_add import FastAdd, LocalBookieBase
from pyreplog._native.machines.named_tuples import make_named
from pyreplog._native.system.mutex import Mutex
from pyreplog.bookie.bookie import Bookie
from pyreplog.bookie.config import BookieConfig
from pyreplog.bookie.counts import BookieCounters, Gauges
from pyreplog.bookie.entry_log import DiskLog
from pyreplog.bookie.identity import LOG
from pyreplog.bookie.long_polls import Respond
from pyreplog.bookie.protocol import OK, Reply, Request, RequestKind
from pyreplog.bookie.scrub import NoteBadCopies, Scrubber
from pyreplog.clock import Clock, SystemClock
from pyreplog.defer_sigint import defer_sigint
from pyreplog.errors import LockedError
from pyreplog.handles import Handle, make_part_of
from pyreplog.log.files import Files

logger = logging.getLogger(__name__)

T = TypeVar("T")
P = ParamSpec("P")

_CHECK_SPACE_S = 5.0


def _log_bad_copies(ledger: int, entries: Sequence[int]) -> None:
    logger.error("ledger %d: the copies of entries %s are damaged", ledger, list(entries)[:100])


ONE_PROCESS = "a bookie runs in one process at a time"


class LocalBookie(Handle, LocalBookieBase):
    """A bookie that runs in this process, for any thread.

    Args:
        path: directory of the bookie.
        config: settings; None: the defaults.
        create: make the log if there is none.
        incarnation: incarnation of the bookie's identity (see `opening`); None: the uuid of its log.
        limbo: ledgers that enter limbo at once.
        note: notes damaged copies for repair; None: they are only logged.
        clock: source of time; None: the clock of the machine.
        files: access to the disk; None: the real one.

    Raises:
        LockedError: another process runs the bookie.
        ReplogError: as the opening of a log.
    """

    _bookie: Bookie
    _replies: deque[tuple[Respond, Reply]]

    def __init__(
        self,
        path: str | os.PathLike[str],
        config: BookieConfig | None = None,
        *,
        create: bool = True,
        incarnation: bytes | None = None,
        limbo: Collection[int] = (),
        note: NoteBadCopies | None = None,
        clock: Clock | None = None,
        files: Files | None = None,
    ) -> None:
        self.path = Path(path)
        self._incarnation = incarnation
        self.config = config if config is not None else BookieConfig()
        self._clock: Clock = clock if clock is not None else SystemClock()
        self._lock = Mutex()  # guards the state machine; not held during syncs and calls of `on_reply`
        self._work_changed = threading.Condition(self._lock)  # type: ignore[arg-type]
        self._replies = deque()
        self._thread: threading.Thread | None = None
        self._stopping = self._is_committing = False
        self._check_space_us = 0  # when the free space is checked next
        self.on_clean_close: Callable[[int], None] | None = None
        """Called after a clean close, when everything is on disk, with the position of the log's end."""
        self.on_metadata_read: Callable[[], None] | None = None
        """Called after garbage collection has read the metadata. May raise OSError."""
        self.lost_segments = 0
        """Number of segments that were found lost or damaged when the bookie was opened."""
        try:
            self.log = DiskLog(self.path / LOG, self.config, create=create, clock=clock, files=files)
        except LockedError as error:
            raise LockedError(error.path, error.pid, ONE_PROCESS) from error
        try:
            self._bookie = Bookie(self.log, self.config, limbo)
        except BaseException:
            self.log.close()
            raise
        self.scrubber = Scrubber(
            self.log, self.path, self.config, self.with_bookie, note if note is not None else _log_bad_copies,
            files=files, clock=clock,
        )  # fmt: skip
        """Verifies the segments of the bookie. The driver of the bookie calls its `step`."""
        self._bookie.scrub = self.scrubber
        super().__init__(f"bookie {self.path}")
        make_part_of(self.log.log.commit_log, self)  # the bookie syncs and closes the log, not the log's finalizer

    @property
    def incarnation(self) -> bytes:
        """16 random bytes of this bookie; a bookie whose directory was emptied gets another incarnation."""
        return self._incarnation if self._incarnation is not None else self.log.log.uuid

    def request(self, request: Request, on_reply: Callable[[Reply], object]) -> None:
        """Handle a request without waiting for a sync. Failures are replies, not exceptions.

        Args:
            request: the request.
            on_reply: called once with the Reply: before this call returns if nothing has to become durable first, else
                after the next sync, on the bookie's thread. Any thread that is in a call of the bookie may call it,
                without a lock. It may call `request`; its exceptions are logged.

        Raises:
            ClosedError: the bookie was closed.
            ForkedError: this process is a fork of the one that opened the bookie.
        """
        self._check_open()
        with self._lock:
            if request.kind == RequestKind.WAIT_LAC:
                self._bookie.expire(self._clock.monotonic_us())
            self._bookie.handle(request, self._later(on_reply))
            if self._bookie.waits or request.kind == RequestKind.WAIT_LAC:
                self._wake()
        self._deliver()

    def with_bookie(self, call: Callable[Concatenate[Bookie, P], T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run `call(bookie, ...)` while no request is handled. It has to be short and must not call this method."""
        self._check_open()
        with self._lock:
            result = call(self._bookie, *args, **kwargs)
        if self._replies:
            self._deliver()
        return result

    @property
    def counts(self) -> BookieCounters:
        """Counters of the bookie."""
        return self._bookie.counts

    def gauges(self) -> Gauges:
        """Return current numbers of the bookie. Raises ClosedError and ForkedError."""
        return self.with_bookie(lambda bookie: bookie.gauges())

    @property
    def failure(self) -> str | None:
        """The reason why every request is answered with UNKNOWN for good; None: the log works."""
        return self._bookie.failure

    @property
    def read_only(self) -> bool:
        """Whether new entries are refused for lack of space."""
        return self._bookie.read_only

    @property
    def free_bytes(self) -> int:
        """Free bytes of the disk when they were checked last."""
        return self._bookie.free_bytes

    # ---- replies --------------------------------------------------------------------------------------------

    def _later(self, on_reply: Respond) -> Respond:
        return lambda reply: self._replies.append((on_reply, reply))

    def _later_fast(self, on_reply: Respond, answer: Reply | FastAdd) -> None:
        if isinstance(answer, FastAdd):
            answer = make_named(Reply, OK, answer.ledger, answer.first, answer.last, answer.confirmed, b"")
        self._replies.append((on_reply, answer))

    def _deliver(self) -> None:
        """Call the receivers of replies, without a lock."""
        while self._replies:
            try:
                on_reply, reply = self._replies.popleft()
            except IndexError:  # another thread has taken the last reply
                return
            try:
                on_reply(reply)
            except Exception:  # the other receivers must get their replies
                logger.exception("%s: a callback raised", self._label)

    # ---- the thread that syncs ------------------------------------------------------------------------------

    def _wake(self) -> None:
        if self._thread is None:
            self._check_space_us = self._clock.monotonic_us() + int(_CHECK_SPACE_S * 1e6)
            self._thread = threading.Thread(target=self._run, name="pyreplog-bookie", daemon=True)
            self._thread.start()
        self._work_changed.notify()

    def _run(self) -> None:
        while not self._stopping:
            with self._lock:
                now_us, deadline_us = self._clock.monotonic_us(), self._next_deadline_us()
                if not self.has_work() and not self._stopping:
                    self._work_changed.wait(max(deadline_us - now_us, 0) / 1e6)
                    now_us = self._clock.monotonic_us()
                if now_us >= deadline_us:  # who brings an earlier one wakes this thread, which then looks again
                    self._bookie.expire(now_us)
                    self._check_space_us = now_us + int(_CHECK_SPACE_S * 1e6)
            self._commit()

    def _next_deadline_us(self) -> int:
        """Return when the next long poll ends, or the free space is to be checked: monotonic microseconds."""
        deadline_us = self._bookie.next_deadline_us()
        return self._check_space_us if deadline_us is None else min(deadline_us, self._check_space_us)

    def has_work(self) -> bool:
        """Return whether replies wait for a commit that has not begun."""
        return self._bookie.waits and not self._is_committing

    def wake(self) -> None:
        """Wake the bookie's thread to commit, if a reply waits."""
        with self._lock:
            if self.has_work():
                self._wake()

    def commit_here(self) -> None:
        """Commit in this thread, unless no reply waits, or another thread is committing.

        For a thread that is about to wait for a reply. It syncs at once; otherwise it would have to wake the bookie's
        thread, and that thread would have to wake it in turn. The bookie's thread commits what arrives meanwhile.
        """
        if self.has_work():
            with defer_sigint:
                self._commit()

    def _commit(self) -> None:
        with self._lock:
            if self._is_committing:
                return
            group = self._bookie.begin_commit()
            self._is_committing = bool(group)
        if group:
            error = self._sync()
            with self._lock:
                self._is_committing = False
                self._bookie.end_commit(group, error)
                if self._bookie.waits or self._stopping:
                    self._work_changed.notify_all()
        self._deliver()

    # ---- closing --------------------------------------------------------------------------------------------

    def _do_close(self) -> None:
        self.scrubber.close()
        with self._lock:
            self._stopping = True
            self._work_changed.notify()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join()
        with self._lock:
            while self._is_committing:  # another thread is in `commit_here`
                self._work_changed.wait()
            self._bookie.commit()
            is_clean = self._bookie.failure is None and self._bookie.sync() is None
            end = self.log.log.end_position if is_clean else 0
            self._bookie.stop("the bookie was closed")
        self._deliver()
        self.log.close()
        if is_clean and self.on_clean_close is not None:
            self.on_clean_close(end)
