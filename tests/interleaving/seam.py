"""How the product gets controlled primitives: by name, while a test runs.

Every module of pyreplog that is loaded has its names for `threading`, `time`, `queue` and what comes from there
exchanged; extension modules too, for those names are looked up in their module when they are used. Nothing is added to the
product's signatures, and what it does is what it does elsewhere.

Native code that sleeps without a call of Python's (a mutex that is taken, a futex word) asks
`pyreplog._native.system.scheduling` first, on the path that would sleep: there the scheduler answers. Native code between
two such places, and between calls of Python code, is one step: the GIL makes it so. What runs without the GIL is not
looked at here: tests of the sanitizers do that.
"""

from __future__ import annotations

import _thread
import contextlib
import queue
import sys
import threading
import time
from collections.abc import Iterator
from types import ModuleType
from typing import Any

from pyreplog._native.system import scheduling
from tests.interleaving import primitives, scheduler


class _Module:
    """A module with some names of its own."""

    def __init__(self, module: ModuleType, **names: Any) -> None:
        self._module = module
        self.__dict__.update(names)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._module, name)


_THREADING = _Module(
    threading,
    Lock=primitives.Lock,
    RLock=primitives.RLock,
    Condition=primitives.Condition,
    Event=primitives.Event,
    Semaphore=primitives.Semaphore,
    Thread=primitives.Thread,
    current_thread=primitives.current_thread,
)
_TIME = _Module(
    time,
    monotonic=primitives.monotonic,
    monotonic_ns=primitives.monotonic_ns,
    perf_counter=primitives.monotonic,
    perf_counter_ns=primitives.monotonic_ns,
    time=primitives.wall,
    time_ns=primitives.wall_ns,
    sleep=primitives.sleep,
)

_EXCHANGED: list[tuple[Any, Any]] = [
    (threading, _THREADING),
    (time, _TIME),
    (_thread.allocate_lock, primitives.Lock),
    (threading.Lock, primitives.Lock),  # a type from CPython 3.13 on
    (threading.RLock, primitives.RLock),
    (threading.Condition, primitives.Condition),
    (threading.Event, primitives.Event),
    (threading.Semaphore, primitives.Semaphore),
    (threading.Thread, primitives.Thread),
    (threading.current_thread, primitives.current_thread),
    (queue.SimpleQueue, primitives.SimpleQueue),
    (time.monotonic, primitives.monotonic),
    (time.monotonic_ns, primitives.monotonic_ns),
    (time.time, primitives.wall),
    (time.time_ns, primitives.wall_ns),
    (time.sleep, primitives.sleep),
]
_BY_ID = {id(old): new for old, new in _EXCHANGED}


class _Native:
    """What native code asks: the world that runs, if the calling thread is its."""

    def wait_while(self, is_so: Any, timeout_us: int = -1) -> bool:
        running = scheduler.active
        return running is not None and running.wait_while(is_so, timeout_us)

    def park(self, word: int, timeout_us: int) -> bool:
        running = scheduler.active
        return running is not None and running.park(word, timeout_us)

    def unpark(self, word: int, count: int) -> None:
        running = scheduler.active
        if running is not None:
            running.unpark(word, count)

    def pause(self) -> bool:
        running = scheduler.active
        return running is not None and running.pause()


@contextlib.contextmanager
def controlled() -> Iterator[None]:
    """Meanwhile, the modules of pyreplog that are loaded use controlled primitives."""
    before: list[tuple[ModuleType, str, Any]] = []
    for name, module in list(sys.modules.items()):
        if name == "pyreplog" or name.startswith("pyreplog."):
            for key, value in list(vars(module).items()):
                new = _BY_ID.get(id(value))
                if new is not None and key != "LockType":  # by which a future tells real locks from others
                    before.append((module, key, value))
                    setattr(module, key, new)
    scheduling.seam.scheduler = _Native()
    try:
        yield
    finally:
        scheduling.seam.scheduler = None
        for module, key, value in before:
            setattr(module, key, value)
