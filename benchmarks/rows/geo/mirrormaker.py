"""MirrorMaker 2 between two brokers, in turns with our replicator."""

from __future__ import annotations

import dataclasses
import time
from contextlib import closing
from statistics import median

from benchmarks.entries import BATCH, SIZES, in_turn
from benchmarks.peers.kafka.broker import build
from benchmarks.peers.kafka.mirrormaker import MirrorMaker
from benchmarks.plan import Plan
from benchmarks.result import Comparison, Figure, Goal, Section
from benchmarks.rows.geo.backlog_turns import BacklogTurns
from benchmarks.rows.geo.pair import pair
from benchmarks.sampling import interleave

_MESSAGES = 1 << 20
_ROUNDS = 3
_RATE, _CPU = 5.0, 0.2


class _Turns:
    def __init__(self, peer: MirrorMaker, values: list[bytes], count: int) -> None:
        self._peer, self._values, self._count = peer, values, count
        self.cpu_s: list[float] = []
        self.verified = 0

    def turn(self) -> float:
        """Messages per second of a backlog."""
        peer, start = self._peer, self._peer.count
        with peer.stopped():
            peer.publish(self._values, self._count)
            begin, cpu_s = time.perf_counter(), peer.cpu_s()
        peer.wait()
        seconds = time.perf_counter() - begin
        self.cpu_s.append(peer.cpu_s() - cpu_s)
        if peer.read(start) != in_turn(self._values, self._count):
            raise ValueError(f"{peer.title}: other messages were read back than were published")
        self.verified += self._count
        return self._count / seconds


def beside_mirrormaker(plan: Plan, section: Section, values: list[bytes]) -> None:
    """Compare a backlog of these values, and add what was measured to the section."""
    size = len(values[0])
    count = plan.scaled(_MESSAGES * 100 // size, 4 * BATCH) // BATCH * BATCH
    build()
    few = dataclasses.replace(plan, budget=0.0, rounds=min(_ROUNDS, plan.rounds))
    with plan.folder() as folder, closing(MirrorMaker(folder)) as peer, pair(plan) as clusters:
        ours, theirs = BacklogTurns(clusters, values, count), _Turns(peer, values, count)
        rates = interleave(few, {"ours": ours.ours, "peer": theirs.turn})
    checked = f"{ours.verified:,} and {theirs.verified:,} messages at the targets"
    gib = count * size / (1 << 30)
    section.comparisons += [
        Comparison(
            f"{SIZES[size]}, beside {peer.title}",
            Figure("Replicator", rates["ours"], "/s", "synced", size),
            Figure(peer.title, rates["peer"], "/s", "synced", size),
            Goal("at least", _RATE),
            checked,
        ),
        Comparison(
            f"{SIZES[size]}, CPU per GiB, both clusters",
            Figure("Replicator", median(ours.cpu_s[plan.uncounted :]) / gib, "s", "synced"),
            Figure(peer.title, median(theirs.cpu_s[plan.uncounted :]) / gib, "s", "synced"),
            Goal("at most", _CPU),
            checked,
        ),
    ]
    note = (
        f"{peer.version()}, two brokers of one node each; topics of one partition with flush.messages=1, acks=all, "
        "batches of up to 256 KiB. MirrorMaker 2 has been started, and has sent a message, before the time begins; it "
        "is stopped (SIGSTOP) while the backlog is published. Its CPU is that of the three processes, and ours that of "
        "this process, which is both clusters."
    )
    if note not in section.notes:
        section.notes.append(note)
