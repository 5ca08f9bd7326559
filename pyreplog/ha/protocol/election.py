"""Elections: how a node becomes master, and how the others answer.

A candidate's term is above all that it has heard of and bears its name. It is elected by |M| - k promises, its own
included, of each quorum that is in force, if nobody among them holds more: a higher last term or, of the same, a longer
log (Raft, §5.4.1). Every acknowledged record is held by one of them, with its term, so the winner holds it.

A planned change-over begins at a master that lives and is written to. It holds its appends back, the candidate receives
what it lacks, and only then asks for promises (Raft's leadership transfer, thesis §3.10).
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
    """Send a PREPARE to a member. Report `promised` or `vote_rejected`; `unreachable` when there is no way to it."""

    member: str
    prepare: Prepare


@dataclass(frozen=True, slots=True)
class ElectionWon:
    """Make durable, in this order, before anything is served: `members`, then terms with `TermsFile.begin(term, start)`
    (a crash between them must not leave a master with members that earlier ones wrote); then the log is no replica's
    any more; then a first record of the new term, a marker, is appended.

    possible_loss: what may have been lost by force; "" nothing.
    """

    term: Term
    start: LogPosition
    members: Members
    possible_loss: str


@dataclass(frozen=True, slots=True)
class ElectionLost:
    """It was not elected. Its promise, if it came so far, stands.

    release: tell this master so, which holds appends back. restore: tell this member to stand for election itself: the
    master that was deposed for nothing, or the one that promised and holds most; "" none.
    """

    error: ReplicationError
    release: SendPrepare | None = None
    restore: str = ""


Effect: TypeAlias = StorePromise | SendPrepare | ElectionWon | ElectionLost


class Election:
    """Candidacy of `name`. Methods return effects, to be carried out in their order.

    uuid: of its log. terms: as in its file. members: as in its file; of None nobody can be elected but by force.
    above: a term that is known to exist elsewhere. force: be master with whatever answers there are at the deadline, or
    when nobody is left who could answer. master: name of the one that it follows, which lives, and is to hand over, or
    seems to be lost (`if_lost`); its answer is waited for, until `overdue`. "" there is none.

    First it asks members whether they would promise, so that a candidate that cannot win deposes none (Raft's PreVote,
    §9.6); then it promises itself and asks for promises. Between that promise and the end nothing is received any more.
    Not for several threads at once.
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
        self._answered = 0  # so often, when it was `overdue` last
        self._answers = 0  # of the master: an append may have been on its way while it gave the first
        self._end: LogPosition | None = None
        self._promises: dict[str, Promise] = {}
        self._declined: dict[str, str] = {}
        self._unreachable: set[str] = set()
        self._asked: set[str] = set()
        self.is_over = False

    def start(self, end: LogPosition) -> list[Effect]:
        """end: of its log as it is now."""
        if self._force:
            return [StorePromise(self.term)]
        if self.members is None:
            return self._lose(PromotionRefusedError(f"{self.name} knows of no members"))
        if not self._history.up_to(end).starts:
            return self._lose(PromotionRefusedError(f"{self.name} holds nothing of the group's log"))
        self._end = end
        return self._look()

    def stored(self, end: LogPosition, history: History, members: Members | None) -> list[Effect]:
        """The own promise is durable, and then all of the log was synced; it ends there. history, members: as in their
        files now; a master may have changed them until then."""
        self._end, self._history = end, history
        self._learn(members)
        return self._look()

    def promised(self, member: str, promise: Promise) -> list[Effect]:
        """Once or more often, in any order."""
        if self.is_over or promise.term != self.term or promise.trial != bool(self._trial):
            return []
        self._promises[member] = promise
        if member == self._master:  # of a planned change-over: now all is awaited that it holds
            self._awaits_master, self._answers = True, self._answers + 1
        self._learn(promise.members)
        return self._look()

    def vote_rejected(self, member: str, rejection: VoteRejected) -> list[Effect]:
        """One that is no member any more hears of it this way."""
        if self.is_over:
            return []
        self._learn(rejection.members)
        is_higher = rejection.promised > self.term and not rejection.promised.is_absurd(self.term)
        if rejection.code == RefusalCode.HIGHER_TERM and is_higher:
            return self._lose(HigherTermError(f"{member}: {rejection.text}", rejection.promised))
        if rejection.code == RefusalCode.MASTER_LIVES:
            refused = PromotionRefusedError(f"term {self.term}: {member}: {rejection.text}")
            return self._lose(refused) if self._trial else []
        self._declined[member] = rejection.text
        return self._look()

    def unreachable(self, member: str) -> list[Effect]:
        """There is no way to it now: unknown, not a no. It may be asked again; only force does not wait for that."""
        if self.is_over:
            return []
        self._unreachable.add(member)
        return self._look()

    def overdue(self) -> list[Effect]:
        """The master had its time to answer. To be told now and then while `is_trial`: it may be late anew."""
        is_late, self._answered = self._answers == self._answered, self._answers
        if self.is_over or not is_late or self._master in self._promises:
            return []
        self._awaits_master = False
        return self._look()

    def grew(self, end: LogPosition) -> list[Effect]:
        """Its own log ends there now, for it follows still. To be told every few milliseconds while `is_trial`: who
        held more is asked how much that is by now."""
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
        return self._look()

    @property
    def is_trial(self) -> bool:
        """Whether it has deposed nobody so far."""
        return bool(self._trial)

    def note_higher_term(self, term: Term) -> list[Effect]:
        """Before this node promises a higher term itself."""
        if self.is_over or term <= self.term:
            return []
        return self._lose(HigherTermError(f"term {term} was promised while {self.term} was asked for", term))

    def deadline(self) -> list[Effect]:
        """End the election: members that have not answered do not count."""
        if self.is_over:
            return []
        if self._end is not None and self._force:
            return self._win(self._end, self._doubt())
        late = f"not all that {self._master} holds came in time" if self._trial else "the log was not synced"
        return self._lose(PromotionRefusedError(f"term {self.term}: {self._doubt() or late}"))

    def abandon(self, why: str) -> list[Effect]:
        """It is not wanted any more, by force neither."""
        return [] if self.is_over else self._lose(PromotionRefusedError(f"term {self.term}: {why}"))

    # ---- deciding -------------------------------------------------------------------------------------------

    def _learn(self, members: Members | None) -> None:
        """Take the newest members that a node knows: theirs are the quorums. Members that declined are asked again, for
        they may have known older ones."""
        if members is not None and (self.members is None or members.stamp > self.members.stamp):
            self.members = members
            self._asked.intersection_update(self._promises)
            self._declined.clear()
            self._unreachable.clear()

    def _look(self) -> list[Effect]:
        if self._end is None:
            return []
        if self.members is None:
            return self._win(self._end, self._doubt()) if self._force else []
        asks: list[Effect] = [
            SendPrepare(member, Prepare(self.term, self._uuid, self.members.stamp, self._trial))
            for member in sorted(self.members.all_names - self._asked - {self.name})
        ]
        self._asked |= self.members.all_names
        told = {self.name, *self._promises, *self._declined, *self._unreachable}
        if self._waits_for_master(told):
            return asks
        if self.name in self.members.all_names and not self._missing():
            further = self._further(self._end)
            if not further:
                return [*asks, *(self._go_ahead() if self._trial else self._win(self._end, ""))]
            if not self._force:
                return [*asks, *self._lose(PromotionRefusedError(f"term {self.term}: {further}"))]
        if self._force and self.members.all_names <= told:
            return [*asks, *self._win(self._end, self._doubt())]
        return asks

    def _waits_for_master(self, told: set[str]) -> bool:
        """For what it says, and until all that it says is here: a trial is of no harm to anybody."""
        assert self._end is not None and self.members is not None
        if not self._trial or not self._awaits_master or self._master not in self.members.all_names:
            return False
        if self._master not in told:
            return True
        return self._is_planned and (self._answers == 1 or bool(self._ahead(self._end)))

    def _go_ahead(self) -> list[Effect]:
        """Enough would promise: now they are to."""
        self._trial, self._end = PreVote.NO, None
        self._promises.clear()
        self._asked.clear()
        return [StorePromise(self.term)]

    def _missing(self) -> int:
        assert self.members is not None
        return self.members.missing(frozenset({self.name, *self._promises}))

    def _ahead(self, end: LogPosition) -> set[str]:
        """Return the members that answered and hold more than the candidate, or will when they have synced that."""
        mine = _reach(self._history, end)
        return {
            name
            for name, promise in self._promises.items()
            if promise.members is not None and _reach(promise.history, promise.received) > mine
        }

    def _reach_of(self, promise: Promise) -> tuple[Term, LogPosition]:
        """How far a member is. One that knows of no members has never counted for a commit: it got what it holds from a
        replica, and others hold what was acknowledged of that. It cannot be promoted, and follows the node that is."""
        if promise.members is None:
            return NO_TERM, ORIGIN
        return _reach(promise.history, promise.synced if self._ack == "synced" else promise.received)

    def _furthest(self, end: LogPosition) -> str:
        """The member that holds most, if that is more than the candidate holds; "" none does."""
        reaches = {member: self._reach_of(promise) for member, promise in sorted(self._promises.items())}
        member = max(reaches, key=reaches.__getitem__, default="")
        return member if member and reaches[member] > _reach(self._history, end) else ""

    def _further(self, end: LogPosition) -> str:
        """Return a sentence about the member that holds most, if it holds more than the candidate; "" none does."""
        member, mine = self._furthest(end), _reach(self._history, end)
        if not member:
            return ""
        theirs = self._reach_of(self._promises[member])
        held = f"{member} holds term {theirs[0]} up to {theirs[1].position}"
        return f"{held}, {self.name} term {mine[0]} up to {mine[1].position}: promote {member}"

    def _doubt(self) -> str:
        """Why acknowledged records may be missing; "" they cannot be."""
        if self.members is None:
            return f"{self.name} knows of no members"
        if self.name not in self.members.all_names:
            return f"{self.name} is no member"
        if missing := self._missing():
            declined = "".join(f"; {member}: {text}" for member, text in sorted(self._declined.items()))
            return f"{missing} more promises are needed of {', '.join(sorted(self.members.all_names))}{declined}"
        return "" if self._end is None else self._further(self._end)

    def _win(self, end: LogPosition, doubt: str) -> list[Effect]:
        self.is_over = True
        members = self.members
        if members is None or self.name not in members.all_names:
            members = Members.first([self.name], 0)
        return [ElectionWon(self.term, end, members.led_by(self.term), doubt)]

    def _lose(self, error: ReplicationError) -> list[Effect]:
        self.is_over = True
        release, restore = None, ""
        if self._trial == PreVote.HOLD and self.members is not None:
            release = SendPrepare(self._master, Prepare(self.term, self._uuid, self.members.stamp, PreVote.YES))
        elif not self._trial and not isinstance(error, HigherTermError):
            restore = self._heir()
        return [ElectionLost(error, release, restore)]

    def _heir(self) -> str:
        """Return the member that is to stand, now that this candidate has promises and cannot be elected; "" none.

        Unless it is asked, no member stands for a while: one that has promised leaves the candidate its time.
        """
        if self._is_planned:
            return self._master
        return "" if self._force or self._end is None else self._furthest(self._end)


