"""CommitGate: threads wait for a group commit, and are woken by one system call for each group.

A commit takes the records appended so far (its *group*); records appended meanwhile belong to the next group. The two
groups sleep on two futex words: the end of a commit wakes all threads of its group, and one of the next, to lead it.

All woken threads need the GIL at once. Without further measures each one that finds it taken would sleep again, on the
GIL's lock and then on its condition, and would pay two to three context switches for one append. So they come in
*turns*: each spins until the one before it has released the GIL, that is, until it parks or leads again. Turns are not
required for correctness: one that is not ended, because its thread does something else, is taken over after TURN_NS.
"""

cimport cython
from cpython.pythread cimport (
    PyThread_acquire_lock, PyThread_allocate_lock, PyThread_free_lock, PyThread_get_thread_ident, PyThread_release_lock,
    NOWAIT_LOCK, WAIT_LOCK,
)
from libc.stdint cimport int64_t, uint32_t

from pyreplog._native.log.tail_page cimport load32
from pyreplog._native.system.scheduling cimport Seam

from pyreplog._native.system import scheduling

cdef Seam seam = scheduling.seam
cdef int64_t TURN_NS = 20_000        # several times the work of a thread between waking and parking again
cdef int64_t GATHER_BELOW = 1 << 20  # bytes of a group from which staging takes longer than one more sync


cdef extern from * nogil:
    """
    #include <limits.h>
    #include <linux/futex.h>
    #include <sched.h>
    #include <sys/syscall.h>
    #include <time.h>
    #include <unistd.h>
    #if defined(__x86_64__)
    #define REPLOG_RELAX() __builtin_ia32_pause()
    #elif defined(__aarch64__)
    #define REPLOG_RELAX() __asm__ volatile("yield")
    #else
    #define REPLOG_RELAX() ((void)0)
    #endif
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
    static void replog_gate_take_turn(unsigned long *turn, unsigned long me, int64_t most_ns) {
        int64_t deadline = replog_gate_now() + most_ns;
        do {
            for (int i = 0; i < 16; i++, REPLOG_RELAX()) {
                unsigned long nobody = 0;
                if (__atomic_load_n(turn, __ATOMIC_RELAXED) == 0
                    && __atomic_compare_exchange_n(turn, &nobody, me, 0, __ATOMIC_ACQ_REL, __ATOMIC_RELAXED))
                    return;
            }
        } while (replog_gate_now() < deadline);
        __atomic_store_n(turn, me, __ATOMIC_RELEASE);
    }
    static void replog_gate_end_turn(unsigned long *turn, unsigned long me) {
        __atomic_compare_exchange_n(turn, &me, 0, 0, __ATOMIC_ACQ_REL, __ATOMIC_RELAXED);
    }
    """
    enum:
        INT_MAX
    int64_t now_ns "replog_gate_now"()
    int sched_yield()
    void futex_wait "replog_gate_wait"(uint32_t *word, uint32_t seen)
    void futex_wake "replog_gate_wake"(uint32_t *word, int count)
    void take_turn "replog_gate_take_turn"(unsigned long *turn, unsigned long me, int64_t most_ns)
    void end_turn "replog_gate_end_turn"(unsigned long *turn, unsigned long me)


