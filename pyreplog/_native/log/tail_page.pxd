# The tail page, in shared memory: a log's writer tells its readers there how far they may read.
from libc.stdint cimport int64_t, uint32_t

from pyreplog._native.layout cimport TailPage


cdef extern from * nogil:
    """
    #include <stdint.h>
    static inline int64_t replog_load(const int64_t *p) { return __atomic_load_n(p, __ATOMIC_ACQUIRE); }
    static inline void replog_store(int64_t *p, int64_t v) { __atomic_store_n(p, v, __ATOMIC_RELEASE); }
    static inline void replog_fence(void) { __atomic_thread_fence(__ATOMIC_SEQ_CST); }
    static inline void replog_order(void) { __atomic_signal_fence(__ATOMIC_SEQ_CST); } /* restricts only the compiler */
    static inline uint32_t replog_load32(const uint32_t *p) { return __atomic_load_n(p, __ATOMIC_SEQ_CST); }
    static inline void replog_store32(uint32_t *p, uint32_t v) { __atomic_store_n(p, v, __ATOMIC_SEQ_CST); }
    static inline uint32_t replog_add32(uint32_t *p, uint32_t v) { return __atomic_add_fetch(p, v, __ATOMIC_SEQ_CST); }
    """
    int64_t load "replog_load"(const int64_t *p) noexcept
    void store "replog_store"(int64_t *p, int64_t v) noexcept
    void fence "replog_fence"() noexcept
    void order "replog_order"() noexcept
    uint32_t load32 "replog_load32"(const uint32_t *p) noexcept
    void store32 "replog_store32"(uint32_t *p, uint32_t v) noexcept
    uint32_t add32 "replog_add32"(uint32_t *p, uint32_t v) noexcept


cdef struct SharedWakeups:
    uint32_t wake                 # grows with each wake-up; the futex that the thread of TailWakeups sleeps on
    void *first                   # Tail whose sleepers were woken last; linked by `next_woken`




cdef class Tail:
    cdef TailPage *page           # the mapping; or `kept`, as long as there is none. Changed under the GIL
    cdef TailPage kept
    cdef int sleeping             # threads of this process in `wait`; they keep the mapping
    cdef readonly object path
    cdef readonly bint writable
    cdef SharedWakeups *shared    # where wake-ups are noted, too; NULL: nowhere
    cdef object wakeups           # keeps `shared`
    cdef void *next_woken
    cdef bint is_woken            # it is in the list of `shared`
    cdef bint fenced              # the writer needs a fence between its store and its load of `sleepers`
    cdef TailPage *map_file(self, file) except NULL
    cdef int64_t wait(self, int64_t seen, int64_t timeout_us, bint visible) except -1


cdef void wake_sleepers(Tail tail) noexcept nogil
