"""ElectionRunner: carries out the effects of a candidate's state machine until the election is over."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterable
from functools import partial

from pyreplog.errors import DisconnectedError, NotConnectedError, ReplogError
from pyreplog.future import AppendFuture, set_exception, set_result
from pyreplog.ha.node_context import NodeContext, ends_of
from pyreplog.ha.peers import Peers
from pyreplog.ha.protocol.effects import StorePromise
from pyreplog.ha.protocol.election import Effect, Election, ElectionLost, ElectionWon, SendPrepare
from pyreplog.ha.protocol.messages import Command, Message, PreVote, Promise, VoteRejected
from pyreplog.ha.replica import ends_of_replica
from pyreplog.log.commit_log import CommitLog
from pyreplog.stream.log_position import LogPosition
from pyreplog.stream.mirror_log import MirrorLog, canonical
from pyreplog.stream.terms import Term

logger = logging.getLogger(__name__)

RETRY_S = 0.2
"""Seconds after which an unreachable member is asked again: it may be starting."""

CHECK_S = 0.005
"""Seconds between checks whether a candidate that still receives records has caught up."""

PATIENCE_S = 1.0
"""Seconds within which a master that is to hand over answers."""


class ElectionRunner:
    """One election of this node.

    Args:
        context: what the parts of the node share.
        peers: the other members.
        election: the state machine of the candidate.
        end: returns the end of the log.
        prepare: stops following, promises a term, syncs the log, and returns its end; called under the node's lock.
        patience_s: seconds for which the answer of the present master is awaited.

    Attributes:
        done: a future with the outcome: an `ElectionWon`, or the error why it was lost.
    """

    def __init__(
        self, context: NodeContext, peers: Peers, election: Election, end: Callable[[], LogPosition],
        prepare: Callable[[Term], LogPosition], patience_s: float = PATIENCE_S,
    ) -> None:  # fmt: skip
        self.election = election
        self.done: AppendFuture[ElectionWon] = AppendFuture()
        self._context, self._peers, self._end, self._prepare = context, peers, end, prepare
        self._patience_s = patience_s

    def run(self) -> ElectionWon:
        """Run the election. Blocks. Raises PromotionRefusedError, HigherTermError, or an OSError of the disk."""
        timeout, reactor = self._context.config.election_timeout_ms / 1000, self._context.reactor
        try:
            # Before the timer starts: a forced candidate promises itself the term here, which may take long.
            self.step(lambda: self.election.start(self._end()))
            timer = reactor.call_later(timeout, lambda: self.step(self.election.deadline))
            self._check_growth()
            reactor.call_later(self._patience_s, self._on_master_overdue)
            try:
                reactor.drive(self.done.done)
            finally:
                timer.cancel()
        finally:
            self.election.is_over = True  # also after a KeyboardInterrupt
        return self.done.result()

    def _check_growth(self) -> None:
        if self.election.is_trial and not self.election.is_over:
            self.step(lambda: self.election.grew(self._end()))
            self._context.reactor.call_later(CHECK_S, self._check_growth)

    def _on_master_overdue(self) -> None:
        if self.election.is_trial and not self.election.is_over:
            self.step(self.election.overdue)
            self._context.reactor.call_later(self._patience_s, self._on_master_overdue)

    def step(self, event: Callable[[], Iterable[Effect]]) -> None:
        """Process one event, and carry out its effects."""
        asks: list[SendPrepare] = []
        lost: ElectionLost | None = None
        with self._context.lock:
            pending = list(event())
            while pending:
                effect = pending.pop(0)
                if isinstance(effect, StorePromise):
                    pending += self._promised(effect.term)
                elif isinstance(effect, SendPrepare):
                    asks.append(effect)
                elif isinstance(effect, ElectionWon):
                    set_result(self.done, effect)
                else:
                    lost = effect
        for ask in asks:
            self._ask(ask)
        if lost is not None:
            self._end_lost(lost)

    def _end_lost(self, lost: ElectionLost) -> None:
        """End a lost election: tell the master to admit appends again, or ask the next candidate to stand."""
        if lost.release is not None:
            self._peers.ask(lost.release.member, lost.release.prepare, lambda _: None)
        if lost.next_candidate:
            ask_to_stand(self._context, self._peers, lost.next_candidate, self.election.term)
        set_exception(self.done, lost.error)

    def _ask(self, ask: SendPrepare) -> None:
        if not self.election.is_over:
            self._peers.ask(ask.member, ask.prepare, partial(self._on_answer, ask))

    def _promised(self, term: Term) -> Iterable[Effect]:
        try:
            end = self._prepare(term)
        except (ReplogError, OSError) as error:
            set_exception(self.done, error)
            return []
        return self.election.stored(end, self._context.terms.history, self._context.members.members)

    def _on_answer(self, ask: SendPrepare, answer: Message | ReplogError) -> None:
        if isinstance(answer, Promise):
            promise = answer
            self.step(lambda: self.election.promised(ask.member, promise))
        elif isinstance(answer, VoteRejected):
            rejection = answer
            self.step(lambda: self.election.vote_rejected(ask.member, rejection))
        else:
            logger.info("%s: %s does not answer: %s", self._context.path, ask.member, answer)
            # probably an older version, which knows fewer kinds of trials
            if isinstance(answer, DisconnectedError) and ask.prepare.trial > PreVote.YES:
                ask = SendPrepare(ask.member, ask.prepare._replace(trial=PreVote.YES))
            if isinstance(answer, NotConnectedError) and self._peers.is_unreachable(ask.member):
                self.step(lambda: self.election.unreachable(ask.member))
            self._context.reactor.call_later(RETRY_S, partial(self._ask, ask))


def ask_to_stand(context: NodeContext, peers: Peers, member: str, lost: Term) -> None:
    """Ask a member to stand for election: it was deposed in vain, or holds more than a candidate with promises.

    Asks again for a while if the connection ends: a node whose role changes closes connections.

    lost: term of the candidate. The member may not know it, and is elected only for a higher one.
    """
    command = Command(json.dumps({"command": "promote", "lost": [lost.number, lost.master]}).encode())
    until_us = context.now_us + context.config.election_timeout_ms * 1000

    def ask() -> None:
        peers.ask(member, command, on_answer)

    def on_answer(answer: Message | ReplogError) -> None:
        if isinstance(answer, ReplogError) and context.now_us < until_us:
            logger.info("%s: %s does not answer: %s", context.path, member, answer)
            context.reactor.call_later(RETRY_S, ask)

    logger.warning("%s: %s is asked to stand for election", context.path, member)
    ask()


def end_of(log: CommitLog) -> LogPosition:
    """Return the end of a log in the form that histories use."""
    end = ends_of_replica(log)[0] if isinstance(log, MirrorLog) else ends_of(log)[0]
    return LogPosition(*canonical(end, log.segment_bytes))
