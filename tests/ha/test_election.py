"""Elections: who wins, which members are asked, what is promised, and in which order."""

from __future__ import annotations

from typing import Any

import pytest

from pyreplog.errors import HigherTermError, PromotionRefusedError
from pyreplog.ha.protocol.effects import StorePromise
from pyreplog.ha.protocol.election import Effect, Election, ElectionLost, ElectionWon, SendPrepare, refuse_candidate
from pyreplog.ha.protocol.members import Members, MembersVersion, Quorum
from pyreplog.ha.protocol.messages import NO_UUID, Prepare, PreVote, Promise, RefusalCode, VoteRejected
from pyreplog.stream.log_position import LogPosition
from pyreplog.stream.terms import NO_TERM, TERM_JUMP_MAX, History, Term, Terms, TermStart

from .groups import HISTORY, T2, T3, UUID, mark, only

MINE = Term(3, "a")
FIVE = Members.first("abcde", 2)
"""Five members: an election needs three promises."""


def election(members: Members | None = FIVE, *, end: int = 20, **options: Any) -> tuple[Election, list[Effect]]:
    """Begin an election of candidate a, whose log ends at entry `end`."""
    options = {"ack": "synced", "above": NO_TERM, "force": False, "history": HISTORY, **options}
    election = Election("a", UUID, Terms(T2, options.pop("history")), members, **options)
    return election, election.start(mark(end))


def promise(
    received: int = 20, synced: int | None = None, *, trial: bool = False, term: Term = MINE, **fields: Any
) -> Promise:
    history = fields.get("history", HISTORY).up_to(mark(received))
    return Promise(
        term, history, mark(received), mark(received if synced is None else synced), fields.get("members", FIVE), trial
    )


def asked(effects: list[Effect], *, trial: bool) -> str:
    asks = only(SendPrepare, effects)
    assert all(ask.prepare[:2] == (MINE, UUID) and bool(ask.prepare.trial) is trial for ask in asks)
    return "".join(ask.member for ask in asks)


def binding(members: Members | None = FIVE, *, end: int = 20, **options: Any) -> Election:
    """Return an election after a successful trial: the own promise is stored, and the others are asked."""
    candidate, _ = election(members, end=end, **options)
    effects: list[Effect] = []
    for member in "bc":
        effects = candidate.promised(member, promise(1, trial=True))
    assert effects[-1] == StorePromise(Term(3, "a"))
    candidate.stored(mark(end), HISTORY, None)
    return candidate


def lost(effects: list[Effect]) -> Exception:
    (end,) = only(ElectionLost, effects)
    return end.error


# ---- winning ---------------------------------------------------------------------------------------------------


def test_a_trial_then_the_own_promise_then_those_of_the_others() -> None:
    candidate, effects = election()
    assert asked(effects, trial=True) == "bcde" and len(effects) == 4
    assert candidate.promised("b", promise(trial=True)) == []
    assert candidate.promised("c", promise(trial=True)) == [StorePromise(Term(3, "a"))]
    assert candidate.promised("d", promise(trial=True)) == [], "what was only tried does not count"
    effects = candidate.stored(mark(20), HISTORY, None)
    assert asked(effects, trial=False) == "bcde"
    assert candidate.promised("b", promise()) == []
    won = candidate.promised("c", promise())
    assert won == [ElectionWon(Term(3, "a"), mark(20), FIVE.led_by(Term(3, "a")), "")]
    assert candidate.is_over and candidate.promised("d", promise()) == [] == candidate.deadline()


def test_election_without_a_quorum_fails_at_its_deadline() -> None:
    candidate = binding()
    candidate.promised("b", promise())
    candidate.promised("b", promise())
    candidate.promised("x", promise())
    error = lost(candidate.deadline())
    assert isinstance(error, PromotionRefusedError) and "1 more promises" in str(error)


def test_a_promise_of_another_term_does_not_count() -> None:
    candidate = binding()
    assert candidate.promised("b", promise(term=Term(2, "a"))) == candidate.promised("c", promise(term=T3)) == []
    assert candidate.promised("b", promise()) == []
    assert only(ElectionWon, candidate.promised("c", promise()))


