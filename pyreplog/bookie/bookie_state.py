"""The states of bookies in the metadata store: away, lost, draining or retired."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Any, ClassVar

from pyreplog.metadata.store import MetadataStore
from pyreplog.metadata.values import MetadataValue, field, number

BOOKIE_STATES = "/bookie-states"


class BookiePhase(StrEnum):
    """The reason why a bookie is not an ordinary member. An ordinary member has no state."""

    AWAY = "away"
    """The bookie is not registered. Its copies count as existing, because it may come back."""
    LOST = "lost"
    """The copies of the bookie are lost: its name was registered with another incarnation, or an operator declared the
    loss."""
    DRAINING = "draining"
    """The bookie runs, and its copies are moved to other bookies."""
    RETIRED = "retired"
    """No ledger names the bookie any more. A bookie of this id may not register again."""


@dataclass(frozen=True)
class BookieState(MetadataValue):
    """The state of one bookie.

    Attributes:
        phase: why it is not an ordinary member.
        since_us: microseconds since 1970 at which the phase began, so that an auditor which takes over continues the
            delay.
        reason: for operators.
    """

    KIND: ClassVar[str] = "state of a bookie"

    phase: BookiePhase
    since_us: int
    reason: str = ""

    @classmethod
    def _decode_fields(cls, fields: dict[str, Any]) -> dict[str, Any]:
        phase, reason = BookiePhase(field(fields, "phase", str)), field(fields, "reason", str)
        return {"phase": phase, "since_us": number(fields, "since_us"), "reason": reason}


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
