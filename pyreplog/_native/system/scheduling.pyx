"""Lets a test choose which thread runs next where native code is about to sleep (tests/interleaving).

Only paths that would sleep, or wake a sleeper, look for a scheduler; other code pays nothing.
"""

cimport cython


@cython.final
cdef class Seam:
    """The place of the scheduler.

    scheduler: None, except in such tests. It has `wait_while(is_so, timeout_us)`, `park(word, timeout_us)`, `pause()`
    and `unpark(word, count)`. The first three return True if they have waited in place of the calling thread, which
    then checks its condition again.
    """


seam = Seam()
"""The only instance."""
