"""Group commit of a synced log: whoever waits first writes and syncs for all who wait.

Nobody hands work to another thread when a single caller appends, so that one synced append costs one write and one
fdatasync. While the leader syncs, others fill the other stage; one of them leads next.
"""

from __future__ import annotations

import contextlib
import threading
from collections import deque
from typing import TYPE_CHECKING

from pyreplog.errors import ClosedError, ReplogError
from pyreplog.purgatory import Purgatory

if TYPE_CHECKING:
    from pyreplog._native.segment import Segment
    from pyreplog.log.commitlog import CommitLog

    Stage = tuple[Segment, int, memoryview, int, int]

SYNCED = "synced"


class GroupCommit:
    """Commits of one log. Lock order: leading, the log's append path, io; a holder of io never waits for another."""

    def __init__(self, log: CommitLog, purgatory: Purgatory, synced: int) -> None:
        self._log, self._purgatory = log, purgatory
        self.synced = synced
        self.error: ReplogError | None = None
        self._leading = threading.Lock()
        self._io = threading.Lock()
        self._parked: deque[tuple[int, threading.Lock]] = deque()
        self._idle = threading.Lock()
        self._committer: threading.Thread | None = None
        self._stopping = False

    # ---- threads that wait ----------------------------------------------------------------------------------

    def wait(self, position: int) -> None:
        """Return when all before `position` is synced. PoisonedError when a sync failed."""
        while self.synced < position:
            if self.error is not None:
                raise self.error
            if position > self._log._staged_end:
                return  # synced, and then cut by a truncation
            if self._leading.acquire(blocking=False):
                try:
                    if self.synced < position:
                        self._commit()
                except ClosedError:
                    if self.synced < position:
                        raise
                finally:
                    self._leading.release()
                    self._wake()
            else:
                self._park(position)

    def _park(self, position: int) -> None:
        gate = threading.Lock()
        gate.acquire()
        self._parked.append((position, gate))
        # Whoever leads now wakes us when it is done; if it is done already, nobody might.
        if self._leading.locked() and self.synced < position:
            gate.acquire()
        else:
            with contextlib.suppress(ValueError):  # taken off by somebody who woke us: then we are the one to go on
                self._parked.remove((position, gate))

    def _wake(self) -> None:
        """Wake all whose position is synced, and one more, to lead the next commit."""
        parked = self._parked
        while parked:
            try:
                position, gate = parked.popleft()
            except IndexError:
                return
            gate.release()
            if position > self.synced and self.error is None:
                return

    # ---- one commit -----------------------------------------------------------------------------------------

    def _commit(self) -> None:
        log = self._log
        log._enter()
        try:
            self._io.acquire()  # free, or about to be: its holder is past the append path
            taken = log._take_stage()
        finally:
            log._leave()
        try:
            self._write(taken)
        finally:
            self._io.release()
        self._purgatory.drain()

    def flush(self) -> None:
        """Commit all that is staged; for a thread that is inside the append path."""
        with self._io:
            self._write(self._log._take_stage())
        self._wake()

    def write_blank(self, segment: Segment, blank: bytes) -> None:
        """End a segment, durably: records of the next one must not reach the disk without it."""
        with self._io:
            self._sync(segment, blank, segment.end)

    def restart(self, position: int) -> None:
        """The log was truncated to `position`, all before it synced: positions beyond will come a second time."""
        self.synced = position
        self._purgatory.reset(SYNCED)
        self._purgatory.advance(SYNCED, position)

    def _write(self, taken: Stage | None) -> None:
        if taken is None:
            return
        segment, offset, view, position, entry = taken
        self._sync(segment, view, offset)
        self._log._set_synced(position, entry)
        self.synced = position
        self._purgatory.advance(SYNCED, position)

    def _sync(self, segment: Segment, data: bytes | memoryview, offset: int) -> None:
        try:
            self._log._files.write(segment.fileno(), data, offset)
            self._log._files.sync(segment.fileno())
        except OSError as error:
            self.error = self._log._poison("group commit", error)
            raise self.error from error

    # ---- submitted appends ----------------------------------------------------------------------------------

    def request(self) -> None:
        """See that all staged so far is committed soon, by a thread of our own."""
        if self._committer is None:
            self._idle.acquire(blocking=False)
            self._committer = threading.Thread(target=self._run, name="pyreplog-commit", daemon=True)
            self._committer.start()
        if self._idle.locked():
            try:
                self._idle.release()
            except RuntimeError:  # another request was quicker
                return

    def _run(self) -> None:
        while True:
            self._idle.acquire()
            if self._stopping:
                return
            try:
                while self._log._staged_bytes:
                    self.wait(self._log._staged_end)
            except ReplogError:
                return  # the log is poisoned or closed; its waiters have been told
            finally:
                self._purgatory.drain()

    def stop(self) -> None:
        self._stopping = True
        if self._committer is not None:
            self.request()
            self._committer.join()
