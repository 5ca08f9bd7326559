"""FailedAttempt: a failed attempt to work on a ledger, with the time of the next attempt."""

from __future__ import annotations

from dataclasses import dataclass

from pyreplog.errors import NotEnoughBookiesError, ReplogError

RETRY_MS, RETRY_MAX_MS = 5_000, 300_000
"""Back-off of failed work in milliseconds: the first one, doubled with each failure, and the maximum (BookKeeper
#3887)."""


@dataclass(frozen=True)
class FailedAttempt:
    """The reason why work on a ledger fails, and the time of the next attempt.

    Attributes:
        error: error of the last attempt.
        attempts: number of failed attempts in a row.
        retry_us: monotonic time of the next attempt, microseconds.
    """

    error: ReplogError
    attempts: int
    retry_us: int

    @classmethod
    def after(cls, previous: FailedAttempt | None, error: ReplogError, now_us: int) -> FailedAttempt:
        """Return the record of an attempt that failed now.

        Args:
            previous: the record of the previous attempt, if that failed as well.
            error: error of the attempt.
            now_us: monotonic time, microseconds.
        """
        attempts = 1 if previous is None else previous.attempts + 1
        delay_ms = min(RETRY_MS << min(attempts - 1, 16), RETRY_MAX_MS)
        return cls(error, attempts, now_us + delay_ms * 1000)

    @property
    def lacks_bookie(self) -> bool:
        """Whether the attempt failed because no bookie can take the copies."""
        return isinstance(self.error, NotEnoughBookiesError)
