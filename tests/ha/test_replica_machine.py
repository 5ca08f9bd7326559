"""The state machine of a replica: joining, the order of durable steps, refusals, reports and the commit point."""

from __future__ import annotations

from typing import Any

import pytest

from pyreplog.errors import HigherTermError, JoinRefusedError
from pyreplog.ha.protocol.effects import (
    CreateLog,
    DisconnectFromMaster,
    Effect,
    Joined,
    SendToMaster,
    ShowCommitted,
    StoreMembers,
    StoreTerms,
    TruncateLog,
)
from pyreplog.ha.protocol.members import Members
from pyreplog.ha.protocol.messages import (
    NO_UUID,
    PERMANENT,
    Accept,
    Commit,
    Join,
    MembershipUpdate,
    MembersStored,
    Message,
    ProgressReport,
    RefusalCode,
    Refuse,
)
from pyreplog.ha.protocol.replica_machine import ReplicaMachine
from pyreplog.stream.log_position import ORIGIN, LogPosition
from pyreplog.stream.terms import History, Term, Terms, TermStart

from .groups import HISTORY, SEGMENT_BYTES, T1, T2, T3, T4, UUID, mark, only

MASTERS = HISTORY.begin(T3, mark(20))
"""The history of the master of term 3; the master of term 2 wrote from entry 10 on."""


def replica(
    *, promised: Term = T2, history: History = HISTORY, observer: bool = False, committed: int = 5
) -> ReplicaMachine:
    terms = Terms(promised, history)
    return ReplicaMachine("a", UUID, SEGMENT_BYTES, terms, committed=mark(committed), observer=observer)


def connected(following: ReplicaMachine, received: int = 25, synced: int = 22, start: int = 0) -> Join:
    (effect,) = following.connected(mark(start), mark(received), mark(synced))
    assert isinstance(effect, SendToMaster) and isinstance(effect.message, Join)
    return effect.message


def accept(resume: int, *, term: Term = T3, history: History = MASTERS, start: int = 0, **fields: Any) -> Accept:
    accept = Accept(UUID, SEGMENT_BYTES, term, history, mark(start), mark(resume))
    return accept._replace(**fields)


def streaming(resume: int = 20, **options: Any) -> ReplicaMachine:
    following = replica(**options)
    connected(following)
    following.message_received(accept(resume))
    following.joined(mark(resume), mark(resume))
    return following


def sent_messages(effects: list[Effect]) -> list[Message]:
    return [effect.message for effect in only(SendToMaster, effects)]


def check_left(
    following: ReplicaMachine, effects: list[Effect], code: RefusalCode | None, permanent: bool
) -> Exception:
    """Check that it sends the reason, disconnects, and handles nothing more."""
    if code is not None:
        (refusal,) = sent_messages(effects)
        assert isinstance(refusal, Refuse) and refusal.code == code
    leave = effects[-1]
    assert isinstance(leave, DisconnectFromMaster) and leave.permanent is permanent
    assert not following.is_streaming and following.progressed(mark(30), mark(30)) is None
    return leave.error


# ---- joining ---------------------------------------------------------------------------------------------------


def test_join_request_names_received_and_synced_ends_term_and_history() -> None:
    join = connected(replica(promised=T3, history=MASTERS), received=15, synced=12)
    assert join == Join(UUID, SEGMENT_BYTES, "a", False, mark(15), mark(12), T3, HISTORY)


def test_a_replica_without_a_log_takes_that_of_its_master() -> None:
    following = ReplicaMachine("a", NO_UUID, 0, Terms(), committed=ORIGIN)
    join = connected(following, received=7)
    assert join == Join(NO_UUID, 0, "a", False, ORIGIN, ORIGIN, Term(0, ""), History())
    effects = following.message_received(accept(8, start=8))
    assert effects == [CreateLog(UUID, SEGMENT_BYTES, mark(8)), StoreTerms(T3, MASTERS), Joined()]
    assert sent_messages(following.joined(mark(8), mark(8))) == [ProgressReport(mark(8), mark(8))]
    assert (following.uuid, following.segment_bytes) == (UUID, SEGMENT_BYTES)


def test_first_the_promise_then_the_cut_then_the_history_then_the_first_report() -> None:
    """If the log were cut before the promise, a deposed master could start again in its old term, with other records
    (found by simulation). If the history came before the cut, a crash would leave records of term 2 that count as those
    of term 3."""
    following = replica()
    connected(following)
    assert following.message_received(accept(20)) == [
        StoreTerms(T3, HISTORY),
        TruncateLog(mark(20)),
        StoreTerms(T3, MASTERS),
        Joined(),
    ]
    assert not following.is_streaming
    assert following.progressed(mark(20), mark(20)) is None, "nothing is reported before the terms are stored"
    assert sent_messages(following.joined(mark(20), mark(20))) == [ProgressReport(mark(20), mark(20))]
    assert following.is_streaming and following.terms == Terms(T3, MASTERS)


