"""`pyreplog topic` and `pyreplog subscription` on topics with partitions, of a directory and of servers."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from pyreplog.cluster import Cluster
from pyreplog.topic.model.routing import key_hash
from pyreplog.topic.server.topic_server import TopicServer
from tests.cli.support import KEPT, Done, Run
from tests.topic.partitioning import key_of, other_process

NAME = "clicks"
LINES = b"".join(b"k%d:line %d\n" % (number % 7, number) for number in range(300))


@pytest.fixture(params=["directory", "server"])
def target(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    path = tmp_path / "cluster"
    with ExitStack() as stack:
        cluster = stack.enter_context(Cluster.embedded(path, bookies=1, segment_bytes=64 << 10))
        if request.param == "directory":
            cluster.close()
            yield str(path)
        else:
            yield f"pyreplog://{stack.enter_context(TopicServer(cluster)).address}"


@pytest.fixture
def topic(run: Run, target: str) -> Callable[..., Done]:
    """Run an action on the test's topic, which is there."""

    def topic(action: str, *arguments: object, group: str = "topic", name: str = NAME) -> Done:
        return run(group, action, target, name, *arguments)

    done = topic("create", "--partitions", 3, "--set", "ensemble=1", *KEPT, "--json")
    assert (done.code, done.json) == (0, {"topic": NAME, "partitions": 3}), done.error
    return topic


def test_each_command_works_on_a_partitioned_topic(
    run: Run, topic: Callable[..., Done], target: str, tmp_path: Path
) -> None:
    (source := tmp_path / "lines").write_bytes(LINES)
    assert topic("create", "work", "--from", "earliest", "--type", "shared", group="subscription").code == 0
    done = topic("publish", "--file", source, "--key-separator", ":", "--batch", 50, "--producer", "me")
    partitions = {key_hash(b"k%d" % key) % 3 for key in range(7)}
    assert f"{NAME}: 300 messages, to {len(partitions)} partitions; " in done.out, done.error
    rows = [json.loads(line) for line in topic("consume", "--subscription", "work", "--json").out.splitlines()]
    assert sorted(row["value"] for row in rows) == sorted(f"line {number}" for number in range(300))
    assert all(row["partition"] == key_hash(row["key"].encode()) % 3 for row in rows)
    for partition in partitions:
        of_it = [row["offset"] for row in rows if row["partition"] == partition]
        assert of_it == list(range(len(of_it))), "in order"
    assert topic("consume", "--subscription", "work", "--timeout", 0).out == "", "it was acknowledged"
    done = topic("publish", "a", "b", "--key", key_of(2, 3).decode(), "--json")
    assert (done.json["messages"], done.json["partitions"], done.json["first"]) == (2, [2], None)
    assert topic("consume", "--subscription", "work", "--count", 1).out == "a\n"
    report = topic("stats", "--json").json
    assert (report["partitions"], sorted(report["parts"])) == (3, ["0", "1", "2"])
    assert report["total"]["subscriptions"]["work"]["backlog_messages"] == 1
    shown = topic("stats").out
    assert "302 messages in 3 partitions" in shown
    rows_shown = [line.split() for line in shown.splitlines()]
    assert [cells[0] for cells in rows_shown if cells and cells[0].isdigit()] == ["0", "1", "2"]
    assert topic("stats", "work", "--json", group="subscription").json["backlog_messages"] == 1
    assert topic("list", group="subscription").out == "work\n"
    assert run("topic", "list", target).out.splitlines() == [NAME, *(f"{NAME}-partition-{at}" for at in range(3))]
    assert topic("delete", "work", "--yes", group="subscription").code == 0
    assert topic("delete", "--yes").code == 0
    assert run("topic", "list", target).out == ""
    gone = topic("stats")
    assert (gone.code, gone.out) == (2, "") and f"topic {NAME}: " in gone.error


def test_topic_create_adds_partitions_and_removes_none(run: Run, topic: Callable[..., Done]) -> None:
    again = topic("create")
    assert again.code == 2 and "already" in again.error
    assert topic("create", "--partitions", 4).code == 0
    assert topic("stats", "--json").json["partitions"] == 4
    fewer = topic("create", "--partitions", 2)
    assert fewer.code == 2 and "expected 4 or more, found 2" in fewer.error


@pytest.mark.parametrize(
    "arguments",
    [("seek", "s", "1"), ("skip", "s", "1")],
)
def test_seek_and_skip_by_offset_ask_for_one_partition(topic: Callable[..., Done], arguments: tuple[str, ...]) -> None:
    done = topic(*arguments)
    assert (done.code, done.out) == (2, "")
    assert f"name one of them, {NAME}-partition-0 to {NAME}-partition-2" in done.error
    assert topic("stats-internal", name=f"{NAME}-partition-1").code == 0


def test_commands_on_a_store_ask_the_servers_that_own_its_partitions(run: Run, tmp_path: Path) -> None:
    """A command that would own some of them alone asks the servers for all."""
    path = tmp_path / "cluster"
    with Cluster.embedded(path, bookies=1) as cluster, TopicServer(cluster) as first, other_process(cluster) as other:
        with TopicServer(other):
            other.topic(NAME, partitions=3, ensemble=1, retention_bytes=None)
            other.topics.get(f"{NAME}-partition-0").close()  # type: ignore[union-attr]
            cluster.topic(f"{NAME}-partition-0")
            done = run("topic", "publish", f"pyreplog://{first.address}", NAME, *"abcdef")
            assert done.code == 0 and "6 messages" in done.out, done.error
            store = f"sqlite:{path}/metadata.sqlite"
            assert sorted(run("topic", "consume", store, NAME).out.split()) == list("abcdef")
            other.topics.get(f"{NAME}-partition-2").close()  # type: ignore[union-attr]
            parts = run("topic", "stats", store, NAME, "--json").json["parts"]
            assert {part["owner"] for part in parts.values()} == {first.address, other.topics.address}
