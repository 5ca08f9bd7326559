"""A place in a log."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import NamedTuple


class Mark(NamedTuple):
    """A record boundary: position (bytes since the log began), and the number that the next entry gets there."""

    position: int
    entry: int


ORIGIN = Mark(0, 0)

mark_of: Callable[[tuple[int, int]], Mark] = partial(tuple.__new__, Mark)
"""The mark that a pair is: `Mark(*pair)` without a call of Python. There are several for each append."""
