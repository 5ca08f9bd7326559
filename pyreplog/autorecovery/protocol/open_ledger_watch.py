"""Whether the last fragment of a ledger that is not closed may be taken from its writer, by a recovery.

A member of that fragment is gone, or is to go, and the ledger still names it. A writer that lives replaces the member
by itself. A recovery fences the writer, so it is right only if there is none any more. Both signs of life have to be
missing for `quiet_us`: the key of the writer (`ledger/writer_keys.py`), and progress of the entries on every member
that answers. (BookKeeper waits `openLedgerRereplicationGracePeriod` and fences, whether or not a writer lives.)
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum, auto
from typing import NamedTuple

QUIET_US = 30_000_000
"""Time for which a writer gives no sign of life before its ledger may be recovered."""
INTERVALS_LEAST = 3
"""The time between two looks counts as at most this part of the whole: no single pair of looks decides, however long a
process slept in between."""


class Verdict(Enum):
    """What is to be done about an open ledger."""

    WAIT = auto()
    """Look again."""
    NUDGE = auto()
    """A writer lives, and has not replaced the member for a while: have it look for a replacement again."""
    RECOVER = auto()
    """No writer lives: recover the ledger."""


class Ends(NamedTuple):
    """What one member knows of a ledger. last: its highest entry; lac: the LAC; -1: none."""

    last: int
    lac: int


class OpenLedgerWatch:
    """Watches one ledger that is open or in recovery, as long as the same members have the last fragment.

    What is unknown never counts as a sign that no writer lives. A ledger in recovery whose recoverer may be gone is
    watched in the same way: the entries that a recoverer writes back are progress.

    Args:
        quiet_us: microseconds without a sign of life after which the ledger may be recovered.
    """

    def __init__(self, quiet_us: int = QUIET_US) -> None:
        self._quiet_us = quiet_us
        self._ends: dict[str, Ends] = {}  # of each member, when it answered last
        self._looked_us: int | None = None  # the look before, if the time since then counts
        self._silent_us = 0
        self._nudged_us: int | None = None  # since when there is a key, or the writer was nudged last

    @property
    def silent_us(self) -> int:
        """For how long there was no sign of life, as far as it was seen, microseconds."""
        return self._silent_us

    def observe(
        self, now_us: int, key: bool | None, ends: Mapping[str, Ends | None], *, asked_us: int | None = None
    ) -> Verdict:
        """Take one look into account.

        Args:
            now_us: monotonic time at which the look was over, microseconds.
            key: whether the key of a writer exists; None: unknown.
            ends: what each member of the last fragment knows; None: it did not answer.
            asked_us: monotonic time at which the look began; None: as `now_us`.

        Returns:
            What is to be done now.
        """
        moved = self._take(ends)
        if key is not False:
            self._silent_us, self._looked_us = 0, None
            return self._keyed(now_us) if key else Verdict.WAIT
        self._nudged_us = None
        if moved:
            self._silent_us, self._looked_us = 0, now_us
            return Verdict.WAIT
        if all(known is None for known in ends.values()):
            self._looked_us = None  # nobody can tell; the time goes on with the next answer
            return Verdict.WAIT
        if self._looked_us is not None:
            interval_us = (now_us if asked_us is None else asked_us) - self._looked_us
            self._silent_us += min(max(interval_us, 0), -(-self._quiet_us // INTERVALS_LEAST))
        self._looked_us = now_us
        return Verdict.RECOVER if self._silent_us >= self._quiet_us else Verdict.WAIT

    def _take(self, ends: Mapping[str, Ends | None]) -> bool:
        """Note what members know; return whether any of it is new, which may be progress."""
        answers = {bookie: known for bookie, known in ends.items() if known is not None}
        moved = any(self._ends.get(bookie) != known for bookie, known in answers.items())
        self._ends.update(answers)
        return moved

    def _keyed(self, now_us: int) -> Verdict:
        """A writer lives: have it nudged each time that it did nothing for `quiet_us`."""
        if self._nudged_us is None or now_us < self._nudged_us:
            self._nudged_us = now_us
        if now_us - self._nudged_us < self._quiet_us:
            return Verdict.WAIT
        self._nudged_us = now_us
        return Verdict.NUDGE