def test_a_replica_on_the_masters_history_joins_without_a_cut() -> None:
    following = replica()
    connected(following, received=20, synced=20)
    assert following.message_received(accept(20)) == [StoreTerms(T3, MASTERS), Joined()]


def test_accept_that_was_not_stored_before_a_disconnect_has_no_effect() -> None:
    following = replica()
    connected(following)
    following.message_received(accept(20))
    following.disconnected()
    assert following.joined(mark(20), mark(20)) == []
    assert connected(following, received=20).promised == T2, "its file says so"


@pytest.mark.parametrize(
    ("resume", "fields"),
    [
        pytest.param(19, {}, id="less than they have in common"),
        pytest.param(21, {}, id="more than they have in common"),
        pytest.param(20, {"uuid": b"x" * 16}, id="another log"),
        pytest.param(20, {"segment_bytes": 1 << 20}, id="other segments"),
        pytest.param(20, {"history": HISTORY}, id="a master without its own term"),
        pytest.param(20, {"history": History((TermStart(T3, mark(10)),))}, id="nothing in common"),
    ],
)
def test_a_replica_leaves_a_master_with_absurd_answers(resume: int, fields: dict[str, Any]) -> None:
    following = replica()
    connected(following)
    check_left(following, following.message_received(accept(resume, **fields)), RefusalCode.ABSURD, False)
    assert following.terms.promised == T2


def test_a_replica_leaves_a_master_that_sends_messages_out_of_turn() -> None:
    following = replica()
    connected(following)
    members = MembershipUpdate(Members.first("am", 1))
    for message in (Commit(mark(9), 0, False), members, MembersStored(1)):
        connected(following)
        check_left(following, following.message_received(message), RefusalCode.ABSURD, False)
    following = streaming()
    check_left(following, following.message_received(accept(20)), RefusalCode.ABSURD, False)


def test_a_cut_below_its_own_log() -> None:
    following = replica()
    connected(following, start=21)
    check_left(following, following.message_received(accept(20)), RefusalCode.BEHIND, True)


# ---- terms -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("resume", "start", "is_taken"), [(12, 12, True), (12, 11, False), (13, 13, False), (13, 12, False)]
)
def test_a_log_without_a_term_goes_on_only_where_the_masters_begins(resume: int, start: int, is_taken: bool) -> None:
    """Without a history the common part of the two logs is unknown: the replica must be empty where the master's log
    begins."""
    following = replica(history=History())
    connected(following, received=12, synced=12, start=12)
    effects = following.message_received(accept(resume, start=start))
    if is_taken:
        assert only(Joined, effects) and following.accepted is not None
    else:
        check_left(following, effects, RefusalCode.ABSURD, False)


def test_a_master_of_a_lower_term_is_refused() -> None:
    following = replica(promised=Term(4, "d"))
    assert connected(following).promised == Term(4, "d")
    error = check_left(following, following.message_received(accept(20)), RefusalCode.HIGHER_TERM, False)
    assert isinstance(error, HigherTermError) and error.term == Term(4, "d")


def test_a_promise_ends_the_stream_of_a_lower_term() -> None:
    following = streaming()
    assert following.promised(Terms(T3, MASTERS)) == [] and following.is_streaming
    check_left(following, following.promised(Terms(Term(4, "d"), MASTERS)), RefusalCode.HIGHER_TERM, False)
    connected(following, received=20)
    check_left(following, following.message_received(accept(20)), RefusalCode.HIGHER_TERM, False)


def test_a_promise_ends_a_join() -> None:
    following = replica()
    connected(following)
    following.message_received(accept(20))
    check_left(following, following.promised(Terms(Term(4, "d"), HISTORY)), RefusalCode.HIGHER_TERM, False)
    assert following.joined(mark(20), mark(20)) == []


def test_observer_follows_the_master_of_its_members() -> None:
    following = replica(promised=Term(9, "a"), observer=True)
    assert connected(following).observer
    effects = following.message_received(accept(20))
    assert only(StoreTerms, effects)[-1] == StoreTerms(Term(9, "a"), MASTERS), "its promise stands for when it counts"
    following.joined(mark(20), mark(20))
    assert following.promised(Terms(Term(10, "x"), MASTERS)) == []
    connected(following, received=20)
    older = accept(20, term=T2, history=HISTORY)
    check_left(following, following.message_received(older), RefusalCode.HIGHER_TERM, False)


