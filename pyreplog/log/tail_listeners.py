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
        """Request one call of the callback, at the next growth or truncation of the log.

        Check the log after this returns: it may have grown before the request.
        """
        self._tail.ask_wakeup()

    def call_soon(self) -> None:
        """Have the thread call the callback soon, without a change of the log."""
        self._listeners.call_soon(self)

    def remove(self) -> None:
        """Never call the callback again. Waits for a call that runs, unless the callback itself calls this."""
        self._listeners.remove(self._tail, self)
        with self._running:
            self._is_removed = True

    def run(self) -> None:
        """Call the callback, unless the listener was removed. For the thread of the listeners."""
        with self._running:
            if self._is_removed:
                return
            try:
                self._call()
            except Exception:
                logger.exception("a callback for the growth of a log failed")


class TailListeners:
    """Calls callbacks when logs have grown or were truncated, from one thread for all logs. Callbacks must not block.

    An append has no extra cost while no listener has asked for a call, and otherwise costs one wake-up. The thread
    starts with the first listener.
    """

    def __init__(self) -> None:
        self._wakeups = TailWakeups()
        self._lock = threading.Lock()
        self._listeners: dict[Tail, list[TailListener]] = {}
        self._soon: list[TailListener] = []
        self._thread: threading.Thread | None = None
        self._stopping = False

    def add(self, tail: Tail, call: Callable[[], object]) -> TailListener:
        """Register a callback for the tail page of a log that this process writes. It is called after `ask`."""
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
        """Stop the thread and wait for it."""
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
        """Wait until there are listeners to call; return them."""
        tails = self._wakeups.wait()
        with self._lock:
            soon, self._soon = self._soon, []
            return soon + [listener for tail in tails for listener in self._listeners.get(tail, ())]
