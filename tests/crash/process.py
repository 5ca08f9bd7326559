"""Work in forked processes, so that a power cut or kill -9 can end all that a log has running, at once and unannounced."""

from __future__ import annotations

import faulthandler
import gc
import logging
import os
import signal
import threading
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NoReturn, TextIO

from .disk import CUT

LIMIT_S = 120
"""A process that runs longer hangs: its threads are printed and the run fails."""


@contextmanager
def piece(value: object) -> Iterator[None]:
    """One of several pieces of a process's work: it has LIMIT_S for itself, and its failure names it."""
    signal.alarm(LIMIT_S)
    try:
        yield
    except BaseException as error:
        error.add_note(f"at {value}")
        raise


def in_process(work: Callable[[], object], report: Path) -> bool:
    """Run `work` in a forked process and wait: whether its power was cut. Its failure is raised here as AssertionError,
    with what it wrote into `report`."""
    return _wait(_start(work, report), report, (0, CUT)) == CUT


@contextmanager
def in_background(work: Callable[[], object], report: Path) -> Iterator[int]:
    """A process that does `work` until the caller kills it: its id. Ending in another way is an AssertionError."""
    pid = _start(work, report)
    try:
        yield pid
    except BaseException:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        raise
    _wait(pid, report, (-signal.SIGKILL,))


def _wait(pid: int, report: Path, expected: tuple[int, ...]) -> int:
    status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    if status not in expected:
        raise AssertionError(f"exit status {status}\n{report.read_text()}")
    return status


def _start(work: Callable[[], object], report: Path) -> int:
    pid = os.fork()
    if pid:
        return pid
    with report.open("w") as file:
        faulthandler.enable(file)
        faulthandler.register(signal.SIGALRM, file, chain=True)  # without a thread of its own
        signal.alarm(LIMIT_S)
        gc.freeze()  # the collector would write into all that the parent has, and so copy it
        threading.excepthook = lambda fault: _fail(fault.exc_value, file)
        try:
            logging.disable()
            work()
        except BaseException as error:
            _fail(error, file)
    os._exit(0)


def _fail(error: BaseException | None, file: TextIO) -> NoReturn:
    """Whatever thread it is in: a failure ends the process."""
    traceback.print_exception(error, file=file)
    file.flush()
    os._exit(1)
