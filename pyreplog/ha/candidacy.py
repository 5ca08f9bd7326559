"""Running an election: what the candidate's state machine asks for is done, until it has won or lost."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from functools import partial
from typing import TYPE_CHECKING

from pyreplog.ack import Ack
from pyreplog.errors import HigherTermError, NotConnectedError, ReplogError
from pyreplog.ha.context import Context, ends_of
from pyreplog.ha.peers import Peers
from pyreplog.ha.protocol.effects import StorePromise
from pyreplog.ha.protocol.election import Ask, Effect, Election, Won
from pyreplog.ha.protocol.mark import Mark
from pyreplog.ha.protocol.messages import Decline, Message, Promise
from pyreplog.ha.protocol.terms import Term, Terms
from pyreplog.ha.replica import ends_of_replica
from pyreplog.log.commitlog import CommitLog
from pyreplog.log.mirrorlog import MirrorLog, canonical

if TYPE_CHECKING:
    from pyreplog.ha.node import Node

logger = logging.getLogger(__name__)

AGAIN_S = 0.2
"""Who could not be reached is asked again after so long: it may be about to start."""


class Candidacy:
    """One election of this node.

    prepare: make ready for a term (stop following, promise it, sync the log) and return where the log ends; called with
    the node's lock held. done: gives what was won, or fails with why it was lost.
    """

    def __init__(self, context: Context, peers: Peers, election: Election, prepare: Callable[[Term], Mark]) -> None:
        self.election = election
        self.done: Ack[Won] = Ack()
        self._context, self._peers, self._prepare = context, peers, prepare

    def run(self, end: Mark) -> Won:
        """Elect; blocks. end: of the log now. Errors: PromotionRefusedError, HigherTermError; OSError of the disk."""
        timeout = self._context.config.election_timeout_ms / 1000
        try:
            self.step(lambda: self.election.start(end))  # its time begins behind the own promise, if that comes first
            timer = self._context.reactor.call_later(timeout, lambda: self.step(self.election.deadline))
            try:
                self._context.reactor.drive(self.done.done)
            finally:
                timer.cancel()
        finally:
            self.election.is_over = True  # also when Ctrl-C ends it
        return self.done.result()

    def step(self, event: Callable[[], Iterable[Effect]]) -> None:
        """One event and its effects."""
        asks: list[Ask] = []
        with self._context.lock:
            pending = list(event())
            while pending:
                effect = pending.pop(0)
                if isinstance(effect, StorePromise):
                    pending += self._promised(effect.term)
                elif isinstance(effect, Ask):
                    asks.append(effect)
                elif isinstance(effect, Won):
                    self.done.complete(effect)
                else:
                    self.done.fail(effect.error)
        for ask in asks:
            self._ask(ask)

    def _ask(self, ask: Ask) -> None:
        if not self.election.is_over:
            self._peers.ask(ask.member, ask.prepare, partial(self._heard, ask))

    def _promised(self, term: Term) -> Iterable[Effect]:
        try:
            end = self._prepare(term)
        except (ReplogError, OSError) as error:
            self.done.fail(error)
            return []
        return self.election.stored(end, self._context.terms.history, self._context.members.members)

    def _heard(self, ask: Ask, answer: Message | ReplogError) -> None:
        if isinstance(answer, Promise):
            promise = answer
            self.step(lambda: self.election.promised(ask.member, promise))
        elif isinstance(answer, Decline):
            decline = answer
            self.step(lambda: self.election.declined(ask.member, decline))
        else:
            logger.info("%s: %s does not answer: %s", self._context.path, ask.member, answer)
            if isinstance(answer, NotConnectedError) and self._peers.is_unreachable(ask.member):
                self.step(lambda: self.election.unreachable(ask.member))
            self._context.reactor.call_later(AGAIN_S, partial(self._ask, ask))


def elect(node: Node, end: Mark, force: bool) -> Won:
    """Have a node that has a log elected; blocks. end: of its log. Errors: as `Node.promote`."""
    context, log = node._context, node._log
    assert log is not None, "who has no log is no candidate"
    election = Election(
        node.name, log.uuid, context.terms.terms, context.members.members, ack=context.config.group.ack,
        above=node._above, force=force,
    )  # fmt: skip
    candidacy = node._candidacy = Candidacy(context, node._peers, election, partial(_promise, node, log))
    try:
        won = candidacy.run(end)
    except HigherTermError as error:
        node._above = max(node._above, Term(*error.term))
        raise
    finally:
        with context.lock:
            node._candidacy = None
    if won.possible_loss:
        logger.error("%s is master of term %s by force: %s", node.name, won.term, won.possible_loss)
    return won


def _promise(node: Node, log: CommitLog, term: Term) -> Mark:
    """Of a candidate, to itself; under the lock."""
    terms = node._context.terms
    if node._replica is not None:
        node._replica.promised(Terms(term, terms.history))
    terms.promise(term)
    log.sync()
    return end_of(log)


def end_of(log: CommitLog) -> Mark:
    """Where a log ends, as histories say it."""
    end = ends_of_replica(log)[0] if isinstance(log, MirrorLog) else ends_of(log)[0]
    return Mark(*canonical(end, log._segment_bytes))
