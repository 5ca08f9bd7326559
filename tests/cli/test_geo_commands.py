"""`pyreplog geo`: clusters, policies, orders and state, also while a server has the cluster open."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from pyreplog.cluster import Cluster
from pyreplog.topic.server.topic_server import TopicServer
from tests.cli.support import Done, Run

UUID = "0b" * 16


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    path = tmp_path / "a"
    Cluster.embedded(path, bookies=1).close()
    return path


@pytest.fixture
def geo(run: Run, folder: Path) -> Callable[..., Done]:
    """Run an action on the cluster, to which a cluster b was added that nobody can reach."""

    def geo(action: str, *arguments: object) -> Done:
        return run("geo", *action.split(), folder, *arguments)

    assert geo("cluster add", "b", "pyreplog://b.invalid:7400", "--uuid", UUID).code == 0
    return geo


def test_geo_cluster_adds_lists_and_removes_clusters(geo: Callable[..., Done], tmp_path: Path) -> None:
    assert geo("cluster list", "--json").json == {
        "b": {"uuid": UUID, "url": "pyreplog://b.invalid:7400", "secret_file": None, "tls_ca": None, "tls_cert": None,
              "tls_key": None}
    }  # fmt: skip
    (tmp_path / "s").write_text("0123456789abcdef")
    done = geo("cluster add", "b", "pyreplog://b2:1", "--uuid", UUID, "--remote-secret-file", tmp_path / "s")
    assert done.out == f"b is the cluster {UUID} at pyreplog://b2:1\n"
    assert f"pyreplog://b2:1  {tmp_path / 's'}" in geo("cluster list").out
    done = geo("cluster add", "c", "pyreplog://c:1", "--uuid", UUID)
    assert (done.code, done.error.count("\n")) == (2, 1) and "which has the name b already" in done.error
    assert geo("cluster remove", "b", "--json").json == {"removed": "b"}
    done = geo("cluster remove", "b")
    assert done.code == 2 and "known clusters: none" in done.error


def test_a_secret_file_that_is_not_there(geo: Callable[..., Done], tmp_path: Path) -> None:
    done = geo("cluster add", "c", "pyreplog://c:1", "--remote-secret-file", tmp_path / "no", "--uuid", "0c" * 16)
    assert done.code == 2 and f"the secret of its servers in {tmp_path / 'no'}: No such file" in done.error


def test_geo_set_and_unset_change_policies(geo: Callable[..., Done]) -> None:
    done = geo("set", "shop.", "--prefix", "targets=b", "start=latest", "backlog_bytes=1000", "--json")
    assert (done.json["targets"], done.json["start"], done.json["backlog_bytes"]) == (["b"], "latest", 1000)
    assert geo("set", "shop.", "--prefix", "backlog-bytes=none").code == 0
    assert geo("set", "shop.x", "targets=").code == 0
    assert geo("show").out.splitlines()[1:] == [
        "topics  targets  direction  start     forward",
        "shop.x           send       earliest  own",
        "shop.*  b        send       latest    own",
    ]
    shown = geo("show", "shop.orders").out.splitlines()
    assert shown[0].split() == ["targets", "b"] and ["backlog_bytes", "none"] in [line.split() for line in shown]
    assert geo("show", "shop.x", "--json").json["targets"] == []
    assert geo("show", "other").out == "no policy holds for other\n" and geo("show", "other", "--json").json is None
    assert [row["name"] for row in geo("show", "--json").json] == ["shop.x", "shop."]
    done = geo("cluster remove", "b")
    assert done.code == 3 and "1 policies name it (shop.*)" in done.error
    assert geo("unset", "shop.x").code == geo("unset", "shop.", "--prefix").code == 0
    done = geo("unset", "shop.x")
    assert done.code == 2 and "no policy was set for this topic" in done.error


@pytest.mark.parametrize(
    ("setting", "told"),
    [("targets=c", "it was not added; known clusters: b"), ("target=b", "unknown setting 'target'"),
     ("start=now", "start: expected one of"), ("targets", "expected NAME=VALUE")],
)  # fmt: skip
def test_malformed_settings_of_a_policy_are_refused(geo: Callable[..., Done], setting: str, told: str) -> None:
    done = geo("set", "t", setting)
    assert done.code == 2 and told in done.error and done.error.count("\n") == 1
    assert geo("show", "--json").json == []


def test_geo_pause_and_resume_store_orders_for_topics(geo: Callable[..., Done], folder: Path) -> None:
    done = geo("pause", "orders")
    assert done.code == 2 and "no policy has it replicated" in done.error
    geo("set", "orders", "targets=b")
    assert geo("pause", "orders").code == geo("resume", "orders", "--to", "b").code == 0
    done = geo("pause", "orders", "--to", "c")
    assert done.code == 2 and "does not name it" in done.error
    done = geo("resync", "orders", "--to", "b")
    assert done.code == 2 and "confirm it with --yes" in done.error
    assert geo("resync", "orders", "--to", "b", "--yes").code == 0
    with Cluster.embedded(folder, bookies=1) as cluster:
        assert cluster.metadata.list("/geo/controls") == ["orders"]


def test_state_while_a_server_has_the_cluster_open(run: Run, geo: Callable[..., Done], folder: Path) -> None:
    """Nobody can reach the target: it is never said that it lacks nothing."""
    with Cluster.embedded(folder, bookies=1) as cluster, TopicServer(cluster) as server:
        topic = cluster.topic("orders", ensemble=1)
        topic.publish_batch([b"1", b"2"])
        geo("set", "orders", "targets=b")
        for target in (folder, f"sqlite:{folder / 'metadata.sqlite'}"):
            rows = run("geo", "status", target, "--json").json
            assert [(row["topic"], row["target"]) for row in rows] == [("orders", "b")]
            assert rows[0]["unsent_messages"] >= 1 and rows[0]["state"] != "running"
        assert run("geo", "status", f"pyreplog://{server.address}", "other").out == ""
        assert "orders" in run("geo", "status", folder, "orders").out
        geo("cluster remove", "b", "--force")
        cluster.geo.replicator_manager.round()  # type: ignore[union-attr]
        done = run("geo", "status", folder)
        assert done.code == 11 and "alarm: orders to b: no cluster of this name was added" in done.out


def test_geo_status_shows_an_unowned_topic(run: Run, geo: Callable[..., Done], folder: Path) -> None:
    with Cluster.embedded(folder, bookies=1) as cluster:
        cluster.topic("orders", ensemble=1).publish_batch([b"1", b"2"])
    geo("set", "orders", "targets=b")
    (row,) = geo("status", "--json").json
    assert (row["state"], row["stored"], row["end"], row["unsent_messages"]) == ("unowned", None, 2, 2)
    assert "orders to b: no process has the topic open" in geo("status").out
    assert geo("status", "other").out == ""


def test_a_directory_without_a_cluster(run: Run, tmp_path: Path) -> None:
    done = run("geo", "show", tmp_path)
    assert done.code == 2 and f"{tmp_path} holds no cluster" in done.error
