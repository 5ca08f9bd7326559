"""Bookies over TCP: planning asks none of them for what metadata say, and reading any of them that answers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

import pyreplog
from pyreplog.errors import ConfigError, NotConnectedError, ReplogError, UnreadableError
from pyreplog.tables.cluster.cluster_slices import SECRET
from pyreplog.tables.planning import plan
from tests.spark.clusters import KEPT, Nodes, Place, copies, fill, value_of, values
from tests.spark.reading import batches_of, column, options_of, read_slices, read_table

NAMES = ("b0", "b1", "b2", "b3")


@pytest.fixture(scope="module")
def origin(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Nodes, list[Place]]]:
    with Nodes(tmp_path_factory.mktemp("remote"), NAMES) as nodes:
        with pyreplog.Cluster.connect(nodes.url) as cluster:
            places = fill(cluster, [2000, 1, 0, 300], (4, 2, 2))
        yield nodes, places


@pytest.fixture
def nodes(tmp_path: Path) -> Iterator[Nodes]:
    """Others, to which something is added."""
    with Nodes(tmp_path, NAMES) as nodes:
        yield nodes


def test_each_entry_of_a_remote_cluster_is_read_once(origin: tuple[Nodes, list[Place]]) -> None:
    nodes, places = origin
    actual_values = values(None, cluster=nodes.url, minPartitions=3)
    assert actual_values == {place: value_of(*place) for place in places}
    assert values(None, cluster=nodes.url, ledgers="3", startingOffsets=7, endingOffsets=9).keys() == {(3, 7), (3, 8)}


def test_copies_of_a_remote_cluster_are_read_by_bookie(origin: tuple[Nodes, list[Place]]) -> None:
    nodes, places = origin
    assert copies(None, cluster=nodes.url) == Counter(dict.fromkeys(places, 2))
    each = [read_table(None, cluster=nodes.url, columns="bookie,ledgerId,entryId", replica=name) for name in NAMES]
    counts = Counter((row["ledgerId"], row["entryId"]) for table in each for row in table.to_pylist())
    assert counts == Counter(dict.fromkeys(places, 2))
    assert [{name.partition("@")[0] for name in table["bookie"].to_pylist()} for table in each] == [{n} for n in NAMES]


def test_an_open_ledger_is_read_up_to_its_lac(nodes: Nodes) -> None:
    with pyreplog.Cluster.connect(nodes.url) as cluster, cluster.create_ledger(3, 3, 2) as ledger:
        ledger.append_batch([b"one"] * 5)
        ledger.append_batch([b"two"] * 5)
        values = column(None, "value", cluster=nodes.url, ledgers=str(ledger.id))
        assert values[:5] == [b"one"] * 5
        assert not set(values[5:]) - {b"two"}
        ledger.append(b"three")  # nobody has ended its writer
        assert ledger.last_add_confirmed == 10


def test_a_topic_of_a_remote_cluster_is_read(nodes: Nodes) -> None:
    with pyreplog.Cluster.connect(nodes.url) as cluster:
        topic = cluster.topic("orders", roll_entries=3, durability="appended", **KEPT)
        for n in range(10):
            topic.publish_batch([b"%d.%d" % (n, k) for k in range(4)])
        topic.create_subscription("s", start=0)
        topic.skip("s", 5)
        topic.close()
    rows = read_table(None, cluster=nodes.url, topics="orders", columns="offset,value").to_pylist()
    assert [(row["offset"], row["value"]) for row in rows] == [(n, b"%d.%d" % divmod(n, 4)) for n in range(40)]
    assert column(None, "offset", cluster=nodes.url, topics="orders", subscription="s") == list(range(5, 40))


def test_planning_asks_no_bookie(tmp_path: Path) -> None:
    with Nodes(tmp_path, NAMES) as nodes:
        with pyreplog.Cluster.connect(nodes.url) as cluster:
            places = fill(cluster, [5] * 30, (3, 2, 2))
            topic = cluster.topic("t", durability="appended", roll_entries=1, **KEPT)
            for n in range(10):
                topic.publish(b"%d" % n)
            topic.close()
        nodes.stop(*NAMES)
        tasks = plan(options_of(None, cluster=nodes.url))
        assert len(tasks) == 1
        planned = [part for task in tasks for part in task]
        assert {ledger for ledger, _ in places} <= {part.ledger for part in planned}  # type: ignore[union-attr]
        assert len(plan(options_of(None, cluster=nodes.url, topics="t"))[0]) == 10
        with pytest.raises(UnreadableError, match="is not registered"):
            values(None, cluster=nodes.url)


def test_a_cluster_is_read_while_a_bookie_dies(tmp_path: Path) -> None:
    """There is more than what is read ahead."""
    size, count = 64 << 10, 500
    with Nodes(tmp_path, NAMES[:3]) as nodes:
        with (
            pyreplog.Cluster.connect(nodes.url) as cluster,
            cluster.create_ledger(3, 2, 2, durability="appended") as ledger,
        ):
            for n in range(count):
                ledger.submit(n.to_bytes(4) * (size // 4))
        options = options_of(None, cluster=nodes.url, columns="entryId,value", batchBytes=size)
        (task,) = plan(options)
        batches = batches_of(options, task)
        actual_batches = [next(batches)]
        nodes.stop("b1")
        actual_batches += batches
        rows = [(row["entryId"], row["value"][:4]) for batch in actual_batches for row in batch.to_pylist()]
        assert rows == [(n, n.to_bytes(4)) for n in range(count)]


def test_a_cluster_with_a_dead_bookie_is_read(tmp_path: Path) -> None:
    with Nodes(tmp_path, NAMES[:3]) as nodes:
        with pyreplog.Cluster.connect(nodes.url) as cluster:
            places = fill(cluster, [90, 30], (3, 2, 2))
        nodes.stop("b2")
        assert values(None, cluster=nodes.url) == {place: value_of(*place) for place in places}
        assert sum(copies(None, cluster=nodes.url).values()) == len(places) * 2 * 2 // 3
        with pytest.raises(NotConnectedError, match=r"bookie b2@\w+ is not registered"):
            column(None, "entryId", cluster=nodes.url, replica="b2")
        with pytest.raises(ConfigError, match=r"replica: expected any, all or one of b0@\w+, b1@.*, found 'b9'"):
            plan(options_of(None, cluster=nodes.url, replica="b9"))


def test_the_secret_of_a_cluster_is_used_and_not_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with Nodes(tmp_path, NAMES[:1], secret=b"swordfish-and-more") as nodes:
        with pyreplog.Cluster.connect(nodes.url, secret=b"swordfish-and-more") as cluster:
            places = fill(cluster, [5], (1, 1, 1))
        assert values(None, cluster=nodes.url, secret="swordfish-and-more").keys() == set(places)
        options = options_of(None, cluster=nodes.url, columns="value")
        with pytest.raises(ReplogError, match="cannot be read"):
            read_slices(options, plan(options))
        monkeypatch.setenv(SECRET, "swordfish-and-more")
        assert values(None, cluster=nodes.url).keys() == set(places)
        assert "swordfish-and-more" not in repr(options_of(None, cluster=nodes.url, secret="swordfish-and-more"))
