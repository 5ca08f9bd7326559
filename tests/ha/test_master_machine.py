"""The state machine of a master: commit points, which replicas count, refusals, going on alone, and its end as a
master."""

from __future__ import annotations

import re
from typing import Any

import pytest

from pyreplog.errors import (
    ChangeUnderWayError,
    ConfigError,
    HigherTermError,
    InvalidArgumentError,
    NotEnoughReplicasError,
    NotMasterError,
)
from pyreplog.ha.protocol.effects import Disconnect, Fenced, ModeChanged, SendMessage, StoreMembers
from pyreplog.ha.protocol.election import refuse_candidate
from pyreplog.ha.protocol.joining import StreamedLog
from pyreplog.ha.protocol.master_machine import GroupConfig, MasterMachine
from pyreplog.ha.protocol.members import Members, Quorum
from pyreplog.ha.protocol.messages import (
    NO_UUID,
    VERSION,
    Accept,
    Commit,
    MembershipUpdate,
    Prepare,
    ProgressReport,
    RefusalCode,
    VoteRejected,
)
from pyreplog.stream.log_position import ORIGIN, LogPosition
from pyreplog.stream.terms import History, Term, Terms, TermStart

from .groups import HISTORY, MS, SEGMENT_BYTES, T1, T2, T3, UUID, Lab, commits, mark, only

# ---- the commit point ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("k", "committed"), [(1, 19), (2, 17), (3, 15), (4, 13)])
def test_commit_point_is_the_kth_largest_mark_of_the_others(k: int, committed: int) -> None:
    lab = Lab(k=k)
    for name, received in zip("abcd", (13, 15, 17, 19), strict=True):
        lab.follow(name)
        lab.report(name, received)
    assert lab.committed == committed


def test_the_end_of_a_master_without_synchronous_replicas_counts() -> None:
    lab = Lab(k=0)
    assert commits(lab.append(25, synced=22)) == [22]
    received = Lab(k=0, ack="received")
    assert commits(received.append(25, synced=22)) == [25]


def test_commit_point_is_bounded_by_what_the_master_has_on_disk() -> None:
    lab = Lab()
    lab.follow("a")
    assert commits(lab.report("a", 20)) == [20]
    assert commits(lab.append(30, synced=20)) == []
    assert commits(lab.report("a", 30)) == []
    assert commits(lab.append(30, synced=25)) == [25]
    assert commits(lab.append(30)) == [30]


def test_the_commit_point_follows_received_or_synced_marks() -> None:
    for ack, committed in (("received", 20), ("synced", 15)):
        lab = Lab(ack=ack)
        lab.follow("a")
        lab.report("a", 20, synced=15)
        assert lab.committed == committed


def test_nothing_of_an_older_term_is_committed_by_itself() -> None:
    """Raft, figure 8: a record of an older term that enough replicas have may still be replaced. It is committed with
    the first record of the present term."""
    lab = Lab()
    lab.follow("a", 8)
    assert commits(lab.report("a", 9)) == [] and lab.committed == 5
    assert commits(lab.report("a", 10)) == [] and lab.group.replicated is None
    assert commits(lab.report("a", 11)) == [11]


def test_commit_point_never_moves_back() -> None:
    lab = Lab()
    lab.follow("a")
    lab.report("a", 20)
    lab.group.disconnected("a", lab.now_us)
    assert lab.committed == 20
    lab.follow("b")
    assert commits(lab.report("b", 15)) == [] and lab.committed == 20


def test_nothing_counts_before_the_first_report() -> None:
    """A replica has promised the term when it reports, not when it joins."""
    lab = Lab()
    lab.join("a", 20)
    assert lab.committed == 5
    assert commits(lab.append(21)) == []
    assert lab.report("a", 20) == [], "it may not know the members yet"
    assert lab.committed == 5
    assert commits(lab.stored("a", lab.group.members.stamp.version)) == [20]


