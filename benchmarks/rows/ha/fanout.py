"""Eight replicas of one master, cold-started together, beside one."""

from __future__ import annotations

import shutil
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from benchmarks.entries import SIZES, VALUES
from benchmarks.plan import Plan
from benchmarks.result import Comparison, Figure, Goal, Section
from benchmarks.rows.ha.node import RemoteNode, remote
from benchmarks.rows.ha.stream import FRAME_BYTES, stream_entries
from benchmarks.sampling import interleave

_SIZE = 1024
_BYTES = 256 << 20
_REPLICAS = 8
_GIB = 1 << 30


def fanout(plan: Plan) -> Section:
    """CPU seconds of the master's process per GiB that it has delivered."""
    many = _REPLICAS if plan.budget >= 1 else 2
    section = Section("ha-fanout", f"{many} replicas of one master, records of {SIZES[_SIZE]}, TCP")
    entries = stream_entries(plan, _BYTES)
    settings: dict[str, Any] = {"log": {"segment_bytes": plan.segment_bytes}, "transfer_bytes": FRAME_BYTES}
    with plan.folder() as folder, ExitStack() as stack:
        master = remote(stack, folder / "master", "master", members=["master"], **settings)
        end, checked = master.call("fill", _SIZE, entries), list[str]()

        def deliver(replicas: int) -> float:
            cpu_s, told = _deliver(master, folder, replicas, end, entries, settings)
            checked.append(told)
            return cpu_s / (replicas * int(end) / _GIB)

        found = interleave(plan, {"all": lambda: deliver(many), "one": lambda: deliver(1)})
    section.comparisons.append(
        Comparison(
            f"master's CPU per GiB, {end / (1 << 20):,.0f} MiB to each",
            Figure(f"{many} replicas", found["all"], "s", "appended"),
            Figure("one replica", found["one"], "s", "appended"),
            Goal("at most", 1.3),
            f"{checked[-1]} on each of {len(checked)} replicas and groups",
        )
    )
    section.notes.append("CPU seconds of all threads of the master's process; the replicas are processes of their own.")
    return section


def _deliver(
    master: RemoteNode, folder: Path, replicas: int, end: int, entries: int, settings: dict[str, Any]
) -> tuple[float, str]:  # fmt: skip
    """Have new replicas take all up to `end`, at the same time: the master's CPU seconds, and what one read back."""
    paths = [folder / f"replica-{number}" for number in range(replicas)]
    before = master.cpu_s()
    with ExitStack() as stack:
        started = [
            remote(stack, path, path.name, master=master.address, observer=True, **settings) for path in paths
        ]  # fmt: skip
        for replica in started:
            replica.ask("received", end)
        for replica in started:
            replica.answer()
        cpu_s = master.cpu_s() - before
        told = {replica.call("verified", _SIZE, VALUES, entries) for replica in started}
    for path in paths:
        shutil.rmtree(path)
    (same,) = told
    return cpu_s, same
