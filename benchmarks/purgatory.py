"""`python -m benchmarks.purgatory`: what a completed wait costs while many others wait.

Produces wait for high watermarks of many partitions, each with a deadline. A few of them are completed while the rest
waits on: the cost of each is the same with a thousand waiters and with a million.
"""

from __future__ import annotations

import argparse
import gc
import sys
import time
from typing import NamedTuple

from pyreplog.future import AppendFuture
from pyreplog.purgatory import Purgatory

_PARTITIONS = 100
_DEADLINE_US = 30_000_000


class PurgatoryCost(NamedTuple):
    """Microseconds of one wait, while `waiters` wait.

    Attributes:
        waiters: how many wait.
        watch_us: to begin it, as one of so many.
        complete_us: to complete it, by an advance that reaches it alone.
        cancel_us: to begin and to cancel it.
        expire_us: of a look at the deadlines, none of which has passed.
    """

    waiters: int
    watch_us: float
    complete_us: float
    cancel_us: float
    expire_us: float


def cost(waiters: int, completions: int) -> PurgatoryCost:
    """Measure with one thread.

    Args:
        waiters: that wait, spread over a hundred partitions.
        completions: to measure; fewer than the waiters.
    """
    purgatory = Purgatory()
    gc.collect()
    gc.disable()  # a collection looks at all waits, and would count for the wait that happens to begin it
    try:
        began = time.perf_counter()
        futures = [AppendFuture[None](None) for _ in range(waiters)]
        for index, future in enumerate(futures):
            key, threshold = index % _PARTITIONS, index // _PARTITIONS + 1
            purgatory.watch(key, threshold, future, _DEADLINE_US + index)
        purgatory.drain()
        watched = time.perf_counter()
        for index in range(completions):
            purgatory.advance_and_drain(index % _PARTITIONS, index // _PARTITIONS + 1)
        completed = time.perf_counter()
        assert all(future.done() for future in futures[:completions])
        assert not any(future.done() for future in futures[completions:])
        checked = time.perf_counter()
        for index in range(completions):
            wait = purgatory.watch(index % _PARTITIONS, waiters, AppendFuture[None](None), _DEADLINE_US)
            purgatory.cancel(wait)
        cancelled = time.perf_counter()
        for index in range(completions):
            purgatory.expire(index)
        expired = time.perf_counter()
    finally:
        gc.enable()
    return PurgatoryCost(
        waiters,
        (watched - began) * 1e6 / waiters,
        (completed - watched) * 1e6 / completions,
        (cancelled - checked) * 1e6 / completions,
        (expired - cancelled) * 1e6 / completions,
    )


def main() -> int:
    parser = argparse.ArgumentParser(description="Cost of a completed wait while many others wait.")
    parser.add_argument("--most", type=int, default=1_000_000, metavar="N", help="waiters of the last row")
    parser.add_argument("--completions", type=int, default=5000, metavar="N", help="waits that are completed")
    arguments = parser.parse_args()
    if not 0 < arguments.completions < arguments.most:
        parser.error(f"--completions: expected 1 to {arguments.most - 1}, found {arguments.completions}")
    print("waiters    watch   complete  watch+cancel  expire   (microseconds)")
    waiters = arguments.most
    sizes = []
    while waiters > arguments.completions:
        sizes.append(waiters)
        waiters //= 10
    for size in reversed(sizes):
        row = cost(size, arguments.completions)
        print(
            f"{row.waiters:9,} {row.watch_us:7.2f} {row.complete_us:9.2f} {row.cancel_us:12.2f} {row.expire_us:9.2f}",
            flush=True,
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
