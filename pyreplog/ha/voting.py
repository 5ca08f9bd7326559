"""How a node answers candidates."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyreplog.errors import ReplicationError
from pyreplog.ha.context import ends_of, parse_address
from pyreplog.ha.protocol.election import refuse_candidate
from pyreplog.ha.protocol.mark import ORIGIN, Mark
from pyreplog.ha.protocol.messages import NO_UUID, Decline, Message, Prepare, Promise
from pyreplog.ha.protocol.terms import Term, Terms
from pyreplog.ha.replica import ends_of_replica
from pyreplog.log.mirrorlog import MirrorLog

if TYPE_CHECKING:
    from pyreplog.ha.node import Node


def vote(node: Node, prepare: Prepare) -> Message:
    """The answer; what it promises is durable before this returns.

    ReplicationError: not now. A node whose log is not open does not know what it holds, and a master that is about to
    be cannot be fenced.
    """
    context, master = node._context, node._master
    with context.lock:
        declined = _declines(node, prepare)
    if declined is not None:
        return declined
    if not prepare.trial and master is not None:
        master.fence(prepare.term)  # tells those who wait: not under the lock
    with context.lock:
        if node._master is not master:
            raise _changing(node)
        declined = _declines(node, prepare)
        if declined is not None:
            return declined
        if not prepare.trial:
            _give_promise(node, prepare.term)
            _look_for(node, prepare.term.master)
        return _promise_to(node, prepare)


def _changing(node: Node) -> ReplicationError:
    return ReplicationError(f"{node.name} is opening its log, or changes its role: ask again")


def _declines(node: Node, prepare: Prepare) -> Decline | None:
    if node.role == "candidate" and node._candidacy is None:
        raise _changing(node)
    uuid = NO_UUID if node._log is None else node._log.uuid
    return refuse_candidate(prepare, uuid, node._context.terms.terms, node.members)


def _give_promise(node: Node, term: Term) -> None:
    """Nothing of a lower term is taken from before it is durable on."""
    terms = node._context.terms
    if node._replica is not None:
        node._replica.promised(Terms(term, terms.history))
    candidacy = node._candidacy
    if candidacy is not None:
        candidacy.step(lambda: candidacy.election.outdone(term))
    terms.promise(term)


def _look_for(node: Node, master: str) -> None:
    """A replica follows nobody of a lower term from now on: it dials the candidate, if it knows where that one is."""
    there = node._peers.addresses.get(master)
    if node._replica is not None and there is not None and not node.config.observer:
        node._replica.follow(parse_address(there))


def _promise_to(node: Node, prepare: Prepare) -> Promise:
    received, synced = ends(node)
    history = node._context.terms.history.up_to(received)
    return Promise(prepare.term, history, received, synced, node.members, prepare.trial)


def ends(node: Node) -> tuple[Mark, Mark]:
    """(received, synced) of a node's log, whatever its role is."""
    log = node._log
    if log is None:
        return ORIGIN, ORIGIN
    return ends_of_replica(log) if isinstance(log, MirrorLog) else ends_of(log)
