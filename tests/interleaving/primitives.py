"""What `threading`, `time` and `queue` have, as parts of a World: each operation is a point, each wait is the scheduler's.

Threads that are no tasks of a run (those of another test's fixtures, say) get the real ones. Used outside of its run (by a
finalizer afterwards), a controlled one waits for nothing.
"""

from __future__ import annotations

import queue
import threading
import time
from _thread import allocate_lock, get_ident
from collections import deque
from collections.abc import Callable
from typing import Any

from pyreplog._native.system.mutex import Mutex
from tests.interleaving import scheduler
from tests.interleaving.scheduler import World

START_S = 1_000.0
"""What monotonic clocks show at the beginning of a run."""
TODAY_S = 1_700_000_000.0


def world() -> World | None:
    """The one that runs, if the calling thread is a task of it."""
    running = scheduler.active
    return running if running is not None and running.controls() else None


def wait(ready: Callable[[], bool], timeout: float | None, label: str) -> bool:
    running = world()
    if running is None:
        return ready()
    return running.wait(ready, timeout, label)


def point(label: str) -> None:
    running = world()
    if running is not None:
        running.point(label)


class _Controlled:
    """Made by a task of a run; `real` is what others get."""

    real: Callable[..., Any]

    def __new__(cls, *arguments: Any, **more: Any) -> Any:
        return cls.real(*arguments, **more) if world() is None else super().__new__(cls)


class Lock(_Controlled):
    real = staticmethod(allocate_lock)

    def __call__(self, _: object) -> None:
        """For an AppendFuture, which releases the locks of those who wait for it, and calls what is no lock of `_thread`."""
        self.release()

    def __init__(self) -> None:
        self._is_taken = False

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        limit = 0.0 if not blocking else None if timeout < 0 else timeout
        if not wait(lambda: not self._is_taken, limit, "acquire"):
            return False
        self._is_taken = True
        return True

    def release(self) -> None:
        if not self._is_taken:
            raise RuntimeError("release unlocked lock")
        self._is_taken = False
        point("release")

    def locked(self) -> bool:
        return self._is_taken

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(self, *_: object) -> None:
        self.release()

    # what Condition asks of it
    def _is_owned(self) -> bool:
        return self._is_taken

    def _release_save(self) -> int:
        self._is_taken = False
        return 1

    def _acquire_restore(self, _: int) -> None:
        wait(lambda: not self._is_taken, None, "acquire again")
        self._is_taken = True


class RLock(_Controlled):
    real = staticmethod(threading.RLock)

    def __init__(self) -> None:
        self._owner, self._depth = 0, 0

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        me = get_ident()
        if self._owner != me:
            limit = 0.0 if not blocking else None if timeout < 0 else timeout
            if not wait(lambda: not self._depth, limit, "acquire"):
                return False
        self._owner = me
        self._depth += 1
        return True

    def release(self) -> None:
        if self._owner != get_ident():
            raise RuntimeError("cannot release un-acquired lock")
        self._depth -= 1
        if not self._depth:
            self._owner = 0
            point("release")

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(self, *_: object) -> None:
        self.release()

    def _is_owned(self) -> bool:
        return self._owner == get_ident()

    def _release_save(self) -> int:
        depth, self._depth, self._owner = self._depth, 0, 0
        return depth

    def _acquire_restore(self, depth: int) -> None:
        wait(lambda: not self._depth, None, "acquire again")
        self._owner, self._depth = get_ident(), depth


class _OfNative:
    """A native lock, with what Condition asks of it."""

    def __init__(self, lock: Mutex) -> None:
        self.acquire, self.release, self._is_owned = lock.acquire, lock.release, lock.locked
        self.__enter__, self.__exit__ = lock.__enter__, lock.__exit__

    def _release_save(self) -> int:
        self.release()
        return 1

    def _acquire_restore(self, _: int) -> None:
        self.acquire()


