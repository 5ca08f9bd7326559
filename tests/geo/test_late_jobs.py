"""Replications begin and end in jobs of several threads: in whichever order these run, the cursors fit the last order."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from pyreplog.errors import MetadataUnavailableError
from pyreplog.geo import replicator, subscription_replication
from pyreplog.geo.replicator_manager import UNKNOWN_CLUSTER
from pyreplog.geo.subscription_journal import SubscriptionJournal
from pyreplog.geo.subscription_replication import SubscriptionReplication
from pyreplog.topic.owner.system_cursors import SystemCursors
from pyreplog.topic.owner.topic import Topic
from pyreplog.topic.owner.topics import Topics
from tests.geo.replicated import Side, two
from tests.geo.sites import NOWHERE, Site, has_all
from tests.waiting import until

Job = Callable[[], object]


class LateJobs:
    """Holds the jobs of replications back until the test runs them. topics: hold back only those of this cluster, or of
    all."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.jobs: list[Job] = []
        self.is_late = True
        self.topics: Topics | None = None
        work = Topics.work

        def late(topics: Topics, job: Job) -> None:
            is_one = getattr(job, "__module__", "") in (replicator.__name__, subscription_replication.__name__)
            if self.is_late and is_one and self.topics in (None, topics):
                self.jobs.append(job)
            else:
                work(topics, job)

        patch.setattr(Topics, "work", late)

    def run(self, *numbers: int) -> None:
        """Run the jobs with these numbers, which count from the first one held back; hold back no more."""
        self.is_late = False
        for number in numbers:
            self.jobs[number]()
        self.jobs.clear()

    def run_backwards(self) -> None:
        """Run all jobs, the last one first."""
        self.run(*reversed(range(len(self.jobs))))


@pytest.fixture
def late(monkeypatch: pytest.MonkeyPatch) -> LateJobs:
    return LateJobs(monkeypatch)


@pytest.fixture
def site(tmp_path: Path, late: LateJobs) -> Iterator[Site]:
    with Site(tmp_path / "a") as site:
        yield site


def cursors(topic: Topic) -> dict[str, Any]:
    """Return the system cursors of a topic."""
    return {cursor.name: cursor for cursor in topic.internal_stats().cursors if cursor.name.startswith("pyreplog.")}


def test_replication_removed_before_its_job_ran_leaves_no_cursor(site: Site, late: LateJobs) -> None:
    site.replicate("b", NOWHERE).remove()
    late.run(1, 0)
    assert not cursors(site.topic())


