"""Ledgers in limbo: of which entries and fences may have been lost, so that what is not here is unknown. (BP-46.)"""

from __future__ import annotations

from collections.abc import Collection

from pyreplog.bookie.commit_group import CommitGroup
from pyreplog.bookie.controls import Controls, encode_limbo, load_controls
from pyreplog.bookie.entrylog import EntryLog
from pyreplog.bookie.ledgerstate import FENCE
from pyreplog.bookie.ledgerstates import LedgerStates
from pyreplog.errors import CorruptionError

LIMBO_MAX = 10_000
"""So many ledgers in limbo are named to who asks."""


class Limbo:
    """How a bookie's ledgers come into limbo, and out of it; what limbo means, `admission` and `reading` say."""

    def __init__(self, log: EntryLog, ledgers: LedgerStates, group: CommitGroup) -> None:
        self._log, self._ledgers, self._group = log, ledgers, group

    @property
    def ledgers(self) -> list[int]:
        """Those that are in limbo, as far as they were looked at."""
        return sorted(self._ledgers.limbo)

    def enter(self, ledgers: Collection[int]) -> None:
        """Durable when it returns, until `leave`. Errors: those of the log."""
        records = [encode_limbo(ledger, True) for ledger in ledgers]
        if records:
            self._log.append(b"".join(records))
            self._log.sync()
        for ledger in ledgers:
            if (state := self._ledgers.peek(ledger)) is not None:
                state.limbo = True
            self._ledgers.limbo.add(ledger)

    def leave(self, ledger: int) -> None:
        """The ledger is closed, and all entries that the bookie should have are here again.

        Its fence may have been among what was lost: whoever still takes himself for its writer is refused from now on.
        Errors: those of the log.
        """
        state = self._ledgers.get(ledger)
        if state is not None and state.limbo:
            fence = Controls(fenced=not state.fenced).encode(ledger)
            self._log.append(fence + encode_limbo(ledger, False))
            self._group.touch(state, FENCE)
            state.limbo, state.fenced = False, True
            self._ledgers.limbo.discard(ledger)

    def look(self, ledgers: Collection[int]) -> None:
        """Look whether these are in limbo since an earlier life."""
        for ledger in ledgers:
            state = self._ledgers.peek(ledger)
            try:
                if load_controls(self._log, ledger).limbo if state is None else state.limbo:
                    self._ledgers.limbo.add(ledger)
            except CorruptionError:  # whoever asks for it is told
                continue
