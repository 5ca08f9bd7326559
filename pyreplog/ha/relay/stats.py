"""The state of an applier, for operators."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class ApplierStats:
    """The state of an applier at one moment.

    Attributes:
        state: "running", "stopped", "finished" or "failed".
        error: the error that it failed with, or "".
        received_entry: entry number at the end of the relay log.
        received_position: end of the relay log, bytes from the beginning of the log.
        visible_entry: number of the first entry that is not committed, and may not be applied.
        applied_entry: number of the first entry that is not applied.
        applied_position: position behind the last applied record, bytes from the beginning of the log.
        lag_entries: entries received and not applied.
        lag_bytes: bytes received and not applied.
        lag_us: microseconds since the next entry to apply was appended, by the clocks of the master and of this
            machine; 0: all is applied.
        relay_bytes: bytes of log that the relay log holds.
        space_limit_bytes: as in `ApplierConfig`.
        paused: whether the receiver waits for space.
        pauses: how often it was paused.
        in_flight: batches that were handed to workers and are not finished.
        retried: batches that failed, and were then applied entry by entry.
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
