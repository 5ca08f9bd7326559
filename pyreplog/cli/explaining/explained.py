"""Explained: what `dump` says of one field."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Explained:
    """One field. offset: in the segment file. ok: None if there is nothing to check the value against."""

    name: str
    offset: int
    data: bytes
    meaning: str
    ok: bool | None = None
