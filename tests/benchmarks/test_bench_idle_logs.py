"""`python -m benchmarks.idle_logs` counts what idle logs have open."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.trees import ROOT


def test_idle_logs_have_no_thread_and_no_descriptor_of_their_own(tmp_path: Path) -> None:
    command = [
        sys.executable,
        "-m",
        "benchmarks.idle_logs",
        "20",
        "200",
        "--seconds",
        "0.1",
        "--directory",
        str(tmp_path),
    ]
    lines = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, cwd=ROOT).stdout.splitlines()
    names = lines[0].split("\t")
    few, many = (dict(zip(names, line.split("\t"), strict=True)) for line in lines[1:])
    assert (few["logs"], many["logs"]) == ("20", "200")
    assert many["descriptors"] == few["descriptors"] and int(many["threads"]) <= 8
    assert float(many["maps, each"]) < 4
    assert not list(tmp_path.iterdir())
