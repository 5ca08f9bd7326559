"""docs/quickstart.md, followed word by word: its programs are saved, its commands run, and they print what it says.

And examples/backlog_spark.py, which needs Spark as well.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import runpy
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.guides import ROOT, fences, patient, placed

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytest.importorskip("pyarrow")

PAGE = ROOT / "docs" / "quickstart.md"
PATIENCE_S = 240.0


def commands(console: str) -> Iterator[tuple[str, str]]:
    """What stands behind each `$`, and what is printed below it."""
    for part in re.split(r"^\$ ", console, flags=re.MULTILINE)[1:]:
        command, _, printed = part.partition("\n")
        yield command, printed


def run_python(path: Path, *arguments: str) -> str:
    """Run a program here, where a Spark is there already; return its output."""
    out = io.StringIO()
    with contextlib.redirect_stdout(out), pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", [str(path), *arguments])
        runpy.run_path(str(path), run_name="__main__")
    return out.getvalue()


def run(command: str) -> str:
    """Run it in a shell whose `python`, `pip` and `pyreplog` are those of this environment; return its output."""
    folder = ROOT
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    environment = {**os.environ, "PATH": path, "PYTHONPATH": str(ROOT), "PYTHONWARNINGS": "error"}
    if command.startswith("pip install "):  # it finds out what it would do, in the checkout
        command += " --dry-run --no-deps --no-build-isolation"
        del environment["PYTHONWARNINGS"]
    else:
        folder = Path.cwd()
    done = subprocess.run(
        ["bash", "-ec", command], cwd=folder, env=environment, capture_output=True, text=True, timeout=PATIENCE_S, check=False
    )  # fmt: skip
    assert done.returncode == 0, f"{command}\n{done.stdout}{done.stderr}"
    return done.stdout


def test_programs_and_commands_of_the_quickstart_run(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    outputs = {}
    for language, text in fences(PAGE):
        if language == "python":
            match = re.match(r"# (\w+\.py)\n", text)
            assert match, "a program begins with the name of its file"
            assert f"`{match[1]}`" in PAGE.read_text(), "the reader is told to save it"
            Path(match[1]).write_text(patient(text))
            continue
        assert language == "console"
        for command, promised in commands(text):
            program = Path(shlex.split(command)[-1])
            if program.suffix == ".py" and "pyspark" in program.read_text():
                absolute = placed(program.read_text(), {'"data/': f'"{tmp_path}/data/'})  # Spark runs in another folder
                program.write_text(absolute)
                printed = run_python(program)
            else:
                printed = run(command)
            assert not promised or printed.strip() == promised.strip(), f"{command} printed\n{printed}"
            outputs[command] = printed
    assert {"pip install '.[spark]'", "python backlog.py"} <= outputs.keys()
    assert run("python worker.py") == outputs["python worker.py"], "it may be run again"
    assert sorted(path.name for path in tmp_path.glob("*.py")) == ["backlog.py", "replica.py", "worker.py"]


def test_the_example_of_a_backlog_frame_runs(spark: SparkSession, tmp_path: Path) -> None:
    lines = run_python(ROOT / "examples" / "backlog_spark.py", str(tmp_path)).splitlines()
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in lines if line.startswith("|")]
    size = {page: sum(len(b"visit %d" % n) for n in range(1200 + page, 3000, 3)) for page in range(3)}
    assert rows == [
        ["page", "visits", "bytes"],
        ["/", "600", str(size[0])],
        ["/docs", "600", str(size[1])],
        ["/pricing", "600", str(size[2])],
    ]
