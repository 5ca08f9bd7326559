"""A place where threads wait for a position that only grows, while one of them, the leader, makes it grow.

It is the Leader/Followers pattern (Schmidt, Stal, Rohnert, Buschmann: POSA 2): a thread that finds no leader becomes
it; the others sleep, each on a word of its own in one list (WebKit's parking lot). So exactly the threads are woken
whose position is reached, without Python code for each. Each wakes the next: woken at once they would wait for the GIL.
"""

cimport cython
from cpython.mem cimport PyMem_Free, PyMem_Malloc
from cpython.pythread cimport PyThread_get_thread_ident
from libc.stdint cimport int64_t, uint32_t

from pyreplog._native.system.scheduling cimport Seam

from pyreplog._native.system import scheduling

cdef Seam seam = scheduling.seam


cdef extern from * nogil:
    """
    #include <linux/futex.h>
    #include <sys/syscall.h>
    #include <time.h>
    #include <unistd.h>
    static void replog_park(uint32_t *word, int64_t us) {
        struct timespec t = {us / 1000000, us % 1000000 * 1000};
        syscall(SYS_futex, word, FUTEX_WAIT_PRIVATE, 0, &t, NULL, 0);
    }
    static void replog_unpark(uint32_t *word) {
        __atomic_store_n(word, 1, __ATOMIC_SEQ_CST);
        syscall(SYS_futex, word, FUTEX_WAKE_PRIVATE, 1, NULL, NULL, 0);
    }
    """
    void futex_park "replog_park"(uint32_t *word, int64_t us)
    void futex_unpark "replog_unpark"(uint32_t *word)


cdef void unlink(Sleeper *sleeper) noexcept:
    sleeper.previous.next, sleeper.next.previous = sleeper.next, sleeper.previous
    sleeper.next = sleeper.previous = sleeper


cdef void append(Sleeper *ring, Sleeper *sleeper) noexcept:
    sleeper.next, sleeper.previous = ring, ring.previous
    ring.previous.next = ring.previous = sleeper


@cython.final
cdef class ParkingLot:
    """The threads that wait for one position. All methods run under the GIL, which makes them atomic; only sleeping
    releases it. A thread that sleeps is in one of two rings until it is woken.

    reached: the position up to now.
    """

    def __init__(self, int64_t reached):
        self.reached = reached

    def __cinit__(self):
        self.ring.next = self.ring.previous = &self.ring
        self.ready.next = self.ready.previous = &self.ready
        self.open = True

    @property
    def sleeping(self):
        """Number of threads that sleep until their position is reached."""
        cdef Sleeper *sleeper = self.ring.next
        cdef int count = 0
        while sleeper != &self.ring:
            count += 1
            sleeper = sleeper.next
        return count

    @property
    def is_waking(self):
        """Whether a thread that was woken does not run yet."""
        return self.waking != 0

    def is_over(self, int64_t position):
        """Return whether a wait for `position` is over: it is reached, or the lot is closed. The leader polls it."""
        return self.reached >= position or not self.open

    def lead(self):
        """Become the leader. Return False if another thread is."""
        cdef unsigned long me = PyThread_get_thread_ident()
        if self.leader and self.leader != me:
            return False
        self.leader = me
        return True

    def park(self, int64_t position, int64_t timeout_us):
        """Sleep until `position` is reached, this thread is to lead, or the lot is closed.

        It also returns at a signal and after `timeout_us`: check again.
        """
        cdef Sleeper *me
        if self.reached >= position or not self.leader or not self.open:
            return
        me = <Sleeper *>PyMem_Malloc(sizeof(Sleeper))  # not on the stack: a thread may end while it sleeps
        if me == NULL:
            raise MemoryError
        me.position, me.woken = position, 0
        append(&self.ring, me)
        if seam.scheduler is None or not seam.scheduler.park(<size_t>&me.woken, timeout_us):
            with nogil:
                futex_park(&me.woken, timeout_us)
        self.waking -= me.woken
        unlink(me)
        PyMem_Free(me)
        self.wake_next()

    def leave(self):
        """Stop waiting and leading. If no thread leads now, wake the one that sleeps longest, to become the leader.

        If woken threads do not run yet, they will do that. It is one C call that is right whether this thread led or
        not, because an interruption may come between any two steps of Python code.
        """
        if self.leader == PyThread_get_thread_ident():
            self.leader = 0
        if not self.leader and not self.waking and self.ring.next != &self.ring:
            self.wake(self.ring.next)

    cpdef reach(self, int64_t position):
        """Note that the position is reached, and wake the threads that waited for it."""
        cdef Sleeper *sleeper = self.ring.next
        cdef Sleeper *following
        self.reached = max(self.reached, position)
        while sleeper != &self.ring:
            following = sleeper.next
            if sleeper.position <= self.reached:
                unlink(sleeper)
                append(&self.ready, sleeper)
            sleeper = following
        self.wake_next()

    def close(self):
        """Wake all threads, and let none sleep from now on, for the position moves no more."""
        self.open = False
        while self.ring.next != &self.ring:
            self.wake(self.ring.next)

    cdef void wake_next(self) noexcept:
        """Wake the next thread, unless one was woken that has not run yet and will do it."""
        if not self.waking and self.ready.next != &self.ready:
            self.wake(self.ready.next)

    cdef void wake(self, Sleeper *sleeper) noexcept:
        """Wake a thread. The GIL is kept: else a signal could wake it meanwhile, and its sleeper be freed."""
        unlink(sleeper)
        self.waking += 1
        futex_unpark(&sleeper.woken)
        if seam.scheduler is not None:
            seam.scheduler.unpark(<size_t>&sleeper.woken, 1)
