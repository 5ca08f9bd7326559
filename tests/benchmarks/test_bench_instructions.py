"""`python -m benchmarks.instructions` counts what a process executes for a message."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys

import pytest

from tests.trees import ROOT


@pytest.mark.skipif(shutil.which("valgrind") is None, reason="valgrind is not installed")
def test_instructions_of_a_message_are_counted() -> None:
    command = [sys.executable, "-m", "benchmarks.instructions", "--only", "message", "--count", "20"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    (found,) = re.findall(r"^\| `message`: .* \| ([0-9,]+) \|$", done.stdout, re.MULTILINE)
    assert 10_000 < int(found.replace(",", "")) < 50_000_000
