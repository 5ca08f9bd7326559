"""What the state machines of this package ask for, beside the native `Send` and `Settle`. Whoever drives one does it
and reports back what became of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeAlias

from pyreplog._native.machines.effects import Send, Settle
from pyreplog.ledger.ledgermetadata import LedgerMetadata, State

__all__ = ["BadCopy", "Degraded", "Effect", "Finished", "Load", "Store", "Suspect", "Wake"]


@dataclass(frozen=True, slots=True)
class Store:
    """Compare and set the ledger's metadata. Report `stored(version)`, `conflicted(metadata, version)` with what is
    there instead, or `store_unknown()`.

    lacking: noted for repair first, durably. Who closes a ledger and dies leaves no copy missing that nobody knows of.
    Nor does a writer that goes on without a bookie: it then stores the metadata as they are.
    """

    metadata: LedgerMetadata
    version: int
    lacking: tuple[BadCopy, ...] = ()


@dataclass(frozen=True, slots=True)
class Load:
    """Read the ledger's metadata again. Report `loaded(metadata, version)`, `deleted()`, or `store_unknown()`."""


@dataclass(frozen=True, slots=True)
class Wake:
    """Report `woken(about)` after so many seconds."""

    seconds: float
    about: Any


@dataclass(frozen=True, slots=True)
class BadCopy:
    """A bookie's copy of an entry is missing or damaged: to be repaired later."""

    bookie: str
    entry: int

    def within(self, metadata: LedgerMetadata) -> BadCopy:
        """Of a closed ledger: the first one from there on that the bookie is to hold. A note of another one says
        nothing: somebody else may have given the first entries of this bookie to others meanwhile."""
        if metadata.state is not State.CLOSED:
            return self
        stripes = metadata.holdings(self.bookie)
        later = (stripe[max(-(-(self.entry - stripe.start) // stripe.step), 0) :] for stripe in stripes)
        return BadCopy(self.bookie, min((stripe.start for stripe in later if stripe), default=self.entry))


@dataclass(frozen=True, slots=True)
class Suspect:
    """A bookie failed: it is not to be chosen for a while, if there are others."""

    bookie: str


@dataclass(frozen=True, slots=True)
class Degraded:
    """The writer goes on without copies on these bookies, which failed and which no other replaces; why. None: from now
    on every entry gets all its copies again."""

    bookies: tuple[str, ...] = ()
    why: str = ""


@dataclass(frozen=True, slots=True)
class Finished:
    """The machine is done: with a result, or with an exception."""

    result: Any = None
    error: Exception | None = None


Effect: TypeAlias = Send | Store | Load | Settle | Wake | BadCopy | Suspect | Degraded | Finished
