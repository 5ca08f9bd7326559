"""Places to begin at, as JSON: in arguments of calls."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from pyreplog.topic.model.positions import Start
from pyreplog.topic.model.times import moment_at, moment_us


def encode_start(start: Start) -> Any:
    """As JSON."""
    if isinstance(start, datetime):
        return {"time_us": moment_us("start", start)}
    return start if isinstance(start, str) else int(start)


def decode_start(encoded: Any) -> Start:
    """From JSON; not checked. Errors: KeyError; those of `moment_at`."""
    if isinstance(encoded, dict):
        return moment_at(encoded["time_us"])
    start: Start = encoded
    return start
