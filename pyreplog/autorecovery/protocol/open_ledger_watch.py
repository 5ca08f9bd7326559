"""OpenLedgerWatch: decides whether a recovery may close a ledger whose writer may be gone.

A member of the ledger's last fragment is gone, or has to leave, and the ledger still names it. A living writer replaces
the member by itself. A recovery fences the writer, so it is right only without a living writer. Two signs of life have
to be absent for `quiet_us`: the key of the writer (`ledger/writer_keys.py`), and progress of the entries on every
member that answers. (BookKeeper waits `openLedgerRereplicationGracePeriod` and fences, whether or not a writer lives.)
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum, auto
from typing import NamedTuple

QUIET_US = 30_000_000
"""Microseconds without a sign of life of a writer after which its ledger may be recovered."""
INTERVALS_LEAST = 3
"""The interval between two observations counts as at most 1 / INTERVALS_LEAST of `quiet_us`, so that no single pair of
observations decides, however long the process was suspended in between."""


class Verdict(Enum):
    """What to do with an open ledger."""

    WAIT = auto()
    """Observe it again later."""
    NOTIFY = auto()
    """A writer lives and has not replaced the member for a while: make it try again."""
    RECOVER = auto()
    """No writer lives: recover the ledger."""


class Ends(NamedTuple):
    """The end of a ledger on one member: its highest entry `last`, and its `lac`; -1: none."""

    last: int
    lac: int


class OpenLedgerWatch:
    """Watches one ledger that is open or in recovery, while the ensemble of its last fragment stays the same.

    Unknown values never count as evidence that no writer lives. A ledger in recovery is watched in the same way, since
    the recovering process may die: the entries that a recovery writes back are progress.

    Args:
        quiet_us: microseconds without a sign of life after which the ledger may be recovered.
    """

    def __init__(self, quiet_us: int = QUIET_US) -> None:
        self._quiet_us = quiet_us
        self._ends: dict[str, Ends] = {}  # last answer of each member
        self._observed_us: int | None = None  # time of the previous observation, if the interval since counts
        self._silent_us = 0
        self._notified_us: int | None = None  # when the key appeared, or the writer was last notified

    @property
    def silent_us(self) -> int:
        """Observed time without a sign of life, microseconds."""
        return self._silent_us

    def observe(
        self, now_us: int, key: bool | None, ends: Mapping[str, Ends | None], *, asked_us: int | None = None
    ) -> Verdict:
        """Take one observation into account.

        Args:
            now_us: monotonic time at the end of the observation, microseconds.
            key: whether the key of a writer exists; None: unknown.
            ends: the answer of each member of the last fragment; None: it did not answer.
            asked_us: monotonic time at the beginning of the observation; None: `now_us`.

        Returns:
            What to do with the ledger.
        """
        moved = self._update_ends(ends)
        if key is not False:
            self._silent_us, self._observed_us = 0, None
            return self._observe_writer(now_us) if key else Verdict.WAIT
        self._notified_us = None
        if moved:
            self._silent_us, self._observed_us = 0, now_us
            return Verdict.WAIT
        if all(known is None for known in ends.values()):
            self._observed_us = None  # no member answered; the time counts again from the next answer on
            return Verdict.WAIT
        if self._observed_us is not None:
            interval_us = (now_us if asked_us is None else asked_us) - self._observed_us
            self._silent_us += min(max(interval_us, 0), -(-self._quiet_us // INTERVALS_LEAST))
        self._observed_us = now_us
        return Verdict.RECOVER if self._silent_us >= self._quiet_us else Verdict.WAIT

    def _update_ends(self, ends: Mapping[str, Ends | None]) -> bool:
        """Store the answers of members; return whether one is new, which may be progress."""
        answers = {bookie: known for bookie, known in ends.items() if known is not None}
        moved = any(self._ends.get(bookie) != known for bookie, known in answers.items())
        self._ends.update(answers)
        return moved

    def _observe_writer(self, now_us: int) -> Verdict:
        """Return NOTIFY each time that a living writer has not replaced the member for `quiet_us`."""
        if self._notified_us is None or now_us < self._notified_us:
            self._notified_us = now_us
        if now_us - self._notified_us < self._quiet_us:
            return Verdict.WAIT
        self._notified_us = now_us
        return Verdict.NOTIFY