@pytest.mark.parametrize("code", list(RefusalCode))
def test_a_refused_replica_leaves_with_the_code(code: RefusalCode) -> None:
    following = replica()
    connected(following)
    error = check_left(following, following.message_received(Refuse(code, "do this")), None, code in PERMANENT)
    assert isinstance(error, JoinRefusedError) and error.code == code and str(error) == "do this"


def test_temporary_refusals_are_retried() -> None:
    again = {RefusalCode.NOT_A_MEMBER, RefusalCode.HIGHER_TERM, RefusalCode.REPLACED, RefusalCode.NOT_MASTER}
    again |= {RefusalCode.ABSURD, RefusalCode.VERSION, RefusalCode.MASTER_LIVES}
    assert set(RefusalCode) - PERMANENT == again


# ---- streaming -------------------------------------------------------------------------------------------------


def test_a_replica_reports_progress_once() -> None:
    following = streaming()
    assert following.progressed(mark(25), mark(20)) == ProgressReport(mark(25), mark(20))
    assert following.progressed(mark(25), mark(20)) is None
    assert following.progressed(mark(25), mark(25)) == ProgressReport(mark(25), mark(25))


def test_a_replica_shows_commit_points_as_far_as_its_log() -> None:
    following = streaming()
    assert (
        following.message_received(Commit(mark(18), 300, False)) == [ShowCommitted(mark(18), False)]
        and following.log_start == 300
    )
    assert following.message_received(Commit(mark(16), 300, False)) == [], "it never goes back"
    assert following.committed == mark(18)
    assert following.message_received(Commit(mark(40), 300, False)) == [ShowCommitted(mark(40), False)], (
        "as far as its log reaches"
    )


def test_a_cut_takes_the_commit_point_along() -> None:
    """This happens after a promotion by force, or when a master went on alone."""
    assert streaming(committed=24).committed == mark(20)
    assert streaming(committed=19).committed == mark(19)


def test_members_are_stored_before_they_are_answered() -> None:
    members = Members.first("am", 1)
    assert streaming().message_received(MembershipUpdate(members)) == [
        StoreMembers(members),
        SendToMaster(MembersStored(1)),
    ]


def test_a_replica_joins_anew_after_a_break() -> None:
    following = streaming()
    following.disconnected()
    assert following.progressed(mark(30), mark(30)) is None
    join = connected(following, received=23)
    assert (join.promised, join.history) == (T3, MASTERS)
    assert following.message_received(accept(23)) == [StoreTerms(T3, MASTERS), Joined()]


@pytest.mark.parametrize(
    "late",
    [
        Commit(mark(20), 0, False),
        MembershipUpdate(Members.first("am", 1)),
        accept(20),
        Refuse(RefusalCode.LOST, "not so"),
        MembersStored(1),
    ],
)
def test_late_messages_of_a_closed_connection_are_ignored(late: Message) -> None:
    """A vote ends the connection while messages of the master are still being read. These were taken for invalid ones,
    and the replica left its master for good."""
    following = streaming()
    (refusal,) = sent_messages(following.promised(Terms(T4, MASTERS)))
    assert isinstance(refusal, Refuse)
    assert following.message_received(late) == []
    following = replica(promised=T4)
    connected(following, received=20)
    check_left(following, following.message_received(accept(20)), RefusalCode.HIGHER_TERM, False)
    assert following.message_received(late) == [], "the members come right behind the ACCEPT of a term that is over"
    assert isinstance(connected(following, received=20), Join)


def test_a_segment_that_ends_between_two_looks_at_the_log() -> None:
    """The synced mark was read after the received one, when the end of the last record had become the beginning of the
    next segment."""
    following = streaming()
    assert following.progressed(mark(25), LogPosition(2600, 25)) == ProgressReport(mark(25), mark(25))


def test_an_accept_that_comes_twice_from_an_older_master() -> None:
    following = streaming()
    connected(following, received=22)
    check_left(
        following,
        following.message_received(accept(10, term=T1, history=HISTORY.up_to(mark(5)))),
        RefusalCode.HIGHER_TERM,
        False,
    )


def test_marks_are_compared_by_position_and_entry() -> None:
    following = replica()
    connected(following, received=20)
    wrong = accept(20)._replace(resume=LogPosition(2000, 19))
    check_left(following, following.message_received(wrong), RefusalCode.ABSURD, False)
