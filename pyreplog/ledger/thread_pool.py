"""A few threads for jobs that block: calls of the metadata store."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from queue import Empty, SimpleQueue

logger = logging.getLogger(__name__)

Job = Callable[[], object]


class ThreadPool:
    """Runs jobs in the order in which they are submitted, `count` at a time. Any thread.

    Unlike those of a `concurrent.futures` pool, the threads are daemons that run until the interpreter has shut down:
    threads of the program may close ledgers until then.
    """

    def __init__(self, count: int, name: str) -> None:
        self._jobs: SimpleQueue[Job | None] = SimpleQueue()
        self._closed, self._name = False, name
        self._threads = [
            threading.Thread(target=_work, args=(self._jobs,), name=name, daemon=True) for _ in range(count)
        ]
        for thread in self._threads:
            thread.start()

    def submit(self, job: Job) -> None:
        """Have `job()` called by a thread of the pool. After `close` the job is dropped."""
        if self._closed:
            logger.debug("a job was submitted after its cluster was closed: %s", job)
        else:
            self._jobs.put(job)

    def close(self, timeout: float | None = None) -> bool:
        """Run the submitted jobs and end the threads. Must not be called by a thread of the pool.

        Args:
            timeout: seconds; None: no limit. Jobs that have not begun by then are dropped, and running ones are not
                waited for.

        Returns:
            Whether all threads have ended.
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        self._closed = True
        for _ in self._threads:
            self._jobs.put(None)
        for thread in self._threads:
            thread.join(None if deadline is None else max(deadline - time.monotonic(), 0.0))
        if dropped := self._drop():
            logger.warning("%s: %d jobs had not begun when the time was over, and were dropped", self._name, dropped)
        return not any(thread.is_alive() for thread in self._threads)

    def _drop(self) -> int:
        """Drop the queued jobs and return how many there were. Running threads end after their jobs."""
        dropped = 0
        with suppress(Empty):
            while True:
                dropped += self._jobs.get_nowait() is not None
        for thread in self._threads:
            if thread.is_alive():
                self._jobs.put(None)
        return dropped


def _work(jobs: SimpleQueue[Job | None]) -> None:
    while (job := jobs.get()) is not None:
        try:
            job()
        except Exception:
            logger.exception("a job raised")
        del job  # frees the job while this thread waits
