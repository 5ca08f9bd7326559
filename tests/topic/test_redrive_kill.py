"""A redrive is killed at any step: each dead letter is in its topic again, and only once if the topic deduplicates."""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path

from pyreplog.cluster import Cluster
from tests.ledger.processes import ProcessGroup
from tests.topic.redriving import DEAD, PEOPLE

LETTERS = 6000
BATCH = 100
STEPS = ("copied", "", "acknowledged", "stored", "copied")


def test_kill_9_at_any_step(tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    url = f"sqlite:{tmp_path / 'metadata.db'}"
    settings = {"ensemble": 2, "durability": "appended", "retention_bytes": None}
    with ProcessGroup(tmp_path, url) as processes:
        processes.start_bookies("a", "b")
        with Cluster.connect(url) as cluster:
            cluster.topic("once", deduplicate=True, **settings)
            cluster.topic("again", **settings)
            dead = cluster.topic(DEAD, **settings)
            dead.create_subscription(PEOPLE, start="earliest")
            for first in range(0, LETTERS, BATCH):
                values = [b"%d" % number for number in range(first, first + BATCH)]
                origins = [{"pyreplog.topic": rng.choice(["once", "again"])} for _ in values]
                dead.publish_batch(values, properties=origins)
            whose = {message.value: message.properties for batch in dead.read() for message in batch}
        for step in STEPS:
            process = processes.start("tests.topic.redriving", url, step)
            if step:
                process.wait()
            else:
                process.wait_for("sent", 1)
                process.kill()
        process = processes.start("tests.topic.redriving", url, "")
        process.wait_for("done")
        process.wait()
        with Cluster.connect(url) as cluster:
            (subscriptions,) = cluster.topic(DEAD, wait=60.0).stats().subscriptions
            assert subscriptions.backlog_messages == 0
            for name in ("once", "again"):
                topic = cluster.topic(name, wait=60.0)
                copies = Counter(value for batch in topic.read() for value in batch.values())
                assert {*copies} == {
                    value for value, properties in whose.items() if properties["pyreplog.topic"] == name.encode()
                }
                assert name == "again" or max(copies.values()) == 1, "a topic that deduplicates has each once"