def test_a_group_of_one_elects_itself() -> None:
    alone = Members.first("a", 0)
    candidate, effects = election(alone)
    assert effects == [StorePromise(Term(3, "a"))]
    assert candidate.stored(mark(21), HISTORY, None) == [
        ElectionWon(Term(3, "a"), mark(21), alone.led_by(Term(3, "a")), "")
    ]


def test_term_of_an_election_exceeds_all_known_terms() -> None:
    assert election(above=Term(8, "z"))[0].term == Term(9, "a")
    assert election(history=HISTORY.begin(Term(5, "e"), mark(15)))[0].term == Term(6, "a")


# ---- the furthest one ------------------------------------------------------------------------------------------

OLDER = History((TermStart(Term(1, "a"), LogPosition(0, 0)),))


@pytest.mark.parametrize(
    ("other", "wins"),
    [
        pytest.param(promise(20), True, id="as far"),
        pytest.param(promise(21), False, id="further"),
        pytest.param(promise(25, synced=20), True, id="further, not synced"),
        pytest.param(promise(90, history=OLDER), True, id="longer, of an older term"),
        pytest.param(promise(12, history=HISTORY.begin(T3, mark(11))), False, id="shorter, of a newer term"),
        pytest.param(
            promise(12, synced=11, history=HISTORY.begin(T3, mark(11))), True, id="of a newer term, not synced"
        ),
    ],
)
def test_a_member_with_more_records_is_not_passed_over(other: Promise, wins: bool) -> None:
    candidate = binding()
    candidate.promised("b", promise(1))
    effects = candidate.promised("c", other)
    assert bool(only(ElectionWon, effects)) is wins
    if not wins:
        assert isinstance(lost(effects), PromotionRefusedError) and "promote c" in str(lost(effects))


def test_records_of_a_node_that_knows_of_no_members_do_not_matter() -> None:
    """Such a node is a new member that no master has met: none of its reports committed a record, and it cannot be
    promoted. Its promise counts; its records may be on no other node."""
    for trial, sample in ((True, election()[0]), (False, binding())):
        stranger = promise(25, trial=trial, members=None)
        assert sample.promised("c", stranger) == []
        (end,) = sample.promised("b", promise(1, trial=trial))
        assert end == StorePromise(MINE) if trial else isinstance(end, ElectionWon) and end.possible_loss == ""


def test_a_node_without_members_and_with_no_more_records_counts() -> None:
    """Members that were never started may be the only ones that can promise."""
    candidate = binding()
    candidate.promised("b", promise(0, history=History(), members=None))
    assert only(ElectionWon, candidate.promised("c", promise(20, members=None)))


def test_members_with_unsynced_records_count_when_ack_is_received() -> None:
    candidate = binding(ack="received")
    candidate.promised("b", promise(1))
    assert "promote c" in str(lost(candidate.promised("c", promise(21, synced=5))))


def test_a_term_of_which_it_holds_nothing_does_not_count() -> None:
    """The candidate knows where term 2 began, but has no record of it: a node that has more records of term 1 is
    further."""
    candidate = binding(end=9)
    candidate.promised("b", promise(1))
    assert "promote c" in str(lost(candidate.promised("c", promise(10))))


def test_refused_trial_election_does_not_depose_the_master() -> None:
    """As with PreVote in Raft, a candidate that lags must not end a working master."""
    candidate, effects = election()
    candidate.promised("b", promise(trial=True))
    effects = candidate.promised("c", promise(30, trial=True))
    assert "promote c" in str(lost(effects)) and not only(StorePromise, effects)


def test_the_end_of_the_log_is_that_after_the_own_promise() -> None:
    """Records that arrive during the trial count; after its own promise the candidate takes no more."""
    candidate, _ = election(end=10)
    candidate.promised("b", promise(1, trial=True))
    candidate.promised("c", promise(1, trial=True))
    candidate.stored(mark(14), HISTORY, None)
    candidate.promised("b", promise(12))
    (won,) = only(ElectionWon, candidate.promised("c", promise(14)))
    assert won.start == mark(14)


# ---- not winning -----------------------------------------------------------------------------------------------


