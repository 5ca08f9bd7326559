"""Elections: how a node becomes master, and how the other nodes vote.

The candidate's term is higher than all terms that it knows, and contains its name. The candidate is elected by |M| - k
promises, its own included, of each quorum in force, if none of these members holds a later log: a higher last term or,
with the same last term, a longer log (Raft, §5.4.1). Every acknowledged record is held, with its term, by one of them,
so the winner holds it.

In a planned change-over the master is alive and appends are written. The master holds appends back, the candidate
receives the records that it lacks, and only then asks for promises (Raft's leadership transfer, thesis §3.10).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

from pyreplog.errors import HigherTermError, PromotionRefusedError, ReplicationError
from pyreplog.ha.protocol.effects import StorePromise
from pyreplog.ha.protocol.master_machine import AckMode
from pyreplog.ha.protocol.members import Members
from pyreplog.ha.protocol.messages import NO_UUID, Prepare, PreVote, Promise, RefusalCode, VoteRejected
from pyreplog.stream.log_position import ORIGIN, LogPosition
from pyreplog.stream.terms import NO_TERM, History, Term, Terms


class SendPrepare(NamedTuple):
    """Send a PREPARE to a member. Report `promised` or `vote_rejected`; `unreachable` if it cannot be sent."""

    member: str
    prepare: Prepare


@dataclass(frozen=True, slots=True)
class ElectionWon:
    """The candidate was elected. Carry out these steps in this order before the node serves requests:

    1. Make `members` durable, then the terms with `TermsFile.begin(term, start)`. A crash between the two must not
       leave a master with members that earlier masters wrote.
    2. Make the log of the replica the log of a master.
    3. Append the first record of the new term, a marker.

    Attributes:
        term: term of the new master.
        start: position where its term begins.
        members: the members of the group.
        possible_loss: records that a forced election may have lost, as a sentence; "": none.
    """

    term: Term
    start: LogPosition
    members: Members
    possible_loss: str


@dataclass(frozen=True, slots=True)
class ElectionLost:
    """The candidate was not elected. If it has promised itself the term, the promise stands.

    Attributes:
        error: why it lost.
        release: message for the master that holds appends back for this candidate; None: no master does.
        next_candidate: member that is asked to stand for election: the master that was deposed in vain, or the member
            with the longest log among those that promised; "": none.
    """

    error: ReplicationError
    release: SendPrepare | None = None
    next_candidate: str = ""


Effect: TypeAlias = StorePromise | SendPrepare | ElectionWon | ElectionLost


class Election:
    """The state machine of the candidate `name`. Methods return effects, which the caller carries out in order.

    The candidate first asks whether members would promise, so that one that cannot win deposes no master (Raft's
    PreVote, §9.6). Then it promises itself the term and asks for promises. From its own promise until the end of the
    election it receives no records. Not thread-safe.

    Args:
        name: the candidate.
        uuid: uuid of its log.
        terms: its terms, as in the file.
        members: its members, as in the file; None: only `force` can elect it.
        ack: whether replicas acknowledge what they received or what they synced.
        above: a term that exists elsewhere; the term of this election is higher.
        force: win with the answers that arrived by the deadline, or as soon as every member has answered or cannot be
            reached.
        master: the master that the candidate follows, and that hands over or seems to be lost (see `if_lost`). The
            election waits for its answer until `overdue`. "": none.
        if_lost: whether `master` seems to be lost, so that members that hear from it reject the candidate.
    """

    def __init__(
        self, name: str, uuid: bytes, terms: Terms, members: Members | None, *, ack: AckMode, above: Term, force: bool,
        master: str = "", if_lost: bool = False,
    ) -> None:  # fmt: skip
        self.name, self.members = name, members
        self.term = max(terms.promised, terms.history.last, above).after(name)
        self._uuid, self._history, self._ack, self._force = uuid, terms.history, ack, force
        self._trial = PreVote.NO if force else PreVote.IF_LOST if if_lost else PreVote.HOLD if master else PreVote.YES
        self._master = "" if force else master
        self._is_planned = self._trial == PreVote.HOLD
        self._awaits_master = bool(self._master)
        self._answered = 0  # `_answers` at the last call of `overdue`
        self._answers = 0  # promises of the master: the first one may miss an append that was in flight
        self._end: LogPosition | None = None
        self._promises: dict[str, Promise] = {}
        self._declined: dict[str, str] = {}
        self._unreachable: set[str] = set()
        self._asked: set[str] = set()
        self.is_over = False

    def start(self, end: LogPosition) -> list[Effect]:
        """Begin the election. `end` is the end of the candidate's log."""
        if self._force:
            return [StorePromise(self.term)]
        if self.members is None:
            return self._lose(PromotionRefusedError(f"{self.name} knows no members of the group"))
        if not self._history.up_to(end).starts:
            return self._lose(PromotionRefusedError(f"{self.name} holds nothing of the group's log"))
        self._end = end
        return self._decide()

    def stored(self, end: LogPosition, history: History, members: Members | None) -> list[Effect]:
        """Report that the candidate's promise is durable, and that its log was synced afterwards up to `end`.

        history, members: as in their files now; the former master may have changed them before the promise.
        """
        self._end, self._history = end, history
        self._take_members(members)
        return self._decide()

    def promised(self, member: str, promise: Promise) -> list[Effect]:
        """Report a promise. The same promise may be reported several times, and promises in any order."""
        if self.is_over or promise.term != self.term or promise.trial != bool(self._trial):
            return []
        self._promises[member] = promise
        if member == self._master:  # of a planned change-over: now wait for all records that it holds
            self._awaits_master, self._answers = True, self._answers + 1
        self._take_members(promise.members)
        return self._decide()

    def vote_rejected(self, member: str, rejection: VoteRejected) -> list[Effect]:
        """Report a rejection. It also tells a candidate that was removed from the group the present members."""
        if self.is_over:
            return []
        self._take_members(rejection.members)
        is_higher = rejection.promised > self.term and not rejection.promised.is_absurd(self.term)
        if rejection.code == RefusalCode.HIGHER_TERM and is_higher:
            return self._lose(HigherTermError(f"{member}: {rejection.text}", rejection.promised))
        if rejection.code == RefusalCode.MASTER_LIVES:
            refused = PromotionRefusedError(f"term {self.term}: {member}: {rejection.text}")
            return self._lose(refused) if self._trial else []
        self._declined[member] = rejection.text
        return self._decide()

    def unreachable(self, member: str) -> list[Effect]:
        """Report that a member cannot be reached now.

        Its vote is unknown, not a rejection, and it may be asked again. Only a forced election does not wait for it.
        """
        if self.is_over:
            return []
        self._unreachable.add(member)
        return self._decide()

    def overdue(self) -> list[Effect]:
        """Report that the master has not answered in time. Call it at intervals while `is_trial`: the master may be
        late again after an answer."""
        is_late, self._answered = self._answers == self._answered, self._answers
        if self.is_over or not is_late or self._master in self._promises:
            return []
        self._awaits_master = False
        return self._decide()

    def grew(self, end: LogPosition) -> list[Effect]:
        """Report the end of the candidate's log, which still grows during the trial.

        Call it every few milliseconds while `is_trial`: members that held more are asked again for their ends.
        """
        if self.is_over or not self._trial or self._end is None:
            return []
        self._end = end
        if self._trial == PreVote.HOLD:
            again = self._ahead(end)
            if self._answers == 1 and self._master in self._promises:
                again.add(self._master)
            for member in again:
                del self._promises[member]
            self._asked -= again
        return self._decide()

    @property
    def is_trial(self) -> bool:
        """Whether the election is a trial so far: no master was deposed."""
        return bool(self._trial)

    def note_higher_term(self, term: Term) -> list[Effect]:
        """Report that this node is about to promise a higher term to another candidate: the election is lost."""
        if self.is_over or term <= self.term:
            return []
        return self._lose(HigherTermError(f"term {term} was promised during the election for term {self.term}", term))

    def deadline(self) -> list[Effect]:
        """End the election: members that have not answered do not count."""
        if self.is_over:
            return []
        if self._end is not None and self._force:
            return self._win(self._end, self._loss_reason())
        late = (
            f"the log of {self._master} was not received completely in time"
            if self._trial
            else "the log was not synced"
        )
        return self._lose(PromotionRefusedError(f"term {self.term}: {self._loss_reason() or late}"))

    def abandon(self, why: str) -> list[Effect]:
        """End the election without a winner, also a forced one. `why` is part of the error."""
        return [] if self.is_over else self._lose(PromotionRefusedError(f"term {self.term}: {why}"))

    # ---- deciding -------------------------------------------------------------------------------------------

    def _take_members(self, members: Members | None) -> None:
        """Use the members of another node if they are newer: their quorums decide.

        Members that rejected the candidate are asked again, because they may have known older members.
        """
        if members is not None and (self.members is None or members.stamp > self.members.stamp):
            self.members = members
            self._asked.intersection_update(self._promises)
            self._declined.clear()
            self._unreachable.clear()

    def _decide(self) -> list[Effect]:
        if self._end is None:
            return []
        if self.members is None:
            return self._win(self._end, self._loss_reason()) if self._force else []
        asks: list[Effect] = [
            SendPrepare(member, Prepare(self.term, self._uuid, self.members.stamp, self._trial))
            for member in sorted(self.members.all_names - self._asked - {self.name})
        ]
        self._asked |= self.members.all_names
        settled = {self.name, *self._promises, *self._declined, *self._unreachable}
        if self._waits_for_master(settled):
            return asks
        if self.name in self.members.all_names and not self._missing():
            further = self._longer_log_text(self._end)
            if not further:
                return [*asks, *(self._begin_vote() if self._trial else self._win(self._end, ""))]
            if not self._force:
                return [*asks, *self._lose(PromotionRefusedError(f"term {self.term}: {further}"))]
        if self._force and self.members.all_names <= settled:
            return [*asks, *self._win(self._end, self._loss_reason())]
        return asks

    def _waits_for_master(self, settled: set[str]) -> bool:
        """Return whether the trial waits for the master's answer, or for records that a member holds and the candidate
        lacks. Waiting is harmless: a trial deposes no master."""
        assert self._end is not None and self.members is not None
        if not self._trial or not self._awaits_master or self._master not in self.members.all_names:
            return False
        if self._master not in settled:
            return True
        return self._is_planned and (self._answers == 1 or bool(self._ahead(self._end)))

    def _begin_vote(self) -> list[Effect]:
        """End the trial: enough members would promise. Ask for promises."""
        self._trial, self._end = PreVote.NO, None
        self._promises.clear()
        self._asked.clear()
        return [StorePromise(self.term)]

    def _missing(self) -> int:
        assert self.members is not None
        return self.members.missing(frozenset({self.name, *self._promises}))

    def _ahead(self, end: LogPosition) -> set[str]:
        """Return the members that answered and hold more than the candidate, synced or not."""
        mine = _log_order(self._history, end)
        return {
            name
            for name, promise in self._promises.items()
            if promise.members is not None and _log_order(promise.history, promise.received) > mine
        }

    def _log_order_of(self, promise: Promise) -> tuple[Term, LogPosition]:
        """Return the last term and the end of a member's log, as they count for the election.

        A member that knows no members counts as empty. It has never counted for a commit: it copied its records from
        a replica, and other members hold those that were acknowledged. It cannot be promoted, and follows the winner.
        """
        if promise.members is None:
            return NO_TERM, ORIGIN
        return _log_order(promise.history, promise.synced if self._ack == "synced" else promise.received)

    def _longest_log(self, end: LogPosition) -> str:
        """Return the member with the longest log, if that is longer than the candidate's; otherwise ""."""
        reaches = {member: self._log_order_of(promise) for member, promise in sorted(self._promises.items())}
        member = max(reaches, key=reaches.__getitem__, default="")
        return member if member and reaches[member] > _log_order(self._history, end) else ""

    def _longer_log_text(self, end: LogPosition) -> str:
        """Return a sentence about the member with the longest log, if that is longer than the candidate's; else ""."""
        member, mine = self._longest_log(end), _log_order(self._history, end)
        if not member:
            return ""
        theirs = self._log_order_of(self._promises[member])
        held = f"{member} holds term {theirs[0]} up to {theirs[1].position}"
        return f"{held}, {self.name} term {mine[0]} up to {mine[1].position}: promote {member}"

    def _loss_reason(self) -> str:
        """Return why acknowledged records may be missing in the candidate's log; "": none is missing."""
        if self.members is None:
            return f"{self.name} knows no members of the group"
        if self.name not in self.members.all_names:
            return f"{self.name} is no member"
        if missing := self._missing():
            declined = "".join(f"; {member}: {text}" for member, text in sorted(self._declined.items()))
            return f"{missing} more promises are needed of {', '.join(sorted(self.members.all_names))}{declined}"
        return "" if self._end is None else self._longer_log_text(self._end)

    def _win(self, end: LogPosition, doubt: str) -> list[Effect]:
        self.is_over = True
        members = self.members
        if members is None or self.name not in members.all_names:
            members = Members.first([self.name], 0)
        return [ElectionWon(self.term, end, members.led_by(self.term), doubt)]

    def _lose(self, error: ReplicationError) -> list[Effect]:
        self.is_over = True
        release, next_candidate = None, ""
        if self._trial == PreVote.HOLD and self.members is not None:
            release = SendPrepare(self._master, Prepare(self.term, self._uuid, self.members.stamp, PreVote.YES))
        elif not self._trial and not isinstance(error, HigherTermError):
            next_candidate = self._next_candidate()
        return [ElectionLost(error, release, next_candidate)]

    def _next_candidate(self) -> str:
        """Return the member that is asked to stand, since this candidate has promises and cannot be elected; "": none.

        Without that, no member stands for a while: a member that has promised leaves the candidate time to win.
        """
        if self._is_planned:
            return self._master
        return "" if self._force or self._end is None else self._longest_log(self._end)


