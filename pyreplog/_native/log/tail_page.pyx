"""The tail page of a log: its end, its synced end, its visible end, and a futex to wait on.

The writer and the readers of all processes map it. It is local and volatile: after a reboot (`boot_id`), or if its
checks fail, it is ignored, and the end is found by scanning.
"""

import os
from functools import partial

cimport cython
from libc.stdint cimport INT32_MAX
from libc.string cimport memcmp, memcpy

from pyreplog._native.layout cimport FORMAT_VERSION, TAIL_MAGIC
from pyreplog._native.system.scheduling cimport Seam

from pyreplog._native.system import scheduling

PAGE = 4096
cdef int64_t UNFENCED_US = 10_000
cdef Seam seam = scheduling.seam


cdef extern from "<sys/mman.h>" nogil:
    void *c_mmap "mmap"(void *address, size_t length, int protection, int flags, int fd, int64_t offset)
    int c_munmap "munmap"(void *address, size_t length)
    enum:
        PROT_READ, PROT_WRITE, MAP_SHARED
    void *MAP_FAILED

cdef extern from * nogil:
    """
    #include <errno.h>
    static int replog_tail_errno(void) { return errno; }
    #include <limits.h>
    #include <linux/futex.h>
    #include <sys/syscall.h>
    #include <time.h>
    #include <unistd.h>
    /* Shared futexes: the page is mapped by several processes. */
    static int replog_futex_wait(uint32_t *word, uint32_t seen, int64_t timeout_us) {
        struct timespec t = {timeout_us / 1000000, (timeout_us % 1000000) * 1000};
        long r = syscall(SYS_futex, word, FUTEX_WAIT, seen, timeout_us < 0 ? NULL : &t, NULL, 0);
        return r == 0 ? 0 : errno;
    }
    /* Who is about to sleep makes every CPU that runs a writer fence, so that no append has to: a fence there would
     * wait for all the stores of the record. See membarrier(2), MEMBARRIER_CMD_GLOBAL_EXPEDITED. 0 when it is done. */
    static int replog_fence_writers(void) { return (int)syscall(SYS_membarrier, 1 << 1, 0, 0); }
    static int replog_register_writer(void) { return (int)syscall(SYS_membarrier, 1 << 2, 0, 0); }
    static void replog_futex_wake_all(uint32_t *word) { syscall(SYS_futex, word, FUTEX_WAKE, INT_MAX, NULL, NULL, 0); }
    """
    int get_errno "replog_tail_errno"() noexcept
    int futex_wait "replog_futex_wait"(uint32_t *word, uint32_t seen, int64_t timeout_us) noexcept
    void futex_wake_all "replog_futex_wake_all"(uint32_t *word) noexcept
    int fence_writers "replog_fence_writers"() noexcept
    int register_writer "replog_register_writer"() noexcept


cdef void wake_sleepers(Tail tail) noexcept nogil:
    store32(&tail.page.sleepers, 0)
    add32(&tail.page.wake, 1)
    futex_wake_all(&tail.page.wake)
    if tail.shared != NULL:
        note_wakeup(tail)


cdef void note_wakeup(Tail tail) noexcept nogil:
    """Tell the thread of `TailWakeups`. Under the GIL, as all that logs of a runtime publish."""
    if not tail.is_woken:
        tail.is_woken, tail.next_woken = True, tail.shared.first
        tail.shared.first = <void *>tail
    add32(&tail.shared.wake, 1)
    futex_wake_all(&tail.shared.wake)


cdef void set_words(TailPage *page, const TailPage *words) noexcept:
    """Set the words that `publish` sets."""
    store(&page.start, words.start)
    store(&page.end, words.end)
    store(&page.end_entry, words.end_entry)
    store(&page.synced_end, words.synced_end)
    store(&page.synced_entry, words.synced_entry)
    store(&page.visible_entry, words.visible_entry)
    store(&page.visible, words.visible)  # a reader of a page that was just claimed trusts it from here on
    store32(&page.open, words.open)


