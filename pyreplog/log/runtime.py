"""LogRuntime: the threads that many logs of one process share, in place of threads of each log."""

from __future__ import annotations

import heapq
import itertools
import logging
import resource
import threading
import time
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Protocol

from pyreplog.arguments import as_int
from pyreplog.errors import InvalidArgumentError
from pyreplog.handles import Closeable
from pyreplog.log.lock import WriterLock
from pyreplog.log.tail_listeners import TailListeners

logger = logging.getLogger(__name__)

WHEN_WOKEN = float("inf")
"""The pause of a task that is not due again before it is woken."""

IDLE_MS = 10_000
"""Milliseconds without an append after which a log of a runtime closes its files."""

PREPARING_THREADS, SYNCING_THREADS, COMMITTING_THREADS = 1, 2, 4
"""Highest numbers of threads of a runtime. A thread is started when a task is due and all other threads are busy."""


_PENDING_CLOSES_MAX = 32
"""Number of pending requests to close files up to which another log may open its files without waiting."""

_WAIT_S = 5.0
"""Seconds after which a log opens its files although others have not closed theirs."""


class SharedTask:
    """A task of one log on the threads of a `WorkerPool`, which runs it on one thread at a time.

    act: carries the task out, and returns the seconds after which it is due again; `WHEN_WOKEN`: not before `wake`. Any
    thread may call all methods.
    """

    def __init__(self, pool: WorkerPool, act: Callable[[], float]) -> None:
        self._pool, self.act = pool, act
        self.due = WHEN_WOKEN
        """Time of the monotonic clock when the task is due. Only the pool uses this and the other attributes."""
        self.runner: threading.Thread | None = None
        self.is_woken = self.is_cancelled = False

    def wake(self) -> None:
        """Schedule a run of the task now; if it runs already, another run follows."""
        self._pool.wake(self)

    def cancel(self) -> None:
        """Never run the task again. Waits for the current run, unless the task itself calls this."""
        self._pool.cancel(self)

    @property
    def is_running_here(self) -> bool:
        """Whether the calling thread runs the task."""
        return self.runner is threading.current_thread()


class WorkerPool:
    """Runs the tasks of many logs on a few threads, in the order in which they are due.

    A task that is neither woken nor due costs no CPU time.

    name: part of the names of the threads. threads: highest number of threads; the first one starts with the first
    task that is due.
    """

    def __init__(self, name: str, threads: int) -> None:
        self._name, self._threads_max = name, threads
        self._changed = threading.Condition(threading.Lock())
        self._heap: list[tuple[float, int, SharedTask]] = []  # (due, order, task); stale if `due` is not the task's
        self._numbers = itertools.count()
        self._threads: list[threading.Thread] = []
        self._waiting = 0  # number of threads without a task
        self._stopping = False

    def add(self, act: Callable[[], float]) -> SharedTask:
        """Return a new task, which first runs when it is woken."""
        return SharedTask(self, act)

    def wake(self, task: SharedTask) -> None:
        with self._changed:
            if task.is_cancelled:
                return
            if task.runner is not None:
                task.is_woken = True
            else:
                self._schedule(task, time.monotonic())

    def cancel(self, task: SharedTask) -> None:
        with self._changed:
            task.is_cancelled, task.due = True, WHEN_WOKEN
            while task.runner is not None and not task.is_running_here:
                self._changed.wait()

    @property
    def is_idle(self) -> bool:
        """Whether no task runs, and none is scheduled."""
        with self._changed:
            return all(task.due != due for due, _, task in self._heap) and self._waiting == len(self._threads)

    def stop(self) -> None:
        """Stop the threads and wait for them."""
        with self._changed:
            self._stopping = True
            threads = list(self._threads)
            self._changed.notify_all()
        for thread in threads:
            if thread is not threading.current_thread():
                thread.join()

    def _schedule(self, task: SharedTask, due: float) -> None:
        """Schedule a task, unless it is due earlier already. The caller holds the lock."""
        if due >= task.due or self._stopping:
            return
        task.due = due
        heapq.heappush(self._heap, (due, next(self._numbers), task))
        if self._waiting:
            self._changed.notify()
        elif not self._threads or due <= time.monotonic():
            self._grow()

    def _grow(self) -> None:
        if len(self._threads) < self._threads_max:
            thread = threading.Thread(target=self._run, name=f"pyreplog-{self._name}-{len(self._threads)}", daemon=True)
            self._threads.append(thread)
            thread.start()

    def _take(self) -> SharedTask | None:
        """Wait for a task that is due, and take it; return None if the pool stops. The caller holds the lock."""
        while not self._stopping:
            left = None
            while self._heap and self._heap[0][0] != self._heap[0][2].due:
                heapq.heappop(self._heap)
            if self._heap:
                left = self._heap[0][0] - time.monotonic()
                if left <= 0.0:
                    task = heapq.heappop(self._heap)[2]
                    if self._heap:  # another thread takes or waits for the next task
                        if self._waiting:
                            self._changed.notify()
                        elif self._heap[0][0] <= time.monotonic():
                            self._grow()
                    return task
            self._waiting += 1
            try:
                self._changed.wait(left)
            finally:
                self._waiting -= 1
        return None

    def _run(self) -> None:
        while True:
            with self._changed:
                task = self._take()
                if task is None:
                    return
                task.due, task.runner, task.is_woken = WHEN_WOKEN, threading.current_thread(), False
            try:
                pause = task.act()
            except Exception:
                logger.exception("a task of a log failed, and is given up")
                pause, task.is_cancelled = WHEN_WOKEN, True
            with self._changed:
                task.runner = None
                if task.is_cancelled:
                    self._changed.notify_all()
                elif task.is_woken or pause < WHEN_WOKEN:
                    self._schedule(task, time.monotonic() + (0.0 if task.is_woken else pause))
            del task  # so that a waiting thread keeps no log alive


