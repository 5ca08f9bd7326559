"""An export that stops where it hurts, to be killed: `python -m tests.cli.exporting POINT ARGUMENTS…`.

POINT: group, in the middle of a file; filled, when all of them are there; between, when what was there has gone, and
the new is not there; renamed, when it is. There it prints a line, and goes no further.
"""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable
from typing import Any

from pyarrow import parquet

from pyreplog.cli.app import main
from pyreplog.log.files import RealFiles
from pyreplog.reports import atomic_directories

STOPPED = "stopped"


def stop() -> None:
    print(STOPPED, flush=True)
    while True:
        signal.pause()


def stopping(call: Callable[..., Any], at: int, *, is_done: bool) -> Callable[..., Any]:
    """Stops in call number `at`, from 1: when that is done, or before."""
    calls = 0

    def stopped(*arguments: Any, **named: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == at and not is_done:
            stop()
        result = call(*arguments, **named)
        if calls == at:
            stop()
        return result

    return stopped


def plant(point: str) -> None:
    if point == "group":
        writing: Any = parquet.ParquetWriter
        writing.write_table = stopping(parquet.ParquetWriter.write_table, 1, is_done=True)
        return

    class Stopping(RealFiles):
        if point == "between":
            rename = stopping(RealFiles.rename, 1, is_done=True)
        else:
            sync_directory = stopping(RealFiles.sync_directory, 1 if point == "filled" else 2, is_done=False)

    placing: Any = atomic_directories
    placing.RealFiles = Stopping


if __name__ == "__main__":
    plant(sys.argv[1])
    sys.exit(main(sys.argv[2:]))
