"""Watchers: calls the callbacks of watches from one thread per store, so that no callback runs inside a store call."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable

from pyreplog.errors import ClosedError

_logger = logging.getLogger(__name__)

RETRY_S = 0.5
_PAUSE_MAX_S = 0.25


class Watch:
    """A registered callback; made by `MetadataStore.watch`. Its owner closes it."""

    def __init__(self, watchers: Watchers, key: str, callback: Callable[[str], object]) -> None:
        self.key = key
        self._watchers, self._callback = watchers, callback

    def close(self) -> None:
        """End the watch. Closing twice has no effect.

        No call begins after this has returned, but a call that has begun may still run. Any thread may close a watch,
        also its callback.
        """
        self._watchers._remove(self)

    def __enter__(self) -> Watch:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _call(self) -> None:
        try:
            self._callback(self.key)
        except ClosedError:
            _logger.debug("a watch of %s ended, because the store was closed", self.key)
        except Exception:
            _logger.exception("a watch of %s failed", self.key)


class Watchers:
    """The watches of one store, and the thread that calls their callbacks. It starts with the first watch.

    arm: called in the thread for a key before the callbacks of its watches, so that a change after the callbacks have
        read the key is noticed; returns False if that failed, and is then called again.
    poll: called in the thread every `interval` seconds, and after `wake`, with the watched keys; returns those that
        changed.
    interval: seconds between two polls; None: there are none.
    """

    def __init__(
        self,
        arm: Callable[[str], bool] | None = None,
        poll: Callable[[list[str]], Iterable[str]] | None = None,
        interval: float | None = None,
    ) -> None:
        self._arm, self._poll, self._interval = arm, poll, interval
        self._condition = threading.Condition()
        self._by_key: dict[str, list[Watch]] = {}
        self._changed: set[str] = set()
        self._awake = False
        self._stopping = False
        self._thread: threading.Thread | None = None

    def add(self, key: str, callback: Callable[[str], object]) -> Watch:
        """Register a callback, and have the thread call it for the first time."""
        watch = Watch(self, key, callback)
        with self._condition:
            self._by_key.setdefault(key, []).append(watch)
            if self._thread is None and not self._stopping:
                self._thread = threading.Thread(target=self._run, name="pyreplog-metadata-watch", daemon=True)
                self._thread.start()
        self.changed([key])
        return watch

    def _remove(self, watch: Watch) -> None:
        with self._condition:
            watches = self._by_key.get(watch.key, [])
            if watch in watches:
                watches.remove(watch)
            if not watches:
                self._by_key.pop(watch.key, None)

    def changed(self, keys: Iterable[str]) -> None:
        """Have the thread call the watches of these keys."""
        with self._condition:
            self._changed.update(key for key in keys if key in self._by_key)
            self._condition.notify()

    def all_changed(self) -> None:
        """Have the thread call all watches, since changes may have been missed."""
        with self._condition:
            self._changed.update(self._by_key)
            self._awake = True
            self._condition.notify()

    def wake(self) -> None:
        """Have the thread poll now."""
        with self._condition:
            self._awake = True
            self._condition.notify()

    def stop(self) -> None:
        """End the thread, and wait for a callback that runs, unless the callback itself calls this."""
        with self._condition:
            self._stopping = True
            self._by_key.clear()
            self._changed.clear()
            self._condition.notify()
            thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join()

    def _run(self) -> None:
        timeout = self._interval
        while True:
            with self._condition:
                self._condition.wait_for(lambda: self._changed or self._awake or self._stopping, timeout)
                if self._stopping:
                    return
                changed, self._changed, self._awake = self._changed, set(), False
                watched = list(self._by_key)
            began = time.thread_time()
            if self._poll is not None:
                changed.update(self._poll(watched))
            unarmed = [key for key in sorted(changed) if not self._notify(key)]
            with self._condition:
                self._changed.update(key for key in unarmed if key in self._by_key)
            timeout = self._interval
            if unarmed and self._wait_to_retry():
                return
            if self._poll is not None and self._pause_polling(3 * (time.thread_time() - began)):
                return

    def _pause_polling(self, seconds: float) -> bool:
        """Pause after a poll that took long: one poll for many changes costs little more than one for a single change.

        Returns whether the thread has to stop.
        """
        with self._condition:
            return self._condition.wait_for(lambda: self._stopping, min(seconds, _PAUSE_MAX_S))

    def _wait_to_retry(self) -> bool:
        """Wait until another key changes, `wake` is called, or RETRY_S has passed; return whether the thread has to
        stop."""
        with self._condition:
            known = len(self._changed)
            self._condition.wait_for(lambda: self._stopping or self._awake or len(self._changed) > known, RETRY_S)
            return self._stopping

    def _notify(self, key: str) -> bool:
        if self._arm is not None and not self._arm(key):
            return False
        with self._condition:
            watches = list(self._by_key.get(key, ()))
        for watch in watches:
            with self._condition:
                wanted = watch in self._by_key.get(key, ())
            if wanted:
                watch._call()
        return True
