"""Hold: an operator suspends auto-recovery, for an upgrade. Ledgers in progress are completed."""

from __future__ import annotations

from pyreplog.autorecovery.timed_reason import TimedReason
from pyreplog.metadata.changes import change_key, delete_key
from pyreplog.metadata.store import MetadataStore

HOLD = "/autorecovery/hold"


def find_hold(store: MetadataStore) -> TimedReason | None:
    """Return the hold, with its time and reason; None: there is none. Raises errors of the store."""
    stored = store.get(HOLD)
    return None if stored is None else TimedReason.read(HOLD, stored.value)


def begin_hold(store: MetadataStore, hold: TimedReason) -> TimedReason:
    """Suspend auto-recovery. An existing hold is kept.

    Returns:
        The hold in force.

    Raises:
        ReplogError: errors of the store.
    """
    value = change_key(store, HOLD, lambda value: hold.encode() if value is None else value)
    return hold if value is None else TimedReason.read(HOLD, value)


def end_hold(store: MetadataStore) -> bool:
    """End the hold. Returns whether there was one. Raises errors of the store."""
    is_held = store.get(HOLD) is not None
    delete_key(store, HOLD)
    return is_held
