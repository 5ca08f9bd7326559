"""`python -m benchmarks.many_partitions` shows what grows with the number of partitions."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.trees import ROOT


def test_partitions_have_no_threads_of_their_own(tmp_path: Path) -> None:
    options = ["--seconds", "0.1", "--settle", "0.1", "--directory", str(tmp_path)]
    command = [sys.executable, "-m", "benchmarks.many_partitions", "6", "36", *options]
    lines = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, cwd=ROOT).stdout.splitlines()
    names = lines[0].split("\t")
    few, many = (dict(zip(names, line.split("\t"), strict=True)) for line in lines[1:])
    assert (few["partitions"], many["partitions"]) == ("6", "36")
    # A broker makes some threads when it needs them, such as one for each broker from which it fetches.
    assert int(many["threads"]) < int(few["threads"]) + 15, "of the brokers, not of the partitions"
    assert not list(tmp_path.iterdir())
