"""A master that appends without a pause, followed live."""

from __future__ import annotations

from contextlib import ExitStack
from statistics import median
from typing import Any

from benchmarks.entries import SIZES, VALUES
from benchmarks.plan import Plan
from benchmarks.result import Comparison, Figure, Goal, Section
from benchmarks.rows.ha.node import RemoteNode, remote
from benchmarks.rows.ha.stream import bare_stream, stream_entries

_SIZE = 1024
_SECONDS = 60.0
_LAG_BYTES = 64 << 20
_WINDOW_BYTES = 48 << 20
_CARRIED_BYTES = 1 << 30
_RETAINED_SEGMENTS = 8
_OF_ALONE, _OF_CARRIED = 0.7, 0.55


def live(plan: Plan) -> Section:
    """One run: the rate of appends with a replica and without, and how far the replica fell behind."""
    section = Section("ha-live", f"A replica of a master that appends {SIZES[_SIZE]} without a pause, appended")
    seconds = _SECONDS if plan.full else min(plan.budget, 10.0)
    with plan.folder() as folder, ExitStack() as stack:
        log = {"segment_bytes": plan.segment_bytes, "retention_bytes": _RETAINED_SEGMENTS * plan.segment_bytes}
        alone = remote(stack, folder / "alone", "alone", members=["alone"], log=log)
        master = remote(stack, folder / "master", "master", members=["master", "b"], sync_replicas=1, log=log)
        replica = remote(stack, folder / "replica", "b", master=master.address, log=log)
        with bare_stream(plan) as bare:
            entries = stream_entries(plan, _CARRIED_BYTES)
            carried = median(bare.rate(entries) for _ in range(plan.rounds)) * _SIZE
            carried_told = bare.verified()
        without = alone.call("load", _SIZE, seconds / 4, _WINDOW_BYTES)
        found = master.call("load", _SIZE, seconds, _WINDOW_BYTES)
        told = _verified([alone, master, replica], [without, found, found])
    section.comparisons += _compare(seconds, found, without["rate"], carried, f"{told}; {carried_told}")
    section.notes.append(
        f"The master appends batches of 256 and waits only when {_WINDOW_BYTES >> 20} MiB are not confirmed; without a "
        f"replica it confirms by itself. To reach: {_OF_ALONE} of the rate without replicas, or {_OF_CARRIED} of what "
        "loopback carries (the C client's stream to one C bookie, as in ha-stream), whichever is less."
    )
    return section


def _verified(nodes: list[RemoteNode], loaded: list[dict[str, Any]]) -> str:
    told = [
        node.call("verified", _SIZE, VALUES, load["entries"]) for node, load in zip(nodes, loaded, strict=True)
    ]  # fmt: skip
    return f"alone {told[0]}; master {told[1]}; replica {told[2]}"


def _compare(
    seconds: float, found: dict[str, Any], without: float, carried: float, told: str
) -> list[Comparison]:  # fmt: skip
    rate = Figure("with a replica", found["rate"], "B/s", "appended")
    alone = Figure("without replicas", without, "B/s", "appended")
    stream = Figure("C client and bookie", carried, "B/s", "appended")
    is_alone_less = _OF_ALONE * without < _OF_CARRIED * carried
    return [
        Comparison(
            f"largest lag in {seconds:g} s",
            Figure("bytes that the replica lacks", found["lag"], "B", "appended"),
            Figure("64 MiB", _LAG_BYTES, "B", "appended"),
            Goal("at most", 1.0),
            told,
        ),
        Comparison("append rate", rate, alone, Goal("at least", _OF_ALONE) if is_alone_less else None, told),
        Comparison("append rate", rate, stream, None if is_alone_less else Goal("at least", _OF_CARRIED), told),
    ]
