"""Private memory of a writer and its bookies while one bookie stands still."""

from __future__ import annotations

import os
import signal
import time

from benchmarks.entries import make_values
from benchmarks.ledgers import Bookies, bookies, verify_ledger
from benchmarks.plan import Plan
from benchmarks.proc import Job, anonymous_bytes, job
from benchmarks.result import Comparison, Figure, Goal, Section

_SIZE = 1024
_WINDOW_BYTES = 16 << 20
_SLACK_BYTES = 64 << 20
_STOPPED_S = 60.0
_LOOKS = 20


def backlog(plan: Plan) -> Section:
    """A writer under load, one of its three bookies stopped by SIGSTOP for a minute."""
    section = Section("ledgers-memory", "Private memory while one bookie of three is stopped, under load")
    stopped_s = _STOPPED_S if plan.budget >= 5 else 0.2
    with bookies(plan, "appended") as side, job("load_ledger", side.url, _SIZE, _WINDOW_BYTES) as writer:
        ledger = writer.answer()
        most = _watch(side, writer, stopped_s)
        writer.ask("stop")
        entries = writer.answer()
        writer.wait()
        checked = verify_ledger(side.cluster, ledger, make_values(_SIZE), entries)
    for name, value in most.items():
        section.comparisons.append(
            Comparison(
                f"{name}, at most in {stopped_s:g} s",
                Figure("anonymous memory", value, "B", "appended"),
                Figure("window + 64 MiB", _WINDOW_BYTES + _SLACK_BYTES, "B", "appended"),
                Goal("at most", 1.0),
                f"{checked:,} entries",
            )
        )
    section.notes.append("All of the private memory of the processes counts: interpreter, libraries, buffers.")
    return section


def _watch(side: Bookies, writer: Job, stopped_s: float) -> dict[str, float]:
    """Most private bytes of each process from stopping the last bookie until it has caught up."""
    *running, stopped = side.jobs
    most = dict.fromkeys(("writer", "bookie", "stopped bookie"), 0.0)

    def measure() -> None:
        found = {
            "writer": anonymous_bytes([writer.pid]),
            "bookie": max(anonymous_bytes([bookie.pid]) for bookie in running),
            "stopped bookie": anonymous_bytes([stopped.pid]),
        }
        for name, value in found.items():
            most[name] = max(most[name], value)

    os.kill(stopped.pid, signal.SIGSTOP)
    try:
        for _ in range(_LOOKS):
            time.sleep(stopped_s / _LOOKS)
            measure()
    finally:
        os.kill(stopped.pid, signal.SIGCONT)
    for _ in range(_LOOKS):
        time.sleep(min(stopped_s, 2.0) / _LOOKS)
        measure()
    return most
