"""Where native code is about to sleep, a test may have it ask who runs next: tests/interleaving.

A scheduler is looked for on the paths that would sleep, or wake who sleeps, and nowhere else: what does not wait pays nothing.
"""

cimport cython


@cython.final
cdef class Seam:
    """scheduler: None but in such tests. Else it answers, for the calling thread, `wait_while(is_so, timeout_us)`, `park(word,
    timeout_us)` and `pause()`: True when it has waited in place of the caller, who looks again. And `unpark(word, count)`."""


seam = Seam()
"""The one there is."""
