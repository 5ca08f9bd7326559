"""Sets the states of bookies, as an auditor and operators do."""

from __future__ import annotations

from pyreplog.bookie.bookie_state import BookiePhase, BookieState, bookie_state_key
from pyreplog.ledger.cluster import LedgerCluster
from pyreplog.metadata.store import MetadataStore
from tests.waiting import until


def set_phase(store: MetadataStore, bookie: str, phase: BookiePhase | None) -> None:
    """Store the state of a bookie, or delete it."""
    key = bookie_state_key(bookie)
    stored = store.get(key)
    if phase is None:
        assert stored is not None
        store.delete(key, stored.version)
    elif stored is None:
        store.create(key, BookieState(phase, 1).encode())
    else:
        store.put(key, BookieState(phase, 1).encode(), stored.version)


def set_phases(cluster: LedgerCluster, phases: dict[str, BookiePhase | None]) -> None:
    """Set the states of bookies, and wait until the cluster has read them."""
    for bookie, phase in phases.items():
        set_phase(cluster.metadata, bookie, phase)
    until(lambda: all(cluster.runtime.bookie_states.phase(bookie) == phase for bookie, phase in phases.items()))
