"""Ctrl-C waits until what must not stop half way is done.

KeyboardInterrupt may come between any two bytecodes of the main thread: also when that thread, while it waits for one
append, carries out what a state machine has decided for all of them.

Commands end at Ctrl-C in `cli/app.py`; servers stop in `cli/shared/serving.py`.
"""

from __future__ import annotations

from pyreplog._native.system.interrupts import defer_sigint

__all__ = ["defer_sigint"]
