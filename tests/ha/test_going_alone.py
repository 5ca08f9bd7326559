"""A master that goes on alone tells its readers and those of all replicas that records are not replicated, in all
processes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

import pyreplog
from pyreplog.ha.metrics import node_metrics
from pyreplog.ha.node import Node
from pyreplog.ha.protocol.effects import Effect, ModeChanged, Replicated, ShowCommitted
from pyreplog.ha.protocol.messages import Commit
from pyreplog.ha.protocol.replica_machine import ReplicaMachine
from pyreplog.log import names
from tests.ha import groups
from tests.ha.groups import commits, mark, only
from tests.ha.inside import has_log, master_of
from tests.ha.nodes import Lab, level, until, values
from tests.ha.test_replica_machine import streaming


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[Lab]:
    with ExitStack() as stack:
        yield Lab(tmp_path, stack)


# ---- the machines -----------------------------------------------------------------------------------------------


def alone(end: int = 40) -> groups.Lab:
    """A master that has committed up to there alone; replica a has 20."""
    lab = groups.Lab(fallback_after_ms=100)
    lab.follow("a", 20)
    lab.append(30)
    lab.wait(101)
    assert lab.group.tick(lab.now_us)[0] == ModeChanged(True), "before anybody sees more"
    lab.append(end)
    assert lab.committed == end and lab.group.commit == Commit(mark(end), 0, True)
    return lab


def is_told(lab: groups.Lab, effects: list[Effect]) -> bool:
    """Return whether readers learn that enough replicas have all records; check that they otherwise learn that these do
    not."""
    is_replicated = bool(only(Replicated, effects))
    assert lab.group.commit.unreplicated != is_replicated == (not lab.group.stats(lab.now_us).unreplicated)
    return is_replicated


def test_readers_learn_that_records_are_replicated_once_replicas_have_caught_up() -> None:
    """Replicas need not have all records to be waited for again; readers are told once they have."""
    lab = alone()
    lab.wait(10)
    assert only(ModeChanged, lab.report("a", 30)) == [] == only(ModeChanged, lab.append(50))
    effects = lab.report("a", 45)  # the end of the log at its last report
    assert only(ModeChanged, effects) == [ModeChanged(False)] and not is_told(lab, effects)
    assert not is_told(lab, lab.append(60))
    assert not is_told(lab, lab.report("a", 49))
    effects = lab.report("a", 55)
    assert commits(effects) == [55] and is_told(lab, effects)


def test_readers_are_notified_again_when_the_master_goes_alone_again() -> None:
    lab = alone()
    assert is_told(lab, lab.report("a", 40))
    lab.append(50)
    lab.wait(101)
    effects = lab.group.tick(lab.now_us)
    assert commits(effects) == [50] and not is_told(lab, effects)


def follower(committed: int = 18) -> ReplicaMachine:
    following = streaming(committed=committed)
    assert not following.unreplicated
    return following


def test_replica_shows_its_readers_whether_records_are_replicated() -> None:
    following = follower()
    assert following.message_received(Commit(mark(19), 0, True)) == [ShowCommitted(mark(19), True)]
    assert following.message_received(Commit(mark(19), 0, True)) == []
    assert following.message_received(Commit(mark(19), 0, False)) == [ShowCommitted(mark(19), False)]
    assert following.message_received(Commit(mark(19), 0, True)) == [ShowCommitted(mark(19), True)]


def test_lower_commit_point_of_a_new_master_does_not_end_the_unreplicated_state() -> None:
    following = follower()
    following.message_received(Commit(mark(20), 0, True))
    assert following.message_received(Commit(mark(19), 0, False)) == [] and following.unreplicated
    assert following.message_received(Commit(mark(21), 0, False)) == [ShowCommitted(mark(21), False)]


# ---- nodes ------------------------------------------------------------------------------------------------------


def master_alone(lab: Lab) -> tuple[Node, Node, Node]:
    """Master a, its replica b, and replica x of b; member c is not running, and a does not wait for it."""
    a = lab.master(sync_replicas=2, group={"fallback_after_ms": 50})
    b = lab.replica("b", a)
    x = lab.replica("x", b, observer=True)
    a.append(b"alone")
    level(a, b, x)
    return a, b, x


def unreplicated_reports(node: Node) -> set[bool]:
    """Return what a node reports: to readers in this process and another one, in its statistics and its metrics."""
    (gauge,) = (metric for metric in node_metrics(node) if metric.name == "pyreplog_ha_unreplicated")
    with pyreplog.open(node.log.path, "r") as reader:
        return {node.log.unreplicated, reader.unreplicated, node.stats()["unreplicated"], gauge.samples[0][1] == 1}


def test_readers_of_all_nodes_see_the_unreplicated_state_begin_and_end(lab: Lab) -> None:
    nodes = a, b, x = master_alone(lab)
    assert [unreplicated_reports(node) for node in nodes] == [{True}] * 3
    assert [values(node) for node in nodes] == [[b"alone"]] * 3
    c = lab.replica("c", a)
    for node in (*nodes, c):
        until(lambda node=node: has_log(node) and unreplicated_reports(node) == {False})  # type: ignore[misc]
    master_of(a).group.fallback.limit_us = None
    a.append(b"together")
    level(a, b, c, x)
    assert [unreplicated_reports(node) for node in (*nodes, c)] == [{False}] * 4


def test_a_restarted_master_still_reports_unreplicated_records(lab: Lab) -> None:
    a, _, _ = master_alone(lab)
    lab.close(a)
    a = lab.master(sync_replicas=2)
    assert values(a) == [b"alone"] and unreplicated_reports(a) == {True}
    lab.nodes["b"].follow(a.address)
    c = lab.replica("c", a)
    until(lambda: unreplicated_reports(a) == {False})
    level(a, c)


def test_a_promoted_replica_still_reports_unreplicated_records(lab: Lab) -> None:
    """Only this node has the records that the lost master had committed alone."""
    a, b, _ = master_alone(lab)
    lab.close(a)
    b.promote()
    assert values(b) == [b"alone"] and unreplicated_reports(b) == {True}
    for name in "ac":
        lab.replica(name, b)
    until(lambda: unreplicated_reports(b) == {False})
    level(b, lab.nodes["a"], lab.nodes["c"])
    until(lambda: unreplicated_reports(lab.nodes["a"]) == {False})


def test_group_not_open_since_the_boot_reports_its_records_as_unreplicated(lab: Lab) -> None:
    """All records of the files are shown, whether they were committed or not: readers are told that these may be taken
    back."""
    a = lab.master(members="ab", sync_replicas=0)
    b = lab.replica("b", a)
    a.append(b"one")
    level(a, b)
    for node in (b, a):
        path = node.log.path
        lab.close(node)
        (path / names.TAIL).unlink()
        with pyreplog.open(path, "r") as reader:
            assert reader.unreplicated and not reader.live
            assert [record.value for batch in reader.read() for record in batch] == [b"one"]


def test_a_log_without_replicas_reports_no_unreplicated_records(tmp_path: Path) -> None:
    with pyreplog.open(tmp_path / "log") as log:
        log.append(b"one")
        assert not log.unreplicated
    (tmp_path / "log" / names.TAIL).unlink()
    with pyreplog.open(tmp_path / "log", "r") as reader:
        assert not reader.unreplicated
