"""The threads that are about to wait for the outcome of the call that they have just begun.

An embedded bookie does not wake its own thread for the entries of such a thread, which will sync them itself. To wake a
thread takes a tenth of the time of a publish.
"""

from __future__ import annotations

waiting_threads: set[int] = set()
"""Idents of the threads between the begin of a call that waits without a limit, and its wait.

If a thread is interrupted in between, the bookie's thread syncs its entries, at the latest with its check of the disk
every 5 seconds.
"""
