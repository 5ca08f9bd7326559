"""Planted bugs: every patch in this folder must make the test that it names fail.

A patch says `# caught by: <test>` in one of its first lines. Each is applied to a copy of the tree of its own, which is
built again when native sources change; the named tests must pass in a copy before anything is planted. Tests that try a
share of their steps or seeds in `make test` try all of them here (tests/thorough.py). A test that hangs has failed: pytest
ends it. `python tests/plants/run.py [NNN …]` runs all, or those with these numbers, as many at a time as there are cores.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

PLANTS = Path(__file__).parent
ROOT = PLANTS.parents[1]
COPIED = ("pyreplog", "pyspark_pyreplog", "tests", "build/cython", "setup.py", "pyproject.toml")
NATIVE = re.compile(r"^\+\+\+ b/(pyreplog/_native/\S+)$", re.MULTILINE)
CAUGHT_BY = re.compile(r"^# caught by: (\S.*)$", re.MULTILINE)


@dataclass(frozen=True)
class Plant:
    patch: Path

    @property
    def test(self) -> str:
        found = CAUGHT_BY.search(self.patch.read_text())
        if found is None:
            raise ValueError(f"{self.patch.name} names no test")
        return found[1]

    @property
    def native(self) -> list[str]:
        """The native sources it changes."""
        return NATIVE.findall(self.patch.read_text())


class Tree:
    """A copy of a tree, with the extensions as they are built in it."""

    def __init__(self, source: Path, folder: Path, copy: Callable[[Path, Path], object] = shutil.copy2) -> None:
        self._folder = folder
        for name in COPIED:
            if (source / name).is_dir():
                plants = shutil.ignore_patterns(PLANTS.name)
                shutil.copytree(source / name, folder / name, ignore=plants, copy_function=copy)
            elif (source / name).exists():
                copy(source / name, folder / name)

    def linked(self, folder: Path) -> Tree:
        """Whatever changes a file there (git apply, Cython, the linker) makes it anew, and leaves this one as it is. What is
        patched is newer than its bytecode here, which need not be compiled again for all the others."""
        return Tree(self._folder, folder, os.link)

    def _run(self, *command: str) -> tuple[int, str]:
        """How it ended and what it said. The seed is fixed. Not a pipe: processes that a test left behind keep it open."""
        settings = {"PYTHONPATH": str(self._folder), "PYREPLOG_SEED": "1", "PYREPLOG_THOROUGH": "1"}
        with tempfile.TemporaryFile("w+") as said:
            done = subprocess.run(
                command, cwd=self._folder, env={**os.environ, **settings}, stdout=said, stderr=subprocess.STDOUT
            )
            said.seek(0)
            return done.returncode, said.read()

    def _must(self, *command: str) -> None:
        status, said = self._run(*command)
        if status:
            raise RuntimeError(f"{' '.join(command)} ended with {status}\n{said}")

    def test(self, *tests: str) -> tuple[int, str]:
        return self._run(sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", *tests)

    def plant(self, plant: Plant) -> None:
        self._must("git", "apply", "--whitespace=nowarn", "-C1", str(plant.patch))
        if plant.native:
            self._must(sys.executable, "setup.py", "-q", "build_ext", "--build-lib", ".")  # only what changed


def main() -> int:
    wanted = sys.argv[1:]
    plants = [Plant(p) for p in sorted(PLANTS.glob("*.patch")) if not wanted or p.name[:3] in wanted]
    if not plants:
        print(f"expected numbers of plants, found {' '.join(wanted)}")
        return 2
    cores = len(os.sched_getaffinity(0))
    with tempfile.TemporaryDirectory(prefix="pyreplog-plants-") as folder, ThreadPoolExecutor(cores) as threads:
        sound = Tree(ROOT, Path(folder))
        status, said = sound.test("--numprocesses", str(cores), *sorted({plant.test for plant in plants}))
        if status:
            print(f"the tests fail with nothing planted\n{said}")
            return 1
        caught = sum(threads.map(lambda plant: _caught(plant, sound), plants))
    print(f"{caught} of {len(plants)} planted bugs were caught")
    return 0 if caught == len(plants) else 1


def _caught(plant: Plant, sound: Tree) -> bool:
    with tempfile.TemporaryDirectory(prefix="pyreplog-plant-", ignore_cleanup_errors=True) as folder:
        tree = sound.linked(Path(folder))
        try:
            tree.plant(plant)
        except RuntimeError as error:
            print(f"STALE   {plant.patch.stem}: {error}", flush=True)
            return False
        status, said = tree.test(plant.test)
    caught = status == 1  # others: the test could not be run
    told = "" if caught else f"\n{said}"
    print(f"{'caught' if caught else 'MISSED'}  {plant.patch.stem}  by {plant.test}{told}", flush=True)
    return caught


if __name__ == "__main__":
    sys.exit(main())
