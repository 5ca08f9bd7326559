"""What the metadata store keeps of a bookie that is away, lost, draining or retired."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from pyreplog.errors import InvalidMetadataError
from pyreplog.metadata.store import MetadataStore
from pyreplog.metadata.values import Kept, field, split_object

BOOKIE_STATES = "/bookie-states"
VERSION = 1
TIME_MAX = 1 << 62

_NEW = Kept(VERSION, VERSION)
_FIELDS = ("phase", "since_us", "reason")


class BookiePhase(StrEnum):
    """Why a bookie is not an ordinary member. A bookie without a state is one."""

    AWAY = "away"
    """It is not registered. Its copies count as there, because it may come back."""
    LOST = "lost"
    """Its copies are gone: its name was registered with another incarnation, or an operator declared the loss."""
    DRAINING = "draining"
    """It runs, and its copies are moved to other bookies."""
    RETIRED = "retired"
    """No ledger names it any more. A bookie of this id may not register again."""


@dataclass(frozen=True)
class BookieState:
    """The state of one bookie.

    Attributes:
        phase: why it is not an ordinary member.
        since_us: microseconds since 1970 at which the phase began, so that an auditor which takes over continues the
            delay.
        reason: for operators.
        kept: fields of other versions, which are written back as they were.
    """

    phase: BookiePhase
    since_us: int
    reason: str = ""
    kept: Kept = _NEW

    def encode(self) -> bytes:
        """Return the value of the key."""
        return self.kept.encode({"phase": self.phase, "since_us": self.since_us, "reason": self.reason})

    @classmethod
    def decode(cls, data: bytes) -> BookieState:
        """Return the state that a value holds.

        Raises:
            MetadataVersionError: it needs a newer reader.
            InvalidMetadataError: it is malformed.
        """
        try:
            body, kept = split_object("state of a bookie", data, _FIELDS, VERSION)
            since_us = field(body, "since_us", int)
            if not 0 <= since_us <= TIME_MAX:
                raise ValueError(f"since_us: expected 0 to {TIME_MAX}, found {since_us}")
            return cls(BookiePhase(field(body, "phase", str)), since_us, field(body, "reason", str), kept)
        except ValueError as error:
            raise InvalidMetadataError(f"state of a bookie: {data[:80]!r}: {error}") from error


def bookie_state_key(bookie: str) -> str:
    """Return the key of a bookie's state. bookie: its id, name and incarnation."""
    return f"{BOOKIE_STATES}/{bookie}"


def list_bookie_states(store: MetadataStore) -> dict[str, BookieState]:
    """Return the states of all bookies that have one, by bookie id.

    Raises:
        InvalidMetadataError: a state is malformed, or needs a newer reader.
        ReplogError: errors of the store.
    """
    bookies = store.list(BOOKIE_STATES)
    stored = zip(bookies, store.get_many([bookie_state_key(bookie) for bookie in bookies]), strict=True)
    return {bookie: BookieState.decode(value.value) for bookie, value in stored if value is not None}
