"""The ledgers that a bookie was asked for lately."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable

from pyreplog._native.bookie.ledger_state_base import NOTHING
from pyreplog.bookie.entrylog import EntryLog
from pyreplog.bookie.ledgerstate import LedgerState, load_state

_LOOKS = 8
_DELETED_MAX = 65536


class LedgerStates:
    """States of at most `limit` ledgers, of those asked for last; the others are loaded from the log when they are.

    A state stays, limit or not, while something of it is not durable yet, or somebody waits for it. So what is loaded
    again is what was let go. is_awaited: whether somebody waits for a ledger.
    states: by ledger, those asked for last at the end. deleted: the newest of those that were, in order. limbo: those
    known to be in limbo, whether they are kept or not.
    """

    def __init__(self, log: EntryLog, limit: int, is_awaited: Callable[[int], bool]) -> None:
        self._log, self._limit, self._is_awaited = log, limit, is_awaited
        self.deleted: dict[int, None] = {}
        self.limbo: set[int] = set()
        self.states: OrderedDict[int, LedgerState] = OrderedDict()

    def __len__(self) -> int:
        return len(self.states)

    @property
    def crowded(self) -> bool:
        """Whether more are kept than should be."""
        return len(self.states) > self._limit

    def get(self, ledger: int) -> LedgerState | None:
        """None: nothing of this ledger is here. CorruptionError: who knows."""
        state = self.states.get(ledger)
        if state is not None:
            self.states.move_to_end(ledger)
        elif (state := load_state(self._log, ledger)) is not None:
            self.add(state)
        return state

    def peek(self, ledger: int) -> LedgerState | None:
        """None: it was not asked for lately."""
        return self.states.get(ledger)

    def add(self, state: LedgerState) -> None:
        """A ledger that was not here. Looks at a few of the oldest, so that the cost has a bound; at each once, so that
        those which have to stay keep their order."""
        for _ in range(min(_LOOKS, len(self.states))):
            if len(self.states) < self._limit:
                break
            ledger, oldest = self.states.popitem(last=False)
            if oldest.durable_below != NOTHING or self._is_awaited(ledger):
                self.states[ledger] = oldest
        self.states[state.ledger] = state
        if state.limbo:
            self.limbo.add(state.ledger)

    def forget(self, ledger: int) -> None:
        """The ledger was deleted."""
        self.states.pop(ledger, None)
        self.limbo.discard(ledger)
        self.deleted.pop(ledger, None)  # one that is deleted again is among the newest
        self.deleted[ledger] = None
        if len(self.deleted) > _DELETED_MAX:
            del self.deleted[next(iter(self.deleted))]

    def is_deleted(self, ledger: int) -> bool:
        """Whether it was, as far as is remembered."""
        return ledger in self.deleted