class FileUser(Protocol):
    """An object that has files open for a log."""

    def ask_close(self) -> None:
        """Request that the files are closed soon, if possible. Any thread may call it, and it does not block."""


class OpenLogs:
    """Limits the number of logs that have files open, approximately. Each has two descriptors and a few mappings.

    Beyond the limit, the log that opened its files first is asked to close them, and moves to the end of the order. A
    log that is in use opens its files again. A log that is about to open its files waits while too many requests to
    close are pending.

    Args:
        most: number of logs with open files; None: as many as need half of the descriptors, and about half of the
            mappings, that this process may have.
    """

    def __init__(self, most: int | None = None) -> None:
        self._most = most
        self._changed = threading.Condition()
        self._users: dict[FileUser, None] = {}  # in the order in which they opened their files
        self._asked_to_close: set[FileUser] = set()  # users with a pending request to close

    def wait(self) -> None:
        """Wait until another log may open its files, for at most _WAIT_S seconds.

        The caller must not hold the lock of a log that has files open.
        """
        with self._changed:
            self._changed.wait_for(lambda: len(self._asked_to_close) <= _PENDING_CLOSES_MAX, _WAIT_S)

    def add(self, user: FileUser) -> None:
        """Note that a log has opened its files."""
        most = _most_open() if self._most is None else self._most
        with self._changed:
            self._users[user] = None
            first = next((other for other in self._users if other not in self._asked_to_close), None)
            if first is None or len(self._users) - len(self._asked_to_close) <= most:
                return
            del self._users[first]  # moves to the end of the order, since it may be unable to close its files now
            self._users[first] = None
            self._asked_to_close.add(first)
        first.ask_close()

    def remove(self, user: FileUser) -> None:
        """Note that a log has closed its files."""
        with self._changed:
            self._users.pop(user, None)
        self.note_attempt(user)

    def note_attempt(self, user: FileUser) -> None:
        """Note that a log has tried to close its files, so that a request to do so is no longer pending."""
        with self._changed:
            if user in self._asked_to_close:
                self._asked_to_close.remove(user)
                self._changed.notify_all()


def _most_open() -> int:
    descriptors, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    by_maps = _maps_max() // 8
    return by_maps if descriptors == resource.RLIM_INFINITY else max(min(descriptors // 4, by_maps), 1)


@cache
def _maps_max() -> int:
    try:
        return int(Path("/proc/sys/vm/max_map_count").read_text())
    except (OSError, ValueError):
        return 65_530  # the kernel's default


_open_logs = OpenLogs()


class LogRuntime(Closeable):
    """The threads of many logs that one owner has open in a process, for example the partitions of a broker.

    A log that is opened with a runtime starts no threads of its own for background tasks, group commits, and the tasks
    of event loops that wait for its entries. 1,000 idle logs use no CPU time. An idle log has no file open or mapped,
    except a page that holds the writer's lock if `locks` has no lock for it. Its next append opens the segment and the
    tail page again; in an event loop `submit` then raises WindowFullError, as if it had to wait for a segment, and
    `room()` is awaited. A read maps a segment while it is in use. The owner closes its logs, and then the runtime.

    Any thread may call the methods; `close` waits for the current tasks.

    Args:
        idle_ms: milliseconds without an append after which a log is synced and its files are closed, at least 1.
        locks: locks of parent directories, by directory, which the owner holds until its logs are closed. Locks of logs
            in these directories are held through them.
        open_logs: limit for the number of logs with open files; None: the limit that all runtimes of this process
            share.

    Example:
        ```python
        with LogRuntime() as runtime:
            logs = [CommitLog(path, config, create=True, clock=None, files=None, runtime=runtime) for path in paths]
            ...
            for log in logs:
                log.close()
        ```
    """

    def __init__(
        self, *, idle_ms: int = IDLE_MS, locks: Mapping[Path, WriterLock] | None = None,
        open_logs: OpenLogs | None = None,
    ) -> None:  # fmt: skip
        if as_int("idle_ms", idle_ms) < 1:
            raise InvalidArgumentError(f"idle_ms: expected at least 1, found {idle_ms}")
        self.idle_s = idle_ms / 1000
        self.open_logs = _open_logs if open_logs is None else open_logs
        self.locks: Mapping[Path, WriterLock] = {} if locks is None else locks
        self.preparing = WorkerPool("prepare", PREPARING_THREADS)
        """Prepares segments, and removes expired ones."""
        self.syncing = WorkerPool("sync", SYNCING_THREADS)
        """Syncs logs, and closes the files of idle logs."""
        self.committing = WorkerPool("commit", COMMITTING_THREADS)
        """Group commits of entries that were submitted to synced logs."""
        self.listeners = TailListeners()
        """Waits for the growth of logs."""

    def close(self) -> None:
        """Stop the threads and wait for them. The logs have to be closed before."""
        for pool in (self.preparing, self.syncing, self.committing):
            pool.stop()
        self.listeners.stop()
