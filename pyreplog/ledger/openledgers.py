"""The ledgers of a cluster that are written."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Iterator

from pyreplog.handles import Handle, make_part_of
from pyreplog.ledger.ledger_handle import Ledger


class OpenLedgers:
    """Those that somebody has open for appending, until they are forgotten. Any thread: others may come while it goes
    through them, which it then leaves out."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._ledgers: weakref.WeakSet[Ledger] = weakref.WeakSet()

    def add(self, ledger: Ledger, cluster: Handle) -> None:
        """One that `cluster` made."""
        make_part_of(ledger, cluster)
        with self._lock:
            self._ledgers.add(ledger)

    def __iter__(self) -> Iterator[Ledger]:
        with self._lock:
            ledgers = list(self._ledgers)
        return iter(ledgers)
