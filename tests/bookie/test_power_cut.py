"""A bookie on a disk that forgets what was not synced: what it answered holds after the power was cut, at a drawn moment."""

from __future__ import annotations

import shutil
from pathlib import Path
from random import Random

import pytest

from pyreplog.bookie.protocol import Flag, ReplyStatus
from pyreplog.log import housekeeper
from tests.bookie.asking import OTHER_KEY, add, entries_in, last, read
from tests.bookie.test_collector import Ledgers, Node, found_in
from tests.bookie.test_collector_crash import PageCache, config
from tests.crash.disk import Disk, PowerCutFiles
from tests.crash.process import in_process

LEDGERS = (1, 2, 3)
LIVES = 4


def live(root: Path, target: Path, seed: str, said: Path, durability: str) -> None:
    """In a process of its own: notes in `said` what was answered, until the power goes."""
    housekeeper.THREADS = False
    rng = Random(seed)
    disk = Disk(root, target, rng, cut_at=rng.randint(20, 150))
    node = Node(root / "log", Ledgers(*LEDGERS), files=PowerCutFiles(disk), config=config(durability))
    entry = {ledger: node.ask(last(ledger=ledger)).last + 1 for ledger in LEDGERS}
    with said.open("a", buffering=1) as file:
        while True:
            ledger = rng.choice(LEDGERS)
            if rng.random() < 0.03:
                assert (
                    node.ask(
                        rng.choice((last(ledger=ledger, fence=True), read(0, 9, ledger=ledger, flags=Flag.FENCE)))
                    ).status
                    == ReplyStatus.OK
                )
                print("fence", ledger, file=file)
            else:
                count = rng.randint(1, 12)
                entries = range(entry[ledger], entry[ledger] + count)
                reply = node.ask(add(*entries, ledger=ledger, flags=Flag.RECOVERY, mark=b"." * rng.randint(0, 2000)))
                assert reply.status == ReplyStatus.OK
                entry[ledger] += count
                print("add", ledger, entry[ledger], file=file)


def check(path: Path, said: list[list[str]], durability: str) -> None:
    node = Node(path, Ledgers(*LEDGERS), files=PageCache(), config=config(durability))
    for ledger in LEDGERS:
        ends = [int(words[2]) for words in said if words[:2] == ["add", str(ledger)]]
        actual = found_in(node, ledger) if ends else []
        assert actual == list(range(len(actual))) and len(actual) >= min(max(ends, default=0), 201)
        if ends:
            assert node.ask(last(ledger=ledger, key=OTHER_KEY, fence=True)).status == ReplyStatus.UNAUTHORIZED
        if ["fence", str(ledger)] in said:
            assert node.ask(add(9999, ledger=ledger)).status == ReplyStatus.FENCED
            assert entries_in(node.ask(read(9999, 9999, ledger=ledger))) == []
    node.close()


@pytest.mark.parametrize("durability", ["appended", "synced"])
def test_what_a_bookie_acknowledged_survives_a_power_cut(durability: str, ram_path: Path, seed: int) -> None:
    for run in range(4):
        home = ram_path / f"{run}-0"
        home.mkdir()
        said = ram_path / f"{run}.said"
        said.touch()
        for number in range(LIVES):
            target = ram_path / f"{run}-{number + 1}"
            drawn = f"{seed} {durability} {run} {number}"
            assert in_process(lambda: live(home, target, drawn, said, durability), ram_path / "report")  # noqa: B023
            shutil.copytree(target, ram_path / "look")
            check(ram_path / "look" / "log", [line.split() for line in said.read_text().splitlines()], durability)
            shutil.rmtree(ram_path / "look")
            home = target