def test_replication_removed_while_it_begins_leaves_no_cursor(
    site: Site, late: LateJobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = site.topic()
    replication, adopt = site.replicate("b", NOWHERE), topic.system_cursors.adopt

    def adopts(*arguments: Any, **options: Any) -> bool:
        replication.remove()
        late.jobs[1]()
        return adopt(*arguments, **options)

    monkeypatch.setattr(topic.system_cursors, "adopt", adopts)
    late.jobs[0]()
    assert not cursors(topic)


def test_replication_that_never_began_leaves_no_stored_cursor(site: Site, late: LateJobs) -> None:
    site.replicate("b", NOWHERE)
    late.run(0)
    until(lambda: site.replicators[0].status().error)
    site.end()
    late.is_late = True
    site.begin()
    assert {*cursors(site.topic())} == {"pyreplog.geo.b"}
    site.replicate("b", NOWHERE).remove()
    late.run(1, 0)
    assert not cursors(site.topic())


@pytest.mark.parametrize("end", ["close", "remove"])
def test_another_one_that_began_before_the_former_one_ended(
    site: Site, late: LateJobs, tmp_path: Path, end: str
) -> None:
    with Site(tmp_path / "b") as b:
        former = site.replicate("b", NOWHERE)
        getattr(former, end)()
        next_one = site.replicate("b", b.server.address)
        if end == "close":
            late.run(1, 0)
        else:
            late.run(2, 0, 1)
        site.topic().publish_batch([b"1", b"2", b"3"])
        has_all(next_one, 3)
        until(lambda: cursors(site.topic())["pyreplog.geo.b"].mark.offset == 3)


def test_subscriptions_that_are_replicated_no_longer_before_that_has_begun(site: Site, late: LateJobs) -> None:
    topic = site.topic()
    topic.create_subscription("s")
    replication = SubscriptionReplication(topic)
    replication.configure({}, [UNKNOWN_CLUSTER])
    replication.start()
    replication.remove()
    late.run(1, 0)
    assert not cursors(topic) and not topic.subscription("s").is_watched


def test_subscriptions_that_are_replicated_again(site: Site, late: LateJobs) -> None:
    topic = site.topic()
    topic.create_subscription("s")
    former, replication = SubscriptionReplication(topic), SubscriptionReplication(topic)
    for each in (former, replication):
        each.configure({}, [UNKNOWN_CLUSTER])
        each.start()
        if each is former:
            former.remove()
    late.run(2, 0, 1)
    assert {*cursors(topic)} == {"pyreplog.subscriptions"} and topic.subscription("s").is_watched
    replication.close()


@pytest.fixture
def sides(tmp_path: Path, late: LateJobs) -> Iterator[tuple[Side, Side]]:
    """Both have subscription s; the jobs of the first one are held back from now on."""
    late.is_late = False
    with two(tmp_path) as (a, b):
        a.publish(0, 6)
        a.topic.create_subscription("s", start="earliest")
        until(lambda: len(b.topic) == 6 and b.topic.subscriptions() == ["s"])
        until(a.is_ready)
        until(b.is_ready)
        late.topics, late.is_late = a.site.cluster.topics, True
        yield a, b


def positions(side: Side, name: str) -> list[int | None]:
    """Return the positions below which all messages of this cluster are acknowledged, as the journal has them."""
    assert side.subscriptions is not None
    return [row.below for row in side.subscriptions.where(name) if not row.at and not row.origin]


def test_subscription_deleted_and_created_again_elsewhere_stays(sides: tuple[Side, Side], late: LateJobs) -> None:
    """It stays, also if its cursor is created before the former cursor is deleted."""
    a, b = sides
    b.topic.delete_subscription("s")
    b.topic.create_subscription("s", start=4)
    until(lambda: late.jobs and positions(a, "s") == [4])
    late.run_backwards()
    until(lambda: a.acked() == [0, 1, 2, 3])
    until(a.is_ready)
    until(b.is_ready)
    assert a.acked() == b.acked() == [0, 1, 2, 3]


def test_subscription_deleted_elsewhere_before_its_job_ran_is_not_created(
    sides: tuple[Side, Side], late: LateJobs
) -> None:
    a, b = sides
    b.topic.create_subscription("t", start="earliest")
    until(lambda: late.jobs)
    b.topic.delete_subscription("t")
    until(lambda: not positions(a, "t"))
    late.run_backwards()
    until(lambda: a.topic.subscriptions() == ["s"])
    a.topic.create_subscription("u")
    until(lambda: b.topic.subscriptions() == ["s", "u"])
    assert a.topic.subscriptions() == ["s", "u"]


def test_subscription_deleted_while_its_cursor_is_set_stays_deleted(sides: tuple[Side, Side], late: LateJobs) -> None:
    a, b = sides
    b.topic.seek("s", 3)
    until(lambda: late.jobs)
    a.topic.delete_subscription("s")
    until(lambda: b.topic.subscriptions() == [])
    late.run_backwards()
    until(lambda: a.topic.subscriptions() == [])
    a.topic.create_subscription("s", start=2)
    until(lambda: b.acked() == [0, 1])
    until(a.is_ready)
    assert a.acked() == b.acked() == [0, 1]


def test_replication_removed_after_failed_attempts_leaves_no_cursor(
    site: Site, late: LateJobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first attempt adopts a cursor and then fails; the following ones fail before that."""
    late.is_late = False
    attempts, adopt = [0], SystemCursors.adopt

    def adopt_first(cursors: SystemCursors, cursor: Any, **options: Any) -> bool:
        attempts[0] += 1
        if attempts[0] > 1:
            raise MetadataUnavailableError("away")
        return adopt(cursors, cursor, **options)

    def fail(*_: object) -> None:
        raise MetadataUnavailableError("away")

    monkeypatch.setattr(SystemCursors, "adopt", adopt_first)
    monkeypatch.setattr(Topic, "renew_lost_origin", fail)
    topic = site.topic()
    subscriptions = SubscriptionReplication(topic)
    subscriptions.start()
    until(lambda: attempts[0] > 1)
    subscriptions.remove()
    until(lambda: SubscriptionJournal.name not in [cursor.name for cursor in topic.internal_stats().cursors])
