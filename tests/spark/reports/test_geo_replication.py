"""The reports on replication to other clusters: lags, from the metadata and stored cursors of a cluster that may be
closed; readiness, from the servers of topics."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyreplog
from pyreplog import reports
from pyreplog.errors import InvalidMetadataError
from pyreplog.geo.clusters import RemoteCluster
from pyreplog.geo.geo_cursor import GeoState
from pyreplog.geo.policies import ReplicationConfig, StoredPolicy, TopicControls
from pyreplog.geo.policy import ReplicationPolicy
from pyreplog.geo.subscription_readiness import SubscriptionReadiness
from pyreplog.origins.origin import GapCause
from pyreplog.reports import suite
from pyreplog.reports.gathering import gather
from pyreplog.reports.page.summary import questions
from pyreplog.reports.replications import replication_snapshots
from pyreplog.reports.snapshot import ReadinessSnapshot, Snapshot, SubscriptionSnapshot, TopicSnapshot
from pyreplog.tables.options import ReadOptions
from pyreplog.topic.model.positions import TopicPosition
from pyreplog.topic.server.topic_server import TopicServer
from tests.geo.sites import SYNCED, Site
from tests.spark.reports.pages import NOON_US, html, outcome
from tests.waiting import PATIENCE_S, until

UUID = "0b" * 16
SECOND = 1_000_000
T = TopicSnapshot(name="t", topic="t", partition=-1, start=TopicPosition(10, 1, 100), end=TopicPosition(50, 9, 900))


def policy(*targets: str, **settings: Any) -> StoredPolicy:
    return StoredPolicy().with_policy(ReplicationPolicy(targets=targets, **settings))


def cursor(target: str, at: TopicPosition, *, is_detached: bool = False, cluster: str = "") -> SubscriptionSnapshot:
    return SubscriptionSnapshot(
        on="t", topic="t", partition=-1, name=f"pyreplog.geo.{target}", mark=at, end=50, backlog_messages=50 - at.offset,
        backlog_bytes=900 - at.size, moved_us=None, oldest_us=NOON_US - 90 * SECOND, is_system=True,
        state=GeoState(0, GapCause.LOST, is_detached=is_detached, cluster=cluster).to_bytes(),
    )  # fmt: skip


def rows(config: ReplicationConfig, *cursors: SubscriptionSnapshot) -> list[dict[str, Any]]:
    replications = tuple(replication_snapshots(config, [T], cursors))
    snapshot = Snapshot(as_of_us=NOON_US, topics=(T,), replications=replications)
    return list(reports.run("geo_replication", "nowhere", snapshot=snapshot).to_pylist())


CLUSTERS = {name: RemoteCluster(uuid=UUID, url="pyreplog://b.invalid:1") for name in "bcd"}


def test_reports_on_replication_have_lag_states_and_alarms() -> None:
    config = ReplicationConfig(
        CLUSTERS, {"t": policy("b", "c", "d", "e")}, controls={"t": TopicControls(paused=("c",))}
    )
    actual_rows = rows(
        config, cursor("b", TopicPosition(30, 5, 500)), cursor("c", TopicPosition(50, 9, 900)),
        cursor("d", TopicPosition(20, 2, 200), is_detached=True),
    )  # fmt: skip
    columns = ("target", "state", "stored_offset", "log_end_offset", "unsent_messages", "unsent_bytes", "age_s")
    assert [tuple(row[column] for column in columns) for row in actual_rows] == [
        ("b", "sending", 30, 50, 20, 400, 90.0), ("c", "paused", 50, 50, 0, 0, 90.0),
        ("d", "detached", 20, 50, 30, 700, 90.0), ("e", "failed", None, 50, 40, 800, None),
    ]  # fmt: skip
    assert [row["alarm"] is None for row in actual_rows] == [True, True, False, False]
    (question,) = [
        each
        for each in questions({"geo_replication": outcome("geo_replication", actual_rows)})
        if each.title == "What do other clusters lack?"
    ]
    texts = [(finding.state, finding.text) for finding in question.findings]
    assert [state for state, _ in texts] == ["bad", "bad", "hot", "fine"]
    assert texts[0][1].startswith("t to d is detached: ") and "geo cluster add" in texts[1][1]
    assert texts[2][1] == "t to b: 20 messages unsent (400 B), the oldest 1 min 30 s old."


def test_a_new_cluster_lacks_what_a_lost_one_of_the_same_name_had() -> None:
    config, lost = ReplicationConfig(CLUSTERS, {"t": policy("b", "c")}), "0c" * 16
    end = TopicPosition(50, 9, 900)
    actual_rows = rows(config, cursor("b", end, cluster=lost), cursor("c", end, cluster=UUID))
    assert [(row["stored_offset"], row["unsent_messages"]) for row in actual_rows] == [(None, 40), (50, 0)]


def test_clusters_that_do_not_send_have_no_rows() -> None:
    assert rows(ReplicationConfig(CLUSTERS, {"t": policy("b", direction="receive")})) == []
    assert rows(ReplicationConfig(CLUSTERS, {"u": policy("b")}), cursor("b", T.start)) == []


def test_a_policy_that_cannot_be_read_hides_nothing() -> None:
    (row,) = rows(
        ReplicationConfig(CLUSTERS, {"t": InvalidMetadataError("newer")}), cursor("b", TopicPosition(30, 5, 500))
    )
    assert (row["target"], row["state"], row["unsent_messages"]) == ("b", "unknown", 20) and "newer" in row["alarm"]


def test_geo_replication_report_of_a_closed_cluster(tmp_path: Path) -> None:
    with pyreplog.Cluster.embedded(tmp_path / "b", bookies=1) as b, TopicServer(b) as server:
        with pyreplog.Cluster.embedded(tmp_path / "a", bookies=1) as a:
            a.geo.add_cluster("b", f"pyreplog://{server.address}")
            a.geo.set_policy("t", targets=["b"])
            a.topic("t", **SYNCED).publish_batch([b"x"] * 10)
            until(lambda: [row.stored for row in a.geo.status()] == [10])
            a.geo.pause("t")
            until(lambda: [row.state for row in a.geo.status()] == ["paused"])
            a.topic("t").publish_batch([b"y"] * 5)
    snapshot = gather(ReadOptions.of({"path": str(tmp_path / "a")}), NOON_US)
    (row,) = snapshot.replications
    assert (row.topic, row.target, row.state, row.stored, row.end, row.unsent_messages) == (
        "t",
        "b",
        "paused",
        10,
        15,
        5,
    )
    assert row.oldest_us is not None and suite.left_out("geo_replication", snapshot) == ""
    assert "no topic" in suite.left_out("geo_replication", Snapshot(as_of_us=NOON_US, topics=(T,)))


# ---- readiness -------------------------------------------------------------------------------------------------

FAIL_OVER = "What would a fail-over to another cluster lose or repeat?"


def ready(
    subscription: str, *counts: int, is_known: bool = True, is_current: bool = True, **fields: Any
) -> ReadinessSnapshot:
    """counts: lost, repeated, revived."""
    numbers = counts or (0, 0, 0)
    is_ready = is_known and is_current and not any(numbers[:2])
    told = SubscriptionReadiness("t", subscription, "b", is_ready, is_known, is_current, *numbers, **fields)
    return ReadinessSnapshot("t", -1, subscription, "b", told)


def test_geo_readiness_shows_losses_and_repetitions_of_a_failover() -> None:
    readiness = (
        ready("exact"), ready("seen", 0, 0, 4, home=""), ready("lagging", 3, 1, 0, unreachable=2), ready("repeating", 0, 2, 0, home="b"),
        ready("sought", 5, 5, 0, is_current=False), ready("new", 7, 7, 7, is_known=False, error="refused"),
        ready("waiting", alarm="hand it over"), ReadinessSnapshot("t", -1, "closed", "b", None),
    )  # fmt: skip
    snapshot = Snapshot(as_of_us=NOON_US, topics=(T,), readiness=readiness)
    made = list(reports.run("geo_readiness", "nowhere", snapshot=snapshot).to_pylist())
    columns = ("subscription", "fail_over", "lost", "repeated", "expired", "home")
    assert [tuple(row[column] for column in columns) for row in made] == [
        ("exact", "ready", 0, 0, 0, None), ("seen", "ready", 0, 0, 4, "(this cluster)"),
        ("lagging", "not ready", 3, 1, 0, None), ("repeating", "not ready", 0, 2, 0, "b"),
        ("sought", "before the seek", 5, 5, 0, None), ("new", "unknown", None, None, None, None),
        ("waiting", "ready", 0, 0, 0, None), ("closed", "unknown", None, None, None, None),
    ]  # fmt: skip
    assert [row["unreachable"] for row in made] == [0, 0, 2, 0, 0, None, 0, None]
    assert [row["reason"] is None for row in made] == [True] * 5 + [False, True, False]
    answers = questions({"geo_readiness": outcome("geo_readiness", made)})
    (question,) = [each for each in answers if each.title == FAIL_OVER]
    assert [(finding.state, finding.text) for finding in question.findings] == [
        ("bad", "“waiting” of t to b: hand it over."),
        ("hot", "“lagging” of t to b: a fail-over now would lose 3 messages and repeat 1 message, at most."),
        ("hot", "“repeating” of t to b: a fail-over now would repeat 2 messages, at most."),
        ("hot", "“sought” of t to b: the target does not know the last seek, and would go on from before it."),
        ("unknown", "“new” of t to b: it is not known what a fail-over would lose or repeat; refused."),
        ("unknown", "“closed” of t to b: it is not known what a fail-over would lose or repeat; no server that "
         "answered has the topic open."),
        ("fine", "Nothing would be lost or repeated: 2 fail-overs of a subscription."),
    ]  # fmt: skip
    page = html(outcome("geo_readiness", made))
    assert 'id="geo_readiness"' in page and "“lagging” of t to b: a fail-over now would lose 3 messages" in page


def test_readiness_is_of_chosen_subscriptions() -> None:
    snapshot = Snapshot(as_of_us=NOON_US, topics=(T,), readiness=(ready("one"), ready("two")))
    chosen = suite.of_subscriptions(snapshot, ["two"])
    assert [row.subscription for row in chosen.readiness] == ["two"]
    nothing = Snapshot(as_of_us=NOON_US, topics=(T,))
    assert suite.left_out("geo_readiness", snapshot) == ""
    assert suite.left_out("geo_readiness", nothing) == "no subscription of the source is replicated to another cluster"


def test_readiness_of_clusters_that_run_and_of_one_that_is_closed(tmp_path: Path) -> None:
    """A server is asked; what nobody tells is unknown, and said to be, and the other reports do not depend on it."""
    options = ReadOptions.of({"path": str(tmp_path / "a")})
    with Site(tmp_path / "b") as b:
        with Site(tmp_path / "a") as a:
            for here, name, there in ((a, "b", b), (b, "a", a)):
                here.cluster.geo.add_cluster(name, f"pyreplog://{there.server.address}")
                here.cluster.geo.set_policy("t", targets=[name], replicated_subscriptions=True)
            a.topic().publish_batch([b"x"] * 10)
            a.topic().create_subscription("s", start="earliest")
            with a.topic().subscribe("s") as consumer:
                for message in consumer.receive(timeout=PATIENCE_S, max_messages=4):
                    consumer.acknowledge(message)
                consumer.flush()
            until(lambda: any(row.is_ready and not row.error for row in a.cluster.geo.readiness("t")))
            until(lambda: readiness_of(options) == [("t", "s", "b", "ready", 0, 0)])
            assert gather(options, NOON_US).readiness_notes == ()
            lost_server = a.server.address
            a.server.close()
            snapshot = gather(options, NOON_US)
            assert [row.readiness for row in snapshot.readiness] == [None]
            (note,) = snapshot.readiness_notes
            assert note.startswith(f"could not ask: server {lost_server}: ")
            (told,) = suite.outcomes(["geo_readiness"], {}, snapshot, lambda report, *_: report.merge(None, snapshot))
            assert told.warnings == (note,)
    assert readiness_of(options) == [("t", "s", "b", "unknown", None, None)]
    assert gather(options, NOON_US).replications[0].stored == 10


def readiness_of(options: ReadOptions) -> list[tuple[Any, ...]]:
    made = reports.run("geo_readiness", "nowhere", snapshot=gather(options, NOON_US)).to_pylist()
    return [
        tuple(row[name] for name in ("topic", "subscription", "target", "fail_over", "lost", "repeated"))
        for row in made
    ]
