"""What the answers of bookies mean that end a ledger's writer."""

from __future__ import annotations

from pyreplog.bookie.protocol import Reply, Status
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


def refusal(ledger: int, bookie: str, reply: Reply) -> ReplogError | None:
    """The error of a reply that no other bookie would better; None: it is not one of those."""
    why = f"{bookie} refuses its entries: {bytes(reply.body).decode('utf-8', 'replace')}"
    if reply.status == Status.FENCED:
        return LedgerFencedError(ledger, "its bookies refuse this writer: it was recovered")
    if reply.status == Status.UNAUTHORIZED:
        return UnauthorizedError(ledger, f"{bookie} refuses its password")
    if reply.status == Status.REFUSED:
        return LedgerRefusedError(ledger, why)
    return EntryRefusedError(ledger, why) if reply.status == Status.INVALID else None


def is_foreign_key(metadata: LedgerMetadata, key: bytes, reply: Reply) -> bool:
    """Whether a bookie refuses the right key of a ledger: it was given another one before, by somebody who may not.
    That is a fault of this bookie; others can take its place."""
    return reply.status == Status.UNAUTHORIZED and metadata.admits(key)


def complaint(reply: Reply) -> str:
    """What a bookie that did not do as asked says, for people."""
    why = bytes(reply.body).decode("utf-8", "replace")
    if reply.status == Status.OK:
        return "its answer is of other entries"
    return f"{Status(reply.status).name}, {why}" if why else Status(reply.status).name
