"""A timer of simulated time."""

from __future__ import annotations


class Alarm:
    """A timer."""

    is_set = True

    def cancel(self) -> bool:
        was_set, self.is_set = self.is_set, False
        return was_set
