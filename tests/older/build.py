"""Builds of two versions of this repository, and comparing what they have."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Collection
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parents[2]
PATIENCE_S = 60.0


class Build(NamedTuple):
    """A version of pyreplog.

    Attributes:
        name: of it, in what is printed.
        python: interpreter that imports it.
        folder: where it is imported, if it is not installed.
    """

    name: str
    python: Path
    folder: Path

    @property
    def _environment(self) -> dict[str, str]:
        return {**os.environ, "PYTHONPATH": str(self.folder)}

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        """Start Python with these arguments, with pipes as its input and output."""
        return subprocess.Popen(
            [self.python, *arguments], cwd=self.folder, env=self._environment, text=True,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        )  # fmt: skip

    def run(self, *arguments: str, accepted: Collection[int] = (0,)) -> Any:
        """Run Python with these arguments; return the JSON that it printed. accepted: exit codes of a good end."""
        done = subprocess.run(
            [self.python, *arguments],
            cwd=self.folder,
            env=self._environment,
            capture_output=True,
            text=True,
            timeout=4 * PATIENCE_S,
            check=False,
        )
        if done.returncode not in accepted:
            raise SystemExit(f"{self.name}: {' '.join(arguments)}: exit {done.returncode}\n{done.stdout}{done.stderr}")
        return json.loads(done.stdout) if done.stdout.strip() else None


def expect(numbers: list[int], expected: set[int], when: str) -> None:
    if sorted(numbers) != sorted(expected):
        again = sorted({number for number in numbers if number not in expected or numbers.count(number) > 1})
        raise SystemExit(f"{when}: missing {sorted(expected - set(numbers))[:20]}, too many {again[:20]}")


def build(revision: str) -> Build:
    """Clone and build a revision, unless it was built before."""
    commit = subprocess.run(
        ["git", "rev-parse", "--verify", f"{revision}^{{commit}}"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    ).stdout.strip()
    folder = ROOT / "build" / "older" / commit[:12]
    python = folder / ".venv" / "bin" / "python"
    if not (folder / "built").exists():
        print(f"Building {commit[:12]} in {folder.relative_to(ROOT)} (some minutes)", flush=True)
        for command in (
            ["rm", "-rf", folder],
            ["git", "clone", "--quiet", "--no-checkout", ROOT, folder],
            ["git", "-C", folder, "checkout", "--quiet", commit],
            [sys.executable, "-m", "venv", folder / ".venv"],
            [python, "-m", "pip", "install", "--quiet", "Cython>=3.2,<4", "setuptools>=77"],
            [python, "-m", "pip", "install", "--quiet", "--no-build-isolation", f"{folder}[cli]"],
            ["touch", folder / "built"],
        ):
            subprocess.run(command, check=True)
    return Build(commit[:12], python, folder / ".venv")
