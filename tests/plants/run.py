"""Planted bugs: every patch in this folder must make the test that it names fail.

A patch says `# caught by: <test>` in one of its first lines. Each is applied to a copy of the tree, which is built again
when native sources change; the named tests must pass in the copy before anything is planted. Tests that try a share of
their steps or seeds in `make test` try all of them here (tests/thorough.py).
`python tests/plants/run.py [NNN …]` runs all, or those with these numbers.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

PLANTS = Path(__file__).parent
ROOT = PLANTS.parents[1]
COPIED = ("pyreplog", "pyspark_pyreplog", "tests", "build/cython", "setup.py", "pyproject.toml")
NATIVE = re.compile(r"^\+\+\+ b/(pyreplog/_native/\S+)$", re.MULTILINE)
CAUGHT_BY = re.compile(r"^# caught by: (\S.*)$", re.MULTILINE)
LIMIT_S = 300


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
    """A copy of the repository, with the extensions as they are built in it."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        for name in COPIED:
            source, target = ROOT / name, folder / name
            if source.is_dir():
                shutil.copytree(source, target, ignore=shutil.ignore_patterns("__pycache__"))
            elif source.exists():
                shutil.copy2(source, target)

    def _run(self, *command: str) -> subprocess.CompletedProcess[str]:
        """The seed is fixed and no bytecode is written: a patched file may have the size and second of the other one."""
        settings = {
            "PYTHONPATH": str(self._folder), "PYTHONDONTWRITEBYTECODE": "1", "PYREPLOG_SEED": "1", "PYREPLOG_THOROUGH": "1",
        }  # fmt: skip
        return subprocess.run(
            command, cwd=self._folder, env={**os.environ, **settings}, text=True, timeout=LIMIT_S,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )  # fmt: skip

    def _must(self, *command: str) -> None:
        done = self._run(*command)
        if done.returncode:
            raise RuntimeError(f"{' '.join(command)} ended with {done.returncode}\n{done.stdout}")

    def test(self, *tests: str) -> subprocess.CompletedProcess[str]:
        return self._run(sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", *tests)

    def plant(self, plant: Plant, *options: str) -> None:
        self._must("git", "apply", "--whitespace=nowarn", "-C1", *options, str(plant.patch))
        if plant.native:
            self._must(sys.executable, "setup.py", "-q", "build_ext", "--inplace")

    def restore(self, plant: Plant) -> None:
        self.plant(plant, "--reverse")


def main() -> int:
    wanted = sys.argv[1:]
    plants = [Plant(p) for p in sorted(PLANTS.glob("*.patch")) if not wanted or p.name[:3] in wanted]
    with tempfile.TemporaryDirectory(prefix="pyreplog-plants-") as folder:
        tree = Tree(Path(folder))
        sound = tree.test(*sorted({plant.test for plant in plants}))
        if sound.returncode:
            print(f"the tests fail with nothing planted\n{sound.stdout}")
            return 1
        missed = [plant for plant in plants if not _caught(tree, plant)]
    print(f"{len(plants) - len(missed)} of {len(plants)} planted bugs were caught")
    return 1 if missed else 0


def _caught(tree: Tree, plant: Plant) -> bool:
    try:
        tree.plant(plant)
    except RuntimeError as error:
        print(f"STALE   {plant.patch.stem}: {error}")
        return False
    done = tree.test(plant.test)
    tree.restore(plant)
    caught = done.returncode == 1  # others: the test could not be run
    print(f"{'caught' if caught else 'MISSED'}  {plant.patch.stem}  by {plant.test}", flush=True)
    if not caught:
        print(done.stdout)
    return caught


if __name__ == "__main__":
    sys.exit(main())
