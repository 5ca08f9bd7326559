"""A cursor that was stored when its topic had more messages: copies were given up by force, or the topic is older than its
subscriptions, because it was restored from a backup."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from pyreplog import Cluster
from pyreplog.cursors.subscription_metadata import subscription_key
from pyreplog.topic.owner.topic import Topic
from tests.waiting import until


def opened(cluster: Cluster) -> Topic:
    topic = cluster.topic("t", ensemble=1, retention_bytes=None)
    assert isinstance(topic, Topic)
    return topic


@pytest.mark.parametrize("acked", [(*range(20, 25),), (1, 4, 5, 8, 9, 10, 12), (*range(9), 21), (*range(22),)], ids=str)
def test_new_messages_are_not_taken_for_those_that_were_acknowledged(tmp_path: Path, acked: tuple[int, ...]) -> None:
    """Each entry has three messages; the topic loses those from 9 on."""
    files, backup = tmp_path / "files", tmp_path / "backup"
    with Cluster.embedded(files, bookies=1) as cluster:
        for at in range(0, 9, 3):
            opened(cluster).publish_batch([b"%d" % number for number in range(at, at + 3)])
        opened(cluster).create_subscription("s", start="earliest")
    shutil.copytree(files, backup)
    with Cluster.embedded(files, bookies=1) as cluster:
        for at in range(9, 30, 3):
            opened(cluster).publish_batch([b"%d" % number for number in range(at, at + 3)])
        with opened(cluster).subscribe("s", type="shared", queue=1000) as consumer:
            for message in [consumer.receive(timeout=20.0) for _ in range(30)]:
                if int(message.value) in acked:
                    consumer.acknowledge(message)
    with Cluster.embedded(files, bookies=1) as cluster:
        stored = cluster.metadata.get(subscription_key("t", "s"))
    assert stored is not None
    shutil.rmtree(files)
    shutil.move(backup, files)
    with Cluster.embedded(files, bookies=1) as cluster:
        former = cluster.metadata.get(subscription_key("t", "s"))
        assert former is not None
        cluster.metadata.put(subscription_key("t", "s"), stored.value, former.version)
    left = [number for number in range(9) if number not in acked]
    with Cluster.embedded(files, bookies=1) as cluster:
        topic = opened(cluster)
        until(lambda: topic.subscription("s").cursor.backlog(topic.managed.end).messages == len(left))
    for end in (30, 33):  # what is forgotten is stored
        with Cluster.embedded(files, bookies=1) as cluster:
            topic = opened(cluster)
            topic.publish_batch([b"%d" % number for number in range(topic.end, end)])
            with topic.subscribe("s", type="shared", queue=1000) as consumer:
                numbers = [int(consumer.receive(timeout=20.0).value) for _ in range(len(left) + end - 9)]
            assert sorted(numbers) == [*left, *range(9, end)]
