"""Replicating a topic to another cluster, beside a program that consumes and publishes, and beside MirrorMaker 2."""

from __future__ import annotations

from benchmarks.entries import BATCH, SIZES, make_values
from benchmarks.plan import Plan
from benchmarks.result import Comparison, Figure, Goal, Section
from benchmarks.rows.geo.backlog_turns import BacklogTurns
from benchmarks.rows.geo.pair import pair
from benchmarks.sampling import interleave

_MESSAGES = 1 << 18


def replication(plan: Plan) -> Section:
    """A backlog, until the other cluster has all of it."""
    section = Section("geo-replication", f"A backlog of batches of {BATCH} to another cluster over TCP, synced")
    for size in (100, 1024):
        count = plan.scaled(_MESSAGES * 100 // size, 4 * BATCH) // BATCH * BATCH
        values = make_values(size)
        with pair(plan.shared(2)) as clusters:
            turns = BacklogTurns(clusters, values, count)
            rates = interleave(plan.shared(2), {"ours": turns.ours, "program": turns.program})
            section.comparisons.append(
                Comparison(
                    SIZES[size],
                    Figure("Replicator", rates["ours"], "/s", "synced", size),
                    Figure("receive_batch, submit_batch of columns", rates["program"], "/s", "synced", size),
                    Goal("at least", 0.5),
                    f"{turns.verified:,} messages at the target",
                )
            )
        if plan.kafka:
            try:
                from benchmarks.rows.geo.mirrormaker import beside_mirrormaker
            except ModuleNotFoundError as missing:  # its client is a package that few have
                raise SystemExit(f"{missing}: pip install --group kafka") from None
            beside_mirrormaker(plan.shared(2), section, values)
    section.notes.append(
        "The program is a consumer here and a client there, with up to 64 batches on their way, that acknowledges what "
        "is confirmed. Sessions and topics are open before the time begins. The program keeps neither identities nor "
        "publish times, and repeats messages after a crash."
    )
    return section
