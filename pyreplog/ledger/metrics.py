"""Metrics of a cluster client for Prometheus; docs/operations.md explains each of them."""

from __future__ import annotations

import threading
from collections.abc import Collection, Iterator

from pyreplog.ledger.ledger_handle import Ledger
from pyreplog.ledger.ledger_metadata import State
from pyreplog.metrics import Metric

_PREFIX = "pyreplog_client_"


class ClientCounters:
    """Counts rare events of a client. Any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.ensemble_changes = self.recoveries = self.bad_copies = self.waiting_for_metadata = 0

    def change_ensemble(self) -> None:
        """Count an ensemble change."""
        with self._lock:
            self.ensemble_changes += 1

    def recover(self) -> None:
        """Count the recovery of a ledger."""
        with self._lock:
            self.recoveries += 1

    def wait_for_metadata(self, change: int) -> None:
        """Add `change` to the number of ledgers that wait for the metadata store."""
        with self._lock:
            self.waiting_for_metadata += change

    def find_bad_copy(self) -> None:
        """Count a missing or damaged copy."""
        with self._lock:
            self.bad_copies += 1


def client_metrics(ledgers: Collection[Ledger], counts: ClientCounters, degraded: int) -> Iterator[Metric]:
    """Yield the metrics of a client.

    Args:
        ledgers: ledgers that are, or were, open for appending.
        counts: counters of the client.
        degraded: number of ledgers that go on without a bookie.
    """
    ledgers = [ledger for ledger in ledgers if ledger.metadata.state is State.OPEN]
    unconfirmed = [max(ledger.last_add_pushed - ledger.last_add_confirmed, 0) for ledger in ledgers]
    yield _gauge("open_ledgers", "Ledgers open for appending.", len(ledgers))
    yield _gauge(
        "pending_bytes",
        "Bytes of entries that do not have all their copies yet, as encoded.",
        sum(ledger.pending_bytes for ledger in ledgers),
    )
    yield _gauge(
        "pending_entries",
        "Entries that do not have all their copies yet.",
        sum(ledger.pending_entries for ledger in ledgers),
    )
    yield _gauge(
        "unconfirmed_entries", "Entries appended and not confirmed yet: LAP - LAC, over all ledgers.", sum(unconfirmed)
    )
    yield _gauge(
        "unconfirmed_entries_max",
        "Entries appended and not confirmed yet, of the ledger with the most of them.",
        max(unconfirmed, default=0),
    )
    yield _gauge(
        "degraded_ledgers",
        "Degraded ledgers: their writers go on without a bookie that no other can replace.",
        degraded,
    )
    yield _gauge(
        "waiting_for_metadata",
        "Ledgers whose writers or recoveries wait for the metadata store.",
        counts.waiting_for_metadata,
    )
    yield _counter(
        "ensemble_changes",
        "Ensemble changes: times that failed bookies of a ledger were replaced.",
        counts.ensemble_changes,
    )
    yield _counter("recoveries", "Recoveries of ledgers that were not closed.", counts.recoveries)
    yield _counter("bad_copies", "Copies found missing or damaged, and noted for repair.", counts.bad_copies)


def _gauge(name: str, text: str, value: float) -> Metric:
    return Metric(_PREFIX + name, "gauge", text, [({}, float(value))])


def _counter(name: str, text: str, value: float) -> Metric:
    return Metric(_PREFIX + name, "counter", text, [({}, float(value))])
