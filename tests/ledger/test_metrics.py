"""Metrics of a cluster, as a scrape of the program that embeds it shows them."""

from __future__ import annotations

import urllib.request
from collections.abc import Callable
from pathlib import Path

import pytest

from pyreplog.bookie.local_bookie import LocalBookie
from pyreplog.bookie.protocol import Reply, Request
from pyreplog.errors import ClosedError
from pyreplog.ledger.cluster import LedgerCluster
from pyreplog.ledger.metrics import client_metrics
from pyreplog.ledger.protocol.effects import BadCopy
from pyreplog.metrics import Metric, MetricsServer

DOCUMENT = Path(__file__).parents[2] / "docs" / "operations.md"


def scrape(server: MetricsServer) -> tuple[dict[str, float], list[str]]:
    """Return the client's metrics by name, and the names of all metrics, once for each time that a line introduces
    them."""
    with urllib.request.urlopen("http://{}:{}/metrics".format(*server.address), timeout=60) as reply:
        lines = reply.read().decode().splitlines()
    pairs = [line.rsplit(" ", 1) for line in lines if line.startswith("pyreplog_client_")]
    return {name: float(value) for name, value in pairs}, [line.split()[2] for line in lines if "# TYPE" in line]


def test_a_scrape_of_an_embedded_cluster(tmp_path: Path) -> None:
    with (
        LedgerCluster.embedded(tmp_path, bookies=4, segment_bytes=1 << 20) as cluster,
        MetricsServer([cluster.metrics]) as server,
    ):
        with cluster.create_ledger(3) as closed:
            closed.append(b"value")
        ledger = cluster.create_ledger(3, 3, 2)
        ledger.append_batch([b"value"] * 10)
        bookies = cluster.runtime.bookies  # type: ignore[attr-defined]
        bookies.pop(ledger.metadata.last_fragment.ensemble[0]).close()
        ledger.append_batch([b"value"] * 10)
        ledger.close()
        other = cluster.create_ledger(2)
        other.append(b"value")
        cluster.open_ledger(other.id).close()
        cluster.open_ledger(closed.id).close()
        cluster.runtime.report(other.id, BadCopy(other.metadata.last_fragment.ensemble[0], 0))
        metrics, names = scrape(server)
    assert metrics == {
        "pyreplog_client_open_ledgers": 1,
        "pyreplog_client_pending_bytes": 0,
        "pyreplog_client_pending_entries": 0,
        "pyreplog_client_unconfirmed_entries": 0,
        "pyreplog_client_unconfirmed_entries_max": 0,
        "pyreplog_client_ensemble_changes_total": 1,
        "pyreplog_client_recoveries_total": 1,
        "pyreplog_client_bad_copies_total": 1,
        "pyreplog_client_waiting_for_metadata": 0,
        "pyreplog_client_degraded_ledgers": 0,
    }
    assert len(set(names)) == len(names) and "pyreplog_bookie_added_bytes_total" in names
    documented = DOCUMENT.read_text()
    assert not [name for name in metrics if f"`{name}`" not in documented]
    with pytest.raises(ClosedError):
        cluster.metrics()


def test_closed_metrics_source_is_skipped(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with LedgerCluster.embedded(tmp_path, bookies=1, segment_bytes=1 << 20) as cluster:
        pass
    with MetricsServer([cluster.metrics, lambda: [Metric("things", "gauge", "Some.", [({}, 1.0)])]]) as server:
        assert scrape(server) == ({}, ["things"])
    assert "was closed" in caplog.text


def test_metrics_count_entries_in_flight(tmp_path: Path) -> None:
    """Two of three bookies do not answer."""
    with LedgerCluster.embedded(tmp_path, bookies=3, segment_bytes=1 << 20) as cluster:
        ledger = cluster.create_ledger(3, 3, 3)
        ledger.append(b"value")
        bookies = cluster.runtime.bookies  # type: ignore[attr-defined]
        late = {name: _Late(bookies[name]) for name in list(bookies)[:2]}
        bookies.update(late)
        ledger.submit_batch([b"value"] * 5)
        numbers = numbers_of(cluster)
        for name, bookie in late.items():
            bookies[name] = bookie.wake()
        ledger.close()
        assert numbers_of(cluster)["pyreplog_client_pending_entries"] == 0
    assert numbers["pyreplog_client_unconfirmed_entries"] == numbers["pyreplog_client_unconfirmed_entries_max"] == 5
    assert numbers["pyreplog_client_pending_entries"] == 5
    assert numbers["pyreplog_client_pending_bytes"] >= 5 * len(b"value")


class _Late:
    """A bookie that takes requests, and answers none before `wake`."""

    def __init__(self, bookie: LocalBookie) -> None:
        self._bookie = bookie
        self._requests: list[tuple[Request, Callable[[Reply], object]]] = []

    def request(self, request: Request, on_reply: Callable[[Reply], object]) -> None:
        self._requests.append((request, on_reply))

    def request_fast(self, add: object, on_reply: object, **settings: object) -> None:
        """Refuse the fast path for all ADDs."""

    def has_work(self) -> bool:
        return False

    def close(self) -> None:
        self._bookie.close()

    def wake(self) -> LocalBookie:
        for request, on_reply in self._requests:
            self._bookie.request(request, on_reply)
        return self._bookie


def numbers_of(cluster: LedgerCluster) -> dict[str, float]:
    metrics = client_metrics(cluster.open_ledgers, cluster.runtime.counts, 0)
    return {metric.name: value for metric in metrics for _, value in metric.samples if isinstance(value, float)}
