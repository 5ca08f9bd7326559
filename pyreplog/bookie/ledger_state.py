"""The state of one ledger on a bookie: one object for each ledger, so that fence check and append are one step."""

from __future__ import annotations

from pyreplog._native.bookie.inspect_records import inspect_entries
from pyreplog._native.bookie.ledger_state_base import NOTHING, LedgerStateBase
from pyreplog.bookie.controls import Controls, load_controls
from pyreplog.bookie.entry_log import EntryLog
from pyreplog.errors import CorruptionError, InvalidRecordsError

CONTROLS = NOTHING - 1
"""Above all entry numbers, like NOTHING: only control records are not durable, and no request waits for them."""

FENCE = -1
"""Below all entry numbers: a fence or the key is not durable."""


class LedgerState(LedgerStateBase):
    """The state of one ledger. A fence counts as entry FENCE.

    Attributes:
        key: as in the control records; so are `fenced`, `limbo` and `copied`.
        explicit_lac: as in the control records, or ahead of them.
        last: the highest entry.
        lac: the highest known LAC, from entries or explicit.
        fresh: the lowest entry that was appended since the last commit began.
        committing: the lowest entry that the current commit makes durable.
    """

    __slots__ = ()

    def __init__(self, ledger: int, controls: Controls, last: int, lac: int) -> None:
        self.ledger = ledger
        self.key, self.fenced, self.explicit_lac, self.limbo, self.copied = controls
        self.last = last
        self.lac = max(lac, controls.lac)
        self.fresh = self.committing = NOTHING

    @property
    def durable_below(self) -> int:
        """Stored entries below this one are durable; FENCE: the ledger's fence or key is not durable."""
        return min(self.fresh, self.committing)

    def is_durable(self, entry: int) -> bool:
        """Return whether a stored entry is durable; always True while no record of the ledger waits for a sync."""
        limit = self.durable_below
        return entry < limit or limit == NOTHING

    @property
    def controls(self) -> Controls:
        return Controls(self.key, self.fenced, self.explicit_lac, self.limbo, self.copied)


def load_state(log: EntryLog, ledger: int) -> LedgerState | None:
    """Load the state of a ledger from the log; None: the log has no record of it.

    Raises CorruptionError if that is unknown.
    """
    controls = load_controls(log, ledger)
    last = log.last_entry(ledger)
    if last is None:
        return None if controls == Controls() else LedgerState(ledger, controls, -1, -1)
    return LedgerState(ledger, controls, last, _lac_of(log, ledger, last))


def _lac_of(log: EntryLog, ledger: int, last: int) -> int:
    """Return the LAC of the highest entry, which is the highest of all entries; -1: the entry is damaged.

    A LAC that is too low only costs time.
    """
    try:
        record, _ = log.read(ledger, last, last + 1, 1)
        return inspect_entries(record, ledger=ledger, first=last, last=last)[2]
    except (CorruptionError, InvalidRecordsError):
        return -1
