"""`defer_sigint`: a context manager that delays Ctrl-C to the end of a block that must not stop half way.

KeyboardInterrupt may be raised between any two bytecodes of the main thread: also when that thread waits for one
append, and meanwhile carries out the effects of a state machine for all appends.

Commands end at Ctrl-C in `cli/app.py`; servers stop in `cli/shared/serving.py`.
"""

from __future__ import annotations

from pyreplog._native.system.interrupts import defer_sigint

__all__ = ["defer_sigint"]
