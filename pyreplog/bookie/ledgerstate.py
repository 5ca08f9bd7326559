"""What a bookie knows of one ledger: one object for each, so that fence check and append are one step."""

from __future__ import annotations

from pyreplog._native.bookie.inspect_records import inspect_entries
from pyreplog._native.bookie.ledger_state_base import NOTHING, LedgerStateBase
from pyreplog.bookie.controls import Controls, load_controls
from pyreplog.bookie.entrylog import EntryLog
from pyreplog.errors import CorruptionError, InvalidRecordsError

CONTROLS = NOTHING - 1
"""Above all entry ids, as NOTHING is: only control records that nobody waits for."""

FENCE = -1
"""Below all entry ids."""


class LedgerState(LedgerStateBase):
    """key, fenced, explicit_lac, limbo: as in its control records; explicit_lac may be ahead of them.

    last: highest entry. lac: highest that is known, of entries and explicit. fresh, committing: lowest entry id among
    what was appended since the last commit began, and among what the commit under way makes durable; a fence counts as
    one below all.
    """

    __slots__ = ()

    def __init__(self, ledger: int, controls: Controls, last: int, lac: int) -> None:
        self.ledger = ledger
        self.key, self.fenced, self.explicit_lac, self.limbo = controls
        self.last = last
        self.lac = max(lac, controls.lac)
        self.fresh = self.committing = NOTHING

    @property
    def durable_below(self) -> int:
        """Entries below this one are durable, if they are here; FENCE: not even the ledger's fence or key is."""
        return min(self.fresh, self.committing)

    def is_durable(self, entry: int) -> bool:
        """Whether an entry, if it is here, is durable. With nothing on its way to the disk that is true of every id,
        so that nobody waits for a commit that would change nothing."""
        below = self.durable_below
        return entry < below or below == NOTHING

    @property
    def controls(self) -> Controls:
        return Controls(self.key, self.fenced, self.explicit_lac, self.limbo)


def load_state(log: EntryLog, ledger: int) -> LedgerState | None:
    """From what the log holds; None: it has nothing of this ledger. CorruptionError: who knows."""
    controls = load_controls(log, ledger)
    last = log.last_entry(ledger)
    if last is None:
        return None if controls == Controls() else LedgerState(ledger, controls, -1, -1)
    return LedgerState(ledger, controls, last, _lac_of(log, ledger, last))


def _lac_of(log: EntryLog, ledger: int, last: int) -> int:
    """The LAC that the highest entry carries: its writer knew none higher before.

    -1 when the entry is damaged, or claims what it cannot know: a LAC too low only costs whoever believes it time."""
    try:
        record, _ = log.read(ledger, last, last + 1, 1)
        return inspect_entries(record, ledger=ledger, first=last, last=last)[2]
    except (CorruptionError, InvalidRecordsError):
        return -1