def test_nothing_counts_of_a_replica_that_knows_of_no_members() -> None:
    """An election ignores the log of such a node. Once the node has stored members, it counts on each later connection."""
    lab = Lab()
    lab.join("a", 15)
    assert lab.stored("a", 0) == [], "it has not reported yet"
    assert commits(lab.report("a", 15)) == [15]
    lab.group.disconnected("a", lab.now_us)
    lab.join("a", 15, connection="again")
    assert commits(lab.report("again", 20)) == [20]


# ---- who counts ------------------------------------------------------------------------------------------------


def test_a_second_connection_of_a_member_replaces_the_first() -> None:
    """RocketMQ counts connections, so that two connections of one slave are two replicas."""
    lab = Lab(k=2)
    lab.follow("a", connection="first")
    lab.report("first", 20)
    effects = lab.join("a", 20, connection="second")
    assert [(h.connection, h.refusal.code) for h in only(Disconnect, effects)] == [("first", RefusalCode.REPLACED)]
    assert commits(lab.report("second", 20)) == [] and lab.committed == 5
    assert lab.report("first", 20) == []
    lab.group.disconnected("first", lab.now_us)
    assert [replica.state for replica in lab.group.stats(lab.now_us).replicas] == ["streaming"]
    lab.follow("b")
    assert commits(lab.report("b", 18)) == [18]


def test_observers_do_not_count() -> None:
    lab = Lab(members="mab")
    lab.follow("z", observer=True)
    lab.follow("a", observer=True)
    assert commits(lab.report("z", 20)) == commits(lab.report("a", 20)) == []
    assert lab.group.in_sync(lab.now_us) == []
    lab.group.disconnected("z", lab.now_us)
    assert [replica.name for replica in lab.group.stats(lab.now_us).replicas] == ["a"], "observers are forgotten"


def test_a_node_that_is_no_member_is_refused() -> None:
    lab = Lab(members="mab")
    assert lab.refusal(lab.join("c")) == RefusalCode.NOT_A_MEMBER
    assert lab.refusal(lab.join("m")) == RefusalCode.NOT_A_MEMBER
    assert lab.report("c", 20) == []
    assert lab.group.stats(lab.now_us).refused == 2


@pytest.mark.parametrize(
    ("received", "synced", "sent"),
    [
        pytest.param(mark(21), mark(20), 20, id="more than it was sent"),
        pytest.param(LogPosition(1 << 40, 15), mark(15), 20, id="2^40 bytes, RocketMQ #3015"),
        pytest.param(LogPosition(1500, 21), mark(15), 20, id="entries that are not there"),
        pytest.param(mark(15), mark(16), 20, id="synced and not received"),
        pytest.param(LogPosition(1500, 15), LogPosition(1400, 16), 20, id="an entry synced and not received"),
        pytest.param(LogPosition(1500, 12), mark(12), 20, id="the entry goes back"),
        pytest.param(mark(15), LogPosition(1450, 12), 20, id="the synced entry goes back"),
    ],
)
def test_absurd_progress_closes_the_connection(received: LogPosition, synced: LogPosition, sent: int) -> None:
    lab = Lab()
    lab.follow("a")
    lab.report("a", 14, sent=14)
    effects = lab.group.progress("a", ProgressReport(received, synced), mark(sent).position, lab.now_us)
    assert lab.refusal(effects) == RefusalCode.ABSURD
    assert lab.committed == 14
    assert lab.group.stats(lab.now_us).replicas[0].state == "gone"
    assert lab.group.progress("a", ProgressReport(mark(20), mark(20)), 2000, lab.now_us) == [], "it is heard no more"


@pytest.mark.parametrize("ack", ["received", "synced"])
@pytest.mark.parametrize(("received", "synced"), [(12, 12), (14, 11), (12, 11), (10, 10)])
def test_older_report_of_a_replica_changes_nothing(ack: str, received: int, synced: int) -> None:
    """A replica has two threads that report: one after receiving and one after syncing. Their reports may arrive in
    either order."""
    lab = Lab(ack=ack)
    lab.follow("a")
    lab.report("a", 14, 13)
    committed = lab.committed
    assert lab.report("a", received, synced) == []
    (replica,) = lab.group.stats(lab.now_us).replicas
    assert (replica.state, replica.received, replica.synced) == ("streaming", mark(14), mark(13))
    assert lab.committed == committed
    assert commits(lab.report("a", 15, 14)) == [14 if ack == "synced" else 15], "newer ones count"


