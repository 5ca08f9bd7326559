"""Where threads wait for a group commit, woken by one system call per group and not one by one.

A commit takes what was appended so far (its *group*); whoever appends meanwhile belongs to the next group. The two
groups sleep on two futex words: the end of a commit wakes all of its own group, and one of the next, to lead it.
"""

cimport cython
from cpython.pythread cimport (
    PyThread_acquire_lock, PyThread_allocate_lock, PyThread_free_lock, PyThread_get_thread_ident, PyThread_release_lock,
    PyThread_type_lock, WAIT_LOCK,
)
from libc.stdint cimport int64_t, uint32_t

from pyreplog._native.tail cimport load32


cdef extern from * nogil:
    """
    #include <limits.h>
    #include <linux/futex.h>
    #include <sched.h>
    #include <sys/syscall.h>
    #include <time.h>
    #include <unistd.h>
    static void replog_gate_wait(uint32_t *word, uint32_t seen) {
        syscall(SYS_futex, word, FUTEX_WAIT_PRIVATE, seen, NULL, NULL, 0);
    }
    static void replog_gate_wake(uint32_t *word, int count) {
        __atomic_add_fetch(word, 1, __ATOMIC_SEQ_CST);
        syscall(SYS_futex, word, FUTEX_WAKE_PRIVATE, count, NULL, NULL, 0);
    }
    static int64_t replog_gate_now(void) {
        struct timespec t;
        clock_gettime(CLOCK_MONOTONIC, &t);
        return t.tv_sec * 1000000000LL + t.tv_nsec;
    }
    """
    enum:
        INT_MAX
    int64_t now_ns "replog_gate_now"()
    int sched_yield()
    void futex_wait "replog_gate_wait"(uint32_t *word, uint32_t seen)
    void futex_wake "replog_gate_wake"(uint32_t *word, int count)


@cython.final
cdef class CommitGate:
    """Leader election and waiting for the commits of one log. All methods run under the GIL, which is what makes their
    tests and sets atomic; only sleeping and waking release it.

    `synced`: position up to which all is committed.
    """

    cdef uint32_t words[2]
    cdef int parked[2]
    cdef int64_t taken_end        # position after the group being committed, or committed last
    cdef uint32_t group           # its number
    cdef unsigned long leader     # thread that leads; 0: nobody
    cdef unsigned long writer     # thread that writes; 0: nobody
    cdef PyThread_type_lock io    # held by the writer
    cdef int members              # threads of the group that was committed last, its leader included
    cdef int64_t taken_ns         # when it was taken, and how long its commit took
    cdef int64_t commit_ns
    cdef public int64_t synced

    def __init__(self, int64_t synced):
        self.synced = self.taken_end = synced

    def __cinit__(self):
        self.io = PyThread_allocate_lock()
        if self.io == NULL:
            raise MemoryError

    def __dealloc__(self):
        if self.io != NULL:
            PyThread_free_lock(self.io)

    def lead(self):
        """Become the one who commits; False when somebody is."""
        if self.leader:
            return False
        self.leader = PyThread_get_thread_ident()
        return True

    def gather(self):
        """Let those of the last group append again before a group is taken, for at most as long as a commit takes: they
        have just been woken, and would else have to wait for this commit and the next one."""
        cdef int missing = self.members - 1
        cdef const int *parked = &self.parked[1 - (self.group & 1)]
        cdef int64_t deadline
        if missing < 1:
            return
        with nogil:
            deadline = now_ns() + self.commit_ns
            while load32(<const uint32_t *>parked) < <uint32_t>missing and now_ns() < deadline:
                sched_yield()

    def begin_io(self):
        """Wait until nobody writes, and be the one who does."""
        with nogil:
            PyThread_acquire_lock(self.io, WAIT_LOCK)
        self.writer = PyThread_get_thread_ident()

    def end_io(self):
        """Let the next one write."""
        self.writer = 0
        PyThread_release_lock(self.io)

    @property
    def writing(self):
        """Whether somebody writes."""
        return self.writer != 0

    def abandon(self):
        """Give up whatever this thread has of the two: an interruption may come between any two steps of Python code."""
        cdef unsigned long me = PyThread_get_thread_ident()
        if self.writer == me:
            self.end_io()
        if self.leader == me:
            self.leader = 0
        self.wake_all()

    def note_taken(self, int64_t end):
        """A group was taken, all up to position `end`: those who append from now on are of the next. Its number, which
        is the same when it is taken again: its waiters sleep on that number's word."""
        if end != self.taken_end:
            self.group += 1
            self.taken_end = end
        self.taken_ns = now_ns()
        return self.group

    def restart(self, int64_t position):
        """Positions beyond `position` will come a second time."""
        self.synced = self.taken_end = position

    def park(self, int64_t position):
        """Sleep until the group that holds `position` may be committed, or this thread may have to lead.

        Returns early at signals: look again.
        """
        cdef uint32_t group = self.group if position <= self.taken_end else self.group + 1
        cdef uint32_t *word = &self.words[group & 1]
        cdef uint32_t seen = load32(word)
        if not self.leader or self.synced >= position:
            return
        self.parked[group & 1] += 1
        with nogil:
            futex_wait(word, seen)
        self.parked[group & 1] -= 1

    def resign(self, uint32_t group):
        """Lead no more: wake the group that was committed, and one of the next."""
        cdef int own = group & 1
        cdef bint wake_own = self.parked[own] > 0, wake_next = self.parked[1 - own] > 0
        self.members = self.parked[own] + 1
        self.commit_ns = now_ns() - self.taken_ns
        self.leader = 0
        if wake_own or wake_next:
            with nogil:
                if wake_own:
                    futex_wake(&self.words[own], INT_MAX)
                if wake_next:
                    futex_wake(&self.words[1 - own], 1)

    def wake_all(self):
        """Wake everybody, to look again: the log was poisoned or closed, or a commit was made out of turn."""
        with nogil:
            futex_wake(&self.words[0], INT_MAX)
            futex_wake(&self.words[1], INT_MAX)
