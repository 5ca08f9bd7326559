"""Group commit of a synced log: the first thread that waits writes and syncs for all that wait.

Nobody hands work to another thread when a single caller appends, so that one synced append costs one write and one
fdatasync. While the leader syncs, others fill the other stage; one of them leads next.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TypeVar

from pyreplog._native.log.appender import Appender
from pyreplog._native.log.group_commit_base import GroupCommitBase
from pyreplog._native.log.position_waiters import PositionWaiters
from pyreplog.errors import InvalidArgumentError, PoisonedError, ReplogError
from pyreplog.future import AppendFuture, set_result
from pyreplog.log.runtime import WHEN_WOKEN, LogRuntime

T = TypeVar("T")


class GroupCommit(GroupCommitBase):
    """Commits of one log."""

    def __init__(
        self, log: Appender, submitted: PositionWaiters, synced: int,
        write_sync: Callable[[int, bytes | memoryview, int], object], poison: Callable[[str, OSError], PoisonedError],
        runtime: LogRuntime | None = None,
    ) -> None:  # fmt: skip
        """runtime: whose threads commit what was submitted; None: a thread of the log, which starts when it has to."""
        super().__init__(log, submitted, synced, write_sync, poison)
        self._submitted.restart(synced)
        self._idle = threading.Lock()
        self._starting = threading.RLock()  # a signal handler may close the log
        self._committer: threading.Thread | None = None
        self._stopping = False
        self._shared = None if runtime is None else runtime.committing.add(self._turn)

    def restart(self, position: int) -> None:
        """The log was truncated to `position`, all before it synced: positions beyond will come a second time."""
        self._gate.restart(position)
        self._submitted.restart(position)

    # ---- submitted appends ----------------------------------------------------------------------------------

    def acknowledge(self, result: T, position: int) -> AppendFuture[T]:
        """An AppendFuture that gives `result` when all before `position` has the log's durability."""
        future = AppendFuture(result)
        if self._log.is_staged:
            self._submitted.watch(position, future)
            if position > self._log.staged_end:
                set_result(future, result)  # synced, and then cut by a truncation
            self.request()
        else:
            set_result(future, result)
        return future

    def request(self) -> None:
        """See that all staged so far is committed soon, by another thread."""
        if self._shared is not None:
            self._shared.wake()
            return
        if self._committer is None:
            with self._starting:
                if self._committer is None:
                    self._idle.acquire(blocking=False)
                    committer = threading.Thread(target=self._run, name="pyreplog-commit", daemon=True)
                    committer.start()
                    self._committer = committer  # who stops it joins it: not before it runs
        if self._idle.locked():
            try:
                self._idle.release()
            except RuntimeError:  # another request was quicker
                return

    def _run(self) -> None:
        submitted = self._submitted
        while True:
            submitted.asleep = True  # later submitters ask; what was submitted before is found here
            staged = self._log.staged_bytes
            submitted.drain()
            if not staged:
                self._idle.acquire()
            submitted.asleep = False
            if self._stopping:
                return
            try:
                while self._log.staged_bytes:
                    self.wait(self._log.staged_end)
                    submitted.drain()  # others may have committed, who tell nobody
            except ReplogError:
                return  # the log is poisoned or closed; its waiters have been told
            finally:
                submitted.drain()

    def _turn(self) -> float:
        """As `_run` does: on a thread of a runtime, until nothing is staged."""
        submitted = self._submitted
        submitted.asleep = False
        try:
            while self._log.staged_bytes and not self._stopping:
                self.wait(self._log.staged_end)
                submitted.drain()  # others may have committed, who tell nobody
        except ReplogError:
            return WHEN_WOKEN  # the log is poisoned or closed; its waiters have been told
        finally:
            submitted.drain()
        submitted.asleep = True  # later submitters ask; what was submitted before is seen here
        staged = self._log.staged_bytes
        submitted.drain()
        return 0.0 if staged and not self._stopping else WHEN_WOKEN

    def check_may_wait(self) -> None:
        """Raise InvalidArgumentError if the caller is the thread that commits, in a callback of an AppendFuture."""
        if self._committer is threading.current_thread() or (self._shared is not None and self._shared.is_running_here):
            raise InvalidArgumentError("a callback cannot wait for a sync: use submit, and callbacks of its future")

    def stop(self) -> None:
        self._stopping = True
        with self._starting:  # one that is being started is waited for
            committer = self._committer
        if committer is not None:
            self.request()
            if committer is not threading.current_thread():  # close() in a callback of an AppendFuture
                committer.join()
        if self._shared is not None:
            self._shared.cancel()
            self._submitted.drain()