def test_joining_twice_on_a_connection() -> None:
    lab = Lab()
    lab.follow("a")
    assert lab.refusal(lab.join("b", connection="a")) == RefusalCode.ABSURD


# ---- joining ---------------------------------------------------------------------------------------------------


def accepted(effects: list[Any]) -> int:
    accepts = [effect.message for effect in only(SendMessage, effects) if isinstance(effect.message, Accept)]
    assert accepts and isinstance(effects[-1].message, MembershipUpdate)
    return int(accepts[0].resume.entry)


def test_a_joining_replica_goes_on_at_the_common_point() -> None:
    lab = Lab()
    assert accepted(lab.join("a", 20)) == 20
    assert accepted(lab.join("b", 7)) == 7
    older = History((TermStart(T1, ORIGIN), TermStart(Term(2, "a"), mark(12))))
    assert accepted(lab.join("c", 15, history=older, promised=Term(2, "a"))) == 10, (
        "what the term before had, and no more"
    )
    assert accepted(lab.join("d", 0, uuid=NO_UUID, segment_bytes=0)) == 0


def trimmed(start: int) -> Lab:
    lab = Lab()
    lab.group.trimmed(mark(start))
    return lab


def test_a_new_replica_begins_where_the_master_does() -> None:
    assert accepted(trimmed(8).join("a", 0, uuid=NO_UUID, segment_bytes=0)) == 8
    assert accepted(trimmed(8).join("a", 8, history=History())) == 8


WHAT_TO_DO = re.compile(r"[:;] (use another directory|promote the replica|remove this member|upgrade)")


@pytest.mark.parametrize(
    ("lab", "received", "fields", "code"),
    [
        pytest.param(Lab(), 15, {"uuid": b"x" * 16}, RefusalCode.FOREIGN, id="another log"),
        pytest.param(Lab(), 15, {"segment_bytes": 1 << 20}, RefusalCode.FOREIGN, id="other segments"),
        pytest.param(Lab(), 21, {}, RefusalCode.AHEAD, id="ahead of its master, in one term"),
        pytest.param(trimmed(12), 11, {}, RefusalCode.BEHIND, id="what comes next is gone"),
        pytest.param(
            trimmed(12), 15, {"history": History((TermStart(T1, ORIGIN), TermStart(Term(2, "a"), mark(11))))}, RefusalCode.BEHIND,
            id="where they part is gone",
        ),
        pytest.param(Lab(), 15, {"history": History((TermStart(T2, ORIGIN),))}, RefusalCode.DIVERGED, id="nothing in common"),
        pytest.param(Lab(), 15, {"history": History()}, RefusalCode.DIVERGED, id="records of no term"),
        pytest.param(Lab(), 15, {"history": HISTORY.begin(T2, mark(15))}, RefusalCode.ABSURD, id="a term it has nothing of"),
        pytest.param(Lab(), 15, {"synced": mark(16)}, RefusalCode.ABSURD, id="synced and not received"),
        pytest.param(Lab(), 15, {"uuid": NO_UUID}, RefusalCode.ABSURD, id="records of no log"),
        pytest.param(Lab(), 15, {"version": VERSION - 1}, RefusalCode.VERSION, id="another protocol"),
    ],
)  # fmt: skip
def test_replicas_that_do_not_fit(lab: Lab, received: int, fields: dict[str, Any], code: RefusalCode) -> None:
    effects = lab.join("a", received, **fields)
    assert lab.refusal(effects) == code
    assert not lab.group.stats(lab.now_us).replicas
    (disconnect,) = only(Disconnect, effects)
    assert code == RefusalCode.ABSURD or WHAT_TO_DO.search(disconnect.refusal.text)


