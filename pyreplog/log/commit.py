"""Group commit of a synced log: whoever waits first writes and syncs for all who wait.

Nobody hands work to another thread when a single caller appends, so that one synced append costs one write and one
fdatasync. While the leader syncs, others fill the other stage; one of them leads next.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, TypeVar

from pyreplog._native.gate import CommitGate
from pyreplog.ack import Ack
from pyreplog.errors import ClosedError, ReplogError

if TYPE_CHECKING:
    from pyreplog._native.segment import Segment
    from pyreplog.log.commitlog import CommitLog

    Stage = tuple[Segment, int, memoryview, int, int]

T = TypeVar("T")


class GroupCommit:
    """Commits of one log. Lock order: leading, the log's append path, io; a holder of io never waits for another."""

    def __init__(self, log: CommitLog, synced: int) -> None:
        self._log, self._submitted = log, log._submitted
        self._submitted.restart(synced)
        self._gate = CommitGate(synced)
        self.error: ReplogError | None = None
        self._idle = threading.Lock()
        self._starting = threading.Lock()
        self._committer: threading.Thread | None = None
        self._stopping = False

    # ---- threads that wait ----------------------------------------------------------------------------------

    def wait(self, position: int) -> None:
        """Return when all before `position` is synced. PoisonedError when a sync failed."""
        gate = self._gate
        try:
            while gate.synced < position:
                if self.error is not None:
                    raise self.error
                if position > self._log._state[1]:
                    return  # synced, and then cut by a truncation
                if gate.lead():
                    self._lead()
                else:
                    gate.park(position)
        except ClosedError:
            if gate.synced < position:
                raise
        except BaseException:  # Ctrl-C, between any two steps; or this thread was woken to lead
            self._log._leave_if_inside()
            gate.abandon()
            self._submitted.drain()
            raise

    def _lead(self) -> None:
        log, gate = self._log, self._gate
        group = 0
        try:
            gate.gather()
            log._enter()
            try:
                gate.begin_io()  # free, or about to be: its holder is past the append path
                taken = log._take_stage()
                group = gate.note_taken(taken[3]) if taken is not None else 0
            finally:
                log._leave()
            try:
                self._write(taken)
            finally:
                gate.end_io()
        finally:
            gate.resign(group)
        self._submitted.drain()

    # ---- one commit -----------------------------------------------------------------------------------------

    def flush(self) -> None:
        """Commit all that is staged; for a thread that is inside the append path."""
        try:
            self._gate.begin_io()
            while (taken := self._log._take_stage()) is not None:  # first what an interrupted leader took
                self._gate.note_taken(taken[3])
                self._write(taken)
            self._gate.abandon()
        except BaseException:  # no `finally`: an interruption in front of its call would leave the gate shut
            self._gate.abandon()
            raise
        if self._submitted.asleep and self._submitted.is_due:  # who is in the append path may call nobody back
            self.request()

    def write_blank(self, segment: Segment, blank: bytes) -> None:
        """End a segment, durably: records of the next one must not reach the disk without it."""
        try:
            self._gate.begin_io()
            if self.error is not None:
                raise self.error
            self._sync(segment, blank, segment.end)
            self._gate.abandon()
        except BaseException:
            self._gate.abandon()
            raise

    def restart(self, position: int) -> None:
        """The log was truncated to `position`, all before it synced: positions beyond will come a second time."""
        self._gate.restart(position)
        self._submitted.restart(position)

    def _write(self, taken: Stage | None) -> None:
        """Commit a group. Interrupted at any point it is taken again, by whoever leads next: all of this may come twice
        and changes nothing the second time. The last step is the one that says it is done."""
        if taken is None:
            return
        if self.error is not None:  # an earlier group failed while this one waited for io: it would leave a hole
            raise self.error
        segment, offset, view, position, entry = taken
        self._sync(segment, view, offset)
        self._log._set_synced(position, entry)
        self._submitted.advance(position)
        self._log._stage_written(self._gate, position)

    def _sync(self, segment: Segment, data: bytes | memoryview, offset: int) -> None:
        try:
            self._log._files.write_sync(segment.fileno(), data, offset)
        except OSError as error:
            self.error = self._log._poison("group commit", error)
            self._gate.wake_all()
            raise self.error from error

    # ---- submitted appends ----------------------------------------------------------------------------------

    def acknowledge(self, result: T, position: int) -> Ack[T]:
        """An Ack that gives `result` when all before `position` has the log's durability."""
        ack = Ack(result)
        if self._log.config.durability == "synced":
            self._submitted.watch(position, ack)
            if position > self._log._staged_end:
                ack.complete(result)  # synced, and then cut by a truncation
            self.request()
        else:
            ack.complete(result)
        return ack

    def request(self) -> None:
        """See that all staged so far is committed soon, by a thread of our own."""
        if self._committer is None:
            with self._starting:
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
        submitted = self._submitted
        while True:
            submitted.asleep = True  # whoever submits from now on asks; what was submitted before is found here
            staged = self._log._staged_bytes
            submitted.drain()
            if not staged:
                self._idle.acquire()
            submitted.asleep = False
            if self._stopping:
                return
            try:
                while self._log._staged_bytes:
                    self.wait(self._log._staged_end)
                    submitted.drain()  # others may have committed, who tell nobody
            except ReplogError:
                return  # the log is poisoned or closed; its waiters have been told
            finally:
                submitted.drain()

    def stop(self) -> None:
        self._stopping = True
        if self._committer is not None:
            self.request()
            if self._committer is not threading.current_thread():  # close() in a callback of an Ack
                self._committer.join()
