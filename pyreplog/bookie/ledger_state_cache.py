"""A cache of the states of ledgers, for those that were used lately."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable

from pyreplog._native.bookie.ledger_state_base import NOTHING
from pyreplog.bookie.entry_log import EntryLog
from pyreplog.bookie.ledger_state import LedgerState, load_state

_EVICTION_TRIES = 8
_DELETED_MAX = 65536


class LedgerStateCache:
    """A cache of the states of `limit` ledgers; other states are loaded from the log when they are needed.

    A state stays beyond the limit while a part of it is not durable yet, or a request waits for its ledger: so loading
    it again gives the same state.

    Args:
        log: log of the bookie.
        limit: number of states.
        is_awaited: returns whether a request waits for a ledger.

    Attributes:
        states: states by ledger, the one used last at the end.
        deleted: the ledgers deleted last, in order.
        limbo: ledgers that are known to be in limbo, cached or not.
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
        """Whether more states are cached than `limit`."""
        return len(self.states) > self._limit

    def get(self, ledger: int) -> LedgerState | None:
        """Return the state of a ledger; None: the log has no record of it.

        Raises CorruptionError if that is unknown.
        """
        state = self.states.get(ledger)
        if state is not None:
            self.states.move_to_end(ledger)
        elif (state := load_state(self._log, ledger)) is not None:
            self.add(state)
        return state

    def peek(self, ledger: int) -> LedgerState | None:
        """Return the state of a ledger if it is cached; otherwise None."""
        return self.states.get(ledger)

    def add(self, state: LedgerState) -> None:
        """Cache a state, and drop old ones.

        Only a few of the oldest states are tried, each once. So the cost is bounded, and those that stay keep their
        order.
        """
        for _ in range(min(_EVICTION_TRIES, len(self.states))):
            if len(self.states) < self._limit:
                break
            ledger, oldest = self.states.popitem(last=False)
            if oldest.durable_below != NOTHING or self._is_awaited(ledger):
                self.states[ledger] = oldest
        self.states[state.ledger] = state
        if state.limbo:
            self.limbo.add(state.ledger)

    def forget(self, ledger: int) -> None:
        """Drop the state of a deleted ledger, and remember the deletion."""
        self.states.pop(ledger, None)
        self.limbo.discard(ledger)
        self.deleted.pop(ledger, None)  # a ledger that is deleted again becomes the newest
        self.deleted[ledger] = None
        if len(self.deleted) > _DELETED_MAX:
            del self.deleted[next(iter(self.deleted))]

    def is_deleted(self, ledger: int) -> bool:
        """Return whether a ledger is among the last _DELETED_MAX deleted ones."""
        return ledger in self.deleted