class Condition(_Controlled):
    real = staticmethod(threading.Condition)

    def __init__(self, lock: Any = None) -> None:
        self._lock = RLock() if lock is None else _OfNative(lock) if isinstance(lock, Mutex) else lock
        self._waiters: deque[list[bool]] = deque()
        self.acquire, self.release = self._lock.acquire, self._lock.release

    def __enter__(self) -> bool:
        return self._lock.__enter__()  # type: ignore[no-any-return]

    def __exit__(self, *error: object) -> None:
        self._lock.__exit__(*error)

    def wait(self, timeout: float | None = None) -> bool:
        self._check_owned("wait on")
        waiter: list[bool] = []
        self._waiters.append(waiter)
        depth = self._lock._release_save()
        try:
            return wait(lambda: bool(waiter), timeout, "wait")
        finally:
            if waiter in self._waiters and not waiter:
                self._waiters = deque(other for other in self._waiters if other is not waiter)
            self._lock._acquire_restore(depth)

    def wait_for(self, predicate: Callable[[], Any], timeout: float | None = None) -> Any:
        deadline = None if timeout is None else monotonic() + timeout
        while not (result := predicate()):
            left = None if deadline is None else deadline - monotonic()
            if left is not None and left <= 0:
                return predicate()
            self.wait(left)
        return result

    def notify(self, n: int = 1) -> None:
        self._check_owned("notify on")
        for _ in range(min(n, len(self._waiters))):
            self._waiters.popleft().append(True)

    def notify_all(self) -> None:
        self.notify(len(self._waiters))

    def _check_owned(self, subject: str) -> None:
        if not self._lock._is_owned():
            raise RuntimeError(f"cannot {subject} un-acquired lock")


class Event(_Controlled):
    real = staticmethod(threading.Event)

    def __init__(self) -> None:
        self._is_set = False

    def is_set(self) -> bool:
        return self._is_set

    def set(self) -> None:
        point("set")
        self._is_set = True
        point("was set")

    def clear(self) -> None:
        point("clear")
        self._is_set = False

    def wait(self, timeout: float | None = None) -> bool:
        return wait(lambda: self._is_set, timeout, "wait for an event")


class Semaphore(_Controlled):
    real = staticmethod(threading.Semaphore)

    def __init__(self, value: int = 1) -> None:
        self._value = value

    def acquire(self, blocking: bool = True, timeout: float | None = None) -> bool:
        if not wait(lambda: self._value > 0, timeout if blocking else 0.0, "acquire a semaphore"):
            return False
        self._value -= 1
        return True

    def release(self, n: int = 1) -> None:
        self._value += n
        point("release a semaphore")

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(self, *_: object) -> None:
        self.release()


class SimpleQueue(_Controlled):
    real = staticmethod(queue.SimpleQueue)

    def __init__(self, maxsize: int = 0) -> None:
        self._items: deque[Any] = deque()

    def put(self, item: Any, block: bool = True, timeout: float | None = None) -> None:
        self._items.append(item)
        point("put")

    put_nowait = put

    def get(self, block: bool = True, timeout: float | None = None) -> Any:
        if not wait(lambda: bool(self._items), timeout if block else 0.0, "get"):
            raise queue.Empty
        return self._items.popleft()

    def get_nowait(self) -> Any:
        return self.get(False)

    def empty(self) -> bool:
        return not self._items

    def qsize(self) -> int:
        return len(self._items)


class Thread(_Controlled):
    """A task, from `start` on."""

    real = staticmethod(threading.Thread)

    def __init__(
        self,
        group: None = None,
        target: Callable[..., object] | None = None,
        name: str | None = None,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
        *,
        daemon: bool | None = None,
    ) -> None:
        self.name, self.daemon = name or "thread", daemon
        self._target, self._args, self._kwargs = target, args, kwargs or {}
        self._task: scheduler.Task | None = None

    def run(self) -> None:
        try:
            if self._target is not None:
                self._target(*self._args, **self._kwargs)
        finally:
            del self._target, self._args, self._kwargs

    def start(self) -> None:
        running = world()
        if running is None:
            raise RuntimeError("a controlled thread can only be started in its world")
        if self._task is not None:
            raise RuntimeError("threads can only be started once")
        self._task = running._begin(self.run, self.name, self)
        running.point("start")

    def join(self, timeout: float | None = None) -> None:
        task = self._task
        if task is None:
            raise RuntimeError("cannot join thread before it is started")
        wait(lambda: task.is_over, timeout, "join")

    def is_alive(self) -> bool:
        return self._task is not None and not self._task.is_over

    @property
    def ident(self) -> int | None:
        return None if self._task is None else self._task.ident


def current_thread() -> Any:
    running = world()
    if running is None:
        return threading.current_thread()
    task = running.current
    if task.thread is None:  # one that a harness has begun
        task.thread = Thread(name=task.name)
        task.thread._task = task
    return task.thread


# ---- time ----------------------------------------------------------------------------------------------------------


def monotonic() -> float:
    running = world()
    return time.monotonic() if running is None else START_S + running.now


def monotonic_ns() -> int:
    return round(monotonic() * 1e9)


def wall() -> float:
    running = world()
    return time.time() if running is None else TODAY_S + running.now


def wall_ns() -> int:
    return round(wall() * 1e9)


def sleep(seconds: float) -> None:
    running = world()
    if running is not None:
        running.sleep(seconds)
