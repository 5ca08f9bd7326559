"""A few threads for what blocks: calls to the metadata store."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from queue import SimpleQueue

logger = logging.getLogger(__name__)

Job = Callable[[], object]


class Workers:
    """Does jobs in the order they come, `count` at a time. Any thread.

    The threads are daemons, as those of a concurrent.futures pool are not: a program's own threads may still be closing
    their ledgers while the interpreter shuts down.
    """

    def __init__(self, count: int, name: str) -> None:
        self._jobs: SimpleQueue[Job | None] = SimpleQueue()
        self._closed = False
        self._threads = [
            threading.Thread(target=_work, args=(self._jobs,), name=name, daemon=True) for _ in range(count)
        ]
        for thread in self._threads:
            thread.start()

    def submit(self, job: Job) -> None:
        """Have `job()` called soon. After `close`: it is not."""
        if self._closed:
            logger.debug("a job came after its cluster was closed: %s", job)
        else:
            self._jobs.put(job)

    def close(self, timeout: float | None = None) -> None:
        """Do what was submitted, and end. Not for the workers themselves. timeout: seconds; jobs that still wait for
        something then are left alone. None: never."""
        deadline = None if timeout is None else time.monotonic() + timeout
        self._closed = True
        for _ in self._threads:
            self._jobs.put(None)
        for thread in self._threads:
            thread.join(None if deadline is None else max(deadline - time.monotonic(), 0.0))


def _work(jobs: SimpleQueue[Job | None]) -> None:
    while (job := jobs.get()) is not None:
        try:
            job()
        except Exception:
            logger.exception("a job raised")
        del job  # what it holds is not needed while this thread waits
