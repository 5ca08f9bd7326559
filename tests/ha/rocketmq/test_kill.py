"""A slave's process is killed with kill -9, and goes on with its files."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from pyreplog.net.reactor import Reactor
from pyreplog.rocketmq import RawLog, RocketMQMaster

from .conftest import MakeLog
from .records import FILE_BYTES, contents, data_of, fill

_PROCESS = Path(__file__).with_name("slave_process.py")
_STEPS = (1, 1, 12_000, 12_000)
"""How many bytes must have arrived before each kill."""


def run_until(directory: Path, port: int, end: int) -> None:
    """Run a slave, and kill it as soon as it prints that its log has this end."""
    command = [sys.executable, str(_PROCESS), str(directory), str(port), str(FILE_BYTES)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if int(line) >= end:
                break
        process.kill()
    assert process.wait() == -9


def test_a_killed_slave_goes_on_where_it_was(make_log: MakeLog, reactor: Reactor, tmp_path: Path) -> None:
    log = make_log("master")
    fill(log, 400)
    data = data_of(log)
    end = 0
    with RocketMQMaster(reactor, log, max_bytes_per_s=100_000) as master:
        for step in _STEPS:
            run_until(tmp_path / "copy", master.address[1], min(end + step, log.end))
            with RawLog(tmp_path / "copy") as copy:
                assert copy.end <= log.end
                assert data_of(copy) == data[: copy.end]
                end = copy.end
    with RocketMQMaster(reactor, log) as master:
        run_until(tmp_path / "copy", master.address[1], log.end)
    assert contents(tmp_path / "copy") == contents(tmp_path / "master")
