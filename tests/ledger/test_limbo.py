"""Clusters after a power cut: no ledger is closed too short, and limbo ends."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from pyreplog.errors import UnreadableError
from pyreplog.ledger.cluster import LedgerCluster
from pyreplog.ledger.ledger_metadata import metadata_key
from pyreplog.ledger.ledger_store import load_ledger
from tests import running
from tests.ledger.conftest import SEGMENT_BYTES
from tests.ledger.test_cluster import EXPECTED, values


class PowerCut:
    """An embedded cluster with durability "appended", and copies of the synced part of its disks."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.cluster = self.open()
        ledger = self.cluster.create_ledger(durability="appended")
        ledger.append_batch([b"%d" % entry for entry in range(10)])
        self._disks = {name: self._disk(name) for name in self._names()}
        ledger.append_batch([b"%d" % entry for entry in range(10, 20)])
        ledger.abandon()
        self.ledger = ledger.id

    def open(self) -> LedgerCluster:
        return LedgerCluster.embedded(self._folder, bookies=3, segment_bytes=SEGMENT_BYTES, durability="appended")

    def _names(self) -> list[str]:
        return sorted(path.name for path in self._folder.glob("bookie-*"))

    def _disk(self, name: str) -> Path:
        """Copy what is on disk now; later entries are in memory only."""
        runtime: Any = self.cluster.runtime
        (bookie,) = (each_bookie for each_bookie in runtime.bookies.values() if each_bookie.path.name == name)
        log = bookie.log.log.commit_log
        with log.freeze_files():
            bookie.log.sync()
            return running.copied(log, bookie.path, self._folder.with_name(f"disk of {name}"))

    def reopen_after_power_cut(self, *lost: str) -> LedgerCluster:
        """Close the cluster, and open it with what these bookies, or all, have on disk after a power cut."""
        self.cluster.close()
        for name in lost or self._names():
            shutil.rmtree(self._folder / name)
            shutil.move(self._disks[name], self._folder / name)
            (self._folder / name / "unsynced").write_bytes(b"another boot's")
        return self.open()


def test_after_a_power_cut_nothing_is_cut_short_unless_by_force(folder: Path) -> None:
    cut = PowerCut(folder)
    with cut.reopen_after_power_cut() as cluster:
        assert [ledger for ledger, _ in cluster.status().limbo] == [cut.ledger] * 3
        with pytest.raises(UnreadableError, match="LIMBO"):
            cluster.open_ledger(cut.ledger)
        with cluster.open_ledger(cut.ledger, force=True) as reader:
            assert len(reader) == 10
        runtime: Any = cluster.runtime
        runtime.collect()
        assert cluster.status().limbo == [] and len(values(cluster, cut.ledger)) == 10


def test_limbo_ends_with_the_repair_of_what_was_lost(folder: Path) -> None:
    cut = PowerCut(folder)
    with cut.reopen_after_power_cut("bookie-1") as cluster:
        runtime: Any = cluster.runtime
        assert values(cluster, cut.ledger) == EXPECTED, "recovery writes them back"
        runtime.collect()
        assert cluster.status().limbo == []


def test_a_closed_ledger_that_lost_copies_is_in_limbo_until_they_are_repaired(
    folder: Path,
) -> None:
    cut = PowerCut(folder)
    with cut.reopen_after_power_cut("bookie-1") as cluster:
        runtime: Any = cluster.runtime
        bookie = next(name for name, each_bookie in runtime.bookies.items() if each_bookie.path.name == "bookie-1")
        ledger_metadata = load_ledger(cluster.metadata, cut.ledger)
        cluster.metadata.put(
            metadata_key(cut.ledger), ledger_metadata.metadata.closed(19, 30, 20).encode(), ledger_metadata.version
        )
        runtime.collect()
        assert cluster.status().limbo == [(cut.ledger, bookie)], "it is closed, and its copies are not here"
        assert values(cluster, cut.ledger) == EXPECTED
        done, left = cluster.repair()
        assert not left and {repair.bookie for repair in done} == {bookie}
        runtime.collect()
        assert cluster.status().limbo == [] and cluster.count_copies(cut.ledger).tolist() == [3] * 20
