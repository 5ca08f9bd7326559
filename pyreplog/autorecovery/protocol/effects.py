"""The effect that the state machines of this package return beside those of `ledger.protocol.effects`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from pyreplog.ledger.protocol.effects import Effect


@dataclass(frozen=True, slots=True)
class NoteLost:
    """List entries as lost, durably. The events are `noted()` or `store_unknown()`.

    entries: ascending. bookie: the one that had the last copies.
    """

    entries: tuple[int, ...]
    bookie: str


ReplicationEffect: TypeAlias = Effect | NoteLost
