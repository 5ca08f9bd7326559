"""Threads for requests that block: connections take turns, and what a connection asked for ends with it.

A job that runs when its connection ends is told by `check_wanted`, which it calls between its steps, and by
`wait_wanted`, in which it waits.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any, TypeVar

from pyreplog.errors import ClosedError, OutcomeUnknownError
from pyreplog.future import AppendFuture
from pyreplog.net.connection import JOBS_FULL, Connection

logger = logging.getLogger(__name__)

Job = Callable[[], object]

THREADS = 4
THREADS_MAX = 32
RUNNING_MAX = 4
QUEUED_MAX = 64
STALL_S = 0.05
IDLE_S = 5.0
LOOK_S = 0.5
"""Between looks of a job that waits, whether its connection is there."""

T = TypeVar("T")
_here = threading.local()  # `queue`: of the job that this thread runs


class _Queue:
    """Jobs of one connection. is_ready: among those whose turn comes. is_held: nothing is read from the connection.
    has_left: it has ended."""

    __slots__ = ("has_left", "is_held", "is_ready", "jobs", "running")

    def __init__(self) -> None:
        self.jobs: deque[Job] = deque()
        self.running = 0
        self.is_ready = self.is_held = self.has_left = False


def check_wanted() -> None:
    """Between the steps of what a job may do, and others as well: for them nothing happens.

    Errors: ClosedError, the connection that asked for the job has ended.
    """
    queue: _Queue | None = getattr(_here, "queue", None)
    if queue is not None and queue.has_left:
        raise ClosedError("the connection that asked for this has ended")


def wait_wanted(wait: Callable[..., Any], future: AppendFuture[T]) -> T:
    """`wait(ack)`, as long as it takes; in a job, as long as its connection is there, and LOOK_S more.

    wait: takes a timeout, too, and raises OutcomeUnknownError then. Errors: those of `wait`; as check_wanted.
    """
    if getattr(_here, "queue", None) is None:
        result: T = wait(future)
        return result
    while True:
        check_wanted()
        try:
            result = wait(future, LOOK_S)
        except OutcomeUnknownError:
            if not future.done():
                continue
            result = future.result()
        return result


class FairExecutor:
    """Does jobs of many connections: those of one in the order in which they came, `running_max` at a time; among
    connections round robin. So a connection whose jobs are many, or block, delays its own.

    Up to `threads` jobs run at a time: more of those that compute would only take the processor from all else. One more
    is begun, up to `threads_max`, each time that none could be for STALL_S: those that run wait for something. Threads
    are made as they are needed, and end when nothing comes for a while. They are daemons, as those of `Workers`.

    Of a connection with `queued_max` jobs that wait nothing more is read, until half of them were begun: its client is
    slowed down by TCP. Any thread.
    """

    def __init__(
        self,
        name: str,
        *,
        threads: int = THREADS,
        threads_max: int = THREADS_MAX,
        running_max: int = RUNNING_MAX,
        queued_max: int = QUEUED_MAX,
    ) -> None:
        self._name = name
        self._threads_wanted, self._threads_max = threads, threads_max
        self._running_max, self._queued_max = running_max, queued_max
        self._changed = threading.Condition()
        self._queues: dict[Connection, _Queue] = {}
        self._ready: deque[Connection] = deque()  # each once: it has a job, and may have one more run
        self._threads: set[threading.Thread] = set()
        self._idle = self._running = self._begun = 0
        self._watches = False  # a thread, whether those that run stand still
        self._closed = False

    @property
    def queued(self) -> int:
        """Jobs that were not begun."""
        with self._changed:
            return sum(len(queue.jobs) for queue in self._queues.values())

    @property
    def running(self) -> int:
        """Jobs that were begun and have not ended."""
        return self._running

    def submit(self, connection: Connection, job: Job) -> None:
        """Have `job()` called, unless the connection ends before. After `close`: it is not."""
        with self._changed:
            if self._closed:
                return
            queue = self._queues.setdefault(connection, _Queue())
            queue.jobs.append(job)
            if len(queue.jobs) >= self._queued_max and not queue.is_held:
                queue.is_held = True
                connection.hold(JOBS_FULL)
            self._make_ready(connection, queue)

    def leave(self, connection: Connection) -> None:
        """The connection has ended: its jobs that were not begun are dropped, those that run see it."""
        with self._changed:
            queue = self._queues.get(connection)
            if queue is None:
                return
            queue.has_left = True
            queue.jobs.clear()
            if queue.is_ready:
                queue.is_ready = False
                self._ready.remove(connection)
            if not queue.running:
                del self._queues[connection]

    def stop(self) -> list[threading.Thread]:
        """Begin no more jobs: those that wait are dropped. A job may call it, too. Returns the threads that run."""
        with self._changed:
            self._closed = True
            self._queues.clear()
            self._ready.clear()
            self._changed.notify_all()
            return list(self._threads)

    def close(self, timeout: float | None = None) -> None:
        """`stop`, and wait for the jobs that run, for `timeout` seconds (None: as long as they do). Not for a job."""
        deadline = None if timeout is None else time.monotonic() + timeout
        for thread in self.stop():
            thread.join(None if deadline is None else max(deadline - time.monotonic(), 0.0))

    # ---- whose turn it is, under the lock -------------------------------------------------------------------

    def _make_ready(self, connection: Connection, queue: _Queue) -> None:
        if queue.is_ready or not queue.jobs or queue.running >= self._running_max:
            return
        queue.is_ready = True
        self._ready.append(connection)
        self._call_thread()

    def _call_thread(self) -> None:
        """One that looks for a job, unless there is one that does or will."""
        if self._idle:
            self._changed.notify()
        elif len(self._threads) == self._running < self._threads_max:
            thread = threading.Thread(target=self._work, name=self._name, daemon=True)
            self._threads.add(thread)
            thread.start()

    def _take(self) -> tuple[Connection, _Queue, Job]:
        connection = self._ready.popleft()
        queue = self._queues[connection]
        queue.is_ready = False
        queue.running += 1
        self._running += 1
        self._begun += 1
        job = queue.jobs.popleft()
        if queue.is_held and len(queue.jobs) <= self._queued_max // 2:
            queue.is_held = False
            connection.release(JOBS_FULL)
        self._make_ready(connection, queue)
        if self._ready:
            self._call_thread()
        return connection, queue, job

    def _ended(self, connection: Connection) -> None:
        self._running -= 1
        queue = self._queues.get(connection)
        if queue is None:
            return
        queue.running -= 1
        self._make_ready(connection, queue)
        if not queue.running and not queue.jobs:
            del self._queues[connection]

    # ---- threads --------------------------------------------------------------------------------------------

    def _work(self) -> None:
        while (taken := self._next()) is not None:
            connection, _here.queue, job = taken
            try:
                job()
            except Exception:
                logger.exception("a job raised")
            _here.queue = None
            del taken, job  # what it holds is not needed while this thread waits
            with self._changed:
                self._ended(connection)
            del connection

    def _next(self) -> tuple[Connection, _Queue, Job] | None:
        """None: this thread ends."""
        with self._changed:
            while not self._closed:
                if self._ready and (self._running < self._threads_wanted or self._stand_still()):
                    return self._take()
                if not self._ready and not self._rest():
                    break
            self._threads.discard(threading.current_thread())
            return None

    def _stand_still(self) -> bool:
        """Whether a job waits, and none was begun for STALL_S. One thread watches; others rest."""
        if self._watches:
            self._rest()
            return False
        self._watches, begun = True, self._begun
        was_woken = self._changed.wait(STALL_S)
        self._watches = False
        return not was_woken and bool(self._ready) and self._begun == begun

    def _rest(self) -> bool:
        """Sleep until there may be something to do; False: there was nothing for long."""
        self._idle += 1
        was_woken = self._changed.wait(IDLE_S)
        self._idle -= 1
        return was_woken or bool(self._ready)
