"""Copies of this project's tree, to be changed, built and tested apart from it."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
COPIED = (
    "pyreplog", "pyspark_pyreplog", "tests", "benchmarks", "examples", "docs", ".ci", "build/cython", "setup.py", "pyproject.toml",
    "README.md", "CONTRIBUTING.md", "CHANGELOG.md", "LICENSE", "MANIFEST.in", "Makefile",
)  # fmt: skip
LEFT_OUT = shutil.ignore_patterns("*.patch")


class Tree:
    """A copy of a tree, with the extensions as they are built in it.

    folder: where the copy lies; it is made if it is empty.
    """

    def __init__(self, source: Path, folder: Path, copy: Callable[[Path, Path], object] = shutil.copy2) -> None:
        self.folder = folder
        for name in COPIED:
            if (source / name).is_dir():
                shutil.copytree(source / name, folder / name, ignore=LEFT_OUT, copy_function=copy)
            elif (source / name).exists():
                copy(source / name, folder / name)

    def linked(self, folder: Path) -> Tree:
        """Make a copy of hard links: a file that is replaced there stays as it is here.

        git apply, Cython and the linker replace files. A changed source is newer than its bytecode, which need not be
        compiled again for the others.
        """
        return Tree(self.folder, folder, os.link)

    def run(
        self, *command: str, environment: Mapping[str, str] | None = None, silence_s: float | None = None
    ) -> tuple[int, str]:
        """Run a command in the tree, with a fixed seed; return its exit code and its output.

        silence_s: a command that writes nothing for so long is killed, with its process group; the code is less than 0.
        """
        settings = {"PYTHONPATH": str(self.folder), "PYREPLOG_SEED": "1", **(environment or {})}
        with tempfile.TemporaryFile("w+") as output:  # no pipe: processes that a test left behind would keep it open
            process = subprocess.Popen(
                command, cwd=self.folder, env={**os.environ, **settings}, stdout=output, stderr=subprocess.STDOUT,
                start_new_session=silence_s is not None,
            )  # fmt: skip
            try:
                if silence_s is not None:
                    _wait_while_it_writes(process, output.fileno(), silence_s)
                process.wait()
            except BaseException:
                if silence_s is None:
                    process.kill()
                else:
                    os.killpg(process.pid, signal.SIGKILL)
                raise
            output.seek(0)
            return process.returncode, output.read()

    def must_run(self, *command: str) -> None:
        """Run a command in the tree. Raises RuntimeError with its output if it fails."""
        code, output = self.run(*command)
        if code:
            raise RuntimeError(f"{' '.join(command)} ended with {code}\n{output}")

    def test(self, *arguments: str, thorough: bool = False, silence_s: float | None = None) -> tuple[int, str]:
        """Run tests until one fails; thorough: all of what `make test` tries a share of. silence_s: as `run`."""
        environment = {"PYREPLOG_THOROUGH": "1"} if thorough else {}
        command = (sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", *arguments)
        return self.run(*command, environment=environment, silence_s=silence_s)

    def build(self) -> None:
        """Build the extensions whose sources are newer."""
        self.must_run(sys.executable, "setup.py", "-q", "build_ext", "--build-lib", ".")


def _wait_while_it_writes(process: subprocess.Popen[bytes], output: int, silence_s: float) -> None:
    """Wait for the end of a process that leads its group; kill the group when `output` does not grow for `silence_s`."""
    size, since = 0, time.monotonic()
    while True:
        try:
            process.wait(min(silence_s, 1.0))
            return
        except subprocess.TimeoutExpired:
            pass
        now = os.fstat(output).st_size
        if now != size:
            size, since = now, time.monotonic()
        elif time.monotonic() - since >= silence_s:
            os.killpg(process.pid, signal.SIGKILL)
            return