def _reach(history: History, end: LogPosition) -> tuple[Term, LogPosition]:
    """How far a log is: by the term of its last record, then by its length."""
    return history.up_to(end).last, end


def refuse_candidate(
    prepare: Prepare, uuid: bytes, terms: Terms, members: Members | None, hears: str = ""
) -> VoteRejected | None:
    """How a node answers a PREPARE; None: it promises. Unless that is a trial: `Following.promised` or `Group.fence`,
    `Election.note_higher_term`, the promise durable; then Promise with the ends that the log has then. To ask twice
    does no harm. hears: name of the master that it is, or hears from; "" none."""
    if NO_UUID not in (prepare.uuid, uuid) and prepare.uuid != uuid:
        return VoteRejected(
            RefusalCode.FOREIGN, terms.promised, f"the log here is {uuid.hex()}, not {prepare.uuid.hex()}", members
        )
    if prepare.term < terms.promised:
        text = f"term {prepare.term} is refused: {terms.promised} was promised"
        return VoteRejected(RefusalCode.HIGHER_TERM, terms.promised, text, members)
    if members is not None and members.stamp >= prepare.stamp and prepare.term.master not in members.all_names:
        text = f"{prepare.term.master} is none of {', '.join(sorted(members.all_names))}"
        return VoteRejected(RefusalCode.NOT_A_MEMBER, terms.promised, text, members)
    if prepare.term.is_absurd(terms.promised):
        text = f"no group is at term {prepare.term} when {terms.promised} was promised last"
        return VoteRejected(RefusalCode.ABSURD, terms.promised, text, members)
    if prepare.trial == PreVote.IF_LOST and hears:
        return VoteRejected(RefusalCode.MASTER_LIVES, terms.promised, f"{hears} is master, and is heard", members)
    return None
