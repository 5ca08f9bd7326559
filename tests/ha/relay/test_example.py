"""The example of docs/relay.md: departures per carrier in SQLite."""

from __future__ import annotations

import random
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pyreplog

EXAMPLE = Path(__file__).parents[3] / "examples" / "flights" / "departures.py"


def test_the_example_counts_departures_per_carrier(tmp_path: Path) -> None:
    draw = random.Random(1)
    flights = [(draw.choice(["NA", "-3", "11"]), draw.choice(["UA", "B6", "HA"])) for _ in range(5000)]
    with pyreplog.open(tmp_path / "log") as log:
        log.append_batch([f"2013,1,1,1,1,{delay},1,1,1,{carrier},7,N1,EWR".encode() for delay, carrier in flights])
    command = [sys.executable, "-W", "error", str(EXAMPLE), str(tmp_path / "log"), str(tmp_path / "database")]
    runs = [subprocess.run(command, capture_output=True, text=True, timeout=60, check=False) for _ in range(2)]
    assert [run.returncode for run in runs] == [0, 0], runs[0].stderr
    assert runs[0].stdout == runs[1].stdout, "a second run applies nothing again"
    departed = Counter(carrier for delay, carrier in flights if delay != "NA")
    for carrier, count in departed.items():
        assert any(carrier in line and f"{count:,}" in line for line in runs[1].stdout.splitlines())
