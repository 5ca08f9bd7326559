"""replica_divergence, against plain Python that compares all copies."""

from __future__ import annotations

import random
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from pyreplog.reports import local_engine
from pyreplog.reports.copies import divergence
from pyreplog.reports.copies.divergence import ReplicaDivergence
from tests.spark.reports.both import Row, check
from tests.spark.reports.striped import Striped, copies_in, fill, flip_some, metadata_of, record, write_set

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture
def cluster(tmp_path: Path) -> Striped:
    return Striped.make(tmp_path / "data")


def differing(cluster: Striped) -> list[Row]:
    ends = {metadata.ledger: metadata.last_entry + 1 for metadata in cluster.ledgers if metadata.write_quorum > 1}
    numbers: dict[tuple[int, int], set[int]] = {}
    for (_, ledger, entry), crcs in copies_in(cluster).items():
        if entry < ends.get(ledger, 0):
            numbers.setdefault((ledger, entry), set()).update(crcs)
    return [
        {"ledger_id": ledger, "entry_id": entry, "crcs": sorted(crcs)}
        for (ledger, entry), crcs in numbers.items()
        if len(crcs) > 1
    ]


@pytest.mark.parametrize("turn", range(2))
def test_divergent_copies_of_random_ledgers_are_found(
    cluster: Striped, seed: int, turn: int, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With holes, and copies of bookies that are to have none; once with small blocks."""
    rng = random.Random(f"{seed}/{turn}")
    fill(cluster, rng, 20)
    flip_some(cluster, rng, 10)
    expected = differing(cluster)
    in_spark = spark if turn == 0 else None
    if in_spark is None:
        monkeypatch.setattr(divergence, "BLOCK", 16)  # of this process only
    check(ReplicaDivergence(), {"path": str(cluster.path)}, cluster.snapshot(), expected, spark=in_spark)


def test_whole_ledgers_are_read_once(cluster: Striped, seed: int) -> None:
    fill(cluster, random.Random(seed), 20, is_whole=True)
    snapshot = cluster.snapshot()
    assert check(ReplicaDivergence(), {"path": str(cluster.path)}, snapshot, []).num_rows == 0
    numbers = list[int]()
    local_engine.run(
        ReplicaDivergence(), {"path": str(cluster.path)}, snapshot, progress=lambda item: numbers.append(item.done)
    )
    assert numbers == [1, 2]  # the tasks of one reading


def test_single_different_copy_is_reported(cluster: Striped) -> None:
    metadata = metadata_of(3, (5, 3, 2), [(0, cluster.names)], 4999)
    cluster.add(metadata)
    for bookie in cluster.names:
        own = [entry for entry in range(5000) if bookie in write_set(metadata, entry)]
        other = 4711 if bookie == write_set(metadata, 4711)[1] else -1
        cluster.write(bookie, [record(3, entry, other=entry == other) for entry in own])
    (row,) = check(ReplicaDivergence(), {"path": str(cluster.path)}, cluster.snapshot(), differing(cluster)).to_pylist()
    assert (row["ledger_id"], row["entry_id"], len(row["crcs"])) == (3, 4711, 2)


def test_entries_after_the_last_one_of_a_ledger_are_not_compared(cluster: Striped) -> None:
    """A writer that was fenced left different entries behind the last one of the ledger."""
    cluster.add(metadata_of(0, (3, 3, 2), [(0, cluster.names[:3])], 4))
    for place, bookie in enumerate(cluster.names[:3]):
        cluster.write(bookie, [record(0, entry, other=entry > 4 and place == 1) for entry in range(8)])
    check(ReplicaDivergence(), {"path": str(cluster.path)}, cluster.snapshot(), [])
