"""One of three bookies over TCP is down: writers go on and report it, and each missing copy is noted."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path

import pytest

from pyreplog.bookie.bookie_state import BookiePhase
from pyreplog.bookie.config import BookieConfig
from pyreplog.bookie.node import BookieNode
from pyreplog.errors import NotEnoughBookiesError
from pyreplog.ledger.cluster import LedgerCluster
from pyreplog.ledger.ledger_metadata import State
from pyreplog.ledger.ledger_store import StoredLedgers
from pyreplog.metadata.sqlite import SQLiteStore
from tests.ledger.phases import set_phase, set_phases
from tests.waiting import until

NAMES = ("b0", "b1", "b2")
DEGRADED = "pyreplog_client_degraded_ledgers"


class Bookies:
    """Bookies by name. A bookie that was ended is None."""

    def __init__(self, folder: Path) -> None:
        self.store = SQLiteStore(folder / "metadata")
        self._folder = folder
        self.nodes: dict[str, BookieNode | None] = {}
        for name in NAMES:
            self.start(name)

    def start(self, name: str) -> None:
        config = BookieConfig(segment_bytes=8 << 20)
        self.nodes[name] = BookieNode(self._folder / name, name, self.store, config, ledgers=StoredLedgers(self.store))

    def end(self, name: str) -> str:
        """Close a bookie; return its id."""
        node, self.nodes[name] = self.nodes[name], None
        assert node is not None
        node.close()
        return node.identity.id

    def close(self) -> None:
        for node in self.nodes.values():
            if node is not None:
                node.close()
        self.store.close()


@pytest.fixture
def bookies(tmp_path: Path) -> Iterator[Bookies]:
    bookies = Bookies(tmp_path)
    yield bookies
    bookies.close()


@pytest.fixture
def cluster(bookies: Bookies) -> Iterator[LedgerCluster]:
    with LedgerCluster.connect(f"sqlite:{bookies.store.path}", request_timeout_ms=30_000) as cluster:
        yield cluster


def metric(cluster: LedgerCluster, name: str) -> float:
    return next(metric.samples[0][1] for metric in cluster.metrics() if metric.name == name)


def test_a_ledger_goes_on_with_two_of_three(
    bookies: Bookies, cluster: LedgerCluster, caplog: pytest.LogCaptureFixture
) -> None:
    """The log has one line, each client shows the ledger, and the state ends when the bookie is back. A repair writes
    the missing copies."""
    caplog.set_level(logging.WARNING, "pyreplog.ledger")
    ledger = cluster.create_ledger(3, 3, 2)
    ledger.append(b"before")
    until(lambda: ledger.pending_entries == 0)  # wait until all three have it, as the append waits for only two
    away = bookies.end("b1")
    for _ in range(20):
        ledger.append(b"without it")
    until(lambda: ledger.degraded)
    until(lambda: ledger.pending_entries == 0)
    (shown,) = until(lambda: cluster.degraded)  # the cluster is told a moment after the writer knows
    assert (shown.ledger, shown.bookies) == (ledger.id, (away,)) and shown.since_us > 0 and away in shown.why
    assert metric(cluster, DEGRADED) == 1
    assert [record.message.count("goes on degraded") for record in caplog.records].count(1) == 1
    with LedgerCluster.connect(f"sqlite:{bookies.store.path}") as other:  # this client reads it from the metadata store
        status = other.status()
    (seen,) = [each_ledger for each_ledger in status.ledgers if each_ledger.ledger == ledger.id]
    assert status.health == "amber" and seen.lacking == (away,) and abs(seen.lacking_since_us - shown.since_us) < 60e6
    bookies.start("b1")
    until(lambda: not ledger.degraded)
    ledger.append(b"with it")
    ledger.close()
    assert metric(cluster, DEGRADED) == 0 and cluster.degraded == []
    assert ledger.metadata.state is State.CLOSED and len(ledger.metadata.fragments) == 1
    until(lambda: cluster.count_copies(ledger.id)[-1] == 3)  # wait, as an append waits for only two of three bookies
    copies = cluster.count_copies(ledger.id).tolist()
    assert copies[0] == 3 and 2 in copies
    done, left = cluster.repair()
    assert not left and {repair.bookie for repair in done} == {away}
    assert cluster.count_copies(ledger.id).tolist() == [3] * 22 and cluster.status().health == "green"


def test_a_closed_one_is_degraded_no_more(bookies: Bookies, cluster: LedgerCluster) -> None:
    with cluster.create_ledger(3, 3, 2) as ledger:
        bookies.end("b2")
        for _ in range(3):
            ledger.append(b"value")
        until(lambda: ledger.degraded)
    assert cluster.degraded == [] and metric(cluster, DEGRADED) == 0
    assert cluster.status().health == "amber"


def test_a_ledger_is_made_while_a_bookie_is_away(bookies: Bookies, cluster: LedgerCluster) -> None:
    """The caller has to allow it. The missing bookie is named in the ensemble, and is used when it is back."""
    away = bookies.end("b0")
    until(lambda: len(cluster.status().bookies) == 2)
    with pytest.raises(NotEnoughBookiesError, match="expected 3 bookies for the ensemble, found 2 that take entries"):
        cluster.create_ledger(3, 3, 2)
    with pytest.raises(NotEnoughBookiesError, match="expected 3 bookies for the ensemble, found 2 that take entries"):
        cluster.create_ledger(3, 3, 3, allow_degraded=True)
    with pytest.raises(NotEnoughBookiesError, match="2 that take entries, and the cluster has 3"):
        cluster.create_ledger(4, 4, 2, allow_degraded=True)
    with cluster.create_ledger(3, 3, 2, allow_degraded=True) as ledger:
        ledger.append(b"first")
        assert away in ledger.metadata.last_fragment.ensemble
        until(lambda: ledger.degraded == (away,))
        bookies.start("b0")
        until(lambda: not ledger.degraded)
        ledger.append(b"last")
    with cluster.open_ledger(ledger.id) as reader:
        assert [bytes(record.value) for batch in reader.read() for record in batch] == [b"first", b"last"]


def test_a_ledger_is_recovered_with_two_of_three(bookies: Bookies, cluster: LedgerCluster) -> None:
    with LedgerCluster.connect(f"sqlite:{bookies.store.path}") as other:
        ledger = other.create_ledger(3, 3, 2)
        ledger.append(b"value")
        bookies.end("b1")
        with cluster.open_ledger(ledger.id) as reader:
            assert len(reader) == 1
    assert cluster.ledger_metadata(ledger.id).state is State.CLOSED


def test_a_bookie_that_failed_a_moment_ago_is_chosen_last(bookies: Bookies, cluster: LedgerCluster) -> None:
    """It is registered and does not answer. Other ledgers avoid it while there are other bookies."""
    bookies.start("b3")
    until(lambda: len(cluster.status().bookies) == 4)
    suspect = cluster.status().bookies[0].bookie
    cluster.runtime.suspect(suspect)
    for _ in range(8):
        with cluster.create_ledger(3) as ledger:
            assert suspect not in ledger.metadata.last_fragment.ensemble
    with cluster.create_ledger(4) as ledger:
        assert suspect in ledger.metadata.last_fragment.ensemble


def test_a_member_that_drains_goes_on_until_another_bookie_comes(bookies: Bookies, cluster: LedgerCluster) -> None:
    """No other bookie can replace it: it stays in use, also after it was down for a while, until another one registers."""
    with cluster.create_ledger(3, 2, 1) as ledger:
        ledger.append_batch([b"%d" % entry for entry in range(6)])
        before = ledger.metadata
        leaving = next(name for name in before.last_fragment.ensemble if name.startswith("b1@"))
        set_phases(cluster, {leaving: BookiePhase.DRAINING})
        ledger.append_batch([b"%d" % entry for entry in range(6, 12)])
        assert ledger.metadata == before and not ledger.degraded
        bookies.end("b1")
        ledger.append_batch([b"%d" % entry for entry in range(12, 18)])
        until(lambda: ledger.degraded == (leaving,))
        bookies.start("b1")
        until(lambda: not ledger.degraded)
        ledger.append_batch([b"%d" % entry for entry in range(18, 24)])
        assert ledger.metadata == before
        bookies.start("b3")
        until(lambda: leaving not in ledger.metadata.last_fragment.ensemble)
        assert ledger.metadata.last_fragment.first == 24
    with cluster.open_ledger(ledger.id) as reader:
        assert [bytes(record.value) for batch in reader.read() for record in batch] == [b"%d" % i for i in range(24)]


def test_quarantined_bookie_replaces_a_member_when_the_state_is_written_again(
    bookies: Bookies, cluster: LedgerCluster
) -> None:
    """No other event would make an idle writer look for bookies again."""
    bookies.start("b3")
    until(lambda: len(cluster.status().bookies) == 4)
    with cluster.create_ledger(3, 2, 2) as ledger:
        before = ledger.metadata
        (spare,) = {bookie.bookie for bookie in cluster.status().bookies} - before.bookies()
        cluster.runtime.suspect(spare)
        leaving = before.last_fragment.ensemble[0]
        set_phases(cluster, {leaving: BookiePhase.DRAINING})
        ledger.append(b"value")
        assert ledger.metadata == before

        def is_replaced() -> bool:
            set_phase(bookies.store, leaving, BookiePhase.DRAINING)
            return leaving not in ledger.metadata.last_fragment.ensemble

        until(is_replaced, pause_s=0.2)