def test_a_higher_term_ends_an_election() -> None:
    candidate, _ = election()
    error = lost(candidate.vote_rejected("b", VoteRejected(RefusalCode.HIGHER_TERM, T3, "no", None)))
    assert isinstance(error, HigherTermError) and error.term == T3
    candidate = binding()
    assert isinstance(lost(candidate.note_higher_term(T3)), HigherTermError)
    assert candidate.note_higher_term(Term(4, "d")) == [], "it is over"
    assert binding().note_higher_term(Term(3, "a")) == []


def test_deadline_error_names_refusals() -> None:
    candidate, _ = election()
    assert candidate.vote_rejected("b", VoteRejected(RefusalCode.FOREIGN, T2, "another log", None)) == []
    assert "b: another log" in str(lost(candidate.deadline()))


def test_a_lower_term_declined_is_no_higher_one() -> None:
    candidate, _ = election()
    assert candidate.vote_rejected("b", VoteRejected(RefusalCode.HIGHER_TERM, T2, "late", None)) == []


@pytest.mark.parametrize(
    ("members", "history", "why"),
    [(None, HISTORY, "no members"), (FIVE, History(), "holds nothing")],
)
def test_nodes_that_cannot_be_elected(members: Members | None, history: History, why: str) -> None:
    candidate, effects = election(members, history=history)
    assert why in str(lost(effects)) and candidate.is_over


# ---- by force --------------------------------------------------------------------------------------------------


def test_a_forced_election_reports_members_that_did_not_answer() -> None:
    candidate, effects = election(force=True)
    assert effects == [StorePromise(Term(3, "a"))]
    assert isinstance(lost(election(force=True)[0].deadline()), PromotionRefusedError), "the log must be synced first"
    candidate.stored(mark(20), HISTORY, None)
    candidate.promised("b", promise())
    (won,) = only(ElectionWon, candidate.deadline())
    assert "1 more promises" in won.possible_loss


def test_a_forced_election_reports_a_member_with_more_records() -> None:
    candidate, _ = election(force=True)
    candidate.stored(mark(20), HISTORY, None)
    candidate.promised("b", promise())
    assert candidate.promised("c", promise(25)) == []
    (won,) = only(ElectionWon, candidate.deadline())
    assert "c holds" in won.possible_loss


def test_a_forced_election_ends_when_all_reachable_members_have_answered() -> None:
    candidate, _ = election(force=True)
    refused = VoteRejected(RefusalCode.FOREIGN, T2, "not here", None)
    candidate.stored(mark(20), HISTORY, None)
    assert candidate.unreachable("b") == candidate.unreachable("b") == candidate.vote_rejected("c", refused) == []
    assert candidate.promised("d", promise()) == [] and not candidate.is_over, "e may answer yet"
    (won,) = only(ElectionWon, candidate.unreachable("e"))
    assert "1 more promises" in won.possible_loss and "c: not here" in won.possible_loss
    assert candidate.unreachable("b") == candidate.deadline() == []


def test_an_election_without_force_waits_for_unreachable_members() -> None:
    candidate = binding()
    for member in "bcde":
        assert candidate.unreachable(member) == []
    candidate.promised("b", promise())
    assert only(ElectionWon, candidate.promised("c", promise())), "it could be reached later"


def test_a_forced_election_asks_newer_members_before_it_ends() -> None:
    candidate, _ = election(Members.first("abc", 1), force=True)
    candidate.stored(mark(20), HISTORY, None)
    candidate.unreachable("b")
    newer = Members.first("abc", 1).change(Quorum.of("abcd", 1))
    effects = candidate.promised("c", promise(1, members=newer))
    assert not candidate.is_over and asked(effects, trial=False) == "bd"
    candidate.unreachable("d")
    assert only(ElectionWon, candidate.unreachable("b"))


def test_force_that_is_not_needed_loses_nothing() -> None:
    candidate, _ = election(force=True)
    candidate.stored(mark(20), HISTORY, None)
    candidate.promised("b", promise())
    (won,) = only(ElectionWon, candidate.promised("c", promise()))
    assert won.possible_loss == ""


