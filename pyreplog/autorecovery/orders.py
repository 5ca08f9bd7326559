"""Orders: the bookies whose copies are to be made again elsewhere. One key for each bookie, none for its ledgers.

What an order leaves to do is never stored: it is the metadata of the ledgers that still name the bookie. So a bookie
that returns ends the work on it, and no mark can be stale (BookKeeper #2766 kept marks of ledgers for ever).
"""

from __future__ import annotations

from pyreplog.autorecovery.timed_reason import TimedReason
from pyreplog.metadata.changes import change_key, delete_key
from pyreplog.metadata.store import MetadataStore

ORDERS = "/autorecovery/orders"


def order_key(bookie: str) -> str:
    """Return the key of the order for a bookie. bookie: its id, name and incarnation."""
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
