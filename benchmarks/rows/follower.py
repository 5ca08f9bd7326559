"""An entry's way to a follower in another process beside a bare futex between two processes."""

from __future__ import annotations

import time
from contextlib import ExitStack
from pathlib import Path
from statistics import median

import pyreplog
from benchmarks.limits import bare
from benchmarks.plan import Plan
from benchmarks.proc import Job, cpu_ns, job
from benchmarks.result import Comparison, Figure, Goal, Section

_PAUSE_S = 0.0004
"""Between two entries: long enough for both listeners to be asleep again."""

_SKIPPED = 8
_HANDOFF_LIMIT, _IDLE_LIMIT = 1.5, 0.005


class Listeners:
    """A follower and a bare listener, each in its own process, and the handles that wake them."""

    def __init__(self, folder: Path, count: int, stack: ExitStack) -> None:
        self.count = count
        self.log = stack.enter_context(pyreplog.open(folder / "log", segment_bytes=1 << 20))
        page = folder / "bell"
        page.write_bytes(bytes(4096))
        with page.open("r+b") as file:
            self.bell = bare.Bell(file.fileno())
        self.follower: Job = stack.enter_context(job("follow", str(folder / "log"), count))
        self.listener: Job = stack.enter_context(job("hear", str(page), count))
        for one in (self.follower, self.listener):
            one.answer()

    def wake(self, times: int) -> None:
        """Wake each of them in turn, when it sleeps."""
        for _ in range(times):
            time.sleep(_PAUSE_S)
            self.log.append(time.monotonic_ns().to_bytes(8, "little"))
            time.sleep(_PAUSE_S)
            self.bell.ring()

    def idle_shares(self, seconds: float) -> tuple[float, float]:
        """CPU time per second of each while nothing happens."""
        time.sleep(10 * _PAUSE_S)
        before = cpu_ns(self.follower.pid), cpu_ns(self.listener.pid)
        begin = time.monotonic_ns()
        time.sleep(seconds)
        after = cpu_ns(self.follower.pid), cpu_ns(self.listener.pid)
        passed = time.monotonic_ns() - begin
        return (after[0] - before[0]) / passed, (after[1] - before[1]) / passed

    def latencies(self) -> tuple[float, float]:
        """Median seconds from waking to awake, once all has been sent."""
        heard = [self.follower.answer()[_SKIPPED:], self.listener.answer()[_SKIPPED:]]
        if {len(taken) for taken in heard} != {self.count - _SKIPPED}:
            raise ValueError("a listener missed an entry")
        self.follower.wait()
        self.listener.wait()
        return median(heard[0]) * 1e-9, median(heard[1]) * 1e-9


def follower(plan: Plan) -> Section:
    """`follow` in another process."""
    count = _SKIPPED + plan.scaled(4096, 32)
    with plan.folder() as folder, ExitStack() as stack:
        listeners = Listeners(folder, count, stack)
        listeners.wake(count - 1)
        shares = listeners.idle_shares(plan.budget / 2)
        listeners.wake(1)
        latency = listeners.latencies()
    checked = f"{count:,} stamps"
    return Section(
        "follower",
        "A follower in another process, asleep when the entry is appended",
        [
            Comparison(
                "hand-off, median",
                Figure("append -> follow()", latency[0], "s", "appended"),
                Figure("bare futex", latency[1], "s", "appended"),
                Goal("at most", _HANDOFF_LIMIT),
                checked,
            ),
            Comparison(
                "idle, share of a core",
                Figure("follow()", shares[0], "share", "reading"),
                Figure("bare futex", shares[1], "share", "reading"),
                Goal("at most", _IDLE_LIMIT, absolute=True),
                checked,
            ),
        ],
    )
