"""EventQueue: runs the events of a topic one at a time, on the thread that finds the queue idle.

No thread waits for another.
"""

from __future__ import annotations

from pyreplog._native.machines.event_queue import EventQueue

__all__ = ["EventQueue"]
