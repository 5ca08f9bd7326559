"""Who may do what to a ledger. Of ADDs that nothing speaks against, `_native.bookie.plainadd` knows it, too."""

from __future__ import annotations

from hmac import compare_digest

from pyreplog.bookie.ledgerstate import LedgerState
from pyreplog.bookie.protocol import RECOVERY, Request, Status

Refusal = tuple[Status, str]
"""And why."""


def check_key(request: Request, state: LedgerState | None) -> Refusal | None:
    """Of a request whose key is not that of the ledger."""
    if state is None or (state.key is None and state.limbo):
        return None
    if state.key is None:
        return Status.UNKNOWN, "the ledger's key is lost"
    if not compare_digest(state.key, request.key):
        return Status.UNAUTHORIZED, "the key is not that of the ledger"
    return None


def check_writer(request: Request, state: LedgerState | None) -> Refusal | None:
    """Of what only the ledger's writer may do, and, with Flag.RECOVERY, who recovers it."""
    if (refusal := check_key(request, state)) is not None or request.flags & RECOVERY:
        return refusal
    if state is not None and state.fenced:
        return Status.FENCED, "the ledger is fenced"
    if state is not None and state.limbo:
        return Status.UNKNOWN, "whether the ledger is fenced was lost in a crash"
    return None
