"""Whose CPU time it is: of other processes, or of ours for which nobody waits."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator

import pytest

from benchmarks import unwaited
from benchmarks.proc import Load
from benchmarks.unwaited import Unwaited, count_as_own, reported_s

USED_S = 0.3
DAEMON = """
import os, signal, sys, time
if {ignores}:
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
if os.fork() == 0:
    while time.process_time() < {used_s}:
        pass
    os.write(1, b"done\\n")
sys.stdin.read()
"""
"""A process with a child, which computes, says so, and goes when standard input ends."""


@pytest.fixture(params=[True, False], ids=["nobody waits", "somebody waits"])
def daemon(request: pytest.FixtureRequest) -> Iterator[tuple[bool, subprocess.Popen[bytes]]]:
    """It has computed; and whether it ignores what becomes of its child."""
    code = DAEMON.format(ignores=request.param, used_s=USED_S)
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"done\n"
        yield request.param, process


def test_cpu_time_of_unwaited_processes_is_measured_while_they_run(
    daemon: tuple[bool, subprocess.Popen[bytes]],
) -> None:
    is_unwaited, process = daemon
    unwaited = Unwaited()
    used_s = unwaited.measure()
    assert used_s >= USED_S * 0.9 if is_unwaited else used_s == 0
    process.communicate()
    assert unwaited.measure() == used_s, "what has ended is not forgotten"


def test_reported_cpu_time_does_not_count_as_load_of_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unwaited, "_reported", {})
    load = Load()
    before_s = load._own
    count_as_own(os.getpid(), 5.0)
    count_as_own(os.getpid(), 7.0)
    assert reported_s() == 7.0, "each time all of it so far"
    assert Load()._own >= before_s + 7.0
    assert load.others() == 0
