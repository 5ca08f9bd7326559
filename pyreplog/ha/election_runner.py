"""Running an election: what the candidate's state machine asks for is done, until it has won or lost."""

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

AGAIN_S = 0.2
"""Seconds after which a member that could not be reached is asked again: it may be about to start."""

LOOK_S = 0.005
"""How often a candidate that receives still looks whether it has caught up."""

PATIENCE_S = 1.0
"""A master that is to hand over has so long to answer."""


class ElectionRunner:
    """One election of this node.

    end: where the log ends now. prepare: make ready for a term (stop following, promise it, sync the log) and return
    where the log ends then; called with the node's lock held. patience_s: how long the answer of the master that it
    follows is waited for. done: gives what was won, or fails with why it was lost.
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
        """Elect; blocks. Errors: PromotionRefusedError, HigherTermError; OSError of the disk."""
        timeout, reactor = self._context.config.election_timeout_ms / 1000, self._context.reactor
        try:
            self.step(lambda: self.election.start(self._end()))  # its time begins behind the own promise of force
            timer = reactor.call_later(timeout, lambda: self.step(self.election.deadline))
            self._look()
            reactor.call_later(self._patience_s, self._lose_patience)
            try:
                reactor.drive(self.done.done)
            finally:
                timer.cancel()
        finally:
            self.election.is_over = True  # also when Ctrl-C ends it
        return self.done.result()

    def _look(self) -> None:
        if self.election.is_trial and not self.election.is_over:
            self.step(lambda: self.election.grew(self._end()))
            self._context.reactor.call_later(LOOK_S, self._look)

    def _lose_patience(self) -> None:
        if self.election.is_trial and not self.election.is_over:
            self.step(self.election.overdue)
            self._context.reactor.call_later(self._patience_s, self._lose_patience)

    def step(self, event: Callable[[], Iterable[Effect]]) -> None:
        """One event and its effects."""
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
            self._give_up(lost)

    def _give_up(self, lost: ElectionLost) -> None:
        """The former master goes on at once: its appends are held back, or it was deposed for nothing. Or the member
        that holds most stands in this one's place."""
        if lost.release is not None:
            self._peers.ask(lost.release.member, lost.release.prepare, lambda _: None)
        if lost.restore:
            restore(self._context, self._peers, lost.restore)
        set_exception(self.done, lost.error)

    def _ask(self, ask: SendPrepare) -> None:
        if not self.election.is_over:
            self._peers.ask(ask.member, ask.prepare, partial(self._heard, ask))

    def _promised(self, term: Term) -> Iterable[Effect]:
        try:
            end = self._prepare(term)
        except (ReplogError, OSError) as error:
            set_exception(self.done, error)
            return []
        return self.election.stored(end, self._context.terms.history, self._context.members.members)

    def _heard(self, ask: SendPrepare, answer: Message | ReplogError) -> None:
        if isinstance(answer, Promise):
            promise = answer
            self.step(lambda: self.election.promised(ask.member, promise))
        elif isinstance(answer, VoteRejected):
            rejection = answer
            self.step(lambda: self.election.vote_rejected(ask.member, rejection))
        else:
            logger.info("%s: %s does not answer: %s", self._context.path, ask.member, answer)
            # of an older version, it seems
            if isinstance(answer, DisconnectedError) and ask.prepare.trial > PreVote.YES:
                ask = SendPrepare(ask.member, ask.prepare._replace(trial=PreVote.YES))
            if isinstance(answer, NotConnectedError) and self._peers.is_unreachable(ask.member):
                self.step(lambda: self.election.unreachable(ask.member))
            self._context.reactor.call_later(AGAIN_S, partial(self._ask, ask))


def restore(context: NodeContext, peers: Peers, member: str) -> None:
    """Have a member stand for election: it was deposed for nothing, or holds more than a candidate with promises."""
    logger.warning("%s: %s is asked to stand for election", context.path, member)
    peers.ask(member, Command(json.dumps({"command": "promote"}).encode()), lambda _: None)


def end_of(log: CommitLog) -> LogPosition:
    """Where a log ends, as histories say it."""
    end = ends_of_replica(log)[0] if isinstance(log, MirrorLog) else ends_of(log)[0]
    return LogPosition(*canonical(end, log.segment_bytes))
