"""TailListeners: one thread that waits for the growth of many logs which this process writes."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from pyreplog._native.log.tail_page import Tail, TailWakeups

logger = logging.getLogger(__name__)


class TailListener:
    """A callback for the tail page of one log; made by `TailListeners.add`. Any thread may call all methods."""

    def __init__(self, listeners: TailListeners, tail: Tail, call: Callable[[], object]) -> None:
        self._listeners, self._tail, self._call = listeners, tail, call
        self._running = threading.RLock()
        self._is_removed = False

    def ask(self) -> None:
        """Have the callback called when the log grows or is cut next. Look at the log afterwards: it may have."""
        self._tail.ask_wakeup()

    def call_soon(self) -> None:
        """Have the callback called by the thread, whatever the log does."""
        self._listeners.call_soon(self)

    def remove(self) -> None:
        """Never call it again; wait for the call that is under way, unless this is called in it."""
        self._listeners.remove(self._tail, self)
        with self._running:
            self._is_removed = True

    def run(self) -> None:
        """For the thread."""
        with self._running:
            if self._is_removed:
                return
            try:
                self._call()
            except Exception:
                logger.exception("a callback for the growth of a log failed")


class TailListeners:
    """Calls back when logs have grown, or were cut, from one thread for all of them. Callbacks must not block.

    It costs an append nothing while no listener asks, and one wake-up otherwise. The thread starts with the first
    listener.
    """

    def __init__(self) -> None:
        self._wakeups = TailWakeups()
        self._lock = threading.Lock()
        self._listeners: dict[Tail, list[TailListener]] = {}
        self._soon: list[TailListener] = []
        self._thread: threading.Thread | None = None
        self._stopping = False

    def add(self, tail: Tail, call: Callable[[], object]) -> TailListener:
        """Register a callback for the page of a log that this process writes; it is called when it asks."""
        listener = TailListener(self, tail, call)
        with self._lock:
            if tail not in self._listeners:
                self._wakeups.add(tail)
            self._listeners.setdefault(tail, []).append(listener)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="pyreplog-listen", daemon=True)
                self._thread.start()
        return listener

    def call_soon(self, listener: TailListener) -> None:
        with self._lock:
            self._soon.append(listener)
        self._wakeups.wake()

    def remove(self, tail: Tail, listener: TailListener) -> None:
        with self._lock:
            left = [other for other in self._listeners.get(tail, ()) if other is not listener]
            if left:
                self._listeners[tail] = left
            elif self._listeners.pop(tail, None) is not None:
                self._wakeups.remove(tail)

    def stop(self) -> None:
        """End the thread and wait for it."""
        with self._lock:
            self._stopping, thread = True, self._thread
        self._wakeups.wake()
        if thread is not None and thread is not threading.current_thread():
            thread.join()

    def _run(self) -> None:
        while not self._stopping:
            for listener in self._take():
                listener.run()

    def _take(self) -> list[TailListener]:
        """Wait for listeners to call."""
        tails = self._wakeups.wait()
        with self._lock:
            soon, self._soon = self._soon, []
            return soon + [listener for tail in tails for listener in self._listeners.get(tail, ())]
