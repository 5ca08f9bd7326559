"""Trace functions that get an event before each bytecode."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any


@contextmanager
def opcodes_traced(trace: Callable[[FrameType, str, Any], Any]) -> Iterator[None]:
    """Call `trace` as `sys.settrace` does in this thread; a frame gets events of opcodes if it sets `f_trace_opcodes`.

    CPython 3.12 makes such events only if some frame had asked for them when the trace function was set.
    """
    before = sys.gettrace()
    sys._getframe().f_trace_opcodes = True
    sys.settrace(trace)
    try:
        yield
    finally:
        sys.settrace(before)
