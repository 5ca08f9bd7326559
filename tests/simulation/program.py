"""The simulators as processes of their own, as `make simulate` runs them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def simulate(program: str, *arguments: str, hash_seed: str = "random") -> subprocess.CompletedProcess[str]:
    """Run `python -m program`."""
    return subprocess.run(
        [sys.executable, "-m", program, *arguments],
        cwd=ROOT, env={**os.environ, "PYTHONHASHSEED": hash_seed}, capture_output=True, text=True, timeout=600, check=False,
    )  # fmt: skip
