"""What the state machines of this package ask for, beside the native `Send` and `Settle`. Whoever drives one does it
and reports back what became of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeAlias

from pyreplog._native.machines.effects import Send, Settle
from pyreplog.ledger.ledgermetadata import LedgerMetadata

__all__ = ["BadCopy", "Effect", "Finished", "Load", "Store", "Wake"]


@dataclass(frozen=True, slots=True)
class Store:
    """Compare and set the ledger's metadata. Report `stored(version)`, `conflicted(metadata, version)` with what is
    there instead, or `store_unknown()`.

    lacking: noted for repair first, durably. Who closes a ledger and dies leaves no copy missing that nobody knows of.
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


@dataclass(frozen=True, slots=True)
class Finished:
    """The machine is done: with a result, or with an exception."""

    result: Any = None
    error: Exception | None = None


Effect: TypeAlias = Send | Store | Load | Settle | Wake | BadCopy | Finished
