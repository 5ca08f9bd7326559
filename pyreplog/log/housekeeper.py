"""Housekeeper: the background threads of a log, with their tasks and the retries of tasks that fail.

It is not on the append path: an append takes a prepared segment, or has to prepare one itself.
"""

from __future__ import annotations

import logging
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Generic, Protocol, TypeVar

from pyreplog.errors import PoisonedError, ReplogError
from pyreplog.log.runtime import WHEN_WOKEN, LogRuntime, SharedTask

logger = logging.getLogger(__name__)

THREADS = True
"""False: logs that are opened from now on start no threads, and only `step` runs their tasks. For simulations."""

IDLE_S = 0.5
"""Longest pause, in seconds, of a log's own threads. Those of a runtime wait until a task is due."""

RETRY_FIRST_S, RETRY_MAX_S = 0.5, 30.0


class MaintainedLog(Protocol):
    """The part of a log that its background threads need."""

    @property
    def path(self) -> Path: ...

    @property
    def is_usable(self) -> bool:
        """Whether the log accepts appends: False if it was closed, or poisoned by a failed sync."""


T = TypeVar("T", bound=MaintainedLog)


class BackgroundTask(Generic[T]):
    """A background task of a log. A task that fails is retried with exponential back-off: a full disk may get room.

    name: for messages. act: carries the task out, and returns the seconds after which it may be due again. trouble:
    error of the last attempt, or "".
    """

    def __init__(self, name: str, act: Callable[[T], float]) -> None:
        self.trouble = ""
        self._name, self._act = name, act
        self._retry_s, self._not_before = RETRY_FIRST_S, 0.0

    def put_off(self) -> float:
        """Return the seconds for which the task must not be retried."""
        return max(self._not_before - time.monotonic(), 0.0)

    def attempt(self, log: T) -> float:
        """Run the task; return the seconds after which it may be due again. Other errors lead to a retry.

        Raises OSError (a sync failed: the caller poisons the log), and any ReplogError of a closed or poisoned log.
        """
        try:
            pause = self._act(log)
        except ReplogError as error:
            if not log.is_usable:
                raise
            return self._fail(log, f"{self._name}: {error}")
        if self.trouble:
            logger.info("%s: %s: succeeds again", log.path, self._name)
            self.trouble, self._retry_s, self._not_before = "", RETRY_FIRST_S, 0.0
        return pause

    def _fail(self, log: T, trouble: str) -> float:
        pause = self._retry_s
        if trouble != self.trouble:
            logger.error("%s: %s; it will be tried again", log.path, trouble)
        self.trouble = trouble
        self._not_before, self._retry_s = time.monotonic() + pause, min(2 * pause, RETRY_MAX_S)
        return pause


class Housekeeper(Generic[T]):
    """Runs the background tasks of one log on two threads of its own, or on those of a runtime.

    One thread prepares segments and removes expired ones, the other syncs, so that neither waits for the other's disk
    operations. The threads do not keep the log alive, so that an unclosed log is collected, and warns. No task runs for
    a poisoned log: a sync that succeeds after a failed one proves nothing.

    log: the log. preparing: tasks of the first thread. syncing: tasks of the second thread. poison: called with the
    log, a stage and the OSError of a task. runtime: whose threads are used; None: the log has threads of its own.
    """

    def __init__(
        self, log: T, *, preparing: Sequence[BackgroundTask[T]], syncing: Sequence[BackgroundTask[T]],
        poison: Callable[[T, str, OSError], PoisonedError], runtime: LogRuntime | None = None,
    ) -> None:  # fmt: skip
        self._log, self._poison = weakref.ref(log), poison
        self._preparing, self._syncing = preparing, syncing
        self._stopping = False
        self.is_asked_to_close = False
        """Whether the files of the log are to be closed even if it is in use; for the task that closes them."""
        self._wake_preparing, self._wake_syncing = threading.Event(), threading.Event()
        self._threads: list[threading.Thread] = []
        self._shared: tuple[SharedTask, SharedTask] | None = None  # preparing, syncing
        if runtime is not None:
            self._shared = (
                runtime.preparing.add(lambda: self._run_due(preparing)),
                runtime.syncing.add(lambda: self._run_due(syncing)),
            )
        elif THREADS:
            for name, wake, tasks in (
                ("prepare", self._wake_preparing, preparing),
                ("sync", self._wake_syncing, syncing),
            ):
                name = f"pyreplog-{name}-{log.path.name}"
                self._threads.append(threading.Thread(target=self._run, args=(wake, tasks), name=name, daemon=True))

    def start(self) -> None:
        for thread in self._threads:
            thread.start()
        if self._shared is not None and THREADS:
            self.wake_preparing()
            self.wake_syncing()

    def stop(self) -> None:
        """Stop the threads and wait for them. Of a runtime's threads, wait for the tasks of this log."""
        self._stopping = True
        if self._shared is not None:
            for task in self._shared:
                task.cancel()
            return
        self.wake_preparing()
        self.wake_syncing()
        for thread in self._threads:
            if thread is not threading.current_thread():
                thread.join()

    @property
    def is_stopping(self) -> bool:
        return self._stopping

    @property
    def is_shared(self) -> bool:
        """Whether the threads are those of a runtime, which run the tasks of this log only when woken or due."""
        return self._shared is not None

    def wake_preparing(self) -> None:
        if self._shared is None:
            self._wake_preparing.set()
        elif THREADS:
            self._shared[0].wake()

    def wake_syncing(self) -> None:
        if self._shared is None:
            self._wake_syncing.set()
        elif THREADS:
            self._shared[1].wake()

    def ask_close(self) -> None:
        """Request that the task which closes idle files closes those of this log now; see `FileUser`."""
        self.is_asked_to_close = True
        self.wake_syncing()

    @property
    def trouble(self) -> str:
        """Errors of the tasks that are being retried; "" if there are none."""
        return "; ".join(task.trouble for task in (*self._preparing, *self._syncing) if task.trouble)

    def step(self, log: T) -> None:
        """Run the tasks in the calling thread, as the threads would do now."""
        *others, prepare = self._preparing
        pause = 0.0
        while pause == 0.0:
            for task in others:
                task.attempt(log)
            pause = prepare.attempt(log)
        for task in self._syncing:
            task.attempt(log)

    def _run(self, wake: threading.Event, tasks: Sequence[BackgroundTask[T]]) -> None:
        pause = 0.0
        while pause < WHEN_WOKEN:
            wake.wait(pause)
            wake.clear()
            pause = self._run_due(tasks, IDLE_S)

    def _run_due(self, tasks: Sequence[BackgroundTask[T]], longest: float = WHEN_WOKEN) -> float:
        """Run the tasks that are not put off; return the seconds until one may be due, `WHEN_WOKEN` if none will be.

        longest: largest result while the log is usable, seconds.
        """
        log = self._log()
        if log is None or self._stopping or not log.is_usable:
            return WHEN_WOKEN
        try:
            return min(longest, *(task.put_off() or task.attempt(log) for task in tasks))
        except ReplogError:
            return WHEN_WOKEN  # the log was closed or poisoned meanwhile; its calls raise that
        except OSError as error:
            self._poison(log, "housekeeping", error)
            return WHEN_WOKEN
