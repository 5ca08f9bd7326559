"""FailedAttempt: work on a ledger that could not be done, and when it is tried again."""

from __future__ import annotations

from dataclasses import dataclass

from pyreplog.errors import NotEnoughBookiesError, ReplogError

RETRY_MS, RETRY_MAX_MS = 5_000, 300_000
"""What failed waits so long, twice as long each time, up to the second number (BookKeeper #3887)."""


@dataclass(frozen=True)
class FailedAttempt:
    """Why something cannot be done now.

    Attributes:
        error: error of the last attempt.
        attempts: failed attempts in a row.
        retry_us: when it is tried again, monotonic microseconds.
    """

    error: ReplogError
    attempts: int
    retry_us: int

    @classmethod
    def after(cls, previous: FailedAttempt | None, error: ReplogError, now_us: int) -> FailedAttempt:
        """Return the attempt that failed now.

        Args:
            previous: the one before, if that failed, too.
            error: why.
            now_us: monotonic microseconds.
        """
        attempts = 1 if previous is None else previous.attempts + 1
        delay_ms = min(RETRY_MS << min(attempts - 1, 16), RETRY_MAX_MS)
        return cls(error, attempts, now_us + delay_ms * 1000)

    @property
    def lacks_bookie(self) -> bool:
        """Whether all that is missing is a bookie that takes the copies."""
        return isinstance(self.error, NotEnoughBookiesError)
