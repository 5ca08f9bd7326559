"""The ledgers of a cluster client that are open for appending."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Iterator

from pyreplog.handles import Handle, make_part_of
from pyreplog.ledger.ledger_handle import Ledger


class OpenLedgers:
    """A set of weak references to the ledgers that are open for appending. Any thread.

    An iteration leaves out ledgers that are added while it runs.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._ledgers: weakref.WeakSet[Ledger] = weakref.WeakSet()

    def add(self, ledger: Ledger, cluster: Handle) -> None:
        """Add a ledger that `cluster` created."""
        make_part_of(ledger, cluster)
        with self._lock:
            self._ledgers.add(ledger)

    def __iter__(self) -> Iterator[Ledger]:
        with self._lock:
            ledgers = list(self._ledgers)
        return iter(ledgers)
