"""Garbage collection with the power cut at every third step, which ones is drawn: what is live survives, and the next round finishes the work."""

from __future__ import annotations

import shutil
from collections.abc import Collection, Sequence
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest

from pyreplog.bookie.config import BookieConfig
from pyreplog.bookie.ledger_list import ClosedLedgerHoldings
from pyreplog.bookie.protocol import ReplyStatus
from pyreplog.log import housekeeper
from pyreplog.log.files import RealFiles
from tests.bookie.asking import ANY_SPACE, OTHER_KEY, add, entries_in, last, read, set_lac
from tests.bookie.test_collector import PADDING, SEGMENT, Ledgers, Node, found_in
from tests.crash.disk import Disk, PowerCutFiles
from tests.crash.moments import Moments
from tests.crash.operation import Operation, Report, cut_at_every_step
from tests.crash.process import in_process

LIVE = (2, 3)
RUNS = 4
"""Of the collection, all different in what the seed draws; the power is cut at every third step of one of them."""


def config(durability: str) -> BookieConfig:
    return BookieConfig.of(
        {"durability": durability, "segment_bytes": SEGMENT, "collect_step_bytes": 4 << 10, **ANY_SPACE}
    )


class PageCache(RealFiles):
    """Before and after the life that loses its power: nothing need be synced."""

    def sync(self, fd: int) -> None:
        assert fd >= 0

    def write_sync(self, fd: int, data: bytes | memoryview, offset: int) -> None:
        self.write(fd, data, offset)

    def sync_directory(self, path: Path) -> None:
        assert path.is_dir()


def make(path: Path, durability: str) -> None:
    """Ledger 1, to be deleted, fills segments at the front and in the middle; 2 and 3 have a few entries in some of them."""
    node = Node(path, Ledgers(1, 2, 3), files=PageCache(), config=config(durability))
    node.ask(last(ledger=2, fence=True))
    node.ask(set_lac(7, ledger=3))
    for entry in range(4):
        assert node.ask(add(entry, ledger=3, mark=PADDING)).status == ReplyStatus.OK
        node.fill(1, entries=range(20 * entry, 20 * entry + 20))
    node.fill(3, entries=range(4, 30))
    node.fill(1, entries=range(80, 120))
    node.close()


def collect(root: Path, target: Path, seed: str, moments: Moments, durability: str) -> None:
    """In a process of its own."""
    housekeeper.THREADS = False
    rng = Random(seed)
    disk = Disk(root, target, rng)
    disk.share = rng.choice((None, 0.0, 0.0, 1.0))
    moments.watch(disk)
    node = Node(root / "log", Ledgers(*LIVE), files=PowerCutFiles(disk), config=config(durability))
    node.collector.collect()
    disk.at_tick = None
    node.close()


def check(path: Path, durability: str, left: int) -> None:
    node = Node(path, Ledgers(*LIVE), files=PageCache(), config=config(durability))
    for _ in range(2):
        assert found_in(node, 3) == list(range(30))
        assert node.ask(last(ledger=3)).lac == 28
        assert node.ask(add(0, ledger=2)).status == ReplyStatus.FENCED
        assert node.ask(last(ledger=2, fence=True, key=OTHER_KEY)).status == ReplyStatus.UNAUTHORIZED
        assert entries_in(node.ask(read(0, 9, ledger=2))) == []
        node.collector.collect()
    assert len(node.whole()) <= left
    node.close()


