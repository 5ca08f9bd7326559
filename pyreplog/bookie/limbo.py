"""Limbo: ledgers that may have lost entries and fences in a crash, so that a missing entry is unknown (BP-46)."""

from __future__ import annotations

from collections.abc import Collection

from pyreplog.bookie.commit_group import CommitGroup
from pyreplog.bookie.controls import Controls, encode_limbo, load_controls
from pyreplog.bookie.entry_log import EntryLog
from pyreplog.bookie.ledger_state import FENCE
from pyreplog.bookie.ledger_state_cache import LedgerStateCache
from pyreplog.errors import CorruptionError

LIMBO_MAX = 10_000
"""The greatest number of ledgers in limbo that a STATUS reply names."""


class Limbo:
    """Puts ledgers of a bookie into limbo, and takes them out.

    `admission` and `reading` implement the effects of limbo.
    """

    def __init__(self, log: EntryLog, ledgers: LedgerStateCache, group: CommitGroup) -> None:
        self._log, self._ledgers, self._group = log, ledgers, group

    @property
    def ledgers(self) -> list[int]:
        """The ledgers that are known to be in limbo, ascending; see `look`."""
        return sorted(self._ledgers.limbo)

    def enter(self, ledgers: Collection[int]) -> None:
        """Put ledgers into limbo until `leave`; durable when the call returns. Raises errors of the log."""
        records = [encode_limbo(ledger, True) for ledger in ledgers]
        if records:
            self._log.append(b"".join(records))
            self._log.sync()
        for ledger in ledgers:
            if (state := self._ledgers.peek(ledger)) is not None:
                state.limbo = True
            self._ledgers.limbo.add(ledger)

    def fence(self, ledgers: Collection[int]) -> None:
        """Fence closed ledgers whose fences, and keys, may be lost; durable when the call returns.

        A writer that does not know that its ledger was closed must stay refused. Raises errors of the log.
        """
        records = []
        for ledger in ledgers:
            controls = load_controls(self._log, ledger)
            missing = Controls(fenced=not controls.fenced, copied=controls.key is None and not controls.copied)
            records.append(missing.encode(ledger))
            if (state := self._ledgers.peek(ledger)) is not None:
                state.fenced, state.copied = True, state.copied or missing.copied
        if any(records):
            self._log.append(b"".join(records))
            self._log.sync()

    def leave(self, ledger: int) -> None:
        """Take a closed ledger out of limbo, after the bookie has got all its entries again.

        The ledger is fenced, because a fence may have been lost: a writer that does not know of it must stay refused.
        Raises errors of the log.
        """
        state = self._ledgers.get(ledger)
        if state is not None and state.limbo:
            fence = Controls(fenced=not state.fenced).encode(ledger)
            self._log.append(fence + encode_limbo(ledger, False))
            self._group.touch(state, FENCE)
            state.limbo, state.fenced = False, True
            self._ledgers.limbo.discard(ledger)

    def load(self, ledgers: Collection[int]) -> None:
        """Load the states of some ledgers, to find those that an earlier process put into limbo."""
        for ledger in ledgers:
            state = self._ledgers.peek(ledger)
            try:
                if load_controls(self._log, ledger).limbo if state is None else state.limbo:
                    self._ledgers.limbo.add(ledger)
            except CorruptionError:  # requests for this ledger report the error
                continue