@cython.final
cdef class Tail:
    """The page, mapped from `file` (at least 4096 bytes; open for reading, and also for writing if `writable`).

    Positions are bytes, entries are entry numbers; each is one atomic word. The mapping takes no descriptor. Raises
    ValueError if the file is too short.

    The writer may do without the mapping while it changes nothing (`unmap`). All words are kept then, and can be
    changed, but readers of other processes see a change only after `map`.
    """

    def __cinit__(self, file, *, bint writable):
        self.page = &self.kept
        self.path = file.name
        self.writable = writable
        self.page = self.map_file(file)

    def __dealloc__(self):
        if self.page != &self.kept:
            c_munmap(self.page, PAGE)

    cdef TailPage *map_file(self, file) except NULL:
        """Map a file; return `page`, and map nothing, if another thread did while the size of the file was asked for."""
        cdef int fd = file.fileno()
        cdef void *address
        size = os.fstat(fd).st_size
        if size < PAGE:
            raise ValueError(f"{file.name}: expected {PAGE} bytes, found {size}")
        if self.page != &self.kept:
            return self.page
        address = c_mmap(NULL, PAGE, PROT_READ | (PROT_WRITE if self.writable else 0), MAP_SHARED, fd, 0)
        if address == MAP_FAILED:
            raise OSError(get_errno(), f"cannot map {file.name}: {os.strerror(get_errno())}")
        return <TailPage *>address

    @property
    def is_mapped(self):
        """Whether readers of other processes see changes at once."""
        return self.page != &self.kept

    def unmap(self):
        """Give up the mapping of a page of which this process is the writer, until `map`.

        No thread may be inside the append path of the log. The GIL is not released.

        Returns:
            False, and nothing happened, if a thread of this process sleeps on the page.
        """
        cdef TailPage *page = self.page
        if page != &self.kept and not self.sleeping:
            memcpy(&self.kept, page, sizeof(TailPage))
            self.page = &self.kept
            c_munmap(page, PAGE)
        return self.page == &self.kept

    def map(self, file, /):
        """Map the page again, and store what was changed since `unmap`. Does nothing if it is mapped.

        A new file in the place of the former one is claimed, unless it is that of another log.

        Args:
            file: as for the constructor.

        Raises:
            ValueError: the file is too short, or belongs to another log.
            OSError: it cannot be mapped.
        """
        cdef TailPage *page = self.map_file(file)
        cdef bint is_behind
        if page == self.page:
            return
        if page.magic == TAIL_MAGIC and memcmp(page.uuid, self.kept.uuid, 16) != 0:
            c_munmap(page, PAGE)
            raise ValueError(f"{file.name}: expected the page that was mapped before, found that of another log")
        is_behind = (memcmp(page, &self.kept, <char *>&page.wake - <char *>page) != 0
                     or page.unreplicated != self.kept.unreplicated)
        if is_behind:
            store32(&page.unreplicated, self.kept.unreplicated)
            store32(&page.truncations, self.kept.truncations)
            set_words(page, &self.kept)
            fence()
            memcpy(page, &self.kept, <char *>&page.start - <char *>page)
        if self.kept.sleepers:
            store32(&page.sleepers, 1)
        self.page = page
        if self.sleeping:  # on the words that nobody changes any more
            add32(&page.wake, 1)
            add32(&self.kept.wake, 1)
            futex_wake_all(&self.kept.wake)
        if is_behind:
            wake_sleepers(self)

    def begin(self, *, bytes boot_id not None, bytes uuid not None, uint32_t pid):
        """Claim the page for the writer `pid`, and store its boot and log. The words keep their values."""
        cdef TailPage *page = self.page
        self.fenced = register_writer() != 0
        store32(&page.open, 0)
        fence()  # a reader that finds this boot and log sees that words cleared before are zero
        page.version = FORMAT_VERSION
        page.pid = pid
        memcpy(page.boot_id, <const char *>boot_id, 16)
        memcpy(page.uuid, <const char *>uuid, 16)
        page.magic = TAIL_MAGIC

    def belongs_to(self, bytes boot_id not None, bytes uuid not None):
        """Return whether a writer of this log has written the page since this boot. Both ids have 16 bytes."""
        cdef bint same
        if len(boot_id) != 16 or len(uuid) != 16:
            raise ValueError("boot_id and uuid have 16 bytes")
        same = (self.page.magic == TAIL_MAGIC and self.page.version == FORMAT_VERSION
                and memcmp(self.page.boot_id, <const char *>boot_id, 16) == 0
                and memcmp(self.page.uuid, <const char *>uuid, 16) == 0)
        fence()
        return same

    def publish(self, *, int64_t start, int64_t end, int64_t end_entry, int64_t synced_end, int64_t synced_entry,
                int64_t visible, int64_t visible_entry, bint is_open):
        """Set all words, as the writer does at open, truncate, trim and close, and wake all sleepers."""
        cdef TailPage words
        words.start, words.end, words.end_entry = start, end, end_entry
        words.synced_end, words.synced_entry = synced_end, synced_entry
        words.visible, words.visible_entry, words.open = visible, visible_entry, is_open
        set_words(self.page, &words)
        wake_sleepers(self)

    def note_truncation(self):
        """Count a truncation of entries that readers may have seen."""
        add32(&self.page.truncations, 1)

    @property
    def start(self):
        """Position of the first segment."""
        return load(&self.page.start)

    @start.setter
    def start(self, int64_t position):
        store(&self.page.start, position)

    @property
    def end(self):
        return load(&self.page.end)

    @property
    def end_entry(self):
        return load(&self.page.end_entry)

    @property
    def synced_end(self):
        return load(&self.page.synced_end)

    @property
    def synced_entry(self):
        return load(&self.page.synced_entry)

    @property
    def visible(self):
        """Position up to which readers may read."""
        return load(&self.page.visible)

    @property
    def visible_entry(self):
        """Number of the first entry that readers may not read yet."""
        return load(&self.page.visible_entry)

    @property
    def truncations(self):
        return load32(&self.page.truncations)

    @property
    def unreplicated(self):
        """Whether readers may see entries that too few replicas have."""
        return load32(&self.page.unreplicated) == 1

    @unreplicated.setter
    def unreplicated(self, bint is_so):
        store32(&self.page.unreplicated, is_so)

    @property
    def open(self):
        """Whether a writer has opened the log and not closed it; it may have been killed since."""
        return load32(&self.page.open) == 1

    @property
    def wakes(self):
        """Number of wake-ups; it also grows when a writer opens, cuts, trims or closes the log."""
        return load32(&self.page.wake)

    @property
    def pid(self):
        return self.page.pid

    cdef int64_t wait(self, int64_t seen, int64_t timeout_us, bint visible) except -1:
        """Sleep until the end, or the visible one, passes `seen`; return it, also after a time-out or a signal."""
        cdef TailPage *page = self.page  # `unmap` leaves it alone as long as `sleeping` counts this thread
        cdef const int64_t *word = &page.visible if visible else &page.end
        cdef uint32_t wake = load32(&page.wake)  # before the GIL is released: `map` changes it
        cdef bint is_asked = seam.scheduler is not None, sleeps = False
        if not self.writable:
            raise ValueError("a read-only tail page cannot be waited on")
        self.sleeping += 1
        try:
            with nogil:
                if load(word) <= seen:
                    store32(&page.sleepers, 1)
                    if fence_writers() != 0 and timeout_us > UNFENCED_US:
                        timeout_us = UNFENCED_US  # a wake-up may be missed: look again soon
                    sleeps = load(word) <= seen
                if sleeps and not is_asked:
                    futex_wait(&page.wake, wake, timeout_us)
            if sleeps and is_asked and not seam.scheduler.wait_while(partial(self._is_not_woken, wake), timeout_us):
                with nogil:
                    futex_wait(&page.wake, wake, timeout_us)
        finally:
            self.sleeping -= 1
        return load(&self.page.visible if visible else &self.page.end)

    def _is_not_woken(self, uint32_t wake, /):
        return load32(&self.page.wake) == wake

    def wait_for(self, int64_t seen, int64_t timeout_us):
        """Sleep until the visible end passes `seen`, for at most `timeout_us` (from 0), without the GIL.

        Returns the visible end. It may return early: call it again. Raises ValueError if the page is mapped read-only.
        """
        return self.wait(seen, timeout_us, True)

    def wait_for_end(self, int64_t seen, int64_t timeout_us):
        """Sleep until the end of the log passes `seen`, and return it; otherwise as `wait_for`."""
        return self.wait(seen, timeout_us, False)

    def wake(self):
        """Wake all that sleep on the page. A page that is mapped read-only has no sleepers in this process.

        The request to be woken stays: it may be that of another process, or of listeners, which do not sleep.
        """
        if self.writable:
            add32(&self.page.wake, 1)
            futex_wake_all(&self.page.wake)
            if self.shared != NULL:
                note_wakeup(self)

    def ask_wakeup(self):
        """Have the next change of the end wake the sleepers. For the process of the writer, which needs no fence."""
        store32(&self.page.sleepers, 1)


