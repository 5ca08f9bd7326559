"""What the answers of bookies mean that end a ledger's writer."""

from __future__ import annotations

from pyreplog.bookie.protocol import Reply, ReplyStatus
from pyreplog.errors import (
    EntryRefusedError,
    InvalidMetadataError,
    LedgerClosedError,
    LedgerFencedError,
    LedgerRefusedError,
    NoSuchLedgerError,
    ReplogError,
    UnauthorizedError,
)
from pyreplog.ledger.ledgermetadata import LedgerMetadata

NOT_OURS = (
    InvalidMetadataError,
    LedgerClosedError,
    LedgerFencedError,
    LedgerRefusedError,
    NoSuchLedgerError,
    UnauthorizedError,
)
"""After these the ledger is not this writer's to close."""


def terminal_error(ledger: int, bookie: str, reply: Reply) -> ReplogError | None:
    """The error of a reply that no other bookie would better; None: it is not one of those."""
    why = f"{bookie} refuses its entries: {bytes(reply.body).decode('utf-8', 'replace')}"
    if reply.status == ReplyStatus.FENCED:
        return LedgerFencedError(ledger, "its bookies refuse this writer: it was recovered")
    if reply.status == ReplyStatus.UNAUTHORIZED:
        return UnauthorizedError(ledger, f"{bookie} refuses its password")
    if reply.status == ReplyStatus.REFUSED:
        return LedgerRefusedError(ledger, why)
    return EntryRefusedError(ledger, why) if reply.status == ReplyStatus.INVALID else None


def is_foreign_key(metadata: LedgerMetadata, key: bytes, reply: Reply) -> bool:
    """Whether a bookie refuses the right key of a ledger: it was given another one before, by somebody who may not.
    That is a fault of this bookie; others can take its place."""
    return reply.status == ReplyStatus.UNAUTHORIZED and metadata.admits(key)


def error_text(reply: Reply) -> str:
    """What a bookie that did not do as asked says, for people."""
    why = bytes(reply.body).decode("utf-8", "replace")
    if reply.status == ReplyStatus.OK:
        return "its answer is of other entries"
    return f"{ReplyStatus(reply.status).name}, {why}" if why else ReplyStatus(reply.status).name
