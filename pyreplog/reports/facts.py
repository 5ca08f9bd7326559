"""Facts: what is known without reading a record, of one moment: the same for all steps of a report."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Facts:
    """as_of_us: the moment, microseconds since 1970, UTC. window_s: over which present rates are taken, in seconds."""

    as_of_us: int
    window_s: float = 300.0
