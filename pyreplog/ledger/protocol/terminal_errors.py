"""The replies of bookies that end the writer of a ledger, and their errors."""

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
from pyreplog.ledger.ledger_metadata import LedgerMetadata

NOT_OURS = (
    InvalidMetadataError,
    LedgerClosedError,
    LedgerFencedError,
    LedgerRefusedError,
    NoSuchLedgerError,
    UnauthorizedError,
)
"""After these errors the writer must not close the ledger."""


def terminal_error(ledger: int, bookie: str, reply: Reply) -> ReplogError | None:
    """Return the error of a reply after which no other bookie would help; None: the reply is not terminal."""
    reason = f"bookie {bookie} refuses its entries: {bytes(reply.body).decode('utf-8', 'replace')}"
    if reply.status == ReplyStatus.FENCED:
        return LedgerFencedError(ledger, "its bookies refuse this writer: another client has recovered the ledger")
    if reply.status == ReplyStatus.UNAUTHORIZED:
        return UnauthorizedError(ledger, f"bookie {bookie} refuses the password")
    if reply.status == ReplyStatus.REFUSED:
        return LedgerRefusedError(ledger, reason)
    return EntryRefusedError(ledger, reason) if reply.status == ReplyStatus.INVALID else None


def is_foreign_key(metadata: LedgerMetadata, key: bytes, reply: Reply) -> bool:
    """Return whether a bookie refuses the right key of a ledger, because an unauthorized client gave it another one
    before.

    Only this bookie is affected; another one can take its place.
    """
    return reply.status == ReplyStatus.UNAUTHORIZED and metadata.admits(key)


def error_text(reply: Reply) -> str:
    """Describe the reply of a bookie that did not do what it was asked, for error messages."""
    reason = bytes(reply.body).decode("utf-8", "replace")
    if reply.status == ReplyStatus.OK:
        return "its reply is about other entries"
    return f"{ReplyStatus(reply.status).name}, {reason}" if reason else ReplyStatus(reply.status).name
