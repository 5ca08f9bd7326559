"""An entry's way to a follower in another process beside a bare futex between two processes."""

from __future__ import annotations

import mmap
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
"""Between two entries: long enough for all listeners to be asleep again."""

_SKIPPED = 8
_SLICE_NS = 100_000
"""The shortest time slice that Linux gives; a thread that wakes up with one goes before a thread with a longer one."""

_HANDOFF_LIMIT, _IDLE_LIMIT = 1.5, 0.005


class Ringer:
    """A bell on a page of its own, and room for a stamp at the end of that page."""

    def __init__(self, path: Path, stack: ExitStack) -> None:
        path.write_bytes(bytes(4096))
        with path.open("r+b") as file:
            self.page = stack.enter_context(mmap.mmap(file.fileno(), 4096))
            self.bell = bare.Bell(file.fileno())


class Listeners:
    """A follower and two bare listeners, each in its own process, and the handles that wake them."""

    def __init__(self, folder: Path, count: int, slice_ns: int, stack: ExitStack) -> None:
        self.count = count
        self._log = stack.enter_context(pyreplog.open(folder / "log", segment_bytes=1 << 20))
        self._bare, self._stamped = Ringer(folder / "bare", stack), Ringer(folder / "stamped", stack)
        self.jobs: dict[str, Job] = {
            name: stack.enter_context(job(name, str(folder / file), count, slice_ns))
            for name, file in (("follow", "log"), ("hear", "bare"), ("hear_stamps", "stamped"))
        }
        for one in self.jobs.values():
            one.answer()

    def wake(self, times: int) -> None:
        """Wake each of them in turn, when it sleeps."""
        page, ring = self._stamped.page, self._stamped.bell.ring
        for _ in range(times):
            time.sleep(_PAUSE_S)
            self._log.append(time.monotonic_ns().to_bytes(8, "little"))
            time.sleep(_PAUSE_S)
            self._bare.bell.ring()
            time.sleep(_PAUSE_S)
            page[-8:] = time.monotonic_ns().to_bytes(8, "little")
            ring()

    def idle_shares(self, seconds: float) -> tuple[float, float]:
        """CPU time per second of the follower and of the bare listener while nothing happens."""
        time.sleep(10 * _PAUSE_S)
        pids = self.jobs["follow"].pid, self.jobs["hear"].pid
        before, begin = [cpu_ns(pid) for pid in pids], time.monotonic_ns()
        time.sleep(seconds)
        after, passed = [cpu_ns(pid) for pid in pids], time.monotonic_ns() - begin
        return (after[0] - before[0]) / passed, (after[1] - before[1]) / passed

    def latencies(self) -> dict[str, float]:
        """Median seconds from waking to awake, once all has been sent."""
        heard = {name: one.answer()[_SKIPPED:] for name, one in self.jobs.items()}
        if {len(taken) for taken in heard.values()} != {self.count - _SKIPPED}:
            raise ValueError("a listener missed an entry")
        for one in self.jobs.values():
            one.wait()
        return {name: median(taken) * 1e-9 for name, taken in heard.items()}


def follower(plan: Plan) -> Section:
    """`follow` in another process."""
    section = Section("follower", "A follower in another process, asleep when the entry is appended")
    for slice_ns in (_SLICE_NS, 0):
        count = _SKIPPED + plan.scaled(2048, 32)
        with plan.folder() as folder, ExitStack() as stack:
            listeners = Listeners(folder, count, slice_ns, stack)
            listeners.wake(count - 1)
            shares = listeners.idle_shares(plan.budget / 4)
            listeners.wake(1)
            section.comparisons += _handoffs(listeners.latencies(), slice_ns, f"{count:,} stamps")
    section.comparisons.append(
        Comparison(
            "idle, share of a core",
            Figure("follow()", shares[0], "share", "reading"),
            Figure("bare futex", shares[1], "share", "reading"),
            Goal("at most", _IDLE_LIMIT, absolute=True),
            f"{count:,} stamps",
        )
    )
    section.notes += [
        "A woken thread that shares the writer's core runs at once, or when the writer sleeps again: with the "
        "scheduler's default slices that changes from one time to the next, on all sides. For the first lines all "
        "listeners asked for slices of 0.1 ms, with which the woken one goes first (sched_setattr, Linux 6.12).",
        "Between Python's stamps: the bare futex and nothing else, but the clock is read, and the stamp written and "
        "read, by Python as on our side.",
    ]
    return section


def _handoffs(latency: dict[str, float], slice_ns: int, checked: str) -> list[Comparison]:
    slices = "short slices" if slice_ns else "default slices"
    bare_side = Figure("bare futex", latency["hear"], "s", "appended")
    return [
        Comparison(
            f"hand-off, median, {slices}",
            Figure("append -> follow()", latency["follow"], "s", "appended"),
            bare_side,
            Goal("at most", _HANDOFF_LIMIT) if slice_ns else None,
            checked,
        ),
        Comparison(
            f"no log: between Python's stamps, {slices}",
            Figure("bare futex, Python's stamps", latency["hear_stamps"], "s", "appended"),
            bare_side,
            None,
            checked,
        ),
    ]
