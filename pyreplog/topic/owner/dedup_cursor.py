"""The cursor of deduplication: the position up to which the producers are known, and their state."""

from __future__ import annotations

from pyreplog._native.topic.messages import MessageBatch
from pyreplog.clock import ahead_us
from pyreplog.topic.client.publishing.publisher import Publisher
from pyreplog.topic.model.backlog import SYSTEM_PREFIX
from pyreplog.topic.model.dedup import GlobalProducers, Producers
from pyreplog.topic.owner.snapshot_cursor import SnapshotCursor, StateSnapshot
from pyreplog.topic.owner.topic_context import TopicContext

DEDUP = f"{SYSTEM_PREFIX}dedup"

GLOBAL_PRODUCERS = f"{SYSTEM_PREFIX}global_producers"

IDLE_US = 6 * 3_600_000_000
"""Producers that published nothing for so long are forgotten."""

GLOBAL_IDLE_US = 7 * 24 * 3_600_000_000
"""The same for global producers, whose messages may come late from a cluster that was away."""


class DedupCursor(SnapshotCursor):
    """The deduplication cursor of one topic."""

    name = DEDUP
    needed_by = "deduplicate=True"
    idle_us = IDLE_US

    def __init__(self, context: TopicContext) -> None:
        super().__init__(context)
        self.producers = Producers()

    def _empty(self) -> bytes:
        return self.producers.snapshot()

    def _restore(self, data: bytes) -> None:
        self.producers.restore(data, ahead_us(self._context.clock))

    def _replay(self, batch: MessageBatch) -> None:
        self.producers.replay(batch, ahead_us(self._context.clock))

    def _take(self) -> StateSnapshot | None:
        taken = None if self._publisher is None else self._publisher.snapshot()
        return None if taken is None else StateSnapshot(*taken)

    def _has_news(self, publisher: Publisher) -> bool:
        return publisher.has_new_failures

    def _before_snapshot(self, publisher: Publisher, now_us: int) -> None:
        publisher.purge(now_us - self.idle_us)


class GlobalDedupCursor(DedupCursor):
    """The same for a topic with `global_producers`."""

    name = GLOBAL_PRODUCERS
    needed_by = "global_producers=True"
    idle_us = GLOBAL_IDLE_US

    def __init__(self, context: TopicContext) -> None:
        super().__init__(context)
        self.producers = GlobalProducers()


def dedup_cursor(context: TopicContext) -> DedupCursor | None:
    """Return the cursor that a topic needs according to its settings; None: it does not deduplicate."""
    config = context.managed.config
    if not config.deduplicate:
        return None
    return GlobalDedupCursor(context) if config.global_producers else DedupCursor(context)


def obsolete_cursors(cursor: DedupCursor | None) -> list[str]:
    """Return the names of the cursors that a topic does not need, beside the one that it has."""
    return [name for name in (DEDUP, GLOBAL_PRODUCERS) if cursor is None or name != cursor.name]
