"""Lets a test choose which thread runs next where native code is about to sleep (tests/interleaving).

Only paths that would sleep, or wake a sleeper, look for a scheduler; other code pays nothing.
"""

cimport cython


@cython.final
cdef class Seam:
    """The place of the scheduler.

    scheduler: None, except in such tests. Its `wait_while(is_so, timeout_us)`, `park(word, timeout_us)` and `pause()`
    return True if they have waited in place of the calling thread, which then looks again. It also has
    `unpark(word, count)`.
    """


seam = Seam()
"""The only instance."""
