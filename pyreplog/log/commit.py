"""Group commit of a synced log: the first thread that waits is the leader, which writes and syncs for all waiters.

A single caller hands no work to another thread, so that one synced append costs one write and one fdatasync. While the
leader syncs, other threads fill the other stage; one of them is the next leader.
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
    """The group commits of one log."""

    def __init__(
        self, log: Appender, submitted: PositionWaiters, synced: int,
        write_sync: Callable[[int, bytes | memoryview, int], object], poison: Callable[[str, OSError], PoisonedError],
        runtime: LogRuntime | None = None,
    ) -> None:  # fmt: skip
        """Set up the commits of a log.

        log: the log. submitted: futures of submitted entries. synced: position up to which the log is synced.
        write_sync: writes and syncs bytes of a file. poison: called with a stage and the error of a sync that failed.
        runtime: whose threads commit submitted entries; None: a thread of the log, started by the first request.
        """
        super().__init__(log, submitted, synced, write_sync, poison)
        self._submitted.restart(synced)
        self._idle = threading.Lock()
        self._starting = threading.RLock()  # a signal handler may close the log
        self._committer: threading.Thread | None = None
        self._stopping = False
        self._shared = None if runtime is None else runtime.committing.add(self._commit_staged)

    def restart(self, position: int) -> None:
        """Restart at `position`, to which the log was truncated and synced: later positions will be used again."""
        self._gate.restart(position)
        self._submitted.restart(position)

    # ---- submitted appends ----------------------------------------------------------------------------------

    def acknowledge(self, result: T, position: int) -> AppendFuture[T]:
        """Return an AppendFuture that gives `result` when the records before `position` have the log's durability."""
        future = AppendFuture(result)
        if self._log.is_staged:
            self._submitted.watch(position, future)
            if position > self._log.staged_end:
                set_result(future, result)  # the records were synced, and then cut by a truncation
            self.request()
        else:
            set_result(future, result)
        return future

    def request(self) -> None:
        """Have another thread commit the records that are staged so far."""
        if self._shared is not None:
            self._shared.wake()
            return
        if self._committer is None:
            with self._starting:
                if self._committer is None:
                    self._idle.acquire(blocking=False)
                    committer = threading.Thread(target=self._run, name="pyreplog-commit", daemon=True)
                    committer.start()
                    self._committer = committer  # after it has started, since `stop` joins it
        if self._idle.locked():
            try:
                self._idle.release()
            except RuntimeError:  # another request has released it
                return

    def _run(self) -> None:
        submitted = self._submitted
        while True:
            submitted.asleep = True  # later submitters request a commit; earlier entries are found in the next line
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
                    submitted.drain()  # `flush` may have committed them; it completes no futures
            except ReplogError:
                return  # the log is poisoned or closed, and its futures have failed
            finally:
                submitted.drain()

    def _commit_staged(self) -> float:
        """Commit on a thread of a runtime until no record is staged; return the seconds until the next turn."""
        submitted = self._submitted
        submitted.asleep = False
        try:
            while self._log.staged_bytes and not self._stopping:
                self.wait(self._log.staged_end)
                submitted.drain()  # `flush` may have committed them; it completes no futures
        except ReplogError:
            return WHEN_WOKEN  # the log is poisoned or closed, and its futures have failed
        finally:
            submitted.drain()
        submitted.asleep = True  # later submitters request a commit; earlier entries are found in the next line
        staged = self._log.staged_bytes
        submitted.drain()
        return 0.0 if staged and not self._stopping else WHEN_WOKEN

    def check_may_wait(self) -> None:
        """Raise InvalidArgumentError if the caller is the thread that commits, in a callback of an AppendFuture."""
        if self._committer is threading.current_thread() or (self._shared is not None and self._shared.is_running_here):
            raise InvalidArgumentError("a callback cannot wait for a sync: use submit, and callbacks of its future")

    def stop(self) -> None:
        self._stopping = True
        with self._starting:  # wait until a thread that is being started is known
            committer = self._committer
        if committer is not None:
            self.request()
            if committer is not threading.current_thread():  # a callback of an AppendFuture may close the log
                committer.join()
        if self._shared is not None:
            self._shared.cancel()
            self._submitted.drain()
