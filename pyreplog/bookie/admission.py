"""Checks which requests are allowed. `_native.bookie.fast_add` makes the same checks for plain ADDs."""

from __future__ import annotations

import logging
from collections import OrderedDict
from hmac import compare_digest

from pyreplog.bookie.key_verifier import KeyVerdict
from pyreplog.bookie.ledger_state import LedgerState
from pyreplog.bookie.protocol import COPY, RECOVERY, ReplyStatus, Request

logger = logging.getLogger(__name__)

Refusal = tuple[ReplyStatus, str]
"""Status and reason of a refusal."""

PROOFS_MAX = 4096
"""The number of ledgers whose proofs are kept; the metadata are asked again about others."""


class VerifiedProofs:
    """The proofs of ledger keys that the metadata confirmed last. A ledger's proof never changes."""

    def __init__(self) -> None:
        self._proofs: OrderedDict[int, bytes] = OrderedDict()

    def has(self, ledger: int, proof: bytes) -> bool:
        """Return whether the metadata have confirmed this proof of the ledger's key."""
        known = self._proofs.get(ledger)
        if known is None or not compare_digest(known, proof):
            return False
        self._proofs.move_to_end(ledger)
        return True

    def note(self, ledger: int, proof: bytes) -> None:
        """Note that the metadata confirmed a proof."""
        self._proofs[ledger] = proof
        if len(self._proofs) > PROOFS_MAX:
            self._proofs.popitem(last=False)

    def forget(self, ledger: int) -> None:
        """Drop the proof of a deleted ledger."""
        self._proofs.pop(ledger, None)


def check_key(request: Request, state: LedgerState | None) -> Refusal | None:
    """Refuse a request whose key is not that of the ledger."""
    if state is None or (state.key is None and (state.limbo or state.copied)):
        return None
    if state.key is None:
        return ReplyStatus.UNKNOWN, "the ledger's key is lost"
    if not compare_digest(state.key, request.key):
        return ReplyStatus.UNAUTHORIZED, "the key is not that of the ledger"
    return None


def check_writer(request: Request, state: LedgerState | None) -> Refusal | None:
    """Refuse a write to a ledger that is fenced, unless it has Flag.RECOVERY; also check the key."""
    if (refusal := check_key(request, state)) is not None or request.flags & RECOVERY:
        return refusal
    if state is not None and state.fenced:
        return ReplyStatus.FENCED, "the ledger is fenced"
    if state is not None and state.limbo:
        return ReplyStatus.UNKNOWN, "whether the ledger is fenced was lost in a crash"
    return None


def check_add(request: Request, state: LedgerState | None) -> Refusal | None:
    """Refuse an ADD as `check_writer` does. Copies bring no key, and a fence does not keep them out."""
    if not request.flags & COPY:
        return check_writer(request, state)
    if request.flags != COPY:
        return ReplyStatus.REFUSED, f"copies: expected the flag COPY alone, found flags {request.flags}"
    return None


def has_key(request: Request, state: LedgerState | None) -> bool:
    """Return whether the key of a request is the one that this bookie has noted."""
    return state is not None and state.key is not None and compare_digest(state.key, request.key)


def check_claim(request: Request, state: LedgerState | None, verdict: KeyVerdict, *, deleted: bool) -> Refusal | None:
    """Refuse a request with a key that this bookie has not noted, by the verdict of the metadata on the key."""
    if request.is_copy:
        return _check_proof(request, verdict)
    if verdict is KeyVerdict.WRONG:
        return ReplyStatus.UNAUTHORIZED, "the key is not that of the ledger"
    if verdict is KeyVerdict.NO_LEDGER:
        return (
            ReplyStatus.UNAUTHORIZED,
            f"the metadata have no ledger {request.ledger}; a key is accepted for an existing ledger only",
        )
    if verdict is KeyVerdict.SURPLUS:
        return (
            ReplyStatus.UNKNOWN,
            "the metadata store does not answer, and this connection has sent keys of too many ledgers meanwhile",
        )
    if deleted or (state is not None and state.key is not None):
        if verdict is KeyVerdict.UNKNOWN:
            return ReplyStatus.UNKNOWN, "the key of the ledger cannot be checked: the metadata store does not answer"
        logger.warning(
            "ledger %d: its key is refused: another key was noted before; see docs/operations.md, Keys", request.ledger
        )
        return ReplyStatus.UNAUTHORIZED, "the bookie had noted another key before the ledger's own key arrived"
    return None


def _check_proof(request: Request, verdict: KeyVerdict) -> Refusal | None:
    """Refuse copies by the verdict of the metadata on their proof. Unlike a writer, they can wait for the metadata."""
    if verdict is KeyVerdict.RIGHT:
        return None
    if verdict is KeyVerdict.WRONG:
        return ReplyStatus.UNAUTHORIZED, "the proof is not that of the ledger's key"
    if verdict is KeyVerdict.NO_LEDGER:
        return ReplyStatus.UNAUTHORIZED, f"the metadata have no ledger {request.ledger}; copies are of existing ledgers"
    return ReplyStatus.UNKNOWN, "the proof of the ledger's key cannot be checked: the metadata store does not answer"