def test_a_replica_that_lost_its_disk_does_not_count_again() -> None:
    """It lacks records that it has acknowledged. Under the same name, it would be counted as having them."""
    lab = Lab()
    lab.follow("a")
    lab.report("a", 20, synced=18)
    lab.group.disconnected("a", lab.now_us)
    assert lab.refusal(lab.join("a", 20, synced=mark(17))) == RefusalCode.LOST
    assert lab.refusal(lab.join("a", 0, uuid=NO_UUID)) == RefusalCode.LOST
    assert accepted(lab.join("a", 18)) == 18, "what was not synced a crash may take"


def test_a_blank_is_no_record_that_was_lost() -> None:
    """A replica had reported all records up to the next segment. A power cut removed the blank record at the end of the
    segment before."""
    lab = Lab(end=30)
    lab.follow("a")
    edge = LogPosition(SEGMENT_BYTES, 20)
    lab.group.progress("a", ProgressReport(edge, edge), 2 * SEGMENT_BYTES, lab.now_us)
    lab.group.disconnected("a", lab.now_us)
    assert lab.refusal(lab.join("a", 19, connection="less")) == RefusalCode.LOST
    assert accepted(lab.join("a", 20)) == 20


def test_a_replica_that_lost_its_disk_does_not_count_after_retention_either() -> None:
    """A promise of this term proves nothing: a member with an empty directory promises it to a master that looks for
    its members, and which later term the member had promised before is unknown."""
    lab = Lab()
    lab.follow("a")
    lab.report("a", 18)
    lab.group.disconnected("a", lab.now_us)
    lab.group.trimmed(mark(19))
    assert refuse_candidate(lab.group.probe, NO_UUID, Terms(), None) is None
    assert lab.refusal(lab.join("a", 0, uuid=NO_UUID, segment_bytes=0, promised=lab.group.term)) == RefusalCode.LOST
    assert lab.refusal(lab.join("a", 18)) == RefusalCode.BEHIND


# ---- who is in sync --------------------------------------------------------------------------------------------


def test_a_replica_is_in_sync_by_bytes_and_time() -> None:
    lab = Lab(in_sync_bytes=500, in_sync_ms=100)
    lab.follow("a", 15)
    assert lab.group.in_sync(lab.now_us) == ["a"], "5 entries of 100 bytes behind"
    lab.follow("b", 14)
    assert lab.group.in_sync(lab.now_us) == ["a"]
    lab.report("a", 20)
    lab.wait(1000)
    assert lab.group.in_sync(lab.now_us) == ["a"], "nothing happens: it is level"
    lab.append(21)
    assert lab.group.in_sync(lab.now_us) == [], "it has not been level for long"
    lab.report("a", 21)
    lab.append(22)
    lab.wait(99)
    assert lab.group.in_sync(lab.now_us) == ["a"]
    lab.wait(2)
    assert lab.group.in_sync(lab.now_us) == []
    lab.report("a", 22)
    lab.group.disconnected("a", lab.now_us)
    assert lab.group.in_sync(lab.now_us) == []


def test_under_load_a_replica_that_keeps_up_is_in_sync() -> None:
    """No replica ever has the newest record. A replica is in sync if it has what the log had at the report before (as
    in Kafka)."""
    lab = Lab(in_sync_ms=100)
    lab.follow("a", 20)
    for end in range(21, 100):
        lab.append(end)
        lab.report("a", end - 1)
        lab.wait(30)
        assert lab.group.in_sync(lab.now_us) == ["a"]


def test_min_in_sync_refuses_before_anything_is_written() -> None:
    lab = Lab(min_in_sync=2)
    lab.follow("a", 20)
    with pytest.raises(NotEnoughReplicasError, match=r"expected 2 .*, found a"):
        lab.group.admit(lab.now_us)
    lab.follow("b", 20)
    lab.group.admit(lab.now_us)


# ---- going on alone --------------------------------------------------------------------------------------------