@cython.final
cdef class CommitGate:
    """Leader election, and waiting for the commits of one log.

    All methods run under the GIL, which makes their tests and assignments atomic; only sleeping and waking release it.
    synced: position up to which all is committed.
    """

    def __init__(self, int64_t synced):
        self.synced = self.taken_end = synced

    def __cinit__(self):
        self.io = PyThread_allocate_lock()
        if self.io == NULL:
            raise MemoryError

    def __dealloc__(self):
        if self.io != NULL:
            PyThread_free_lock(self.io)

    cpdef bint lead(self) noexcept:
        """Become the leader; return False if another thread is."""
        if self.leader:
            return False
        self.leader = PyThread_get_thread_ident()
        end_turn(&self.turn, self.leader)  # the next steps wait without the GIL
        return True

    cpdef gather(self):
        """Wait until the threads of the last group have appended again, for at most the time of a commit.

        They were just woken, and would otherwise wait for this commit and the next one. Not for large entries, which
        are better staged while the disk works.
        """
        cdef int missing = self.members - 1
        cdef const int *parked = &self.parked[1 - (self.group & 1)]
        cdef int64_t deadline
        if missing < 1 or self.taken_bytes >= GATHER_BELOW:
            return
        if seam.scheduler is not None and seam.scheduler.pause():
            return
        with nogil:
            deadline = now_ns() + self.commit_ns
            while load32(<const uint32_t *>parked) < <uint32_t>missing and now_ns() < deadline:
                sched_yield()

    cpdef begin_io(self):
        """Wait until no thread writes, and become the writer.

        A free lock is taken under the GIL, because the caller is inside the append path, where other threads would
        queue up.
        """
        while not PyThread_acquire_lock(self.io, NOWAIT_LOCK):
            if seam.scheduler is None or not seam.scheduler.wait_while(self._is_written):
                with nogil:
                    PyThread_acquire_lock(self.io, WAIT_LOCK)
                break
        self.writer = PyThread_get_thread_ident()

    cpdef end_io(self):
        """Let the next thread write."""
        self.writer = 0
        PyThread_release_lock(self.io)

    @property
    def writing(self):
        """Whether a thread writes."""
        return self.writer != 0

    def _is_written(self):
        return self.writer != 0

    cpdef abandon(self):
        """Give up both roles if this thread has them: an interruption may come between any two steps of Python code."""
        cdef unsigned long me = PyThread_get_thread_ident()
        if self.writer == me:
            self.end_io()
        if self.leader == me:
            self.leader = 0
        self.wake_all()

    cpdef uint32_t note_taken(self, int64_t end) noexcept:
        """Note that a group was taken, all up to position `end`. Return its number.

        Later appends belong to the next group. The number is the same if the group is taken again, because its waiters
        sleep on the word of that number.
        """
        if end != self.taken_end:
            self.group += 1
            self.taken_bytes = end - self.taken_end
            self.taken_end = end
        self.taken_ns = now_ns()
        return self.group

    def restart(self, int64_t position):
        """Note that positions after `position` will be used a second time."""
        self.synced = self.taken_end = position

    cpdef park(self, int64_t position):
        """Sleep until the group of `position` may be committed, or this thread may have to lead.

        Returns early at signals: the caller checks again.
        """
        cdef uint32_t group = self.group if position <= self.taken_end else self.group + 1
        cdef uint32_t *word = &self.words[group & 1]
        cdef uint32_t seen = load32(word)
        cdef unsigned long me = PyThread_get_thread_ident()
        if not self.leader or self.synced >= position:
            return
        self.parked[group & 1] += 1
        if seam.scheduler is None or not seam.scheduler.park(<size_t>word, -1):
            with nogil:
                end_turn(&self.turn, me)
                futex_wait(word, seen)
                take_turn(&self.turn, me, TURN_NS)
        self.parked[group & 1] -= 1

    cpdef resign(self, uint32_t group):
        """Stop leading: wake the committed group, and one thread of the next."""
        cdef int own = group & 1
        cdef int own_count = INT_MAX if self.parked[own] > 0 else 0, next_count = 1 if self.parked[1 - own] > 0 else 0
        self.members = self.parked[own] + 1
        self.commit_ns = now_ns() - self.taken_ns
        self.leader = 0
        if own_count or next_count:
            self.wake(own, own_count, next_count, True)

    cpdef wake_all(self):
        """Wake all threads, to check again: the log was poisoned or closed, or a commit was made out of turn."""
        self.wake(0, INT_MAX, INT_MAX, False)

    cdef int wake(self, int own, int own_count, int next_count, bint takes_turn) except -1:
        """Wake `own_count` threads of one group, and `next_count` of the other."""
        cdef unsigned long me = PyThread_get_thread_ident()
        with nogil:
            if own_count:
                futex_wake(&self.words[own], own_count)
            if next_count:
                futex_wake(&self.words[1 - own], next_count)
            if takes_turn:
                take_turn(&self.turn, me, TURN_NS)
        if seam.scheduler is not None:
            seam.scheduler.unpark(<size_t>&self.words[own], own_count)
            seam.scheduler.unpark(<size_t>&self.words[1 - own], next_count)
        return 0
