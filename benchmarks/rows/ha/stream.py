"""A replica that starts with nothing takes all of its master's log."""

from __future__ import annotations

import shutil
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path
from typing import Any

from benchmarks.bare_ledger import BareLedger, bare_ledger
from benchmarks.entries import BATCH, SIZES, VALUES, stride
from benchmarks.plan import Plan
from benchmarks.result import Comparison, Figure, Goal, Section
from benchmarks.rows.ha.node import RemoteNode, remote
from benchmarks.rows.ha.rocketmq import rocketmq_rate
from benchmarks.sampling import interleave

_SIZE = 1024
FULL_BYTES = 4 << 30
_BYTES = 1 << 30
_BARE_BATCH, _BARE_SEGMENTS = 64, 4
_ROCKETMQ_BYTES = 512 << 20
FRAME_BYTES = 256 << 10


def stream(plan: Plan) -> Section:
    """Bytes per second from opening the replica until it has received all."""
    section = Section("ha-stream", f"A cold-started replica, records of {SIZES[_SIZE]}, frames of 256 KiB, TCP")
    entries = stream_entries(plan, FULL_BYTES if plan.full else _BYTES)
    settings: dict[str, Any] = {"log": {"segment_bytes": plan.segment_bytes}, "transfer_bytes": FRAME_BYTES}
    with (
        plan.folder() as folder,
        ExitStack() as stack,
        bare_stream(plan) as bare,
    ):
        master = remote(stack, folder / "master", "master", members=["master"], **settings)
        end, checked = master.call("fill", _SIZE, entries), list[str]()

        def ours() -> float:
            rate, told = cold(master, folder / "replica", end, entries, settings)
            checked.append(told)
            return rate

        found = interleave(plan, {"ours": ours, "bare": lambda: _bare(bare, entries)})
        verified = f"{checked[-1]}, {len(checked)} times; {bare.verified()}"
        theirs = rocketmq_rate(folder, min(end, _ROCKETMQ_BYTES)) if plan.rocketmq else None
    figure = Figure("replica, from nothing", found["ours"], "B/s", "appended")
    section.comparisons.append(
        Comparison(
            f"stream of {end / (1 << 20):,.0f} MiB",
            figure,
            Figure("C client and bookie", found["bare"], "B/s", "appended"),
            Goal("at least", 0.55),
            verified,
        )
    )
    if theirs is not None:
        section.comparisons.append(
            Comparison(
                "stream to a slave that has nothing",
                figure,
                Figure("RocketMQ's store and HA", theirs, "B/s", "appended"),
                Goal("at least", 4.0),
                verified,
            )
        )
    section.notes.append(
        "Bytes of records. Ours: connecting, the hello, and making new segment files count; every record's CRC is "
        "checked when it has arrived. Bare: encoded while it is sent, CRC checked, into memory that is recycled. "
        "RocketMQ's store and HA classes are measured with --rocketmq; `python -m benchmarks.peers.rocketmq` has more."
    )
    return section


def bare_stream(plan: Plan) -> AbstractContextManager[BareLedger]:
    """The limit of a stream: its client's log, like ours, is in no cache when it is sent."""
    window = _BARE_SEGMENTS * plan.segment_bytes
    return bare_ledger(plan, "appended", _SIZE, batch=_BARE_BATCH, count=1, acks=1, window=window)


def stream_entries(plan: Plan, most_bytes: int) -> int:
    """So many bytes of entries, fewer for a small budget; in whole batches."""
    size = most_bytes if plan.full or plan.budget >= 5 else 4 * plan.segment_bytes
    return size // stride(_SIZE) // BATCH * BATCH


def cold(
    master: RemoteNode, folder: Path, end: int, entries: int, settings: dict[str, Any]
) -> tuple[float, str]:  # fmt: skip
    """Have a new replica in `folder` take all up to `end`: bytes per second, and what was read back."""
    with ExitStack() as stack:
        replica = remote(stack, folder, folder.name, master=master.address, observer=True, **settings)
        seconds = replica.call("received", end)
        told = replica.call("verified", _SIZE, VALUES, entries)
    shutil.rmtree(folder)
    return end / seconds, told


def _bare(bare: BareLedger, entries: int) -> float:
    return bare.rate(entries) * _SIZE
