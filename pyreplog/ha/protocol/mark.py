"""A place in a log."""

from __future__ import annotations

from typing import NamedTuple


class Mark(NamedTuple):
    """A record boundary: position (bytes since the log began), and the number that the next entry gets there."""

    position: int
    entry: int


ORIGIN = Mark(0, 0)
