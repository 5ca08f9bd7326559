"""Planted bugs: every patch in this folder must make the test that it names fail.

A patch says `# caught by: <test>` in one of its first lines. Each is applied to a copy of the tree of its own, which is
built again when native sources change; the named tests must pass in a copy before anything is planted. Tests that try a
share of their steps or seeds in `make test` try all of them here (tests/thorough.py). A test that hangs has failed: pytest
ends it. `python -m tests.plants [--repeat N] [NUMBER …]` runs all, or those with these numbers, as many at a time as
there are cores. With `--repeat`, a plant counts as caught only if its test fails every time: a test that depends on luck
shows itself.
"""

from __future__ import annotations

import argparse
import os
import re
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from tests.trees import ROOT, Tree

PLANTS = Path(__file__).parent
NATIVE = re.compile(r"^\+\+\+ b/(pyreplog/_native/\S+)$", re.MULTILINE)
CAUGHT_BY = re.compile(r"^# caught by: (\S.*)$", re.MULTILINE)


@dataclass(frozen=True)
class Plant:
    patch: Path

    @property
    def number(self) -> str:
        return self.patch.name.partition("-")[0]

    @property
    def test(self) -> str:
        match = CAUGHT_BY.search(self.patch.read_text())
        if match is None:
            raise ValueError(f"{self.patch.name} names no test")
        return match[1]

    @property
    def native(self) -> list[str]:
        """The native sources it changes."""
        return NATIVE.findall(self.patch.read_text())


def main() -> int:
    parser = argparse.ArgumentParser(description="Plant bugs, and demand that the tests which they name fail.")
    parser.add_argument("numbers", nargs="*", metavar="NUMBER", help="the plants to run; all of them if none is given")
    parser.add_argument("--repeat", type=int, default=1, metavar="N", help="run the test of each plant N times")
    arguments = parser.parse_args()
    plants = sorted(map(Plant, PLANTS.glob("*.patch")), key=lambda plant: int(plant.number))
    unknown = set(arguments.numbers) - {plant.number for plant in plants}
    if unknown:
        parser.error(f"expected numbers of plants, found {' '.join(sorted(unknown))}")
    if arguments.numbers:
        plants = [plant for plant in plants if plant.number in arguments.numbers]
    cores = len(os.sched_getaffinity(0))
    with tempfile.TemporaryDirectory(prefix="pyreplog-plants-") as folder, ThreadPoolExecutor(cores) as threads:
        sound = Tree(ROOT, Path(folder))
        status, said = sound.test(
            "--numprocesses", str(cores), *sorted({plant.test for plant in plants}), thorough=True
        )
        if status:
            print(f"the tests fail with nothing planted\n{said}")
            return 1
        caught = sum(threads.map(lambda plant: _caught(plant, sound, arguments.repeat), plants))
    print(f"{caught} of {len(plants)} planted bugs were caught")
    return 0 if caught == len(plants) else 1


def _caught(plant: Plant, sound: Tree, repeat: int) -> bool:
    with tempfile.TemporaryDirectory(prefix="pyreplog-plant-", ignore_cleanup_errors=True) as folder:
        tree = sound.linked(Path(folder))
        try:
            tree.must_run("git", "apply", "--whitespace=nowarn", "-C1", str(plant.patch))
            if plant.native:
                tree.build()
        except RuntimeError as error:
            print(f"STALE   {plant.patch.stem}: {error}", flush=True)
            return False
        for _ in range(repeat):
            status, said = tree.test(plant.test, thorough=True)
            caught = status == 1  # others: the test could not be run
            if not caught:
                break
    told = "" if caught else f"\n{said}"
    print(f"{'caught' if caught else 'MISSED'}  {plant.patch.stem}  by {plant.test}{told}", flush=True)
    return caught


if __name__ == "__main__":
    sys.exit(main())
