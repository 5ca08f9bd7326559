"""`pyreplog topic` commands that change a topic, on one with partitions: all of them, of a directory and of a server."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from pyreplog.cluster import Cluster
from pyreplog.topic.server.topic_server import TopicServer
from tests.cli.support import Done, Run
from tests.topic.partitioning import key_of

NAME = "clicks"
PARTITIONS = 2


@pytest.fixture(params=["directory", "server"])
def topic(request: pytest.FixtureRequest, run: Run, tmp_path: Path) -> Iterator[Callable[..., Done]]:
    """Run an action on the test's topic: its subscription has a message in each partition."""
    path = tmp_path / "cluster"
    with ExitStack() as stack:
        cluster = stack.enter_context(Cluster.embedded(path, bookies=1, segment_bytes=64 << 10))
        new_topic = cluster.topic(NAME, partitions=PARTITIONS, ensemble=1, retention_bytes=None)
        new_topic.create_subscription("s", start="earliest")
        for partition in range(PARTITIONS):
            new_topic.publish(b"v", key_of(partition, PARTITIONS))
        target = str(path)
        if request.param == "directory":
            cluster.close()
        else:
            new_topic.close()
            target = f"pyreplog://{stack.enter_context(TopicServer(cluster)).address}"

        def topic(action: str, *arguments: object, name: str = NAME) -> Done:
            done: Done = run("topic", action, target, name, *arguments)
            return done

        yield topic


def backlogs(topic: Callable[..., Done]) -> list[int]:
    parts = topic("stats", "--json").json["parts"]
    return [parts[str(at)]["subscriptions"]["s"]["backlog_messages"] for at in range(PARTITIONS)]


def test_topic_clear_and_seek_move_subscriptions_of_all_partitions(topic: Callable[..., Done]) -> None:
    done = topic("clear", "s")
    assert (done.code, done.out) == (0, ""), done.error
    assert backlogs(topic) == [0] * PARTITIONS
    assert topic("seek", "s", "earliest", "--json").json == {"offsets": {"0": 0, "1": 0}}
    assert backlogs(topic) == [1] * PARTITIONS
    shown = topic("seek", "s", "2100-01-01").out.splitlines()
    assert shown == [f"s continues at offset 1 of partition {at}" for at in range(PARTITIONS)]
    assert topic("seek", "s", 0, name=f"{NAME}-partition-1").out == "s continues at offset 0\n"
    assert backlogs(topic) == [0, 1]
    assert topic("skip", "s", 1, name=f"{NAME}-partition-1").code == 0
    assert backlogs(topic) == [0, 0]


def test_topic_set_and_trim_change_all_partitions(topic: Callable[..., Done]) -> None:
    assert topic("set", "ttl_ms=60000").code == 0
    assert topic("set", "roll_entries=7", name=f"{NAME}-partition-1").code == 0
    parts = topic("set", "--json").json["parts"]
    assert {at: (item["ttl_ms"], item["roll_entries"] == 7) for at, item in parts.items()} == {
        "0": (60000, False), "1": (60000, True),
    }  # fmt: skip
    fields = dict(line.split(None, 1) for line in topic("set").out.splitlines())
    assert fields["ttl_ms"] == "60000"
    assert fields["roll_entries"].endswith("(partition 0), 7 (partition 1)")
    refused = topic("set", "ttl_ms=-1")
    assert (refused.code, refused.out) == (2, "")
    assert topic("trim", "--json").json == {"offsets": {str(at): 0 for at in range(PARTITIONS)}}


def test_internal_statistics_of_each_partition(topic: Callable[..., Done]) -> None:
    report = topic("stats-internal", "--json").json
    assert (report["name"], report["partitions"], sorted(report["parts"])) == (NAME, PARTITIONS, ["0", "1"])
    shown = topic("stats-internal").out.splitlines()
    names = [line.split()[1] for line in shown if line.startswith("topic ")]
    assert names == [f"{NAME}-partition-{at}" for at in range(PARTITIONS)]
    assert sum(line.startswith("ledger ") for line in shown) == sum(line.startswith("cursor ") for line in shown) == 2