def _log_order(history: History, end: LogPosition) -> tuple[Term, LogPosition]:
    """Return the order of logs in elections: by the term of the last record, then by length."""
    return history.up_to(end).last, end


def refuse_candidate(
    prepare: Prepare, uuid: bytes, terms: Terms, members: Members | None, master: str = ""
) -> VoteRejected | None:
    """Return the rejection of a PREPARE; None: the node promises.

    For a promise that is no trial, the caller calls `ReplicaMachine.promised` or `MasterMachine.fence`, then
    `Election.note_higher_term`, and makes the promise durable. Only then it reads the ends of the log for its answer.
    A candidate may ask again.

    Args:
        prepare: the request.
        uuid: uuid of this node's log.
        terms: terms of this node.
        members: members that this node knows.
        master: the master that this node is or hears from; "": none.
    """
    if NO_UUID not in (prepare.uuid, uuid) and prepare.uuid != uuid:
        return VoteRejected(
            RefusalCode.FOREIGN, terms.promised, f"the log here is {uuid.hex()}, not {prepare.uuid.hex()}", members
        )
    if prepare.term < terms.promised:
        text = f"term {prepare.term} is refused: {terms.promised} was promised"
        return VoteRejected(RefusalCode.HIGHER_TERM, terms.promised, text, members)
    if members is not None and members.stamp >= prepare.stamp and prepare.term.master not in members.all_names:
        text = f"{prepare.term.master} is no member; members are {', '.join(sorted(members.all_names))}"
        return VoteRejected(RefusalCode.NOT_A_MEMBER, terms.promised, text, members)
    if prepare.term.is_absurd(terms.promised):
        text = f"no group is at term {prepare.term} when {terms.promised} was promised last"
        return VoteRejected(RefusalCode.ABSURD, terms.promised, text, members)
    if prepare.trial == PreVote.IF_LOST and master:
        return VoteRejected(RefusalCode.MASTER_LIVES, terms.promised, f"{master} is master, and is connected", members)
    return None