def test_a_forced_election_without_members_reports_possible_loss() -> None:
    for members in (None, Members.first("bc", 1)):
        candidate, _ = election(members, force=True)
        (won,) = only(ElectionWon, [*candidate.stored(mark(20), HISTORY, None), *candidate.deadline()])
        assert won.members.quorum == Quorum(("a",), 0) and "member" in won.possible_loss


# ---- members ---------------------------------------------------------------------------------------------------


def test_quorum_follows_newer_members_learned_from_promises() -> None:
    """Members changed without the candidate's knowledge; some of those that it asks know of the change."""
    known = Members.first("abc", 1)
    newer = known.change(Quorum.of("abde", 1))
    candidate, effects = election(known)
    assert asked(effects, trial=True) == "bc"
    effects = candidate.promised("b", promise(1, trial=True, members=newer))
    assert asked(effects, trial=True) == "cde" and not only(StorePromise, effects), "2 of a, b, c; and 3 of a, b, d, e"
    effects = candidate.promised("d", promise(1, trial=True))
    assert effects == [StorePromise(Term(3, "a"))]
    assert asked(candidate.stored(mark(20), HISTORY, None), trial=False) == "bcde"
    candidate.promised("c", promise(1))
    candidate.promised("d", promise(1))
    (won,) = only(ElectionWon, candidate.promised("b", promise(1)))
    assert won.members == Members(MembersVersion(Term(3, "a"), 3), newer.quorum, newer.former)


def test_records_of_another_term_that_came_during_the_trial_count() -> None:
    candidate, _ = election(end=10)
    candidate.promised("b", promise(1, trial=True))
    candidate.promised("c", promise(1, trial=True))
    candidate.stored(mark(13), HISTORY.begin(Term(2, "x"), mark(12)), None)
    candidate.promised("b", promise(1))
    assert only(ElectionWon, candidate.promised("c", promise(90)))


def test_members_that_change_during_the_trial_count() -> None:
    """Found by simulation: a candidate that had told its master that it knows of a change was elected without the new
    members."""
    known = Members.first("abc", 1)
    candidate, _ = election(known)
    candidate.promised("b", promise(1, trial=True))
    assert candidate.stored(mark(20), HISTORY, known.change(Quorum.of("abcde", 0)))[-1].member == "e"
    assert candidate.promised("b", promise(1)) == [], "all five have to promise"


def test_a_node_that_does_not_know_that_it_is_a_member_stands() -> None:
    """Found by simulation: only the master knew that it had added a, and it lacked a record of a: no node could be
    elected."""
    candidate, effects = election(Members.first("b", 0))
    assert asked(effects, trial=True) == "b"
    newer = Members.first("b", 0).change(Quorum.of("ab", 0))
    assert candidate.promised("b", promise(19, trial=True, members=newer)) == [StorePromise(MINE)]
    candidate, _ = election(Members.first("bc", 0))
    assert (
        candidate.vote_rejected(
            "c", VoteRejected(RefusalCode.NOT_A_MEMBER, T2, "a is none of b, c", Members.first("bc", 0))
        )
        == []
    )
    newer = Members.first("bc", 0).change(Quorum.of("abc", 0))
    assert asked(candidate.promised("b", promise(19, trial=True, members=newer)), trial=True) == "c", (
        "it is asked again"
    )
    candidate, _ = election(Members.first("b", 0))
    assert candidate.promised("b", promise(1, trial=True)) == []
    assert "a is no member" in str(lost(candidate.deadline()))


def test_a_removed_member_learns_of_it() -> None:
    candidate, _ = election(Members.first("abc", 1))
    without = Members.first("abc", 1).change(Quorum.of("bc", 1)).completed()
    candidate.vote_rejected("b", VoteRejected(RefusalCode.NOT_A_MEMBER, T2, "a is none of b, c", without))
    assert candidate.promised("c", promise(1, trial=True)) == []
    assert "a is no member" in str(lost(candidate.deadline()))


# ---- how a node answers ----------------------------------------------------------------------------------------


def answer(
    term: Term = T3,
    uuid: bytes = UUID,
    members: Members | None = FIVE,
    mine: bytes = UUID,
    stamp: MembersVersion = FIVE.stamp,
) -> int:
    rejection = refuse_candidate(Prepare(term, uuid, stamp), mine, Terms(T2, HISTORY), members)
    assert rejection is None or (rejection.promised, rejection.members) == (T2, members)
    return 0 if rejection is None else rejection.code


