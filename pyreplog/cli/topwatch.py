"""Looks at all topics of a place, and at the cluster they lie on."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from pyreplog.bookie.identity import BOOKIES
from pyreplog.cli import targets
from pyreplog.cli.topview import Frame, TopicRow, bookie_rows, by_backlog, ledger_rows, topic_row
from pyreplog.clock import SystemClock
from pyreplog.errors import NoSuchTopicError
from pyreplog.topic.cluster import Cluster


@contextmanager
def watching(arguments: argparse.Namespace) -> Iterator[ClusterWatch]:
    """What can be looked at again and again, of the target that the arguments name."""
    with targets.opened(arguments) as place:
        assert isinstance(place, Cluster)
        yield ClusterWatch(place, is_ours=targets.is_directory(arguments), wait_s=targets.wait_s(arguments))


class ClusterWatch:
    """Of a cluster. is_ours: nobody else has it open, so its topics can be opened here."""

    def __init__(self, cluster: Cluster, *, is_ours: bool, wait_s: float) -> None:
        self._cluster, self._is_ours, self._wait_s = cluster, is_ours, wait_s
        self._clock = SystemClock()

    def look(self) -> Frame:
        """Errors: those of `Topic.stats`, `Cluster.status`, and of the metadata store."""
        status = self._cluster.status()
        return Frame(
            at_us=self._clock.now_us(),
            topics=by_backlog(self._topics()),
            ledgers=ledger_rows(status),
            bookies=bookie_rows(status.bookies, self._cluster.metadata.list(BOOKIES)),
        )

    def _topics(self) -> list[TopicRow]:
        found = []
        for name in self._cluster.topics.names():
            with suppress(NoSuchTopicError):
                found.append(self._own(name) if self._is_ours else self._elsewhere(name))
        return found

    def _own(self, name: str) -> TopicRow:
        return topic_row(self._cluster.topic(name, create=False, wait=self._wait_s).stats())

    def _elsewhere(self, name: str) -> TopicRow:
        owner = self._cluster.topics.owner(name)
        if owner is None:
            return TopicRow(name=name, states=("nobody serves it",))
        return TopicRow(name=name, owner=str(owner))