def modes(effects: list[Any]) -> list[bool]:
    return [effect.asynchronous for effect in only(ModeChanged, effects)]


def test_a_master_falls_back_to_asynchronous_and_returns() -> None:
    lab = Lab(fallback_after_ms=100)
    lab.follow("a")
    lab.append(30, synced=25)
    lab.report("a", 20)
    lab.wait(99)
    assert lab.group.tick(lab.now_us) == []
    lab.wait(2)
    effects = lab.group.tick(lab.now_us)
    assert modes(effects) == [True] and commits(effects) == [25], "its own synced end"
    assert lab.group.replicated == mark(20)
    assert commits(lab.append(40)) == [40]
    assert modes(lab.report("a", 39)) == [] and lab.group.asynchronous
    assert modes(lab.report("a", 40)) == [False]
    assert commits(lab.append(50)) == [] and lab.committed == 40
    assert commits(lab.report("a", 45)) == [45]
    stats = lab.group.stats(lab.now_us)
    assert (stats.fallbacks, stats.alone_commits, stats.asynchronous) == (1, 2, False)


def test_a_replica_returns_to_the_commit_quorum_under_load() -> None:
    lab = Lab(fallback_after_ms=100)
    lab.append(30)
    lab.wait(101)
    assert modes(lab.group.tick(lab.now_us)) == [True]
    lab.follow("a", 20)
    seen = []
    for end in range(31, 60, 4):
        lab.append(end)
        lab.wait(10)
        seen += modes(lab.report("a", end - 1))
    assert seen == [False], "it has what there was when it was looked at before"


def test_the_level_before_it_went_alone_counts_if_nothing_came_since() -> None:
    """A replica that has all records sends no more reports: the return to replicated commits must not wait for one."""
    lab = Lab(k=2, fallback_after_ms=100)
    for name in "ab":
        lab.follow(name)
    lab.report("a", 20)
    lab.wait(101)
    assert modes(lab.group.tick(lab.now_us)) == [True]
    assert modes(lab.report("b", 20)) == [False]


def test_waits_as_long_as_something_moves() -> None:
    lab = Lab(fallback_after_ms=100)
    lab.follow("a", 19)
    for end in range(21, 60):
        lab.append(end)
        lab.report("a", end - 1)
        lab.wait(60)
        assert lab.group.tick(lab.now_us) == []


def test_a_master_without_a_limit_never_falls_back() -> None:
    lab = Lab()
    lab.append(30)
    lab.wait(1e9)
    assert lab.group.tick(lab.now_us) == [] and not lab.group.asynchronous


# ---- a higher term ---------------------------------------------------------------------------------------------


def check_is_fenced(lab: Lab, effects: list[Any]) -> None:
    assert effects[0] == Fenced(T3)
    assert {(h.connection, h.refusal.code) for h in only(Disconnect, effects)} >= {("b", RefusalCode.HIGHER_TERM)}
    assert lab.report("b", 20) == [] == lab.append(30) == lab.group.tick(lab.now_us)
    assert lab.committed == 5, "nothing is acknowledged any more"
    with pytest.raises(HigherTermError, match="3 of c"):
        lab.group.admit(lab.now_us)
    with pytest.raises(HigherTermError):
        lab.group.change_members("m", 0)
    assert lab.refusal(lab.join("c")) == RefusalCode.HIGHER_TERM
    assert lab.group.stats(lab.now_us).fenced == T3


def test_a_member_that_promised_more_fences_the_master() -> None:
    lab = Lab()
    lab.follow("b")
    effects = lab.join("a", promised=T3)
    assert {h.connection for h in only(Disconnect, effects)} == {"a", "b"}
    check_is_fenced(lab, effects)


def test_the_own_promise_of_a_master_fences_it() -> None:
    lab = Lab()
    lab.follow("b")
    assert lab.group.fence(T2, lab.now_us) == [] == lab.group.fence(T1, lab.now_us)
    check_is_fenced(lab, lab.group.fence(T3, lab.now_us))
    assert lab.group.fence(Term(4, "d"), lab.now_us) == []


