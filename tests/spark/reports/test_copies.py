"""Reports on copies, against plain Python that goes through all entries on all bookies."""

from __future__ import annotations

import random
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from pyreplog.errors import ConfigError
from pyreplog.ledger.ledger_metadata import LedgerMetadata
from pyreplog.reports import local_engine
from pyreplog.reports.copies.holes import ReplicaHoles
from pyreplog.reports.copies.under_replicated import UnderReplicated
from pyreplog.reports.report import Report
from pyreplog.reports.snapshot import Snapshot
from tests.spark.reports.both import Row, check
from tests.spark.reports.striped import (
    Copies,
    Striped,
    copies_in,
    fill,
    flip_some,
    metadata_of,
    record,
    tear,
    write_set,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

REPORTS: tuple[Report, ...] = (ReplicaHoles(), UnderReplicated())


# ---- by brute force --------------------------------------------------------------------------------------------


def holes_of(ledgers: list[LedgerMetadata], copies: Copies, unknown: frozenset[str] = frozenset()) -> Iterator[Row]:
    """unknown: bookies that say nothing."""
    for metadata in ledgers:
        own: dict[str, list[int]] = {}
        for entry in range(metadata.last_entry + 1):
            for bookie in write_set(metadata, entry):
                own.setdefault(bookie, []).append(entry)
        for bookie, entries in own.items():
            row: Row | None = None
            for entry in entries:
                if (bookie, metadata.ledger, entry) in copies:
                    row = None
                elif row is None:
                    row = {
                        "ledger_id": metadata.ledger, "bookie": bookie, "first_missing": entry, "last_missing": entry,
                        "missing": 1, "status": "unknown" if bookie in unknown else "missing",
                    }  # fmt: skip
                    yield row
                else:
                    row |= {"last_missing": entry, "missing": row["missing"] + 1}


def shortages_of(ledgers: list[LedgerMetadata], copies: Copies, unknown: frozenset[str] = frozenset()) -> list[Row]:
    rows: list[Row] = []
    for metadata in ledgers:
        open_rows: dict[tuple[int, int], Row] = {}
        for entry in range(metadata.last_entry + 1):
            own = write_set(metadata, entry)
            bookies = [bookie for bookie in own if (bookie, metadata.ledger, entry) in copies]
            if len(bookies) == len(own):
                continue
            away = len([bookie for bookie in own if bookie in unknown and bookie not in bookies])
            row = open_rows.get((len(bookies), away))
            if row is None or entry - row["last_entry"] > metadata.ensemble_size:
                row = {"ledger_id": metadata.ledger, "first_entry": entry, "last_entry": entry, "entries": 0}
                row |= {"expected": metadata.write_quorum, "found": len(bookies), "unknown": away}
                row |= {"lost": len(bookies) + away == 0, "below_ack": len(bookies) + away < metadata.ack_quorum}
                open_rows[len(bookies), away] = row
                rows.append(row)
            row |= {"last_entry": entry, "entries": row["entries"] + 1}
    return rows


def check_all(cluster: Striped, snapshot: Snapshot, spark: SparkSession | None = None) -> tuple[list[Row], list[Row]]:
    copies = copies_in(cluster)
    holes, shortages = list(holes_of(cluster.ledgers, copies)), shortages_of(cluster.ledgers, copies)
    for report, expected in zip(REPORTS, (holes, shortages), strict=True):
        check(report, {"path": str(cluster.path)}, snapshot, expected, spark=spark)
    return holes, shortages


@pytest.fixture
def cluster(tmp_path: Path) -> Striped:
    return Striped.make(tmp_path / "data")


# ---- at random -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("turn", range(3))
def test_holes_and_shortages_of_random_ledgers_are_found(cluster: Striped, seed: int, turn: int) -> None:
    rng = random.Random(f"{seed}/{turn}")
    fill(cluster, rng, 14)
    holes, shortages = check_all(cluster, cluster.snapshot())
    assert holes
    assert shortages


def test_copies_on_damaged_bookies_are_reported(cluster: Striped, seed: int, spark: SparkSession) -> None:
    """Flipped bits, a torn tail, a segment and a bookie's directory that are gone: in Spark, too."""
    rng = random.Random(seed)
    fill(cluster, rng, 10, is_whole=True)
    names = rng.sample(cluster.names, 4)
    flip_some(cluster, rng, 25, spared=names[0])  # where such a log ends is not known
    tear(cluster, names[0])
    wanted = {
        item
        for metadata in cluster.ledgers
        for entry in range(metadata.last_entry + 1)
        for item in write_set(metadata, entry)
    }
    check_all(cluster, cluster.snapshot())
    cluster.segments(names[1])[0].unlink()
    shutil.rmtree(cluster.folder(names[2]).parent)
    holes, _ = check_all(cluster, cluster.snapshot(), spark)
    assert {row["bookie"] for row in holes} >= {names[2]} & wanted


def test_whole_ledgers_have_no_holes_or_shortages(cluster: Striped, seed: int) -> None:
    fill(cluster, random.Random(seed), 12, is_whole=True)
    snapshot = cluster.snapshot()
    assert check_all(cluster, snapshot) == ([], [])
    assert sum(ledger.entries or 0 for ledger in snapshot.ledgers) > 0


# ---- one by one ------------------------------------------------------------------------------------------------


def stripe(cluster: Striped, last: int | None, entries: int, without: int = -1) -> LedgerMetadata:
    """Ledger 0 over the first four bookies, two of them an entry; one of them has nothing."""
    metadata = metadata_of(0, (4, 2, 2), [(0, cluster.names[:4])], last)
    cluster.add(metadata)
    for place, bookie in enumerate(cluster.names[:4]):
        own = [entry for entry in range(entries) if bookie in write_set(metadata, entry)]
        cluster.write(bookie, [record(0, entry) for entry in own if place != without])
    return metadata


def test_a_lost_bookie_is_one_row(cluster: Striped) -> None:
    stripe(cluster, 999, 1000, without=1)
    (hole,), (shortage,) = check_all(cluster, cluster.snapshot())
    assert (hole["first_missing"], hole["last_missing"], hole["missing"]) == (0, 997, 500)
    assert (shortage["entries"], shortage["found"], shortage["lost"], shortage["below_ack"]) == (500, 1, False, True)


def test_partials_do_not_grow_with_entries(cluster: Striped) -> None:
    stripe(cluster, 1999, 2000)
    for options in ({}, {"batchRows": "97"}):
        report = Recorded()
        local_engine.run(report, {"path": str(cluster.path), **options}, cluster.snapshot(), workers=1)
        assert 4 <= report.seen < 20


class Recorded(ReplicaHoles):
    """How many rows its partials have."""

    seen = 0

    def merge(self, partials, snapshot):  # type: ignore[no-untyped-def]
        self.seen = len(partials)
        return super().merge(partials, snapshot)


def test_an_open_ledger_counts_as_far_as_it_is_confirmed(cluster: Striped) -> None:
    """Its last entry says that the one before is confirmed; one bookie is behind."""
    metadata = metadata_of(0, (3, 3, 2), [(0, cluster.names[:3])], None)
    cluster.add(metadata)
    for bookie, stop in zip(cluster.names, (20, 20, 15), strict=False):
        cluster.write(bookie, [record(0, entry) for entry in range(stop)])
    snapshot = cluster.snapshot()
    assert snapshot.ledgers[0].entries == 19
    (hole,) = local_engine.run(ReplicaHoles(), {"path": str(cluster.path)}, snapshot).to_pylist()
    assert (hole["bookie"], hole["first_missing"], hole["missing"]) == (cluster.names[2], 15, 4)


def test_deleted_ledgers_are_left_out(cluster: Striped) -> None:
    stripe(cluster, 9, 10)
    cluster.write(cluster.names[0], [record(1, entry) for entry in range(5)])
    assert check_all(cluster, cluster.snapshot()) == ([], [])


def test_replica_holes_of_selected_ledgers(cluster: Striped, seed: int) -> None:
    fill(cluster, random.Random(seed), 9)
    options = {"path": str(cluster.path), "ledgers": "3,5-6"}
    cluster.ledgers = [ledger for ledger in cluster.ledgers if ledger.ledger in (3, 5, 6)]
    expected = list(holes_of(cluster.ledgers, copies_in(cluster)))
    check(ReplicaHoles(), options, cluster.snapshot(ledgers="3,5-6"), expected)


def test_reports_on_copies_refuse_options_that_cut_ledgers(cluster: Striped, tmp_path: Path) -> None:
    stripe(cluster, 9, 10)
    snapshot = cluster.snapshot()
    for options in ({"startingOffsets": "3"}, {"replica": "bookie-1"}, {"endingTimestamp": "5"}):
        with pytest.raises(ConfigError, match="reads whole ledgers on all bookies"):
            local_engine.run(ReplicaHoles(), {"path": str(cluster.path), **options}, snapshot)
    with pytest.raises(ConfigError, match="under_replicated reads ledgers of a cluster"):
        local_engine.run(UnderReplicated(), {"path": str(cluster.folder(cluster.names[0]))}, snapshot)
