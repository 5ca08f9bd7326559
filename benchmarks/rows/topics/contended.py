"""Publishing beside a thread of the same process that computes."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from benchmarks.peers.queues import EmbeddedTopic, ServedTopic
from benchmarks.plan import Plan
from benchmarks.result import Comparison, Figure, Goal, Section
from benchmarks.sampling import collector_off

_SIZE = 100
_MESSAGES = 2_000
_PAUSE_S = 0.001
_P50, _P99 = Goal("at most", 1.2), Goal("at most", 2.2)


def contended(plan: Plan) -> Section:
    """How long one publish takes while another thread of its process runs Python without a pause."""
    section = Section("topics-contended", "One publish beside a thread that computes, in switch intervals")
    interval = Figure("sys.getswitchinterval()", sys.getswitchinterval(), "s", "appended")
    count = max(int(_MESSAGES * min(plan.budget / 10.0, 1.0)), 10)
    for kind, where in ((EmbeddedTopic, "in one process"), (ServedTopic, "through a server")):
        with plan.folder() as folder:
            peer = kind(folder, "appended")
            try:
                peer.start()
                taken = sorted(_taken(peer, count))
                left = peer.backlog()
            finally:
                peer.close()
        if left != count:
            raise ValueError(f"{kind.title}: {count} messages were published, {left} are there")
        for name, part, goal in (("median", 0.5, _P50), ("p99", 0.99, _P99)):
            ours = Figure(f"publish {where}", taken[int(len(taken) * part)], "s", "appended")
            section.comparisons.append(Comparison(f"{where}, {name}", ours, interval, goal, f"{count:,} messages"))
    section.notes.append(
        f"One message of {_SIZE} B at a time, {_PAUSE_S * 1e3:.0f} ms after the one before. The other thread gives the "
        "GIL up after a switch interval, when it is asked to: each time that the publishing thread waits for something "
        "and needs the GIL again costs one."
    )
    return section


def _taken(peer: EmbeddedTopic | ServedTopic, count: int) -> list[float]:
    """Seconds that each of so many publishes takes."""
    value, taken = bytes(_SIZE), list[float]()
    with collector_off(), _computing():
        for _ in range(count):
            time.sleep(_PAUSE_S)
            begin = time.perf_counter()
            peer.publish(value)
            taken.append(time.perf_counter() - begin)
    return taken


@contextmanager
def _computing() -> Iterator[None]:
    """A thread that holds the GIL whenever it can."""
    over = threading.Event()

    def compute() -> None:
        number = 0
        while not over.is_set():
            for _ in range(1_000):
                number = (number * 31 + 7) % 1_000_003

    thread = threading.Thread(target=compute)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
