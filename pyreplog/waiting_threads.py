"""The threads that are about to wait for what they have just begun.

An embedded bookie has no need to wake its own thread for the entries of such a thread, which is about to sync them
itself. To wake a thread takes a tenth of the time of a publish.
"""

from __future__ import annotations

waiting_threads: set[int] = set()
"""Idents of the threads between the begin of a call that waits without a limit, and its wait.

A bookie's thread finds what a thread has left behind that was interrupted between the two, at the latest when it looks
at its disk, every 5 seconds.
"""
