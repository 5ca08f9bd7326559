"""What the state machines of this package ask for. Whoever drives one does it and reports back what became of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

from pyreplog.ack import Outcome
from pyreplog.bookie.protocol import Request
from pyreplog.ledger.ledgermetadata import LedgerMetadata


class Send(NamedTuple):
    """A request to a bookie. Report `replied(send, reply)` or `failed(send, error)`, once."""

    bookie: str
    request: Request
    about: Any = None


@dataclass(frozen=True, slots=True)
class Store:
    """Compare and set the ledger's metadata. Report `stored(version)`, `conflicted(metadata, version)` with what is
    there instead, or `store_unknown()`."""

    metadata: LedgerMetadata
    version: int


@dataclass(frozen=True, slots=True)
class Load:
    """Read the ledger's metadata again. Report `loaded(metadata, version)`, `deleted()`, or `store_unknown()`."""


class Settle(NamedTuple):
    """These acks have their outcome. To be done last, with no lock held: it runs callbacks."""

    outcomes: Sequence[Outcome]


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