def test_master_without_replicas_probes_the_group_and_ends_at_a_higher_term() -> None:
    lab = Lab(members="mabc")
    lab.follow("b")
    assert lab.group.absent() == ["a", "c"]
    assert lab.group.probe == Prepare(T2, UUID, lab.group.members.stamp)
    assert lab.group.vote_rejected(VoteRejected(RefusalCode.NOT_A_MEMBER, T3, "", None), lab.now_us) == []
    assert lab.group.vote_rejected(VoteRejected(RefusalCode.HIGHER_TERM, T1, "", None), lab.now_us) == []
    check_is_fenced(lab, lab.group.vote_rejected(VoteRejected(RefusalCode.HIGHER_TERM, T3, "", None), lab.now_us))


def test_requests_of_non_members_do_not_depose_the_master() -> None:
    lab = Lab(members="mab")
    assert lab.refusal(lab.join("z", promised=T3)) == RefusalCode.NOT_A_MEMBER
    absurd = Term((1 << 64) - 1, "a")
    assert lab.refusal(lab.join("a", promised=absurd)) == RefusalCode.ABSURD and lab.group.fenced is None
    assert lab.group.vote_rejected(VoteRejected(RefusalCode.HIGHER_TERM, absurd, "", None), lab.now_us) == []
    assert accepted(lab.join("z", observer=True, promised=T3)) == 10, "what an observer promised binds nobody"
    newer = HISTORY.begin(T3, mark(12))
    assert lab.refusal(lab.join("y", 15, observer=True, history=newer)) == RefusalCode.HIGHER_TERM
    lab.group.admit(lab.now_us)


# ---- members ---------------------------------------------------------------------------------------------------


def stored(effects: list[Any]) -> list[Members]:
    return [effect.members for effect in only(StoreMembers, effects)]


def test_both_quorums_acknowledge_while_members_change() -> None:
    lab = Lab(members="mab", k=1)
    for name in "ab":
        lab.follow(name, 20)
    (begun,) = stored(lab.group.change_members("mcd", 2))
    assert begun.former == Quorum(("a", "b", "m"), 1)
    for name in "cd":
        lab.follow(name)
    lab.append(30)
    assert commits(lab.report("a", 30)) == [] and commits(lab.report("c", 28)) == []
    assert commits(lab.report("d", 25)) == [25], "1 of a, b, and both of c, d"
    with pytest.raises(ChangeUnderWayError):
        lab.group.change_members("ma", 1)


def test_a_change_is_complete_when_elections_hear_of_it_and_the_new_ones_have_all() -> None:
    lab = Lab(members="mab", k=1)
    for name in "ab":
        lab.follow(name, 20)
    assert lab.committed == 20
    version = stored(lab.group.change_members("mbc", 2))[0].stamp.version
    lab.follow("c")
    assert lab.stored("a", version - 1) == [], "of an older one"
    assert stored(lab.stored("c", version)) == [], "c is none of the former"
    assert stored(lab.stored("a", version)) == [], "c lacks what was acknowledged"
    assert stored(lab.report("c", 19)) == []
    effects = lab.report("c", 20)
    (done,) = stored(effects)
    assert done == Members(done.stamp, Quorum(("b", "c", "m"), 2)) and done.stamp.version == version + 1
    notified = {effect.connection for effect in only(SendMessage, effects) if effect.message == MembershipUpdate(done)}
    assert notified == {"a", "b", "c"}
    assert [(h.connection, h.refusal.code) for h in only(Disconnect, effects)] == [("a", RefusalCode.NOT_A_MEMBER)]
    assert lab.refusal(lab.join("a", 20)) == RefusalCode.NOT_A_MEMBER


