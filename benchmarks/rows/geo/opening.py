"""Opening a topic with replicated subscriptions: with the pages of its closed ledgers, and by reading all entries."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from random import Random
from typing import Any

from benchmarks.entries import BATCH, make_values
from benchmarks.plan import Plan
from benchmarks.result import Comparison, Figure, Goal, Section, Table
from benchmarks.rows.geo.pair import AHEAD, WAIT_S, wait
from benchmarks.sampling import interleave
from pyreplog._native.topic.message_encoder import encode_messages
from pyreplog.cluster import Cluster
from pyreplog.future import AppendFuture
from pyreplog.geo.position_pages import pages_key
from pyreplog.geo.subscription_replication import SubscriptionReplication
from pyreplog.origins.origin import Origin, OriginEntry
from pyreplog.topic.owner.topic import Topic

_MESSAGES = 1_000_192
_SIZE = 100
_ENTRIES = {"10^4": 100, "10^5": 10}
"""Messages of an entry, by about how many entries there are."""
_LEDGERS = 10
_NAME, _SUBSCRIPTION = "t", "s"
_ORIGIN = Origin(b"o" * 16, "origin")
_GOAL = 0.5


def opening(plan: Plan) -> Section:
    """Turns of both, on the same topic."""
    messages = plan.scaled(_MESSAGES, 4 * BATCH)
    section = Section("geo-opening", f"Open a topic with a replicated subscription, {messages:,} messages of {_SIZE} B")
    rows: list[list[str]] = []
    for title, count in _ENTRIES.items():
        with plan.folder() as folder, Cluster.embedded(folder, bookies=1) as cluster:
            entries = messages // count
            _fill(cluster, entries, count)
            turns = _Turns(cluster, entries * count)
            seconds = interleave(plan.shared(len(_ENTRIES)), {"pages": turns.with_pages, "entries": turns.without})
            section.comparisons.append(
                Comparison(
                    f"{entries:,} entries of {count} messages" if messages == _MESSAGES else f"{title} entries",
                    Figure("pages", seconds["pages"], "s", "reading"),
                    Figure("all entries read", seconds["entries"], "s", "reading"),
                    Goal("at most", _GOAL),
                    f"{turns.runs:,} runs, the same in all {turns.opened} openings",
                )
            )
            rows.append([f"{entries:,}", f"{turns.ledgers}", f"{turns.runs:,}", f"{turns.page_bytes:,}"])
    section.tables.append(Table("Pages", ["entries", "ledgers", "runs", "bytes of pages"], rows))
    section.notes.append(
        "From the start of the subscription's replication until its positions are known; nothing is delivered before. "
        "Half of the entries, by chance, were published here, the others replicated from another topic. The entries "
        "are in the page cache. All ledgers are closed; ordinarily the last one has no page yet, and is read."
    )
    return section


def _fill(cluster: Cluster, entries: int, count: int) -> None:
    """Entries of this topic and of another origin, in an order of chance."""
    topic = _open(cluster, roll_entries=max(entries // _LEDGERS, 1), retention_bytes=None, retention_ms=None)
    topic.create_subscription(_SUBSCRIPTION, start="earliest")
    topic.origins.open(_ORIGIN, 1).result(WAIT_S)
    values = make_values(_SIZE) * (count // BATCH + 2)
    values = values[:count]
    encoded, random = bytes(encode_messages(values)), Random(7)
    sent: deque[AppendFuture[Any]] = deque()
    replicated = 0
    for _ in range(entries):
        if random.random() < 0.5:
            sent.append(topic.submit_batch(values))
        else:
            sent.append(topic.origins.replicate(_ORIGIN, 1, [OriginEntry(encoded, count, replicated, 1)]))
            replicated += count
        if len(sent) > AHEAD:
            sent.popleft().result(WAIT_S)
    for future in sent:
        future.result(WAIT_S)
    topic.close()


def _open(cluster: Cluster, **settings: Any) -> Topic:
    topic = cluster.topic(_NAME, **({"ensemble": 1, **settings} if settings else {"create": False}))
    assert isinstance(topic, Topic)
    return topic


@contextmanager
def _replicating(topic: Topic) -> Iterator[SubscriptionReplication]:
    subscriptions = SubscriptionReplication(topic)
    subscriptions.configure({})
    try:
        yield subscriptions
    finally:
        subscriptions.close()


class _Turns:
    """Each turn opens the topic, whose messages are there, and closes it."""

    def __init__(self, cluster: Cluster, messages: int) -> None:
        self._cluster, self._messages = cluster, messages
        self._folder = pages_key(_NAME)
        self.opened = self.runs = self.ledgers = self.page_bytes = 0
        self.without()

    def with_pages(self) -> float:
        return self._turn()

    def without(self) -> float:
        store = self._cluster.metadata
        for name in store.list(self._folder):
            if (page := store.get(f"{self._folder}/{name}")) is not None:
                store.delete(f"{self._folder}/{name}", page.version)
        return self._turn()

    def _turn(self) -> float:
        """Seconds until the positions are known."""
        store = self._cluster.metadata
        with _open(self._cluster) as topic:
            self.ledgers = len(topic.managed.chain.ledgers)
            with _replicating(topic) as subscriptions:
                begin = time.perf_counter()
                subscriptions.start()
                wait(lambda: _is_known(subscriptions))
                seconds = time.perf_counter() - begin
                wait(lambda: len(store.list(self._folder)) == self.ledgers)
                if topic.end != self._messages or (self.opened and subscriptions.position_runs != self.runs):
                    raise ValueError(f"{subscriptions.position_runs} runs of {topic.end} messages, not {self.runs}")
                self.runs = subscriptions.position_runs
        pages = store.get_many([f"{self._folder}/{name}" for name in store.list(self._folder)])
        self.page_bytes = sum(len(page.value) for page in pages if page is not None)
        self.opened += 1
        return seconds


def _is_known(subscriptions: SubscriptionReplication) -> bool:
    rows = subscriptions.where(_SUBSCRIPTION)
    return bool(rows) and not any(row.error for row in rows)
