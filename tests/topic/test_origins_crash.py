"""Owners die at each write to the metadata store while another cluster replicates: reported entries are stored, none is
stored twice, and the next owner goes on."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from pyreplog.cluster import Cluster
from pyreplog.errors import ClosedError, MetadataUnavailableError, OutcomeUnknownError, ReplogError
from pyreplog.future import AppendFuture
from pyreplog.origins.origin import Gap, GapCause, OriginEntry
from pyreplog.topic.owner.topic import Topic
from tests.thorough import one_in
from tests.topic.counting import Faults
from tests.topic.handling import SMALL, open_cluster, stored
from tests.topic.killable_processes import kill, killable_process
from tests.topic.test_origins import ORIGIN, check_log, entry, nothing_is_left, opened, replicate

__all__ = ["nothing_is_left"]

NAME = "t"
LEFT_OUT = {3: 5, 11: 14, 17: 18, 23: 24}
"""Offsets at the origin that are not sent, by their start."""
END = 24


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with open_cluster(tmp_path_factory.mktemp("origins-crash")) as cluster:
        yield cluster


def history() -> list[OriginEntry | Gap]:
    """Return the entries and gaps of the origin, in order."""
    items: list[OriginEntry | Gap] = []
    at = 0
    while at < END:
        end = LEFT_OUT.get(at)
        items.append(entry(at) if end is None else Gap(at, end, GapCause.FILTERED))
        at = end or at + 1
    return items


class Source:
    """Sends all entries from the target's position on, as long as the owner lives.

    reported: the highest position that an owner has reported as stored.
    """

    def __init__(self, faults: Faults, reported: int) -> None:
        self.faults, self.reported = faults, reported

    def wait(self, future: AppendFuture[Any]) -> Any:
        if not self.faults.wait(future):
            raise MetadataUnavailableError("it died")
        return future.result()

    def send(self, topic: Topic, session: int) -> None:
        state = self.wait(topic.origins.open(ORIGIN, session))
        assert state.stored >= self.reported
        self.reported = state.stored
        futures = []
        for item in history():
            if isinstance(item, Gap):
                futures.append(topic.origins.replicate(ORIGIN, session, [], [item]))
            else:
                futures.append(topic.origins.replicate(ORIGIN, session, [item]))
            if len(futures) % 7 == 0:
                topic.submit(b"local")
        for future in futures:
            self.reported = max(self.reported, self.wait(future))

    def live(self, cluster: Cluster) -> None:
        for session in (1, 2):
            with cluster.topic(NAME, **SMALL) as topic:
                self.send(topic, session)
                assert self.reported == END


def check(cluster: Cluster, reported: int) -> None:
    """Check the state at the next owner, and that it goes on."""
    with cluster.topic(NAME, **SMALL) as topic:
        state = opened(topic, 9)
        assert state.stored >= reported
        expected = [item.first for item in history() if isinstance(item, OriginEntry)]
        for item in history():
            if isinstance(item, Gap):
                replicate(topic, [], [item], session=9)
            else:
                replicate(topic, [item], session=9)
        assert topic.origins.all()[ORIGIN].stored == END
        assert [first for first, _ in check_log(topic)] == expected
        values = [value for value in stored(topic).values() if value != b"local"]
        assert values == [b"%d" % first for first in expected]
    with cluster.topic(NAME, **SMALL) as topic:
        assert topic.origins.all()[ORIGIN].stored == END
        topic.delete()


def writes_of_a_life(cluster: Cluster) -> int:
    faults = Faults()
    with killable_process(cluster, faults) as one:
        Source(faults, 0).live(one)
        count = len(faults.calls)
    check(cluster, END)
    return count


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
def test_a_crash_at_every_write(cluster: Cluster, after: bool, seed: int) -> None:
    count, share = writes_of_a_life(cluster), one_in(8)
    assert count > 20
    for at in range(seed % share, count, share):
        faults = Faults(at, after=after, dies=True)
        source = Source(faults, 0)
        with killable_process(cluster, faults) as one:
            try:
                source.live(one)
            except (ReplogError, ClosedError, OutcomeUnknownError):
                assert faults.is_dead, (at, faults.calls)
            kill(one)
        check(cluster, source.reported)
