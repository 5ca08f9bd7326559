"""Open logs of this process: what becomes of them at fork, and when one is forgotten."""

from __future__ import annotations

import os
import traceback
import warnings
import weakref
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyreplog.log.commitlog import CommitLog
    from pyreplog.log.reader import LogReader

_open_logs: weakref.WeakSet[CommitLog | LogReader] = weakref.WeakSet()


def opened(log: CommitLog | LogReader) -> traceback.StackSummary:
    """Note a log that was opened; returns where."""
    _open_logs.add(log)
    return traceback.extract_stack(limit=8)


def warn_of_leak(log: CommitLog, opened_at: traceback.StackSummary) -> None:
    """A log was forgotten without being closed."""
    where = "".join(traceback.format_list(opened_at[:-3])[-2:])
    warnings.warn(f"unclosed log {log.path}, opened at\n{where}", ResourceWarning, source=log, stacklevel=2)


def _after_fork_in_child() -> None:
    """Locks and threads are not inherited: the child's handles refuse everything."""
    for log in list(_open_logs):
        log._forked()


os.register_at_fork(after_in_child=_after_fork_in_child)
