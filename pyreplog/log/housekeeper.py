"""The background threads of a log: what they do, when they do it again, and what becomes of a task that fails.

Nothing here is on the append path; an append only finds a prepared segment, or has to prepare one itself.
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
"""False: logs that are opened from now on start no threads; only `step` runs their tasks. For simulations."""

IDLE_S = 0.5
"""How long a thread of a log waits at most before it looks for work again. Those of a runtime wait until it is due."""

RETRY_FIRST_S, RETRY_MAX_S = 0.5, 30.0


class MaintainedLog(Protocol):
    """A log as its background threads see it."""

    @property
    def path(self) -> Path: ...

    @property
    def is_usable(self) -> bool:
        """False: it was closed, or a failed sync has poisoned it."""


T = TypeVar("T", bound=MaintainedLog)


class BackgroundTask(Generic[T]):
    """A task of a log. One that fails is put off, longer each time, until it succeeds: a full disk need not stay full.

    act: does it, and returns in how many seconds it may be due again. trouble: what it failed with last time, or "".
    """

    def __init__(self, name: str, act: Callable[[T], float]) -> None:
        self.trouble = ""
        self._name, self._act = name, act
        self._retry_s, self._not_before = RETRY_FIRST_S, 0.0

    def put_off(self) -> float:
        """Seconds for which it should not be tried again."""
        return max(self._not_before - time.monotonic(), 0.0)

    def attempt(self, log: T) -> float:
        """Do it; return the seconds until it may be due again.

        Lets through OSError (a sync failed: the caller poisons the log), and any error of a closed or poisoned log.
        """
        try:
            pause = self._act(log)
        except ReplogError as error:
            if not log.is_usable:
                raise
            return self._fail(log, f"{self._name}: {error}")
        if self.trouble:
            logger.info("%s: %s: works again", log.path, self._name)
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
    """Runs the tasks of one log on two threads that sleep until there is something to do, or on those of a runtime.

    Neither thread waits for the other's disk: one prepares segments and removes old ones, the other syncs. The threads
    do not keep the log alive, so that a leaked log can say so. A poisoned log is left alone: a sync that succeeds after
    one that failed proves nothing.

    poison: called with the log, a stage and the OSError of a task. runtime: None: the log has threads of its own.
    """

    def __init__(
        self, log: T, *, preparing: Sequence[BackgroundTask[T]], syncing: Sequence[BackgroundTask[T]],
        poison: Callable[[T, str, OSError], PoisonedError], runtime: LogRuntime | None = None,
    ) -> None:  # fmt: skip
        self._log, self._poison = weakref.ref(log), poison
        self._preparing, self._syncing = preparing, syncing
        self._stopping = False
        self.is_asked_to_close = False
        """Whether the files of the log are to be closed, though it may be in use; for the task that does that."""
        self._wake_preparing, self._wake_syncing = threading.Event(), threading.Event()
        self._threads: list[threading.Thread] = []
        self._shared: tuple[SharedTask, SharedTask] | None = None  # preparing, syncing
        if runtime is not None:
            self._shared = (
                runtime.preparing.add(lambda: self._turn(preparing)),
                runtime.syncing.add(lambda: self._turn(syncing)),
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
        """End the threads and wait for them; of those of a runtime, for what they do for this log."""
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
        """Whether the threads are those of a runtime, which look at this log only when they are woken, or it is due."""
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
        """As `FileUser` has it."""
        self.is_asked_to_close = True
        self.wake_syncing()

    @property
    def trouble(self) -> str:
        """What goes wrong at present, and is tried again; "" when all is well."""
        return "; ".join(task.trouble for task in (*self._preparing, *self._syncing) if task.trouble)

    def step(self, log: T) -> None:
        """Do now all that the threads would do, in the calling thread."""
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
            pause = self._turn(tasks, IDLE_S)

    def _turn(self, tasks: Sequence[BackgroundTask[T]], longest: float = WHEN_WOKEN) -> float:
        """Do what is due; return the seconds until something may be due again, `WHEN_WOKEN` when nothing ever is.

        longest: seconds to return at most while the log is in use.
        """
        log = self._log()
        if log is None or self._stopping or not log.is_usable:
            return WHEN_WOKEN
        try:
            return min(longest, *(task.put_off() or task.attempt(log) for task in tasks))
        except ReplogError:
            return WHEN_WOKEN  # closed or poisoned meanwhile; its callers are told
        except OSError as error:
            self._poison(log, "housekeeping", error)
            return WHEN_WOKEN
