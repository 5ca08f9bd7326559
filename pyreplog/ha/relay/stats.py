"""What an applier tells of itself."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class ApplierStats:
    """A moment of an applier.

    state: "running", "stopped", "finished" (its until is reached) or "failed"; error: with what, or "".
    received_*: end of the relay log; visible_entry: how much of it is committed, and may be applied.
    applied_*: all before it is applied. lag_entries, lag_bytes: received and not applied. lag_us: how long ago the next
    entry to be applied was appended, by the clocks of master and this machine; 0 when all is applied.
    relay_bytes: of log that the relay log holds; paused: the receiver was told to wait for space; pauses: how often.
    in_flight: batches handed out. retried: batches that failed and were then applied entry by entry.
    """

    state: str
    error: str
    received_entry: int
    received_position: int
    visible_entry: int
    applied_entry: int
    applied_position: int
    lag_entries: int
    lag_bytes: int
    lag_us: int
    relay_bytes: int
    space_limit_bytes: int | None
    paused: bool
    pauses: int
    in_flight: int
    retried: int
