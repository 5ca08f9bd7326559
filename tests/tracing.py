"""Trace functions that get an event before each bytecode, and the Python functions that a thread calls."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any


@contextmanager
def opcodes_traced(trace: Callable[[FrameType, str, Any], Any]) -> Iterator[None]:
    """Call `trace` as `sys.settrace` does in this thread; a frame gets events of opcodes if it sets `f_trace_opcodes`.

    CPython 3.12 makes such events only if some frame had asked for them when the trace function was set. The cyclic
    garbage collector waits: the finalizers of what other tests left would be traced, too.
    """
    before, collects = sys.gettrace(), gc.isenabled()
    sys._getframe().f_trace_opcodes = True
    gc.disable()
    sys.settrace(trace)
    try:
        yield
    finally:
        sys.settrace(before)
        if collects:
            gc.enable()


def python_calls(step: Callable[[], object]) -> list[str]:
    """Return the Python functions that a step calls in this thread, in order. A step that is a builtin is none of them."""
    calls = list[str]()

    def note(frame: FrameType, event: str, argument: Any) -> None:
        if event == "call":
            calls.append(frame.f_code.co_qualname)

    profile(step, note)
    return calls


def profile(step: Callable[[], object], note: Callable[[FrameType, str, Any], object]) -> None:
    """Run a step while `note` gets the events of `sys.setprofile` in this thread."""
    gc.disable()  # its callbacks are calls, too, such as those of hypothesis
    sys.setprofile(note)
    try:
        step()
    finally:
        sys.setprofile(None)
        gc.enable()
