"""Orders: the bookies whose copies have to be replicated to other bookies, with one key for each bookie.

The remaining work of an order is not stored: it follows from the metadata of the ledgers that still name the bookie. So
the return of a bookie ends the work on it, and no mark of a ledger can become stale (BookKeeper #2766 kept marks of
ledgers for ever).
"""

from __future__ import annotations

from pyreplog.autorecovery.timed_reason import TimedReason
from pyreplog.metadata.changes import change_key, delete_key
from pyreplog.metadata.store import MetadataStore

ORDERS = "/autorecovery/orders"


def order_key(bookie: str) -> str:
    """Return the key of the order for a bookie id (name and incarnation)."""
    return f"{ORDERS}/{bookie}"


def list_orders(store: MetadataStore) -> dict[str, TimedReason]:
    """Return all orders by bookie id, ascending. Raises errors of the store."""
    keys = [order_key(bookie) for bookie in store.list(ORDERS)]
    stored = zip(keys, store.get_many(keys), strict=True)
    return {key.rpartition("/")[2]: TimedReason.read(key, value.value) for key, value in stored if value is not None}


def place_order(store: MetadataStore, bookie: str, order: TimedReason) -> None:
    """Place an order unless there is one for the bookie. Raises errors of the store."""
    change_key(store, order_key(bookie), lambda value: order.encode() if value is None else value)


def withdraw_order(store: MetadataStore, bookie: str) -> None:
    """Withdraw the order for a bookie, if there is one. Raises errors of the store."""
    delete_key(store, order_key(bookie))
