"""Publishing batches, beside appending them to one log."""

from __future__ import annotations

import time

from benchmarks.entries import BATCH, SIZES
from benchmarks.ledgers import SPARES
from benchmarks.logs import recycled
from benchmarks.plan import Plan
from benchmarks.result import Comparison, Figure, Goal, Section
from benchmarks.sampling import interleave
from benchmarks.topics import COPIES, cluster, collect, fill, topic_of, verify_topic
from pyreplog.cluster import Cluster
from pyreplog.topic.owner.topic import Topic

_SIZE = 100
_WARM_UPS = 5
_FULL = 0.9
"""What a turn may take of the segments that are ready: records and ledgers take their part."""


def publish(plan: Plan) -> Section:
    """`submit_batch`, until the last one is confirmed."""
    section = Section("topics-publish", f"Publish, embedded, E=3 Qw=3 Qa=2, batches of {BATCH}, appended, recycled")
    count = max(int((SPARES - 1) * plan.segment_bytes * _FULL) // (_SIZE + 8) // BATCH, 1) * BATCH
    with cluster(plan) as owner, topic_of(owner) as ours, recycled(plan, _SIZE) as log:
        turns = _Turns(owner, ours, log.values, count)
        for _ in range(_WARM_UPS if plan.budget >= 1 else 1):
            turns.publish()
        found = interleave(plan, {"ours": turns.publish, "log": log.batches})
        verified = f"{turns.verified()}; log: {log.verified()}"
    for work, copies in (("each copy", 1), ("all three copies", COPIES)):
        section.comparisons.append(
            Comparison(
                f"publish {SIZES[_SIZE]}, bytes of {work}",
                Figure("submit_batch", copies * found["ours"], "/s", "appended", _SIZE),
                Figure("one CommitLog, append_batch", found["log"], "/s", "appended", _SIZE),
                Goal("at least", 0.3),
                verified,
            )
        )
    return section


class _Turns:
    """What was published in the turn before is dropped, so that its segments are written over."""

    def __init__(self, owner: Cluster, topic: Topic, values: list[bytes], count: int) -> None:
        self._owner, self._topic, self._values, self._count = owner, topic, values, count
        self._start = 0

    def publish(self) -> float:
        """Messages per second."""
        topic = self._topic
        topic.publisher.wait(topic.managed.clear())
        collect(self._owner.runtime)
        topic.publish_batch(self._values)  # the ledger is made
        self._start = topic.end
        begin = time.perf_counter()
        fill(topic, self._values, self._count)
        return self._count / (time.perf_counter() - begin)

    def verified(self) -> str:
        return verify_topic(self._topic, self._values, self._start, self._count)
