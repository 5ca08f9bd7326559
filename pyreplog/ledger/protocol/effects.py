"""The effects that the state machines of this package return, beside the native `Send` and `Settle`.

The driver of a machine carries out each effect, and reports its outcome to the machine as an event.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeAlias

from pyreplog._native.machines.effects import Send, Settle
from pyreplog.ledger.ledger_metadata import LedgerMetadata, State

__all__ = ["BadCopy", "Degraded", "Effect", "Finished", "Load", "QuarantineBookie", "Store", "Wake"]


@dataclass(frozen=True, slots=True)
class Store:
    """Compare and set the metadata of the ledger.

    The events are `stored(version)`, `conflicted(metadata, version)` with the current metadata, or `store_unknown()`.

    lacking: copies to be noted for repair first, durably. So no missing copy stays unknown if the client that closes a
    ledger dies. A writer that goes on without a bookie notes its copies in this way, and stores the metadata unchanged.
    """

    metadata: LedgerMetadata
    version: int
    lacking: tuple[BadCopy, ...] = ()


@dataclass(frozen=True, slots=True)
class Load:
    """Read the metadata of the ledger. The events are `loaded(metadata, version)`, `deleted()` or `store_unknown()`."""


@dataclass(frozen=True, slots=True)
class Wake:
    """Bring the event `woken(about)` after `seconds`."""

    seconds: float
    about: Any


@dataclass(frozen=True, slots=True)
class BadCopy:
    """Note the copy of an entry on a bookie for repair: it is missing or damaged."""

    bookie: str
    entry: int

    def within(self, metadata: LedgerMetadata) -> BadCopy:
        """Return the first copy from this entry on that the bookie has to hold, if the ledger is closed.

        A note of any other entry would be void: another client may have given this bookie's first entries to others.
        """
        if metadata.state is not State.CLOSED:
            return self
        stripes = metadata.holdings(self.bookie)
        later = (stripe[max(-(-(self.entry - stripe.start) // stripe.step), 0) :] for stripe in stripes)
        return BadCopy(self.bookie, min((stripe.start for stripe in later if stripe), default=self.entry))


@dataclass(frozen=True, slots=True)
class QuarantineBookie:
    """Put a bookie that failed into quarantine: for a while, other bookies are chosen first."""

    bookie: str


@dataclass(frozen=True, slots=True)
class Degraded:
    """Report that the writer goes on without copies on failed bookies that no other bookie can replace, and the
    reasons.

    Without bookies: from now on every entry gets all its copies again.
    """

    bookies: tuple[str, ...] = ()
    why: str = ""


@dataclass(frozen=True, slots=True)
class Finished:
    """End the machine with a result or an error."""

    result: Any = None
    error: Exception | None = None


Effect: TypeAlias = Send | Store | Load | Settle | Wake | BadCopy | QuarantineBookie | Degraded | Finished
