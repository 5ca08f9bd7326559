"""Bookies with the power cut at every step: what becomes of a new cluster, and what goes into limbo stays there."""

from __future__ import annotations

import random
import shutil
from contextlib import closing
from pathlib import Path

import pytest

from pyreplog.bookie.config import BookieConfig
from pyreplog.bookie.identity import LOG
from pyreplog.bookie.local_bookie import LocalBookie
from pyreplog.bookie.opening import open_bookie
from pyreplog.bookie.protocol import Flag, ReplyStatus
from pyreplog.ledger.cluster import LedgerCluster
from pyreplog.log import names, unclean_shutdown_marker
from pyreplog.log.files import Files
from pyreplog.metadata.sqlite import SQLiteStore
from tests import running
from tests.bookie.asking import ANY_SPACE, Facts, add, read
from tests.bookie.test_local import ask

from .disk import PowerCutFiles
from .operation import Operation, Report, cut_at_every_step

SEGMENT_BYTES = 64 << 10
METADATA = "metadata.sqlite"
LOST = 7
"""A ledger of which a bookie may have lost entries."""


def opened(home: Path, store: SQLiteStore, durability: str, *lost: int, files: Files | None = None) -> LocalBookie:
    config = BookieConfig.of({"durability": durability, "segment_bytes": SEGMENT_BYTES, **ANY_SPACE})
    return open_bookie(home / "b1", "b1", store, config, ledgers=Facts(*lost), files=files)[1]


def make_killed(home: Path) -> None:
    """A bookie that acknowledged entries from memory, as `kill -9` leaves it."""
    with SQLiteStore(home / METADATA) as store, closing(opened(home, store, "appended")) as bookie:
        for entry in range(9):
            assert ask(bookie, add(entry, flags=Flag.UNSYNCED)).status == ReplyStatus.OK
        running.copied(bookie.log.log.commit_log, home / "b1", home / "copy")
    shutil.rmtree(home / "b1")
    shutil.move(home / "copy", home / "b1")


class AfterAnotherCut(Operation):
    """The power was cut before: it is opened on a machine that was started anew, to sync from now on."""

    def prepare(self, home: Path) -> None:
        make_killed(home)

    def act(self, home: Path, files: PowerCutFiles, report: Report) -> None:
        vars(unclean_shutdown_marker)["boot_id"] = lambda: b"the second boot."
        with SQLiteStore(home / METADATA) as store:
            opened(home, store, "synced", LOST, files=files).close()

    def verify(self, left: Path, reports: list[str]) -> None:
        vars(unclean_shutdown_marker)["boot_id"] = lambda: b"the third boot. "
        with SQLiteStore(left / METADATA) as store, closing(opened(left, store, "synced", LOST)) as bookie:
            assert ask(bookie, read(100, 109, ledger=LOST)).status == ReplyStatus.LIMBO


class TornTail(Operation):
    """Intact records lie behind one that is not: they are cut, and nobody knows of which ledgers they were."""

    def prepare(self, home: Path) -> None:
        make_killed(home)
        (segment,) = [file for file in (home / "b1" / LOG).glob("*.log") if b"7/5" in file.read_bytes()]
        data = bytearray(segment.read_bytes())
        at = data.index(b"7/5")
        data[at : at + 3] = random.Random(1).randbytes(3)
        segment.write_bytes(data)
        (home / "b1" / LOG / names.TAIL).unlink()  # which would tell of all that was appended

    def act(self, home: Path, files: PowerCutFiles, report: Report) -> None:
        with SQLiteStore(home / METADATA) as store:
            opened(home, store, "appended", LOST, files=files).close()

    def verify(self, left: Path, reports: list[str]) -> None:
        with SQLiteStore(left / METADATA) as store, closing(opened(left, store, "appended", LOST)) as bookie:
            assert ask(bookie, read(100, 109, ledger=LOST)).status == ReplyStatus.LIMBO


class NewCluster(Operation):
    """In a directory that is not there, nor is the one above it."""

    def prepare(self, home: Path) -> None:
        pass

    def _opened(self, home: Path, files: Files | None = None) -> LedgerCluster:
        settings = {"durability": "synced", "segment_bytes": SEGMENT_BYTES, **ANY_SPACE}
        return LedgerCluster.embedded(home / "far" / "away", bookies=2, files=files, **settings)

    def act(self, home: Path, files: PowerCutFiles, report: Report) -> None:
        with self._opened(home, files) as cluster, cluster.create_ledger(2, 2, 2) as ledger:
            for entry in range(4):
                ledger.append(b"%d" % entry)
                report(f"{ledger.id} {entry + 1}")

    def verify(self, left: Path, reports: list[str]) -> None:
        with self._opened(left) as cluster:
            if reports:
                ledger, count = map(int, reports[-1].split())
                with cluster.open_ledger(ledger) as reader:
                    values = [bytes(record.value) for batch in reader.read() for record in batch]
                assert values == [b"%d" % entry for entry in range(len(values))]
                assert len(values) >= count


@pytest.mark.parametrize(
    "operation", [AfterAnotherCut(), TornTail(), NewCluster()], ids=lambda operation: type(operation).__name__
)
def test_power_cut_at_every_step(operation: Operation, ram_path: Path, seed: int) -> None:
    assert cut_at_every_step(operation, ram_path, seed) > 15
