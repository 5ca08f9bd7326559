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
"""The pause of a task that is not due again before something wakes it."""

IDLE_MS = 10_000
"""How long nothing is appended to a log of a runtime before its files are closed."""

PREPARING_THREADS, SYNCING_THREADS, COMMITTING_THREADS = 1, 2, 4
"""Threads of a runtime at most; each is started when there is work that no other thread has time for."""


_ASKED_MAX = 32
"""Logs that are asked to close their files, and have not tried yet, before others wait for them to open theirs."""

_WAIT_S = 5.0
"""Seconds after which a log opens its files although others have not closed theirs."""


class SharedTask:
    """A task of one log on the threads of a `WorkerPool`, which runs it on one thread at a time.

    act: does it, and returns in how many seconds it is due again; `WHEN_WOKEN`: not before `wake`. Any thread may call
    all methods.
    """

    def __init__(self, pool: WorkerPool, act: Callable[[], float]) -> None:
        self._pool, self.act = pool, act
        self.due = WHEN_WOKEN
        """Time of the monotonic clock. For the pool, as what follows."""
        self.runner: threading.Thread | None = None
        self.is_woken = self.is_cancelled = False

    def wake(self) -> None:
        """Have it run soon; once more, if it is running."""
        self._pool.wake(self)

    def cancel(self) -> None:
        """Never run it again; wait for the run that is under way, unless this is called in it."""
        self._pool.cancel(self)

    @property
    def is_running_here(self) -> bool:
        """Whether the calling thread is the one that runs it."""
        return self.runner is threading.current_thread()


class WorkerPool:
    """Runs the tasks of many logs on a few threads, those that are due first.

    A task that nobody wakes and that is not due again costs nothing: no thread looks at it.

    name: of the threads. threads: at most; the first one starts with the first task that is due.
    """

    def __init__(self, name: str, threads: int) -> None:
        self._name, self._threads_max = name, threads
        self._changed = threading.Condition(threading.Lock())
        self._heap: list[tuple[float, int, SharedTask]] = []  # and what was put there in vain: its time is another one
        self._numbers = itertools.count()
        self._threads: list[threading.Thread] = []
        self._waiting = 0  # threads without a task
        self._stopping = False

    def add(self, act: Callable[[], float]) -> SharedTask:
        """Return a new task; it does not run before it is woken."""
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
        """Whether no task runs, and none is due at any time."""
        with self._changed:
            return all(task.due != due for due, _, task in self._heap) and self._waiting == len(self._threads)

    def stop(self) -> None:
        """End the threads and wait for them."""
        with self._changed:
            self._stopping = True
            threads = list(self._threads)
            self._changed.notify_all()
        for thread in threads:
            if thread is not threading.current_thread():
                thread.join()

    def _schedule(self, task: SharedTask, due: float) -> None:
        """Under the lock."""
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
        """Wait for the next task that is due; None: the pool stops. Under the lock."""
        while not self._stopping:
            left = None
            while self._heap and self._heap[0][0] != self._heap[0][2].due:
                heapq.heappop(self._heap)
            if self._heap:
                left = self._heap[0][0] - time.monotonic()
                if left <= 0.0:
                    task = heapq.heappop(self._heap)[2]
                    if self._heap:  # perhaps it is due as well
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
            del task  # while this thread waits, it keeps no log


class FileUser(Protocol):
    """What has files open for a log."""

    def ask_close(self) -> None:
        """Have the files closed soon, if that can be. Any thread; it does not wait."""


class OpenLogs:
    """Keeps the number of logs that have files open about at a limit: each takes two descriptors, and a few mappings.

    When there are too many, the log that opened its files first is asked to close them, and counts as the last one. A
    log that is in use opens them again. A log that is about to open its files waits while others have not done yet what
    they were asked for.

    Args:
        most: logs that have files open; None: as many as take half of the descriptors, and about half of the mappings,
            that this process may have.
    """

    def __init__(self, most: int | None = None) -> None:
        self._most = most
        self._changed = threading.Condition()
        self._users: dict[FileUser, None] = {}  # the first one opened its files before all others
        self._asked: set[FileUser] = set()  # to close them

    def wait(self) -> None:
        """Wait, not for ever, until there may be room for one more log. The caller has locked no log that has files
        open."""
        with self._changed:
            self._changed.wait_for(lambda: len(self._asked) <= _ASKED_MAX, _WAIT_S)

    def add(self, user: FileUser) -> None:
        """Note that a log has opened its files."""
        most = _most_open() if self._most is None else self._most
        with self._changed:
            self._users[user] = None
            first = next((other for other in self._users if other not in self._asked), None)
            if first is None or len(self._users) - len(self._asked) <= most:
                return
            del self._users[first]  # it goes to the end: perhaps it cannot close them now
            self._users[first] = None
            self._asked.add(first)
        first.ask_close()

    def remove(self, user: FileUser) -> None:
        """Note that a log has closed its files."""
        with self._changed:
            self._users.pop(user, None)
        self.note_attempt(user)

    def note_attempt(self, user: FileUser) -> None:
        """Note that a log that may have been asked to close its files has done so, if it could."""
        with self._changed:
            if user in self._asked:
                self._asked.remove(user)
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

    A log that is opened with a runtime starts no thread of its own for its upkeep, its group commits, and the tasks of
    event loops that wait for its entries. An idle one is not looked at: 1,000 of them use no CPU time. It has no file
    open, and none mapped, but for one page that keeps the writer's lock, if `locks` has none for it. Its next append
    opens its segment and its tail page again; in an event loop `submit` raises WindowFullError then, as if it had to
    wait for a segment, and `room()` is awaited. Reading maps a segment for as long as it is in use. The owner closes
    its logs, and then the runtime.

    Any thread may call the methods; `close` waits for what the threads are doing.

    Args:
        idle_ms: a log to which nothing was appended for so long, milliseconds, at least 1, is synced, and its files are
            closed.
        locks: by directory, locks that the owner holds until its logs are closed. They hold those of the logs in these
            directories, too.
        open_logs: limit of the logs that have files open; None: that which the runtimes of this process share.

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
        """Makes segments, and removes old ones."""
        self.syncing = WorkerPool("sync", SYNCING_THREADS)
        """Syncs, and closes the files of idle logs."""
        self.committing = WorkerPool("commit", COMMITTING_THREADS)
        """Group commits of what was submitted to synced logs."""
        self.listeners = TailListeners()
        """Waiting for logs to grow."""

    def close(self) -> None:
        """End the threads, and wait for them. Close the logs before."""
        for pool in (self.preparing, self.syncing, self.committing):
            pool.stop()
        self.listeners.stop()
