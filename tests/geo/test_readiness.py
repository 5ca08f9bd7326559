"""Readiness of a subscription whose target has lost what it had, or whose owner tells nothing; and the exit codes."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

import pyreplog
from pyreplog import Cluster, InvalidMetadataError, NoSuchSubscriptionError, TopicServer
from pyreplog.cli.app import main
from pyreplog.geo.subscription_readiness import SubscriptionReadiness
from tests.geo.places import two_servers
from tests.geo.sites import NOWHERE, SYNCED
from tests.geo.test_handover_orders import Place, numbers, places
from tests.waiting import until

__all__ = ["places"]


def test_the_topic_there_was_created_again_while_nothing_was_sent(places: tuple[Place, Place]) -> None:
    """The cluster has reported that its topic is empty, though the replicator has not looked yet."""
    a, b = places
    geo = a.cluster.geo
    with a.subscribe() as consumer:
        consumer.acknowledge(consumer.receive(timeout=20.0))
        consumer.flush()
        until(a.is_ready)
    geo.pause("t")
    until(lambda: geo.status("t")[0].state == "paused")
    b.cluster.topics.delete("t", force=True)
    b.cluster.topic("t", ensemble=1, durability="synced")
    until(lambda: [row.lost for row in geo.readiness("t")] == [5])
    assert not a.is_ready()
    geo.resume("t")
    until(lambda: geo.status("t")[0].state == "diverged")
    assert [row.lost for row in geo.readiness("t")] == [5]
    geo.resync("t", "b")
    until(a.is_ready)
    with b.subscribe() as consumer:
        assert sorted(numbers(consumer, 5)) == [1, 2, 3, 4, 5]


def test_a_target_that_gets_nothing_is_shown_as_unknown(
    places: tuple[Place, Place], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The cluster was removed, and then has credentials that this one lacks."""
    a, _ = places
    geo = a.cluster.geo
    uuid = geo.clusters()["b"].uuid
    geo.remove_cluster("b", force=True)
    until(lambda: any("no cluster of this name" in row.error for row in geo.readiness("t")))
    secret = tmp_path / "secret"
    secret.write_bytes(b"0123456789abcdef")
    geo.add_cluster("b", "pyreplog://127.0.0.1:1", uuid=uuid, secret_file=secret)
    secret.unlink()
    geo.set_policy("t", rate_bytes=1 << 30)
    until(lambda: any("secret" in row.error for row in geo.readiness("t")))
    assert [(row.subscription, row.target, row.is_ready, row.is_known) for row in geo.readiness("t")] == [
        ("s", "b", False, False)
    ]
    capsys.readouterr()
    main(["geo", "readiness", str(a.path), "t"])
    assert "secret" in capsys.readouterr().out


# ---- owners that tell nothing ----------------------------------------------------------------------------------


def state_of(rows: list[SubscriptionReadiness]) -> list[tuple[str, str, str, str]]:
    return [(row.topic, row.subscription, row.target, row.state) for row in rows]


def test_topics_of_a_server_that_hangs_are_unknown_until_it_goes_on(tmp_path: Path) -> None:
    """The names of their subscriptions and targets are in the metadata. Unknown is not ready."""
    with two_servers(tmp_path, "orders") as both:
        both.b.geo.add_cluster("a", both.url)
        both.b.geo.set_policy("orders", targets=["a"], replicated_subscriptions=True)
        both.a.geo.set_policy("orders", replicated_subscriptions=True)
        with pyreplog.connect(both.address) as client:
            orders = client.topic("orders", **SYNCED)
            orders.publish_batch([b"1", b"2"])
            for name in ("audit", "bill"):
                orders.create_subscription(name, start="earliest")

            def is_ready() -> bool:
                rows = both.a.geo.readiness(everywhere=True)
                return len(rows) == 2 and all(row.is_ready and not row.error for row in rows)

            until(is_ready, pause_s=0.05)
            owner = both.a.topics.owner("orders")
            assert owner is not None
        both.stop_servers()
        rows = both.a.geo.readiness("orders", everywhere=True)
        assert state_of(rows) == [("orders", "audit", "b", "unknown"), ("orders", "bill", "b", "unknown")]
        for row in rows:
            assert not (row.is_ready or row.is_known or row.is_current or row.alarm)
            assert owner.address in row.error and "does not answer" in row.error and "ask again" in row.error
        both.resume_owner()
        until(is_ready, pause_s=0.1)