@cython.final
cdef class TailWakeups:
    """`TailWakeups()`: which of many tail pages of writers in this process woke their sleepers, for one thread that waits
    for all of them.

    All methods run under the GIL. A page that was added has a `Tail` of its own writer, which publishes under the GIL.
    """

    cdef SharedWakeups shared
    cdef uint32_t seen            # `shared.wake` when `wait` returned last
    cdef set tails

    def __cinit__(self):
        self.tails = set()

    def add(self, Tail tail not None, /):
        """Note the wake-ups of a page from now on."""
        self.tails.add(tail)
        tail.wakeups, tail.shared = self, &self.shared

    def remove(self, Tail tail not None, /):
        """Note no wake-up of a page any more."""
        cdef void **link = &self.shared.first
        if tail.shared != &self.shared:
            return
        while link[0] != NULL:
            if link[0] == <void *>tail:
                link[0] = tail.next_woken
                break
            link = &(<Tail>link[0]).next_woken
        tail.is_woken, tail.shared = False, NULL
        self.tails.discard(tail)
        tail.wakeups = None

    def wake(self):
        """Have `wait` return."""
        add32(&self.shared.wake, 1)
        futex_wake_all(&self.shared.wake)

    def wait(self):
        """Sleep until a page wakes its sleepers, or until `wake`. Return the `Tail`s whose sleepers were woken.

        It may return early. For one thread.
        """
        cdef uint32_t wake = load32(&self.shared.wake)
        cdef list woken = []
        cdef Tail tail
        if self.shared.first == NULL and wake == self.seen:
            if seam.scheduler is None or not seam.scheduler.wait_while(partial(self._is_not_woken, wake), -1):
                with nogil:
                    futex_wait(&self.shared.wake, wake, -1)
        self.seen = load32(&self.shared.wake)
        while self.shared.first != NULL:
            tail = <Tail>self.shared.first
            self.shared.first, tail.is_woken = tail.next_woken, False
            woken.append(tail)
        return woken

    def _is_not_woken(self, uint32_t wake, /):
        return load32(&self.shared.wake) == wake