class OnlyControls(Operation):
    """Of segments with nothing else that counts than what control records say of ledgers."""

    FENCED, WITH_LAC, LATER = 2, 3, 4

    def __init__(self, durability: str) -> None:
        self._config = config(durability)

    def _open(self, home: Path, files: RealFiles) -> Node:
        return Node(home / "log", Ledgers(self.FENCED, self.WITH_LAC, self.LATER), files=files, config=self._config)

    def prepare(self, home: Path) -> None:
        node = Node(home / "log", Ledgers(1), files=PageCache(), config=self._config)
        for number, ledger in enumerate((self.FENCED, self.WITH_LAC)):
            node.ask(last(ledger=ledger, fence=True) if ledger == self.FENCED else set_lac(7, ledger=ledger))
            node.fill(1, entries=range(60 * number, 60 * number + 60))
        node.close()

    def act(self, home: Path, files: PowerCutFiles, report: Report) -> None:
        node = self._open(home, files)
        assert len(node.whole()) > 3
        node.collector.collect()
        report("collected")
        assert node.ask(last(ledger=self.LATER, fence=True)).status == ReplyStatus.OK
        report("fenced")
        node.log.close()

    def verify(self, left: Path, reports: list[str]) -> None:
        node = self._open(left, PageCache())
        for _ in range(2):
            assert node.ask(add(0, ledger=self.FENCED)).status == ReplyStatus.FENCED
            assert node.ask(last(ledger=self.FENCED, fence=True, key=OTHER_KEY)).status == ReplyStatus.UNAUTHORIZED
            assert node.ask(last(ledger=self.WITH_LAC)).lac == 7
            assert "fenced" not in reports or node.ask(add(0, ledger=self.LATER)).status == ReplyStatus.FENCED
            node.collector.collect()
        assert len(node.whole()) <= 1
        node.close()


@pytest.mark.parametrize("durability", ["appended", "synced"])
def test_power_cut_where_only_control_records_move(durability: str, ram_path: Path, seed: int) -> None:
    assert cut_at_every_step(OnlyControls(durability), ram_path, seed) > 30


class Moved(Ledgers):
    """Ledger 2 is closed, and this bookie has to hold its first 10 entries. Somebody else has the others."""

    def closed(self, ledgers: Sequence[int]) -> list[ClosedLedgerHoldings | None]:
        return [ClosedLedgerHoldings((range(10),), 1, frozenset()) if ledger == 2 else None for ledger in ledgers]

    def change_version(self, ledger: int, version: int) -> bool:
        return (ledger, version) == (2, 1)

    def keeps_surplus(self, ledger: int, bookies: Collection[str]) -> bool:
        return False


class SurplusFinder(Operation):
    """Of segments in which copies are that no metadata ask for, beside others."""

    def __init__(self, durability: str) -> None:
        self._config = replace(
            config(durability), collect_interval_ms=1, surplus_interval_ms=1, compact_below_percent=95
        )

    def _open(self, home: Path, files: RealFiles) -> Node:
        return Node(home / "log", Moved(2, 3), files=files, config=self._config)

    def prepare(self, home: Path) -> None:
        node = self._open(home, PageCache())
        for entry in range(0, 60, 10):
            node.fill(2, entries=range(entry, entry + 10))
            node.fill(3, entries=range(entry // 2, entry // 2 + 5))
        node.close()

    def act(self, home: Path, files: PowerCutFiles, report: Report) -> None:
        node = self._open(home, files)
        for _ in range(3):
            node.collector.collect()
        report("collected")
        node.log.close()

    def verify(self, left: Path, reports: list[str]) -> None:
        node = self._open(left, PageCache())
        assert {*found_in(node, 2)} >= {*range(10)} and found_in(node, 3) == list(range(30))
        for entry in range(30, 155, 25):  # seals a segment: what is in the active one stays
            node.fill(3, entries=range(entry, entry + 25))
            node.collector.collect()
        assert found_in(node, 2) == list(range(10)) and found_in(node, 3) == list(range(155))
        node.close()


@pytest.mark.parametrize("durability", ["appended", "synced"])
def test_power_cut_while_surplus_goes(durability: str, ram_path: Path, seed: int) -> None:
    assert cut_at_every_step(SurplusFinder(durability), ram_path, seed) > 10


@pytest.mark.parametrize("durability", ["appended", "synced"])
def test_power_cut_at_every_step(durability: str, ram_path: Path, seed: int) -> None:
    make(ram_path / "made" / "log", durability)
    cuts = 0
    for number in range(RUNS):
        home, target = ram_path / "home", ram_path / "cut"
        shutil.copytree(ram_path / "made", home)
        run = f"{seed} {number}"
        moments = Moments(target, run, 1 + seed % 3 + 3 * number, 3 * RUNS)
        in_process(lambda: collect(home, target, run, moments, durability), ram_path / "report")  # noqa: B023
        for moment in moments.taken():
            check(moment.left / "log", durability, left=3)
            cuts += 1
        check(home / "log", durability, left=3)
        for path in (home, target):
            shutil.rmtree(path)
    assert cuts > 10, "hardly any step was cut"
