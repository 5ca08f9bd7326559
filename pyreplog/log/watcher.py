"""Watcher: completes the futures of tasks that wait for entries, from one thread of the log or of its runtime."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any

from pyreplog._native.log.tail_page import Tail
from pyreplog.future import AppendFuture, set_exception
from pyreplog.log.tail_listeners import TailListener, TailListeners
from pyreplog.purgatory import Purgatory, PurgatoryEntry

VISIBLE = "visible"
_SLICE_US = 200_000


class Watcher:
    """Completes futures when an entry becomes visible.

    The thread starts with the first watch and ends when no watch is left.

    tail: tail page of the log. sleep: waits until the visible end passes a position, its first argument, for at most
    the microseconds of its second. listeners: of a log that this process writes; their thread is used instead of a
    thread of the log.
    """

    def __init__(
        self, tail: Tail, purgatory: Purgatory, sleep: Callable[[int, int], object],
        listeners: TailListeners | None = None,
    ) -> None:  # fmt: skip
        self._tail, self._purgatory, self._sleep = tail, purgatory, sleep
        self._listeners = listeners
        self._listener: TailListener | None = None
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._stopping = False
        self._error: BaseException | None = None

    def watch(self, entry: int) -> PurgatoryEntry:
        """Return a watch whose AppendFuture completes when entry number `entry` is visible."""
        future: AppendFuture[Any] = AppendFuture(entry)
        if self._error is not None:
            set_exception(future, self._error)
            return PurgatoryEntry(VISIBLE, entry + 1, future, None)
        self._purgatory.reset(VISIBLE)  # a truncation may have moved the visible end back
        self._purgatory.advance_and_drain(VISIBLE, self._tail.visible_entry)
        watch = self._purgatory.watch(VISIBLE, entry + 1, future)
        if self._listeners is not None:
            self._listen(self._listeners)
            return watch
        with self._lock:
            if self._thread is None and not future.done() and not self._stopping:
                self._thread = threading.Thread(target=self._run, name="pyreplog-watch", daemon=True)
                self._thread.start()
        return watch

    def _listen(self, listeners: TailListeners) -> None:
        with self._lock:
            if self._stopping:
                return
            if self._listener is None:
                self._listener = listeners.add(self._tail, self._on_wakeup)
            self._listener.ask()
        self._purgatory.advance_and_drain(VISIBLE, self._tail.visible_entry)

    def _on_wakeup(self) -> None:
        """Complete the futures of visible entries after the log has grown or was truncated; ask for another wake-up."""
        with self._lock:
            if self._listener is not None and self._purgatory.waiting(VISIBLE):
                self._listener.ask()
        self._purgatory.advance_and_drain(VISIBLE, self._tail.visible_entry)

    async def reached(self, entry: int, timeout: float | None) -> bool:
        """Return whether `entry` becomes visible within `timeout` seconds; None: wait without a limit."""
        watch = self.watch(entry)

        async def settled() -> None:
            await watch.future

        try:
            await asyncio.wait_for(settled(), timeout)
        except TimeoutError:
            return False
        finally:
            if not watch.future.done():
                self._purgatory.cancel(watch)
        return True

    def _run(self) -> None:
        while True:
            visible = self._tail.visible
            self._purgatory.advance_and_drain(VISIBLE, self._tail.visible_entry)
            with self._lock:
                if self._stopping or not self._purgatory.waiting(VISIBLE):
                    self._thread = None
                    return
            self._sleep(visible, _SLICE_US)

    def stop(self, error: BaseException) -> None:
        """Fail all waiting calls, and end the thread."""
        with self._lock:
            self._stopping, self._error = True, error
            thread, listener, self._listener = self._thread, self._listener, None
        self._purgatory.fail(VISIBLE, error)
        self._tail.wake()
        if thread is not None and thread is not threading.current_thread():
            thread.join()
        if listener is not None:
            listener.remove()