class Guarded:
    """A cluster whose server demands a secret, with a standby, which only receives, as its target."""

    def __init__(self, stack: ExitStack, folder: Path) -> None:
        self.path, self.secret_file = folder / "a", folder / "a.secret"
        self.secret_file.write_bytes(b"0123456789abcdef")
        self.a = stack.enter_context(Cluster.embedded(self.path, bookies=1))
        self.b = stack.enter_context(Cluster.embedded(folder / "b", bookies=1))
        self.server = stack.enter_context(TopicServer(self.a, secret=self.secret_file.read_bytes()))
        standby = stack.enter_context(TopicServer(self.b))
        self.a.geo.add_cluster("b", f"pyreplog://{standby.address}")
        self.b.geo.add_cluster("a", f"pyreplog://{self.server.address}", secret_file=self.secret_file)
        self.a.geo.set_policy("t", targets=["b"], replicated_subscriptions=True)
        self.b.geo.set_policy("t", targets=["a"], direction="receive", replicated_subscriptions=True)
        topic: Any = self.a.topic("t", **SYNCED)
        topic.publish_batch([b"0", b"1"])
        topic.create_subscription("s", start="earliest")
        until(lambda: [row.is_ready and not row.error for row in self.a.geo.readiness("t")] == [True])


def test_topics_of_a_server_that_refuses_the_secret_are_unknown(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Only subscriptions of users have rows, also those of the clusters that a policy with `receive` names."""
    with ExitStack() as stack:
        guarded = Guarded(stack, tmp_path)
        capsys.readouterr()
        assert main(["geo", "readiness", str(guarded.path), "t"]) == 10
        table, line = capsys.readouterr().out.strip().rsplit("\n", 1)
        assert "unknown" in table and "pyreplog." not in table and " 0" not in table
        assert line.startswith("t, s to b: process ") and guarded.server.address in line and "--secret-file" in line
        assert main(["geo", "readiness", str(guarded.path), "t", "--secret-file", str(guarded.secret_file)]) == 0
        until(lambda: state_of(guarded.b.geo.readiness("t", everywhere=True)) == [("t", "s", "a", "ready")])


def test_a_position_that_only_a_server_knows_which_refuses_the_secret_is_unknown(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with ExitStack() as stack:
        guarded = Guarded(stack, tmp_path)
        capsys.readouterr()
        arguments = ["geo", "where", str(guarded.path), "t", "s", "--json"]
        assert main(arguments) == 0
        (row,) = json.loads(capsys.readouterr().out)
        assert (row["topic"], row["subscription"], row["at"], row["below"], row["is_known"]) == (
            "t",
            "s",
            "",
            None,
            False,
        )
        assert guarded.server.address in row["error"] and "does not answer" in row["error"]
        assert main([*arguments, "--secret-file", str(guarded.secret_file)]) == 0
        rows = json.loads(capsys.readouterr().out)
        assert [(row["at"], row["below"], row["is_known"], row["error"]) for row in rows] == [
            ("", 0, True, ""), ("b", 0, True, ""),
        ]  # fmt: skip
        with pytest.raises(NoSuchSubscriptionError):
            guarded.b.geo.where("t", "other", everywhere=True)


def test_status_of_a_topic_whose_server_refuses_the_secret_says_so(tmp_path: Path) -> None:
    with ExitStack() as stack:
        guarded = Guarded(stack, tmp_path)
        other = stack.enter_context(Cluster.connect(f"sqlite:{guarded.path}/metadata.sqlite"))
        (row,) = other.geo.status("t", everywhere=True)
        assert row.state == "unknown" and "does not answer" in row.error and guarded.server.address in row.error
        (row,) = other.geo.status("t", everywhere=True, secret=guarded.secret_file.read_bytes())
        assert row.state == "running" and not row.error


def test_topics_of_a_process_without_a_server_are_unknown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A standby that embeds its cluster has the topic open, then nobody has."""
    arguments = ["geo", "readiness", str(tmp_path / "a"), "t"]
    with Cluster.embedded(tmp_path / "a", bookies=1) as a:
        a.geo.add_cluster("b", f"pyreplog://{NOWHERE}", uuid="0b" * 16)
        a.geo.set_policy("t", targets=["b"], direction="receive", replicated_subscriptions=True)
        topic: Any = a.topic("t", **SYNCED)
        topic.create_subscription("s", start="earliest")
        assert main(arguments) == 10
        printed = capsys.readouterr().out
        assert "t, s to b: process " in printed and "Cluster.geo.readiness" in printed
    assert main([*arguments, "--json"]) == 10
    (row,) = json.loads(capsys.readouterr().out)
    assert (row["topic"], row["subscription"], row["target"], row["state"]) == ("t", "s", "b", "unknown")
    assert "no process has the topic open" in row["error"] and "pyreplog topic stats" in row["error"]


def test_subscriptions_whose_policy_cannot_be_read_are_not_passed_over(tmp_path: Path) -> None:
    with Cluster.embedded(tmp_path / "a", bookies=1) as a:
        a.geo.add_cluster("b", f"pyreplog://{NOWHERE}", uuid="0b" * 16)
        a.geo.set_policy("t", targets=["b"], replicated_subscriptions=True)
        for name in ("t", "u"):
            a.topic(name, **SYNCED).create_subscription("s", start="earliest")
        with Cluster.connect(f"sqlite:{tmp_path}/a/metadata.sqlite") as other:
            store = other.metadata
            stored = store.get("/geo/topics/t")
            assert stored is not None
            store.put("/geo/topics/t", b"{}", stored.version)
            with pytest.raises(InvalidMetadataError, match="/geo/topics/t"):
                other.geo.readiness("t", everywhere=True)
            assert other.geo.readiness("u", everywhere=True) == []


# ---- exit codes ------------------------------------------------------------------------------------------------


@contextmanager
def apart(*places: Place) -> Iterator[None]:
    """Cut the connections between clusters, and refuse new ones until the end of the block."""
    for place in places:
        place.wire.lead_to(NOWHERE)
        place.wire.cut()
    yield
    for place in places:
        place.wire.lead_to(place.server.address)


def code(place: Place, *arguments: str) -> int:
    """Return the exit code, which is the same for a table and JSON, and for a cluster and its server."""
    codes = {
        main(["geo", "readiness", target, *arguments, *json_option])
        for target in (str(place.path), f"pyreplog://{place.server.address}")
        for json_option in ((), ("--json",))
    }
    assert len(codes) == 1
    return codes.pop()


def test_readiness_ends_with_0_only_if_all_rows_are_ready_and_connected(
    places: tuple[Place, Place], capsys: pytest.CaptureFixture[str]
) -> None:
    a, b = places
    assert code(a, "t") == code(a) == 0
    capsys.readouterr()
    assert main(["geo", "readiness", str(a.path), "t", "--json"]) == 0
    assert [row["state"] for row in json.loads(capsys.readouterr().out)] == ["ready"]
    with apart(a, b):
        until(lambda: a.cluster.geo.readiness("t")[0].error)
        assert a.cluster.geo.readiness("t")[0].is_ready
        assert code(a, "t") == 10, "it may have been restored or deleted meanwhile"
        with a.subscribe() as consumer:
            consumer.acknowledge(consumer.receive(timeout=20.0))
            consumer.flush()
        until(lambda: a.cluster.geo.readiness("t")[0].state == "not ready")
        assert code(a, "t") == 10
    until(a.is_ready)
    assert code(a, "t") == 0


def test_readiness_ends_with_11_if_there_is_an_alarm(places: tuple[Place, Place]) -> None:
    a, _ = places
    a.cluster.geo.handover("t", "s", "b", grace=0.0)
    with a.subscribe():
        until(lambda: a.cluster.geo.readiness("t")[0].alarm)
        assert code(a, "t") == 11


def test_the_help_names_the_exit_codes(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["geo", "readiness", "--help"])
    text = " ".join(capsys.readouterr().out.split())
    assert "Exit code 0: all subscriptions are ready" in text and "10: one is not" in text and "11: there is" in text


@pytest.mark.parametrize("topic", ["other", "unreplicated"])
def test_readiness_ends_with_2_if_there_is_nothing_to_tell(
    places: tuple[Place, Place], capsys: pytest.CaptureFixture[str], topic: str
) -> None:
    """A topic that does not exist, and one that no policy names: a script with a wrong name must not go on."""
    a, _ = places
    a.cluster.topic("unreplicated", **SYNCED).create_subscription("s", start="earliest")
    capsys.readouterr()
    assert code(a, topic) == 2
    assert f"{topic}: " in (text := capsys.readouterr().err) and "no replicated subscription" in text


def test_readiness_of_a_cluster_without_replicated_subscriptions_ends_with_2(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with Cluster.embedded(tmp_path / "a", bookies=1):
        assert main(["geo", "readiness", str(tmp_path / "a"), "--json"]) == 2
        captured = capsys.readouterr()
        assert json.loads(captured.out) == [] and "no replicated subscription" in captured.err
