"""A cluster client's numbers for Prometheus; docs/operations.md says what each is for."""

from __future__ import annotations

import threading
from collections.abc import Collection, Iterator

from pyreplog.ledger.ledger_handle import Ledger
from pyreplog.ledger.ledgermetadata import State
from pyreplog.metrics import Metric

_PREFIX = "pyreplog_client_"


class ClientCounters:
    """What happens seldom, and is worth to be known. Any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.ensemble_changes = self.recoveries = self.bad_copies = self.waiting_for_metadata = 0

    def change_ensemble(self) -> None:
        """Bookies were chosen in the place of others."""
        with self._lock:
            self.ensemble_changes += 1

    def recover(self) -> None:
        """The recovery of a ledger has begun."""
        with self._lock:
            self.recoveries += 1

    def wait_for_metadata(self, change: int) -> None:
        """One ledger more, or less, waits for the metadata store."""
        with self._lock:
            self.waiting_for_metadata += change

    def find_bad_copy(self) -> None:
        """A bookie's copy of an entry is missing or damaged."""
        with self._lock:
            self.bad_copies += 1


def client_metrics(ledgers: Collection[Ledger], counts: ClientCounters, degraded: int) -> Iterator[Metric]:
    """ledgers: open for appending, or that have been. degraded: how many of them go on without a bookie."""
    ledgers = [ledger for ledger in ledgers if ledger.metadata.state is State.OPEN]
    behind = [max(ledger.last_add_pushed - ledger.last_add_confirmed, 0) for ledger in ledgers]
    yield _gauge("open_ledgers", "Ledgers open for appending.", len(ledgers))
    yield _gauge("pending_bytes", "Bytes that lack copies.", sum(ledger.pending_bytes for ledger in ledgers))
    yield _gauge("pending_entries", "Entries that lack copies.", sum(ledger.pending_entries for ledger in ledgers))
    yield _gauge("unconfirmed_entries", "LAP - LAC: entries nobody was told are safe.", sum(behind))
    yield _gauge("unconfirmed_entries_max", "The same, of the ledger that has most.", max(behind, default=0))
    yield _gauge("degraded_ledgers", "Ledgers that go on without a bookie that no other can replace.", degraded)
    yield _gauge("waiting_for_metadata", "Ledgers that wait for the metadata store.", counts.waiting_for_metadata)
    yield _counter("ensemble_changes", "Times that bookies of a ledger were replaced.", counts.ensemble_changes)
    yield _counter("recoveries", "Recoveries of ledgers that were not closed.", counts.recoveries)
    yield _counter("bad_copies", "Copies found missing or damaged, and noted for repair.", counts.bad_copies)


def _gauge(name: str, text: str, value: float) -> Metric:
    return Metric(_PREFIX + name, "gauge", text, [({}, float(value))])


def _counter(name: str, text: str, value: float) -> Metric:
    return Metric(_PREFIX + name, "counter", text, [({}, float(value))])