def test_a_node_promises_higher_terms_only() -> None:
    assert answer(Term(3, "c")) == 0
    assert answer(T2, members=None) == 0, "once more the same"
    assert answer(Term(2, "a")) == RefusalCode.HIGHER_TERM, "never two candidates in one term"
    assert answer(Term(1, "e")) == RefusalCode.HIGHER_TERM


def test_a_term_that_leaves_none_above_it_is_not_promised() -> None:
    """Otherwise one request of a member could end all elections for good."""
    for number in (2 + TERM_JUMP_MAX + 1, 1 << 62, (1 << 64) - 1):
        assert answer(Term(number, "c")) == RefusalCode.ABSURD
    assert answer(Term(2 + TERM_JUMP_MAX, "c")) == 0


def test_a_candidate_does_not_follow_an_absurd_term() -> None:
    candidate, _ = election(Members.first("abc", 1))
    candidate.vote_rejected("b", VoteRejected(RefusalCode.HIGHER_TERM, Term((1 << 64) - 1, "b"), "no", None))
    assert not candidate.is_over
    assert "of a" in str(candidate.term) and candidate.term.number < 10


def test_node_refuses_candidates_that_are_not_members_or_have_another_log() -> None:
    assert answer(Term(9, "z")) == RefusalCode.NOT_A_MEMBER
    assert answer(Term(9, "z"), members=None) == 0
    assert answer(Term(9, "z"), stamp=MembersVersion(NO_TERM, 2)) == 0, "z may have been added; found by simulation"
    assert answer(uuid=b"x" * 16) == RefusalCode.FOREIGN
    assert answer(uuid=NO_UUID) == 0 == answer(mine=NO_UUID)


# ---- handing over, and taking over -----------------------------------------------------------------------------


def trials(effects: list[Effect]) -> dict[str, int]:
    return {ask.member: ask.prepare.trial for ask in only(SendPrepare, effects)}


def test_a_planned_change_over_waits_until_all_is_here() -> None:
    """Under load the master always had more records: the candidate was refused, or deposed the master without being
    elected."""
    candidate, effects = election(master="e")
    assert trials(effects) == dict.fromkeys("bcde", PreVote.HOLD)
    for member in "bcd":
        assert candidate.promised(member, promise(19, trial=True)) == [], (
            "enough promise, and the master has not answered"
        )
    assert candidate.promised("e", promise(25, 22, trial=True)) == []
    assert trials(candidate.grew(mark(23))) == {"e": PreVote.HOLD}, "as much as that was then"
    assert candidate.grew(mark(25)) == []
    assert candidate.promised("e", promise(25, 22, trial=True)) == [StorePromise(MINE)]
    assert not candidate.is_trial


def test_an_append_that_was_on_its_way_is_waited_for() -> None:
    """The append was admitted before the master began to hold appends back."""
    candidate, _ = election(master="e")
    for member in "bcd":
        candidate.promised(member, promise(19, trial=True))
    assert candidate.promised("e", promise(20, trial=True)) == [], "it is asked twice"
    assert trials(candidate.grew(mark(20))) == {"e": PreVote.HOLD}
    assert candidate.promised("e", promise(21, trial=True)) == []
    assert candidate.grew(mark(20)) and candidate.promised("e", promise(21, trial=True)) == []
    assert candidate.grew(mark(21)) == [StorePromise(MINE)]


def test_a_master_that_does_not_answer_is_not_waited_for_long() -> None:
    candidate, _ = election(master="e")
    for member in "bc":
        candidate.promised(member, promise(19, trial=True))
    assert candidate.overdue() == [StorePromise(MINE)]
    candidate, _ = election(master="e")
    candidate.promised("e", promise(25, trial=True))
    candidate.grew(mark(20))
    assert (
        candidate.overdue()
        == []
        == candidate.promised("b", promise(19, trial=True))
        == candidate.promised("c", promise(trial=True))
    )
    assert candidate.overdue() == [StorePromise(MINE)], "it answered once, and then no more"


