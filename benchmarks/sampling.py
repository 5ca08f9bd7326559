"""Taking turns: all sides of a comparison are measured alternately, so that a disturbance hits them alike."""

from __future__ import annotations

import gc
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from statistics import median

from benchmarks.plan import Plan

Run = Callable[[], float]
"""One turn of one side: does its work and returns its figure (seconds per entry, or a rate)."""

_ROUNDS_MAX = 101


def interleave(plan: Plan, runs: Mapping[str, Run]) -> dict[str, float]:
    """Median figure of each side over rounds of one turn each, until the budget is spent. The plan's uncounted
    rounds come first. Every other round goes backwards, so that no side always follows the same one."""
    samples: dict[str, list[float]] = {name: [] for name in runs}
    order = list(runs)
    with collector_off():
        for _ in range(plan.uncounted):
            for name in order:
                runs[name]()
        begin, rounds = time.monotonic(), 0
        while rounds < plan.rounds or (time.monotonic() - begin < plan.budget and rounds < _ROUNDS_MAX):
            for name in order:
                samples[name].append(runs[name]())
            order.reverse()
            rounds += 1
    return {name: median(found) for name, found in samples.items()}


def timed(work: Callable[[], object], count: int) -> float:
    """Seconds per entry of a piece of work on `count` entries."""
    begin = time.perf_counter()
    work()
    return (time.perf_counter() - begin) / count


def handed_over(count: int, give: Callable[[], object], take: Callable[[], object], wait_s: float) -> list[float]:
    """Seconds from before one thread's `give` to the end of another's `take`, `count` times, one after the other."""
    taken: list[float] = []
    free = threading.Semaphore(0)

    def take_all() -> None:
        for _ in range(count):
            take()
            taken.append(time.perf_counter())
            free.release()

    taker = threading.Thread(target=take_all)
    taker.start()
    given = []
    for _ in range(count):
        given.append(time.perf_counter())
        give()
        free.acquire(timeout=wait_s)
    taker.join()
    return [end - begin for begin, end in zip(given, taken, strict=True)]


@contextmanager
def collector_off() -> Iterator[None]:
    """No garbage collection in the middle of a measurement."""
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
