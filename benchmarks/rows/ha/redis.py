"""Replication of Redis, in the same run."""

from __future__ import annotations

import time
from contextlib import ExitStack

from benchmarks.entries import SIZES, VALUES, in_turn, make_values
from benchmarks.peers.replicated.redis_pair import RedisPair
from benchmarks.plan import Plan
from benchmarks.result import Comparison, Figure, Goal, Section
from benchmarks.rows.ha.node import remote
from benchmarks.sampling import interleave

_SIZE = 1024
_WINDOW_BYTES = 16 << 20
_RETAINED_SEGMENTS = 8


class _Redis:
    """Entries in pipelines, each with a WAIT for the replica."""

    def __init__(self, peer: RedisPair, seconds: float) -> None:
        self._peer, self._seconds = peer, seconds
        self._values = make_values(_SIZE)
        self._written = 0

    def rate(self) -> float:
        """Bytes per second."""
        entries, begin = in_turn(self._values, self._peer.batch), time.monotonic()
        self._peer.start()
        self._written = 0
        while not self._written or time.monotonic() < begin + self._seconds:
            self._peer.append_batch(entries)
            self._written += len(entries)
        return self._written * _SIZE / (time.monotonic() - begin)

    def verified(self) -> str:
        """Read back what the last turn wrote."""
        found = list(self._peer.values())
        if found != in_turn(self._values, self._written):
            raise ValueError(f"Redis: {len(found)} of {self._written} entries, or not those that were written")
        return f"Redis: {len(found):,} entries"


def redis(plan: Plan) -> Section:
    """Bytes of values per second until one replica has them."""
    section = Section("ha-redis", f"Beside Redis, one replica has confirmed, {SIZES[_SIZE]}, TCP, appended")
    seconds = max(plan.budget / 20, 0.01)
    with plan.folder() as folder, ExitStack() as stack:
        log = {"segment_bytes": plan.segment_bytes, "retention_bytes": _RETAINED_SEGMENTS * plan.segment_bytes}
        (folder / "redis").mkdir()
        peer = RedisPair(folder / "redis", "appended")
        stack.callback(peer.close)
        theirs = _Redis(peer, seconds)
        master = remote(stack, folder / "a", "a", members=["a", "b"], sync_replicas=1, log=log)
        replica = remote(stack, folder / "b", "b", master=master.address, log=log)
        written = 0

        def ours() -> float:
            nonlocal written
            found = master.call("load", _SIZE, seconds, _WINDOW_BYTES)
            written = found["entries"]
            return float(found["rate"])

        found = interleave(plan, {"ours": ours, "redis": theirs.rate})
        checked = f"{replica.call('verified', _SIZE, VALUES, written)}; {theirs.verified()}"
    section.comparisons.append(
        Comparison(
            "bytes of values",
            Figure("submit_batch", found["ours"], "B/s", "appended"),
            Figure(RedisPair.title, found["redis"], "B/s", "appended"),
            Goal("at least", 10.0),
            checked,
        )
    )
    section.notes.append(
        f"{RedisPair.version()}: {RedisPair.batch} XADD and a WAIT in one pipeline; both servers write their "
        f"append-only files before they answer. Ours: batches of 256, {_WINDOW_BYTES >> 20} MiB on their way, segments "
        "recycled under retention; Redis forgets its stream before each turn."
    )
    return section
