"""The fifth step of the demo: the flights in a topic with two subscriptions, one of which lags, over a kill -9."""

from __future__ import annotations

import time
from collections.abc import Generator, Iterator, Sequence
from contextlib import closing
from pathlib import Path

from children import PATIENCE_S, Child
from ledgers import printed
from topicservice import ARCHIVE, BOARD, Consumers, opened, publish
from verification import Mismatch, same

import pyreplog
from pyreplog.topic.model.stats import SubscriptionStats

SERVICE = Path(__file__).parent / "topicservice.py"
PUBLISHING_S = 1.0
WATCHED_S = 0.5
BEHIND = 100
"""Flights that the topic has, and that are sent again as if nobody knew."""


def work_off(log: Path, directory: Path) -> Iterator[str]:
    """All of it; yields what there is to say. log: that of the first step. Mismatch: something is not as it must be."""
    with pyreplog.open(log, "r") as source:
        confirmed = yield from publish_and_kill(log, directory, source.end)
        with opened(directory / "topic") as topic, Consumers(topic) as consumers:
            if topic.end < confirmed:
                raise Mismatch(f"{confirmed:,} flights were confirmed, the topic has {topic.end:,}")
            yield (
                f"Killed it (SIGKILL) with {confirmed:,} flights confirmed. Opened again: {topic.end:,} are there, and "
                f"the board goes on with flight {consumers.next:,}."
            )
            for _ in publish(topic, source, max(confirmed - BEHIND, 0)):
                continue
            found = same(topic.read(), source.read())
            yield (
                f"Published the rest, and {topic.stats().duplicates:,} that were there, which were dropped: {found:,} "
                "flights, all as in the log."
            )
            wait_for_the_board(consumers, topic.end)
        with opened(directory / "topic") as topic, Consumers(topic):
            yield table(watched(topic))


def publish_and_kill(log: Path, directory: Path, rows: int) -> Generator[str, None, int]:
    """Returns how many flights were confirmed when the service died."""
    arguments = str(directory / "topic"), str(log), str(PUBLISHING_S)
    with closing(Child(str(SERVICE), *arguments)) as service:
        yield "A service publishes the flights to a topic of its own; one subscription keeps up, the other lags."
        service.wait_for("confirmed", rows // 2)
        service.kill()
        confirmed = int(service.said["confirmed"])
    return confirmed


def wait_for_the_board(consumers: Consumers, end: int) -> None:
    """Until it has taken every flight from where it went on."""
    deadline = time.monotonic() + PATIENCE_S
    while consumers.next < end and time.monotonic() < deadline:
        time.sleep(0.02)
    if consumers.next != end or consumers.missed:
        raise Mismatch(f"the board is at flight {consumers.next:,} of {end:,}, and was not given {consumers.missed:,}")


def watched(topic: pyreplog.Topic) -> Sequence[SubscriptionStats]:
    """How fast it goes from one look to another: looks until something was taken in between by who lags."""
    deadline = time.monotonic() + PATIENCE_S
    topic.stats()
    while True:
        time.sleep(WATCHED_S)
        found = topic.stats().subscriptions
        if any(there.drain_s for there in found) or time.monotonic() > deadline:
            return found


def table(subscriptions: Sequence[SubscriptionStats]) -> str:
    """How both stand."""
    found = {there.name: there for there in subscriptions}
    if found[BOARD].backlog_messages or not found[ARCHIVE].backlog_messages:
        raise Mismatch(f"the board should have no backlog, the archive one: {subscriptions}")
    rows = [
        (there.name, f"{there.backlog_messages:,}", seconds(there.lag_s), seconds(there.drain_s))
        for there in (found[BOARD], found[ARCHIVE])
    ]
    return printed("Subscriptions of topic flights", ("subscription", "backlog", "oldest", "drained in"), rows)


def seconds(value: float | None) -> str:
    return "-" if not value else f"{value:,.1f} s"
