"""`python -m benchmarks.purgatory` prints what a completed wait costs while others wait."""

from __future__ import annotations

import re
import subprocess
import sys

from benchmarks.purgatory import cost
from tests.trees import ROOT


def test_costs_are_printed_by_the_number_of_waiters() -> None:
    command = [sys.executable, "-m", "benchmarks.purgatory", "--most", "1000", "--completions", "50"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert re.findall(r"^ *([0-9,]+) +[0-9.]+ ", done.stdout, re.MULTILINE) == ["100", "1,000"]


def test_only_what_was_reached_is_completed() -> None:
    row = cost(500, 20)
    assert row.waiters == 500
    assert min(row[1:]) > 0
