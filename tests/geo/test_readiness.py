"""Readiness of a subscription whose target has lost what it had, or cannot be reached for want of a setting here."""

from __future__ import annotations

from pathlib import Path

import pytest

from pyreplog.cli.app import main
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