def test_a_trial_that_fails_lets_appends_go_on() -> None:
    candidate, _ = election(master="e")
    candidate.promised("e", promise(25, trial=True))
    (lost,) = only(ElectionLost, candidate.deadline())
    assert lost.release is not None and (lost.release.member, lost.release.prepare.trial) == ("e", PreVote.YES)
    assert lost.next_candidate == ""


def test_a_master_that_was_deposed_in_vain_is_asked_to_stand_again() -> None:
    candidate, _ = election(master="e")
    for member in "bc":
        candidate.promised(member, promise(19, trial=True))
    candidate.overdue()
    candidate.stored(mark(20), HISTORY, None)
    (lost,) = only(ElectionLost, candidate.deadline())
    assert (lost.release, lost.next_candidate) == (None, "e")
    candidate, _ = election(master="e")
    candidate.stored(mark(20), HISTORY, None)
    (lost,) = only(ElectionLost, candidate.note_higher_term(Term(9, "x")))
    assert lost.next_candidate == "", "another one is about to be master"


def test_the_member_with_most_records_is_asked_to_stand_in_place_of_a_candidate_that_has_promises() -> None:
    """Of two candidates, the first was elected, and deposed before the second had its first record. All members have
    promised the second one, and would wait for it."""
    candidate = binding()
    candidate.promised("b", promise(22))
    (lost,) = only(ElectionLost, candidate.promised("c", promise(25)))
    assert lost.next_candidate == "c" and "promote c" in str(lost.error)
    candidate = binding()
    candidate.promised("b", promise(22))
    (lost,) = only(ElectionLost, candidate.deadline())
    assert lost.next_candidate == "b", "it promised, and what others hold is unknown"
    (lost,) = only(ElectionLost, binding().deadline())
    assert lost.next_candidate == "", "nobody is known to hold more"


def test_a_member_with_more_records_is_not_asked_to_stand_when_no_master_was_deposed() -> None:
    candidate, _ = election()
    candidate.promised("b", promise(22, trial=True))
    (lost,) = only(ElectionLost, candidate.promised("c", promise(25, trial=True)))
    assert lost.next_candidate == ""
    candidate, _ = election(force=True)
    candidate.stored(mark(20), HISTORY, None)
    candidate.promised("b", promise(22))
    (lost,) = only(ElectionLost, candidate.abandon("the node ends"))
    assert lost.next_candidate == "", "an operator decides"


def test_a_master_that_others_hear_from_is_not_replaced() -> None:
    """A candidate that only lost its own connection must not end a working master."""
    candidate, effects = election(master="e", if_lost=True)
    assert trials(effects) == dict.fromkeys("bcde", PreVote.IF_LOST)
    assert candidate.promised("b", promise(trial=True)) == [] == candidate.promised("c", promise(trial=True))
    (lost,) = only(
        ElectionLost, candidate.vote_rejected("d", VoteRejected(RefusalCode.MASTER_LIVES, T2, "e is heard", FIVE))
    )
    assert (lost.release, lost.next_candidate) == (None, "")


def test_a_master_that_is_lost_is_replaced() -> None:
    for answer in (lambda candidate: candidate.unreachable("e"), lambda candidate: candidate.overdue()):
        candidate, _ = election(master="e", if_lost=True)
        assert candidate.promised("b", promise(trial=True)) == [] == candidate.promised("c", promise(trial=True))
        assert answer(candidate) == [StorePromise(MINE)]
        candidate.stored(mark(20), HISTORY, None)
        assert candidate.vote_rejected("d", VoteRejected(RefusalCode.MASTER_LIVES, T2, "e is heard", FIVE)) == [], (
            "it comes late"
        )


def test_member_with_a_live_master_refuses_only_pre_votes_that_ask_for_it() -> None:
    for trial in PreVote:
        rejection = refuse_candidate(Prepare(MINE, UUID, FIVE.stamp, trial), UUID, Terms(T2, HISTORY), FIVE, "e")
        assert (rejection is not None) == (trial == PreVote.IF_LOST)
    assert refuse_candidate(Prepare(MINE, UUID, FIVE.stamp, PreVote.IF_LOST), UUID, Terms(T2, HISTORY), FIVE) is None
