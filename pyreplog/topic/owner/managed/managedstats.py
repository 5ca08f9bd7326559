"""How a managed ledger stands, for people and programs."""

from __future__ import annotations

from dataclasses import dataclass

from pyreplog.topic.model.stats import Stats
from pyreplog.topic.model.topic_position import TopicPosition


@dataclass(frozen=True, kw_only=True)
class ManagedLedgerStats(Stats):
    """state: "idle", no ledger is open; "open"; "rolling", one is being replaced; "fenced"; "closed". ledgers: how many
    the chain has; doomed: ledgers it gave up, to be deleted yet. last_add_*: of the open ledger, -1: none. readers: of
    closed ledgers. failures: ledgers that were replaced because they failed. waits_for: why no ledger can be made or
    ended now; "": nothing is known to be in the way."""

    name: str
    epoch: int
    owner: str
    state: str
    start: TopicPosition
    end: TopicPosition
    ledgers: int
    doomed: int
    last_add_pushed: int
    last_add_confirmed: int
    pending_bytes: int
    pending_entries: int
    readers: int
    failures: int
    waits_for: str