def test_late_reports_of_former_members_complete_no_change() -> None:
    """Reports of a former change of members do not complete the present one, as elections do not know of it yet."""
    lab = Lab(members="mab", k=1)
    for name in "ab":
        lab.follow(name, 20)
    for k in (2, 1, 2):
        version = stored(lab.group.change_members("mab", k))[0].stamp.version
        for name in "ab":
            assert stored(lab.stored(name, version - 1)) == []
        assert lab.group.members.former is not None
        effects = [*lab.stored("a", version), *lab.stored("b", version)]
        (done,) = stored(effects)
        assert done.former is None and done.quorum == Quorum(("a", "b", "m"), k)


def test_a_change_waits_for_what_an_earlier_process_acknowledged() -> None:
    """Found by simulation: a master with k = 0 acknowledged records, was restarted, and forgot its commit point."""
    lab = Lab(members="ma", k=0)
    lab.group.change_members("ma", 1)
    lab.follow("a", 15)
    effects = lab.stored("a", lab.group.members.stamp.version)
    assert lab.group.committed == mark(15) and stored(effects) == [], "20 may have been acknowledged"
    assert stored(lab.report("a", 20))[-1].former is None


def test_a_master_that_a_change_brings_in_does_not_count_among_the_former() -> None:
    """Found by simulation: the members a, b were being changed to a, b, c. c was elected, and b had a record of it;
    then a, which did not know of the change, elected itself as one of two."""
    joint = Members.first("ab", 1).change(Quorum.of("abm", 1)).led_by(T2)
    source = StreamedLog(UUID, SEGMENT_BYTES, T2, HISTORY, ORIGIN, mark(20))
    lab = Lab()
    lab.group = MasterMachine("m", source, mark(20), joint, GroupConfig(), committed=mark(5))
    lab.follow("a")
    assert commits(lab.report("a", 20)) == []
    lab.follow("b")
    assert commits(lab.report("b", 15)) == [15]


def test_members_are_changed_by_force_after_a_loss() -> None:
    """One of two members is lost for good."""
    lab = Lab(members="ma", k=1)
    assert stored(lab.group.change_members("m", 0))[-1].former is not None and lab.committed == 5
    lab = Lab(members="ma", k=1)
    effects = lab.group.change_members("m", 0, force=True)
    assert stored(effects)[-1].quorum == Quorum(("m",), 0)
    assert commits(lab.append(21)) == [21]


def test_the_master_stays_a_member() -> None:
    with pytest.raises(InvalidArgumentError, match="promote another"):
        Lab().group.change_members("abc", 1)


# ---- the rest --------------------------------------------------------------------------------------------------


def test_the_retention_floor_holds_what_replicas_need_within_bounds() -> None:
    lab = Lab(retention_hold_bytes=1200, retention_hold_ms=1000)
    held = lab.group.floor(lab.now_us)
    assert held is not None and held <= 800, "members that were not heard of yet may come, and need anything"
    lab.wait(1001)
    assert lab.group.floor(lab.now_us) is None
    lab.follow("a", 15)
    lab.follow("z", 12, observer=True)
    assert lab.group.floor(lab.now_us) == 1200
    lab.group.disconnected("z", lab.now_us)
    assert lab.group.floor(lab.now_us) == 1500
    lab.group.disconnected("a", lab.now_us)
    lab.wait(999)
    assert lab.group.floor(lab.now_us) == 1500
    lab.append(40)
    assert lab.group.floor(lab.now_us) == 2800, "never more than is allowed"
    lab.wait(2)
    assert lab.group.floor(lab.now_us) is None


def test_stats_of_a_master_list_its_replicas() -> None:
    lab = Lab()
    lab.join("b", 12)
    lab.follow("a", 10)
    lab.wait(1000)
    lab.report("a", 15, synced=12)
    lab.wait(500)
    a = next(replica for replica in lab.group.stats(lab.now_us).replicas if replica.name == "a")
    assert (a.state, a.received, a.synced, a.lag_bytes, a.lag_us, a.rate) == (
        "streaming", mark(15), mark(12), 500, 1_500_000, 500,
    )  # fmt: skip
    lab.wait(9_500)
    assert next(replica.rate for replica in lab.group.stats(lab.now_us).replicas if replica.name == "a") == 0
    assert {replica.name: replica.state for replica in lab.group.stats(lab.now_us).replicas}["b"] == "joining"
    assert lab.group.commit == Commit(mark(12), 0, False)


