"""Where threads wait for a position that only grows, while one of them, the leader, does what makes it grow.

Leader/Followers (Schmidt, Stal, Rohnert, Buschmann: POSA 2): who finds nobody in the lead takes it, the others sleep,
each on a word of its own in one list (WebKit's parking lot). So exactly those are woken who waited for what is reached,
and no Python runs for each. Woken all at once they would only go to sleep again, for the GIL: each wakes the next.
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


cdef struct Sleeper:
    int64_t position
    uint32_t woken
    Sleeper *next
    Sleeper *previous


cdef void unlink(Sleeper *sleeper) noexcept:
    sleeper.previous.next, sleeper.next.previous = sleeper.next, sleeper.previous
    sleeper.next = sleeper.previous = sleeper


cdef void append(Sleeper *ring, Sleeper *sleeper) noexcept:
    sleeper.next, sleeper.previous = ring, ring.previous
    ring.previous.next = ring.previous = sleeper


@cython.final
cdef class ParkingLot:
    """Waiting for one position. All methods run under the GIL, which is what makes their tests and sets atomic; only
    sleeping releases it. Who sleeps is in one of two rings, until woken.

    `reached`: how far the position has come.
    """

    cdef readonly int64_t reached
    cdef Sleeper ring             # who waits for what is not reached
    cdef Sleeper ready            # who is to be woken
    cdef int waking               # how many were woken, and do not run yet
    cdef unsigned long leader     # thread that leads; 0: nobody
    cdef bint open

    def __init__(self, int64_t reached):
        self.reached = reached

    def __cinit__(self):
        self.ring.next = self.ring.previous = &self.ring
        self.ready.next = self.ready.previous = &self.ready
        self.open = True

    @property
    def sleeping(self):
        """How many threads sleep until more is reached."""
        cdef Sleeper *sleeper = self.ring.next
        cdef int count = 0
        while sleeper != &self.ring:
            count += 1
            sleeper = sleeper.next
        return count

    @property
    def is_waking(self):
        """Whether one of those whose position is reached, or who is to lead, does not run yet."""
        return self.waking != 0

    def is_over(self, int64_t position):
        """Whether a wait for `position` is: it is reached, or the lot is closed. Whoever leads asks it over and over."""
        return self.reached >= position or not self.open

    def lead(self):
        """Be the one who drives; False when somebody else is."""
        cdef unsigned long me = PyThread_get_thread_ident()
        if self.leader and self.leader != me:
            return False
        self.leader = me
        return True

    def park(self, int64_t position, int64_t timeout_us):
        """Sleep until `position` is reached, or this thread is to lead, or the lot is closed.

        Returns early at signals and after `timeout_us`: look again.
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
        """Wait no more, and lead no more: when nobody leads now, the one who sleeps longest is woken, to do it; when
        others are on their way, they will see to that.

        One C call that is right whether this thread led or not: an interruption may come between any two steps of
        Python code.
        """
        if self.leader == PyThread_get_thread_ident():
            self.leader = 0
        if not self.leader and not self.waking and self.ring.next != &self.ring:
            self.wake(self.ring.next)

    def reach(self, int64_t position):
        """The position is there: wake those who waited for it."""
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
        """The position moves no more: nobody sleeps here from now on."""
        self.open = False
        while self.ring.next != &self.ring:
            self.wake(self.ring.next)

    cdef void wake_next(self) noexcept:
        """Of those who are to be woken, unless one is on its way who will wake it."""
        if not self.waking and self.ready.next != &self.ready:
            self.wake(self.ready.next)

    cdef void wake(self, Sleeper *sleeper) noexcept:
        """The GIL is kept: else it could be woken by a signal meanwhile, and be gone."""
        unlink(sleeper)
        self.waking += 1
        futex_unpark(&sleeper.woken)
        if seam.scheduler is not None:
            seam.scheduler.unpark(<size_t>&sleeper.woken, 1)
