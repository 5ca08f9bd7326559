"""Appends that wait for one replica: one caller beside the bare limit, and many callers beside one."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from statistics import median
from typing import Any

from benchmarks.bare_ledger import bare_ledger
from benchmarks.entries import BATCH, SIZES, make_values, verify
from benchmarks.plan import Plan
from benchmarks.result import Comparison, Figure, Goal, Section
from benchmarks.rows.ha.node import RemoteNode, opened, remote
from benchmarks.sampling import collector_off, interleave
from pyreplog.ha.node import Node

_SIZE = 100
_APPENDS = 1024
_BUSY_POLL_US = 10_000


class Pair:
    """A master in this process and its replica in another; every append waits until the replica has it."""

    def __init__(self, node: Node, replica: RemoteNode) -> None:
        self.node, self._replica = node, replica
        self._value = make_values(_SIZE)[0]
        self._group = [self._value] * BATCH

    def in_turn(self, count: int) -> list[float]:
        """Seconds of each of so many appends, one behind the other."""
        append, value, clock, taken = self.node.append, self._value, time.perf_counter, list[float]()
        for _ in range(count):
            begin = clock()
            append(value)
            taken.append(clock() - begin)
        return taken

    def one(self, seconds: float) -> float:
        """One caller; entries per second."""
        return self._rate(lambda: _until(seconds, self.node.append, self._value))

    def batches(self, seconds: float) -> float:
        """One caller of `append_batch`; entries per second."""
        return self._rate(lambda: _until(seconds, self.node.append_batch, self._group))

    def threads(self, count: int, seconds: float) -> float:
        """So many threads, each one waiting for its append; entries per second."""
        barrier = threading.Barrier(count + 1)

        def caller() -> None:
            barrier.wait()
            _until(seconds, self.node.append, self._value)

        callers = [threading.Thread(target=caller) for _ in range(count)]
        for thread in callers:
            thread.start()

        def run() -> None:
            barrier.wait()
            for thread in callers:
                thread.join()

        return self._rate(run)

    def tasks(self, count: int, seconds: float) -> float:
        """So many tasks of one event loop, each one awaiting its append; entries per second."""
        value, submit = self._value, self.node.submit

        async def caller(deadline: float) -> None:
            while time.monotonic() < deadline:
                await submit(value)

        async def all_of_them() -> None:
            deadline = time.monotonic() + seconds
            await asyncio.gather(*(caller(deadline) for _ in range(count)))

        return self._rate(lambda: asyncio.run(all_of_them()))

    def _rate(self, run: Callable[[], None]) -> float:
        first, begin = self.node.log.tail.end_entry, time.monotonic()
        run()
        return (self.node.log.tail.end_entry - first) / (time.monotonic() - begin)

    def verified(self) -> str:
        """Read back all of both logs, and compare."""
        entries = self.node.log.end
        theirs = self._replica.call("verified", _SIZE, 1, entries)
        return f"{verify(self.node.log, [self._value], entries)}; replica: {theirs}"


def _until(seconds: float, append: Callable[[Any], object], what: object) -> None:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        append(what)


@contextmanager
def pair(plan: Plan, *, busy_poll_us: int = 0) -> Iterator[Pair]:
    """A group of two, in a folder that goes with it."""
    log = {"segment_bytes": plan.segment_bytes}
    settings = {"members": ["a", "b"], "sync_replicas": 1, "log": log}
    with plan.folder() as folder, ExitStack() as stack:
        node = stack.enter_context(opened(folder / "a", "a", None, settings, busy_poll_us))
        replica = remote(stack, folder / "b", "b", master=node.address, busy_poll_us=busy_poll_us, log=log)
        yield Pair(node, replica)


def sync(plan: Plan) -> Section:
    """`append`, `submit` and `append_batch` with one synchronous replica."""
    section = Section("ha-sync", f"Synchronous append of {SIZES[_SIZE]}, one replica has received it, appended")
    part = plan.shared(3)
    section.comparisons += [_latency(part, spin=False), _latency(part, spin=True), *_callers(part)]
    section.notes.append(
        "One append: medians, from before the call (bare: before the encoding) to the confirmation. Busy-polled: both "
        "ends of both sides. Many callers: each waits for its append before the next one."
    )
    return section


def _latency(plan: Plan, *, spin: bool) -> Comparison:
    count = plan.scaled(_APPENDS, 32)
    with (
        bare_ledger(plan, "appended", _SIZE, batch=1, count=1, acks=1, in_turn=True, spin=spin) as bare,
        pair(plan, busy_poll_us=_BUSY_POLL_US if spin else 0) as side,
    ):
        found = interleave(plan, {"ours": lambda: median(side.in_turn(count)), "bare": lambda: bare.latency(count)})
        return Comparison(
            f"one append{', busy-polled' if spin else ''}",
            Figure("append(value)", found["ours"], "s", "appended"),
            Figure("C client and bookie", found["bare"], "s", "appended"),
            Goal("at most", 1.5),
            f"{side.verified()}; {bare.verified()}",
        )


def _callers(plan: Plan) -> list[Comparison]:
    turn = max(min(plan.budget / 40, 0.25), 0.002)
    with pair(plan) as side, collector_off():
        cases: dict[str, tuple[Callable[[], float], float]] = {
            "1,024 asyncio tasks": (lambda: side.tasks(1024, turn), 20),
            "64 threads": (lambda: side.threads(64, turn), 5),
            f"append_batch({BATCH})": (lambda: side.batches(turn), 100),
        }
        runs = {"one": lambda: side.one(turn)} | {name: run for name, (run, _) in cases.items()}
        found = interleave(plan, runs)
        checked = side.verified()
    return [
        Comparison(
            name,
            Figure(name, found[name], "/s", "appended", _SIZE),
            Figure("one caller", found["one"], "/s", "appended", _SIZE),
            Goal("at least", limit),
            checked,
        )
        for name, (_, limit) in cases.items()
    ]