def test_a_master_knows_where_its_term_began() -> None:
    source = StreamedLog(UUID, SEGMENT_BYTES, T3, HISTORY, ORIGIN, mark(20))
    with pytest.raises(InvalidArgumentError, match="3 of c"):
        MasterMachine("m", source, mark(20), Members.first("mab", 1), GroupConfig(), committed=ORIGIN)


def test_impossible_settings_of_a_group_are_refused() -> None:
    for wrong in ({"ack": "applied"}, {"min_in_sync": -1}, {"fallback_after_ms": -1}, {"in_sync_ms": 1.5}):
        with pytest.raises(ConfigError):
            GroupConfig(**wrong)  # type: ignore[arg-type]


# ---- retention -------------------------------------------------------------------------------------------------


def test_retention_keeps_records_that_a_replica_has_not_synced() -> None:
    """A replica may lose these records in a power cut, and need them again."""
    lab = Lab("ma")
    lab.follow("a", 10)
    lab.append(60)
    lab.report("a", 60, synced=25)
    assert lab.group.floor(lab.now_us) == mark(25).position
    lab.report("a", 60, synced=60)
    assert lab.group.floor(lab.now_us) == mark(60).position


# ---- handing over ----------------------------------------------------------------------------------------------


def admits(lab: Lab) -> bool:
    try:
        lab.group.admit(lab.now_us)
    except NotMasterError:
        return False
    return True


def test_a_master_that_hands_over_admits_nothing() -> None:
    lab = Lab()
    lab.follow("a")
    lab.group.hold("a", lab.now_us)
    assert lab.group.successor(lab.now_us) == "a" and not admits(lab)
    lab.group.hold("b", lab.now_us)
    lab.group.release("b")
    assert lab.group.successor(lab.now_us) == "a", "another candidate changes nothing"
    lab.group.release("a")
    assert admits(lab)
    lab.group.hold("a", lab.now_us)
    assert not admits(lab), "it tries again"


def test_a_candidate_that_goes_away_holds_appends_back_for_a_moment_only() -> None:
    lab = Lab()
    lab.follow("a")
    lab.group.hold("a", lab.now_us)
    lab.wait(2001)
    assert admits(lab)
    lab.group.hold("a", lab.now_us)
    assert admits(lab), "it may not keep the group from its work over and over"
    lab.wait(10_000)
    for _ in range(60):
        lab.group.hold("a", lab.now_us)
        assert not admits(lab) or lab.wait(0) is None
        lab.wait(100)
    assert admits(lab), "nor for long"


def test_a_replica_that_cannot_catch_up_is_not_waited_for() -> None:
    lab = Lab(in_sync_bytes=500)
    lab.follow("a", 10)
    lab.follow("b", 16)
    lab.follow("o", 20, observer=True)
    for name in ("a", "o", "c", "x"):
        lab.group.hold(name, lab.now_us)
        assert admits(lab), name
    lab.group.hold("b", lab.now_us)
    assert not admits(lab)


def test_a_master_knows_for_how_long_it_could_commit_nothing() -> None:
    lab = Lab()
    lab.follow("a", 20)
    lab.append(30)
    lab.group.tick(lab.now_us)
    lab.wait(700)
    lab.group.tick(lab.now_us)
    assert lab.group.stalled_us(lab.now_us) == 700 * MS
    lab.report("a", 25)
    lab.group.tick(lab.now_us)
    lab.wait(100)
    assert lab.group.stalled_us(lab.now_us) == 100 * MS, "something was committed"
    lab.report("a", 30)
    lab.wait(100)
    assert lab.group.stalled_us(lab.now_us) == 0, "nothing waits"
    lab.wait(10_000)
    lab.group.tick(lab.now_us)
    lab.append(31)
    assert lab.group.stalled_us(lab.now_us) == 0, "it waits since now"
