"""Copies of bookies over TCP: what those that are away have is unknown, not missing."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import pyreplog
from pyreplog._native.ledger_log.entries import encode_entries
from pyreplog.bookie.protocol import Reply, ReplyStatus, Request
from pyreplog.ledger.ledger_metadata import metadata_key
from pyreplog.ledger.ledger_store import survey
from pyreplog.reports import local_engine
from pyreplog.reports.copies.audit import CrcAudit
from pyreplog.reports.copies.divergence import ReplicaDivergence
from pyreplog.reports.copies.holes import ReplicaHoles
from pyreplog.reports.copies.under_replicated import UnderReplicated
from pyreplog.reports.gathering import gather
from pyreplog.reports.report import Report
from pyreplog.reports.snapshot import Snapshot
from pyreplog.tables.cluster.copy_reading import UnknownCopyError, read_copies
from tests.spark.clusters import Nodes, fill
from tests.spark.reading import options_of
from tests.spark.reports.both import Row, assert_rows
from tests.spark.reports.striped import Copies, metadata_of, write_set
from tests.spark.reports.test_copies import holes_of, shortages_of

NAMES = ("b0", "b1", "b2", "b3")


@pytest.fixture
def nodes(tmp_path: Path) -> Iterator[Nodes]:
    with Nodes(tmp_path, NAMES) as nodes:
        with pyreplog.Cluster.connect(nodes.url) as cluster:
            fill(cluster, [300, 1, 0, 40], (4, 2, 2))
            fill(cluster, [100], (3, 3, 2))
        yield nodes


def facts_of(nodes: Nodes) -> Snapshot:
    return gather(options_of(None, cluster=nodes.url), 0)


def rows(report: Report, nodes: Nodes, snapshot: Snapshot) -> list[Row]:
    return local_engine.run(report, {"cluster": nodes.url, "minPartitions": "3"}, snapshot).to_pylist()


def all_copies(nodes: Nodes) -> Copies:
    return {
        (bookie, metadata.ledger, entry): [0]
        for metadata in survey(nodes.store)[0]
        for entry in range(metadata.last_entry + 1)
        for bookie in write_set(metadata, entry)
    }


def test_copies_on_remote_bookies_are_complete(nodes: Nodes) -> None:
    snapshot = facts_of(nodes)
    for report in (ReplicaHoles(), UnderReplicated(), ReplicaDivergence()):
        assert rows(report, nodes, snapshot) == []
    audit = rows(CrcAudit(), nodes, snapshot)
    assert [row["bookie"].partition("@")[0] for row in audit] == sorted(NAMES)
    assert sum(row["records"] for row in audit) == len(all_copies(nodes))
    assert {(row["segment"], row["bad_records"], row["complete"]) for row in audit} == {(None, 0, True)}


def test_copies_on_absent_bookies_are_unknown(nodes: Nodes) -> None:
    """Two of them: of some entries all copies are unknown, and none is lost."""
    snapshot, ledgers = facts_of(nodes), survey(nodes.store)[0]
    away = frozenset(ledgers[0].fragments[0].ensemble[:2])  # places are drawn: those of entry 0
    nodes.stop(*(name.partition("@")[0] for name in away))
    crcs_by_key = {key: crcs for key, crcs in all_copies(nodes).items() if key[0] not in away}
    holes = rows(ReplicaHoles(), nodes, snapshot)
    assert_rows(holes, list(holes_of(ledgers, crcs_by_key, away)))
    assert {row["status"] for row in holes} == {"unknown"}
    shortages = rows(UnderReplicated(), nodes, snapshot)
    assert_rows(shortages, shortages_of(ledgers, crcs_by_key, away))
    assert 0 in {row["found"] for row in shortages}
    assert not any(row["lost"] or row["below_ack"] for row in shortages)
    assert rows(ReplicaDivergence(), nodes, snapshot) == []
    audit = {row["bookie"]: (row["records"] > 0, row["complete"]) for row in rows(CrcAudit(), nodes, snapshot)}
    assert audit == {name: (name not in away, name not in away) for name in {key[0] for key in all_copies(nodes)}}


def test_entries_that_every_bookie_lacks_are_reported_as_lost(nodes: Nodes) -> None:
    """A ledger that nobody wrote: all answer, and it is lost."""
    names = sorted({bookie for bookie, _, _ in all_copies(nodes)})
    metadata = metadata_of(77, (4, 2, 1), [(0, names), (6, names[::-1])], 9)
    nodes.store.create(metadata_key(77), metadata.encode())
    snapshot = facts_of(nodes)
    assert_rows(rows(ReplicaHoles(), nodes, snapshot), list(holes_of([metadata], {})))
    (row,) = rows(UnderReplicated(), nodes, snapshot)
    assert (row["entries"], row["found"], row["unknown"], row["lost"]) == (10, 0, 0, True)


class Silent:
    """Runtime of a bookie that cannot tell of entry 3, and has none of the others."""

    def send(self, bookie: str, request: Request, on_reply) -> None:  # type: ignore[no-untyped-def]
        if request.first == 3:
            on_reply(Reply(ReplyStatus.OVERLOADED, request.ledger, request.first, request.last, body=b"busy"))
        else:
            last = min(request.last, 2) if request.first < 3 else request.last
            on_reply(Reply(ReplyStatus.OK, request.ledger, request.first, last))

    def expect(self, done) -> None:  # type: ignore[no-untyped-def]
        """It is done already."""

    def wait(self, future):  # type: ignore[no-untyped-def]
        return future.result(0)


def test_unknown_copy_is_reported_by_entry() -> None:
    copies = list(read_copies(Silent(), "b0", 7, bytes(16), 0, 10))  # type: ignore[arg-type]
    assert [(type(item), item.entry) for item in copies] == [(UnknownCopyError, 3)]  # type: ignore[union-attr]


class TwoByTwo:
    """Runtime of a bookie that has every entry, and puts two into a reply."""

    def send(self, bookie: str, request: Request, on_reply) -> None:  # type: ignore[no-untyped-def]
        last = min(request.first + 1, request.last)
        entries = encode_entries(
            [b"x"] * (last - request.first + 1), ledger=request.ledger, first=request.first, lac=request.first - 1,
            time=1, ledger_bytes=request.first,
        )  # fmt: skip
        on_reply(Reply(ReplyStatus.OK, request.ledger, request.first, last, body=bytes(entries.view)))

    def expect(self, done) -> None:  # type: ignore[no-untyped-def]
        """It is done already."""

    def wait(self, future):  # type: ignore[no-untyped-def]
        return future.result(0)


def test_copies_are_read_from_one_reply_to_the_next() -> None:
    batches = list(read_copies(TwoByTwo(), "b0", 7, bytes(16), 0, 7))  # type: ignore[arg-type]
    assert [entry for batch in batches for entry in batch.entry.tolist()] == [*range(7)]  # type: ignore[union-attr]


def test_open_ledger_without_reachable_bookies_is_not_reported(nodes: Nodes) -> None:
    """All of its bookies are away: what its metadata prove counts, which is nothing."""
    with pyreplog.Cluster.connect(nodes.url) as cluster, cluster.create_ledger(4, 2, 2) as ledger:
        ledger.append_batch([b"one"] * 5)
        nodes.stop(*NAMES)
        snapshot = facts_of(nodes)
    (fact,) = [each_ledger for each_ledger in snapshot.ledgers if each_ledger.metadata.ledger == ledger.id]
    assert fact.entries is None
    assert ledger.id not in {row["ledger_id"] for row in rows(UnderReplicated(), nodes, snapshot)}
