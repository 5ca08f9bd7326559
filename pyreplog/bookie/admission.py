"""Who may do what to a ledger. Of ADDs that nothing speaks against, `_native.bookie.fast_add` knows it, too."""

from __future__ import annotations

import logging
from hmac import compare_digest

from pyreplog.bookie.key_verifier import KeyVerdict
from pyreplog.bookie.ledgerstate import LedgerState
from pyreplog.bookie.protocol import RECOVERY, ReplyStatus, Request

logger = logging.getLogger(__name__)

Refusal = tuple[ReplyStatus, str]
"""And why."""


def check_key(request: Request, state: LedgerState | None) -> Refusal | None:
    """Of a request whose key is not that of the ledger."""
    if state is None or (state.key is None and state.limbo):
        return None
    if state.key is None:
        return ReplyStatus.UNKNOWN, "the ledger's key is lost"
    if not compare_digest(state.key, request.key):
        return ReplyStatus.UNAUTHORIZED, "the key is not that of the ledger"
    return None


def check_writer(request: Request, state: LedgerState | None) -> Refusal | None:
    """Of what only the ledger's writer may do, and, with Flag.RECOVERY, who recovers it."""
    if (refusal := check_key(request, state)) is not None or request.flags & RECOVERY:
        return refusal
    if state is not None and state.fenced:
        return ReplyStatus.FENCED, "the ledger is fenced"
    if state is not None and state.limbo:
        return ReplyStatus.UNKNOWN, "whether the ledger is fenced was lost in a crash"
    return None


def has_key(request: Request, state: LedgerState | None) -> bool:
    """Whether the key of a request is the one that is noted here."""
    return state is not None and state.key is not None and compare_digest(state.key, request.key)


def check_claim(request: Request, state: LedgerState | None, verdict: KeyVerdict, *, deleted: bool) -> Refusal | None:
    """Of a request whose key is not noted here, by what the metadata say of it."""
    if verdict is KeyVerdict.WRONG:
        return ReplyStatus.UNAUTHORIZED, "the key is not that of the ledger"
    if verdict is KeyVerdict.NO_LEDGER:
        return (
            ReplyStatus.UNAUTHORIZED,
            f"the metadata know no ledger {request.ledger}: keys are for ledgers that are there",
        )
    if verdict is KeyVerdict.SURPLUS:
        return (
            ReplyStatus.UNKNOWN,
            "the metadata store is away, and this connection has given keys to many ledgers meanwhile",
        )
    if deleted or (state is not None and state.key is not None):
        if verdict is KeyVerdict.UNKNOWN:
            return ReplyStatus.UNKNOWN, "which key is that of the ledger is not known: the metadata store is away"
        logger.warning("ledger %d: its key is refused, for another one was noted before; see 'Keys'", request.ledger)
        return ReplyStatus.UNAUTHORIZED, "another key was noted here before that of the ledger came"
    return None
