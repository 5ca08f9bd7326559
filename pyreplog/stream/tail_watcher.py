"""TailWatcher: calls back when a log has grown. A thread sleeps on the tail page of the log, or of all logs."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyreplog.log.commit_log import CommitLog
    from pyreplog.log.runtime import LogRuntime
    from pyreplog.log.tail_listeners import TailListener

logger = logging.getLogger(__name__)

_SLICE_US = 200_000


class TailWatcher:
    """Calls each registered callback once, when the log has grown beyond a position or was truncated.

    An append costs nothing while no callback is registered, and one wake-up otherwise. The callbacks must not block.

    Args:
        log: the log.
        runtime: its thread calls the callbacks; None: a thread of this object does, which starts with the first
            registration.
    """

    def __init__(self, log: CommitLog, runtime: LogRuntime | None = None) -> None:
        self._log = log
        self._truncations = log.truncation_count
        self._listener: TailListener | None = None
        if runtime is not None:
            self._listener = runtime.listeners.add(log.tail, self._on_growth)
        self._lock = threading.Lock()
        self._has_callbacks = threading.Event()
        self._positions: dict[Callable[[], object], int] = {}
        self._thread: threading.Thread | None = None
        self._is_stopped = False

    def when_beyond(self, position: int, call: Callable[[], object]) -> None:
        """Call `call()` once the log's end, committed or not, has passed `position`. Any thread.

        A later registration of the same callback replaces the earlier one.
        """
        with self._lock:
            if self._is_stopped:
                return
            self._positions[call] = position
            if self._thread is None and self._listener is None:
                self._thread = threading.Thread(target=self._run, name="pyreplog-growth", daemon=True)
                self._thread.start()
        if self._listener is None:
            self._has_callbacks.set()
            return
        self._listener.ask()
        if position < self._log.tail.end or self._truncations != self._log.truncation_count:
            self._listener.call_soon()

    def forget(self, call: Callable[[], object]) -> None:
        """Remove a callback. It may still be called once, if a call is under way."""
        with self._lock:
            self._positions.pop(call, None)

    def stop(self) -> None:
        """Remove all callbacks, and wait for a running one. Call it before the log is closed."""
        with self._lock:
            self._is_stopped, thread = True, self._thread
            self._positions.clear()
        self._has_callbacks.set()
        self._log.tail.wake()
        if thread is not None and thread is not threading.current_thread():
            thread.join()
        if self._listener is not None:
            self._listener.remove()

    def _on_growth(self) -> None:
        """Call due callbacks, after the log has grown or was truncated."""
        self._call_due()
        with self._lock:
            if not self._positions:
                return
        assert self._listener is not None
        self._listener.ask()
        self._call_due()  # the log may have grown before `ask`

    def _run(self) -> None:
        while True:
            self._has_callbacks.wait()
            with self._lock:
                if self._is_stopped:
                    return
                lowest = min(self._positions.values(), default=None)
                if lowest is None:
                    self._has_callbacks.clear()
                    continue
            self._log.tail.wait_for_end(lowest, _SLICE_US)
            self._call_due()

    def _call_due(self) -> None:
        end, count = self._log.tail.end, self._log.truncation_count
        was_truncated, self._truncations = count != self._truncations, count
        with self._lock:
            due = [call for call, position in self._positions.items() if position < end or was_truncated]
            for call in due:
                del self._positions[call]
        for call in due:
            _invoke(call)


def _invoke(call: Callable[[], object]) -> None:
    try:
        call()
    except Exception:
        logger.exception("a callback for the growth of a log failed")
