"""Work in forked processes, so that a power cut can end everything a log has running, at once and without a farewell."""

from __future__ import annotations

import faulthandler
import os
import traceback
from collections.abc import Callable
from pathlib import Path

from .disk import CUT

LIMIT_S = 60.0
"""A process that runs longer hangs: its threads are printed and the run fails."""


def in_process(work: Callable[[], object], report: Path) -> bool:
    """Run `work` in a forked process and wait: whether its power was cut. Its failure is raised here as AssertionError,
    with what it wrote into `report`."""
    pid = os.fork()
    if not pid:
        _run(work, report)
    status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    if status not in (0, CUT):
        raise AssertionError(f"exit status {status}\n{report.read_text()}")
    return status == CUT


def _run(work: Callable[[], object], report: Path) -> None:
    with report.open("w") as file:
        faulthandler.enable(file)
        faulthandler.dump_traceback_later(LIMIT_S, exit=True, file=file)
        try:
            work()
        except BaseException:
            traceback.print_exc(file=file)
            file.flush()
            os._exit(1)
    os._exit(0)
