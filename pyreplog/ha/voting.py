"""How a node answers candidates."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from pyreplog.errors import ReplicationError
from pyreplog.ha.context import ends_of, parse_address
from pyreplog.ha.protocol.election import refuse_candidate
from pyreplog.ha.protocol.mark import ORIGIN, Mark
from pyreplog.ha.protocol.messages import NO_UUID, Decline, Message, Prepare, Promise, Trial
from pyreplog.ha.protocol.terms import Term, Terms
from pyreplog.ha.replica import ends_of_replica
from pyreplog.log.mirrorlog import MirrorLog, canonical

if TYPE_CHECKING:
    from pyreplog.ha.master import Master
    from pyreplog.ha.node import Node

logger = logging.getLogger(__name__)

HEARD_US = 800_000
"""A master that has said something so lately is not lost: four of its beats."""


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
    if master is not None:
        _prepare_master(master, prepare)  # tells those who wait: not under the lock
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


def _prepare_master(master: Master, prepare: Prepare) -> None:
    """It is deposed by what is asked for; or waits for the candidate, or does so no more."""
    if not prepare.trial:
        master.fence(prepare.term)
    elif prepare.trial == Trial.HOLD:
        master.hold(prepare.term.master)
    else:
        master.release(prepare.term.master)


def _changing(node: Node) -> ReplicationError:
    return ReplicationError(f"{node.name} is opening its log, or changes its role: ask again")


def _declines(node: Node, prepare: Prepare) -> Decline | None:
    if node.role == "candidate" and node._candidacy is None:
        raise _changing(node)
    uuid = NO_UUID if node._log is None else node._log.uuid
    declined = refuse_candidate(prepare, uuid, node._context.terms.terms, node.members, _hears(node))
    if declined is not None and not prepare.trial:
        logger.info("%s: no promise for term %s: %s", node.name, prepare.term, declined.text)
    return declined


def _hears(node: Node) -> str:
    """Name of the master that this node is, or hears from."""
    master, replica = node._master, node._replica
    if master is not None:
        return node.name if master.group.fenced is None else ""
    return replica.leader if replica is not None and replica.silent_us < HEARD_US else ""


def _give_promise(node: Node, term: Term) -> None:
    """Nothing of a lower term is taken from before it is durable on."""
    terms = node._context.terms
    if node._replica is not None:
        node._replica.promised(Terms(term, terms.history))
    candidacy = node._candidacy
    if candidacy is not None:
        candidacy.step(lambda: candidacy.election.outdone(term))
    terms.promise(term)
    logger.info("%s: promised term %s: whatever is lower is fenced", node.name, term)


def _look_for(node: Node, master: str) -> None:
    """A replica follows nobody of a lower term from now on: it dials the candidate, if it knows where that one is."""
    there = node.address_of(master)
    if node._replica is not None and there is not None and not node.config.observer:
        node._replica.follow(parse_address(there))


def _promise_to(node: Node, prepare: Prepare) -> Promise:
    received, synced = (_canonical(node, mark) for mark in ends(node))
    history = node._context.terms.history.up_to(received)
    return Promise(prepare.term, history, received, synced, node.members, bool(prepare.trial))


def _canonical(node: Node, mark: Mark) -> Mark:
    """As the candidate says where its own log ends."""
    return mark if node._log is None else Mark(*canonical(mark, node._log.segment_bytes))


def ends(node: Node) -> tuple[Mark, Mark]:
    """(received, synced) of a node's log, whatever its role is."""
    log = node._log
    if log is None:
        return ORIGIN, ORIGIN
    return ends_of_replica(log) if isinstance(log, MirrorLog) else ends_of(log)
