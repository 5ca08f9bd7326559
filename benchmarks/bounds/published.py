"""Publishing with the topic taken out of it: messages encoded, their entries encoded, and three logs that take them."""

from __future__ import annotations

from contextlib import ExitStack

from benchmarks.bounds.copies import Copies
from benchmarks.entries import BATCH, SIZES
from benchmarks.ledgers import turn_entries
from benchmarks.logs import recycled
from benchmarks.plan import Plan
from benchmarks.result import Comparison, Figure, Section
from benchmarks.sampling import interleave
from pyreplog._native.ledger_log.entries import Entries, encode_entries
from pyreplog._native.topic.message_encoder import encode_messages

_SIZE = 100
_TOGETHER = 8
"""Batches that go to the logs in one call, as a topic's do when they come quickly."""


def published(plan: Plan) -> Section:
    """Each batch an entry, so many entries together, three copies of each."""
    section = Section("bound-published", f"What bounds publishing: batches of {BATCH} x {SIZES[_SIZE]}, three copies")
    with plan.folder() as folder, ExitStack() as stack, recycled(plan, _SIZE) as log:
        values = log.values * (BATCH // len(log.values))
        counts = [BATCH] * _TOGETHER

        def encoded(ledger: int, first: int) -> Entries:
            entries = [encode_messages(values) for _ in counts]
            return encode_entries(entries, ledger=ledger, first=first, lac=first - 1, time=1, messages=counts)

        logs = Copies(plan, folder, stack, encoded, turn_entries(plan, BATCH * (_SIZE + 8), _TOGETHER))

        found = interleave(plan, {"copies": lambda: logs.turn() * BATCH, "log": log.batches})
        section.comparisons.append(
            Comparison(
                f"batches of {BATCH} x {SIZES[_SIZE]}, bytes of each copy",
                Figure("encoded, staged in each log", found["copies"], "/s", "appended", _SIZE),
                Figure("one CommitLog, append_batch", found["log"], "/s", "appended", _SIZE),
                None,
                f"{logs.checked:,} entries; log: {log.verified()}",
            )
        )
    section.notes.append(
        "No publisher, topic, quorum or bookie takes part, and nobody is told. `submit_batch` of a topic cannot be "
        "quicker."
    )
    return section
