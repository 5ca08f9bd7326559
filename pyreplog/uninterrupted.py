"""Ctrl-C waits until what must not stop half way is done.

KeyboardInterrupt may come between any two bytecodes of the main thread: also when that thread, while it waits for one
append, carries out what a state machine has decided for all of them.
"""

from __future__ import annotations

import _signal  # not signal: its enums cost ten times what the calls do
from _thread import get_ident
from threading import main_thread
from types import FrameType, TracebackType
from typing import Any

_SIGINT = int(_signal.SIGINT)


class _Uninterrupted:
    """`with uninterrupted:` a SIGINT that comes in the block is handled behind it. Any thread, nested or not.

    Each of the two exchanges of the handler is one C call: before the first nothing has begun, after the second all is
    done.
    """

    def __init__(self) -> None:
        self._depth = 0  # all of this is the main thread's
        self._handler: Any = None
        self._came: tuple[int, FrameType | None] | None = None

    def __enter__(self) -> None:
        if get_ident() != main_thread().ident:
            return
        if self._depth == 0:
            self._came = None
            if not callable(_signal.getsignal(_SIGINT)):  # ignored, or it kills the process, or is not Python's
                return
            self._handler = _signal.signal(_SIGINT, self._note)
        self._depth += 1

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._depth == 0 or get_ident() != main_thread().ident:
            return
        self._depth -= 1
        if self._depth == 0:
            handler, self._handler = self._handler, None
            _signal.signal(_SIGINT, handler)
            if self._came is not None:
                handler(*self._came)

    def _note(self, number: int, frame: FrameType | None) -> None:
        self._came = number, frame


uninterrupted = _Uninterrupted()
