"""FairExecutor: threads for requests that block. Connections take turns, and jobs end with their connection.

A job notices that its connection was closed by `check_connected`, which it calls between its steps, and by
`wait_while_connected`, in which it waits.
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
POLL_S = 0.5
"""Interval at which a waiting job checks whether its connection still exists."""

T = TypeVar("T")
_current = threading.local()  # `queue`: of the job that this thread runs


class _Queue:
    """The jobs of one connection.

    Attributes:
        is_ready: the connection waits for its turn.
        is_held: the connection does not read.
        is_disconnected: the connection was closed.
    """

    __slots__ = ("is_disconnected", "is_held", "is_ready", "jobs", "running")

    def __init__(self) -> None:
        self.jobs: deque[Job] = deque()
        self.running = 0
        self.is_ready = self.is_held = self.is_disconnected = False


def check_connected() -> None:
    """Raise ClosedError if this thread runs a job whose connection was closed.

    In other threads the call does nothing.
    """
    queue: _Queue | None = getattr(_current, "queue", None)
    if queue is not None and queue.is_disconnected:
        raise ClosedError("the connection that asked for this has ended")


def wait_while_connected(wait: Callable[..., Any], future: AppendFuture[T]) -> T:
    """Return `wait(future)`. A job stops waiting up to POLL_S after its connection was closed.

    Args:
        wait: accepts a timeout as second argument, after which it raises OutcomeUnknownError.
        future: the future to wait for.

    Raises:
        ReplogError: errors of `wait` and of `check_connected`.
    """
    if getattr(_current, "queue", None) is None:
        result: T = wait(future)
        return result
    while True:
        check_connected()
        try:
            result = wait(future, POLL_S)
        except OutcomeUnknownError:
            if not future.done():
                continue
            result = future.result()
        return result


class FairExecutor:
    """Runs jobs of many connections: round robin among connections, and up to `running_max` of one at a time, in order.

    So a connection with many or slow jobs delays only its own jobs.

    Up to `threads` jobs run at a time, because more jobs that compute would take the processor from all other threads.
    If no job could be started for STALL_S, the running ones are waiting, and one more is started, up to `threads_max`.
    Threads are started when needed, and end when there is no job for a while. They are daemons.

    A connection with `queued_max` waiting jobs stops reading until half of them were started: TCP then slows its client
    down. Any thread may call any method.
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
        self._ready: deque[Connection] = deque()  # connections with a job that may start, each once
        self._threads: set[threading.Thread] = set()
        self._idle = self._running = self._begun = 0
        self._is_watching = False  # whether a thread checks for progress of the running jobs
        self._closed = False

    @property
    def queued(self) -> int:
        """Number of waiting jobs."""
        with self._changed:
            return sum(len(queue.jobs) for queue in self._queues.values())

    @property
    def running(self) -> int:
        """Number of running jobs."""
        return self._running

    def submit(self, connection: Connection, job: Job) -> None:
        """Have `job()` called, unless the connection is closed before. After `stop` the job is dropped."""
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
        """Drop the waiting jobs of a connection that was closed; running jobs notice by themselves."""
        with self._changed:
            queue = self._queues.get(connection)
            if queue is None:
                return
            queue.is_disconnected = True
            queue.jobs.clear()
            if queue.is_ready:
                queue.is_ready = False
                self._ready.remove(connection)
            if not queue.running:
                del self._queues[connection]

    def stop(self) -> list[threading.Thread]:
        """Drop the waiting jobs, and start no more; return the running threads. A job may call it, too."""
        with self._changed:
            self._closed = True
            self._queues.clear()
            self._ready.clear()
            self._changed.notify_all()
            return list(self._threads)

    def close(self, timeout: float | None = None) -> None:
        """Stop, and wait for the running jobs. Must not be called by a job.

        timeout: seconds; None: no limit.
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        for thread in self.stop():
            thread.join(None if deadline is None else max(deadline - time.monotonic(), 0.0))

    # ---- turns, under the lock ------------------------------------------------------------------------------

    def _make_ready(self, connection: Connection, queue: _Queue) -> None:
        if queue.is_ready or not queue.jobs or queue.running >= self._running_max:
            return
        queue.is_ready = True
        self._ready.append(connection)
        self._wake_or_start_thread()

    def _wake_or_start_thread(self) -> None:
        """Wake or start a thread that takes a job, unless a thread is about to take one."""
        if self._idle:
            self._changed.notify()
        elif len(self._threads) == self._running < self._threads_max:
            thread = threading.Thread(target=self._work, name=self._name, daemon=True)
            self._threads.add(thread)
            thread.start()

    def _take_job(self) -> tuple[Connection, _Queue, Job]:
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
            self._wake_or_start_thread()
        return connection, queue, job

    def _job_ended(self, connection: Connection) -> None:
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
        while (taken := self._next_job()) is not None:
            connection, _current.queue, job = taken
            try:
                job()
            except Exception:
                logger.exception("a job raised an exception")
            _current.queue = None
            del taken, job  # a waiting thread keeps no objects alive
            with self._changed:
                self._job_ended(connection)
            del connection

    def _next_job(self) -> tuple[Connection, _Queue, Job] | None:
        """Return the next job; None: this thread must end."""
        with self._changed:
            while not self._closed:
                if self._ready and (self._running < self._threads_wanted or self._is_stalled()):
                    return self._take_job()
                if not self._ready and not self._wait_for_job():
                    break
            self._threads.discard(threading.current_thread())
            return None

    def _is_stalled(self) -> bool:
        """Return whether a job waits, and none was started for STALL_S.

        One thread watches for STALL_S; the others wait for a job.
        """
        if self._is_watching:
            self._wait_for_job()
            return False
        self._is_watching, begun = True, self._begun
        was_woken = self._changed.wait(STALL_S)
        self._is_watching = False
        return not was_woken and bool(self._ready) and self._begun == begun

    def _wait_for_job(self) -> bool:
        """Sleep until there may be a job; return False if there was none for IDLE_S."""
        self._idle += 1
        was_woken = self._changed.wait(IDLE_S)
        self._idle -= 1
        return was_woken or bool(self._ready)
