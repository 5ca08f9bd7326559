"""The registrations and the states of bookies, as a client observes them."""

from __future__ import annotations

from collections.abc import Callable, Set

from pyreplog.bookie.bookie_state import BOOKIE_STATES, BookiePhase, BookieState
from pyreplog.bookie.registration import AVAILABLE, Availability
from pyreplog.metadata.followed_folder import FollowedFolder
from pyreplog.metadata.store import MetadataStore

LEAVING_PHASES = (BookiePhase.LOST, BookiePhase.RETIRED, BookiePhase.DRAINING)
"""Phases in which a bookie gets no new entries, and is replaced in open ledgers. Phases without copies come first."""

OnChange = Callable[[Set[str]], object]
Retry = Callable[[Callable[[], None]], object]
"""See `FollowedFolder`."""


class Registrations(FollowedFolder[Availability]):
    """The registered bookies with their addresses, free space and modes, by bookie id."""

    def __init__(self, store: MetadataStore, on_change: OnChange, retry: Retry) -> None:
        super().__init__(store, AVAILABLE, Availability.decode, on_change, retry)


class BookieStates(FollowedFolder[BookieState]):
    """The bookies that are away, lost, draining or retired, by bookie id.

    A state that cannot be read is ignored: the bookie counts as an ordinary member.
    """

    def __init__(self, store: MetadataStore, on_change: OnChange, retry: Retry) -> None:
        super().__init__(store, BOOKIE_STATES, BookieState.decode, on_change, retry)

    def phase(self, bookie: str) -> BookiePhase | None:
        """Return the phase of a bookie; None: it is an ordinary member."""
        state = self.get(bookie)
        return None if state is None else state.phase

    def leaving(self) -> list[str]:
        """Return the bookies to be replaced, in the order of LEAVING_PHASES, then of their ids."""
        leaving = [(state.phase, bookie) for bookie, state in self.items() if state.phase in LEAVING_PHASES]
        return [bookie for phase, bookie in sorted(leaving, key=lambda row: (LEAVING_PHASES.index(row[0]), row[1]))]
