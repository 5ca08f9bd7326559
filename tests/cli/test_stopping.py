"""Commands that run until a signal: they end whatever they are at when it comes."""

from __future__ import annotations

import subprocess
import sys

PROGRAM = """
import signal, sys
from pyreplog.cli.shared import serving

def traced(frame, event, _):
    global events
    frame.f_trace_opcodes = True
    events += 1
    if events == at:
        signal.raise_signal(signal.SIGTERM)
    return traced

at, waits = 1, True
while waits:
    events, stop = 0, serving.stopped_by_signals()
    sys.settrace(traced)
    waits = stop.wait(0.2)
    sys.settrace(None)
    at += 1
print(at)
"""
"""Waits again and again, and gets a signal at the next step of it each time, until none of its steps is left."""


def test_a_signal_ends_the_wait_wherever_it_is() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=60, check=True)
    assert int(done.stdout) > 3
