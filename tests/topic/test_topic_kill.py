"""An owner is killed while it publishes and acknowledges: the next owner has all messages, and each number once."""

from __future__ import annotations

import random
from pathlib import Path

from pyreplog.cluster import Cluster
from pyreplog.topic.owner.topic import Topic
from tests.ledger.processes import ProcessGroup
from tests.topic.handling import counted_backlog, received, reported_backlog, stored
from tests.topic.living import open_topic

ROUNDS = 3


def test_kill_9_while_publishing_and_acknowledging(tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    url = f"sqlite:{tmp_path / 'metadata.db'}"
    published = acknowledged = -1
    with ProcessGroup(tmp_path, url) as processes:
        processes.start_bookies("a", "b")
        for _ in range(ROUNDS):
            owner = processes.start("tests.topic.living", url)
            first = owner.wait_for("first")
            assert first > published, "what was confirmed is known to be there"
            owner.wait_for("published", first + rng.randint(20, 400))
            owner.wait_for("acknowledged", acknowledged + 1)
            owner.kill()
            published = max(published, owner.output["published"])
            acknowledged = max(acknowledged, owner.output["acknowledged"])
        with Cluster.connect(url) as cluster:
            topic = open_topic(cluster)
            messages = stored(topic)
            assert list(messages.values()) == [b"%d" % number for number in range(topic.end)], "each once, in order"
            assert published < topic.end
            check(topic, "all", {*range(acknowledged)}, set(messages))
            check(topic, "odd", {*range(1, acknowledged, 2)}, set(range(1, topic.end, 2)))


def check(topic: Topic, name: str, least: set[int], most: set[int]) -> None:
    """Check that at least the known acknowledgements count, and at most those that were begun; all other messages are
    delivered."""
    left, counted = counted_backlog(topic, name)
    gone = set(range(topic.end)) - set(left)
    assert least <= gone <= most
    assert reported_backlog(topic, name) == counted
    with topic.subscribe(name, type="shared") as consumer:
        assert sorted(received(consumer, len(left))) == left
