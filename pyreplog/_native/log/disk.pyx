"""Several file operations with a single release of the GIL; and locks, without any release.

Beside a loop that never blocks, a thread waits a whole switch interval (5 ms) for the GIL after each system call that
released it. Thirty of them for each recycled segment would take longer than the loop takes to fill it.
"""

import os

cimport cython
from cpython.bytes cimport PyBytes_AS_STRING
from libc.stdint cimport int64_t, uint8_t
from libc.stdlib cimport free, realloc

from pyreplog._native.log.segment cimport Segment


cdef extern from * nogil:
    """
    #include "populate.h"
    #include "pwrite.h"
    #include <errno.h>
    #include <fcntl.h>
    #include <linux/falloc.h>
    #include <stdint.h>
    #include <stdio.h>
    #include <sys/mman.h>
    #include <unistd.h>

    enum { STEP_WRITE, STEP_WRITE_NEW, STEP_SYNC, STEP_SYNC_DIRECTORY, STEP_RENAME, STEP_REMOVE, STEP_UNLOCK,
           STEP_POPULATE };

    typedef struct {
        int operation, fd;
        const char *path, *new_path;
        uint8_t *data;
        int64_t length, offset;
    } replog_step;

    /* All of these return 0 or errno. */
    static int replog_write_new(const replog_step *step) {
        int fd = open(step->path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600), failed;
        if (fd < 0)
            return errno;
        failed = replog_pwrite(fd, step->data, step->length, 0);
        return close(fd) != 0 && !failed ? errno : failed;
    }

    static int replog_sync_directory(const char *path) {
        int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC), failed;
        if (fd < 0)
            return errno;
        failed = fsync(fd) != 0 ? errno : 0;
        close(fd);
        return failed;
    }

    static int replog_lock(int fd, int kind) {
        struct flock range = {.l_type = (short)kind, .l_whence = SEEK_SET};
        return fcntl(fd, F_OFD_SETLK, &range) != 0 ? errno : 0;
    }

    static int replog_punch(int fd, int64_t offset, int64_t length) {
        return fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, offset, length) != 0 ? errno : 0;
    }

    /* A mapping that nobody touches, and that a forked child does not get. It keeps the open file description. */
    static int replog_keep(int fd, void **address) {
        *address = mmap(NULL, 4096, PROT_NONE, MAP_SHARED, fd, 0);
        if (*address == MAP_FAILED)
            return errno;
        if (madvise(*address, 4096, MADV_DONTFORK) != 0) {
            int failed = errno;
            munmap(*address, 4096);
            return failed;
        }
        return 0;
    }

    static void replog_drop(void *address) { munmap(address, 4096); }

    static int replog_do(const replog_step *step) {
        switch (step->operation) {
        case STEP_WRITE: return replog_pwrite(step->fd, step->data, step->length, step->offset);
        case STEP_WRITE_NEW: return replog_write_new(step);
        case STEP_SYNC: return fdatasync(step->fd) != 0 ? errno : 0;
        case STEP_SYNC_DIRECTORY: return replog_sync_directory(step->path);
        case STEP_RENAME: return rename(step->path, step->new_path) != 0 ? errno : 0;
        case STEP_REMOVE: return unlink(step->path) != 0 && errno != ENOENT ? errno : 0;
        case STEP_UNLOCK: return replog_lock(step->fd, F_UNLCK);
        default: return replog_populate(step->data, step->length, 0, step->length);
        }
    }
    """
    ctypedef struct Step "replog_step":
        int operation
        int fd
        const char *path
        const char *new_path
        uint8_t *data
        int64_t length
        int64_t offset
    enum:
        STEP_WRITE, STEP_WRITE_NEW, STEP_SYNC, STEP_SYNC_DIRECTORY, STEP_RENAME, STEP_REMOVE, STEP_UNLOCK, STEP_POPULATE
        F_RDLCK, F_WRLCK, F_UNLCK
    int do_step "replog_do"(const Step *step)
    int punch "replog_punch"(int fd, int64_t offset, int64_t length)
    int keep "replog_keep"(int fd, void **address)
    void drop "replog_drop"(void *address)
    int getpid()
    int lock_whole "replog_lock"(int fd, int kind)


@cython.final
cdef class Steps:
    """Noted calls of methods of `pyreplog.log.files.Files` with the same names, which `run` makes in order.

    Iteration yields (name, arguments) of each call. Not thread-safe.
    """

    cdef list calls      # keeps the objects alive that `steps` points to
    cdef Step *steps
    cdef Py_ssize_t count
    cdef public Py_ssize_t done

    def __cinit__(self):
        self.calls = []

    def __dealloc__(self):
        free(self.steps)

    def __len__(self):
        return self.count

    def __iter__(self):
        return iter([(name, arguments) for name, arguments, _ in self.calls])

    cdef Step *note(self, int operation, str name, tuple arguments, tuple kept) except NULL:
        cdef Step *grown = <Step *>realloc(self.steps, (self.count + 1) * sizeof(Step))
        if grown == NULL:
            raise MemoryError
        self.steps = grown
        self.calls.append((name, arguments, kept))
        grown += self.count
        grown.operation = operation
        self.count += 1
        return grown

    cdef Step *note_path(self, int operation, str name, tuple arguments) except NULL:
        cdef bytes path = os.fsencode(arguments[0])
        cdef Step *step = self.note(operation, name, arguments, (path,))
        step.path = PyBytes_AS_STRING(path)
        return step

    cdef Step *note_file(self, int operation, str name, int fd) except NULL:
        cdef Step *step = self.note(operation, name, (fd,), ())
        step.fd = fd
        return step

    def write(self, int fd, bytes data not None, int64_t offset, /):
        cdef Step *step = self.note(STEP_WRITE, "write", (fd, data, offset), ())
        step.fd, step.data, step.length, step.offset = fd, <uint8_t *>PyBytes_AS_STRING(data), len(data), offset

    def write_new(self, path, bytes data not None, /):
        cdef Step *step = self.note_path(STEP_WRITE_NEW, "write_new", (path, data))
        step.data, step.length = <uint8_t *>PyBytes_AS_STRING(data), len(data)

    def sync(self, int fd, /):
        self.note_file(STEP_SYNC, "sync", fd)

    def sync_directory(self, path, /):
        self.note_path(STEP_SYNC_DIRECTORY, "sync_directory", (path,))

    def rename(self, old, new, /):
        cdef bytes old_path = os.fsencode(old), new_path = os.fsencode(new)
        cdef Step *step = self.note(STEP_RENAME, "rename", (old, new), (old_path, new_path))
        step.path, step.new_path = PyBytes_AS_STRING(old_path), PyBytes_AS_STRING(new_path)

    def remove(self, path, /):
        self.note_path(STEP_REMOVE, "remove", (path,))

    def unlock(self, int fd, /):
        self.note_file(STEP_UNLOCK, "unlock", fd)

    def populate(self, Segment segment not None, /):
        cdef Step *step = self.note(STEP_POPULATE, "populate", (segment,), ())
        step.data, step.length = segment.map, segment.size

    def run(self):
        """Make all calls that are not `done`, with one release of the GIL.

        Raises OSError if one fails, after `done` calls.
        """
        cdef int failed = 0
        with nogil:
            while self.done < self.count:
                failed = do_step(&self.steps[self.done])
                if failed:
                    break
                self.done += 1
        if failed:
            name, arguments, _ = self.calls[self.done]
            path = arguments[0] if isinstance(arguments[0], os.PathLike) else None
            raise OSError(failed, os.strerror(failed), path)


def lock_file(int fd, bint exclusive, /):
    """Take an open-file-description lock on a whole file without waiting and with the GIL held.

    Raises OSError (EAGAIN) if another process or descriptor has one.
    """
    check(lock_whole(fd, F_WRLCK if exclusive else F_RDLCK))


def unlock_file(int fd, /):
    """Release the lock of `lock_file`."""
    check(lock_whole(fd, F_UNLCK))


@cython.final
cdef class KeptLock:
    """`KeptLock(fd)`: keeps the lock of `lock_file` on an open file after its descriptor was closed.

    Such a lock lives as long as the open file description, which a mapping keeps as a descriptor does; a process may have
    more mappings than descriptors. Raises OSError if there are too many. Forked children do not inherit it.
    """

    cdef void *address
    cdef int pid

    def __cinit__(self, int fd, /):
        check(keep(fd, &self.address))
        self.pid = getpid()

    def __dealloc__(self):
        self.release()

    def release(self):
        """Give up the lock."""
        if self.pid and self.pid == getpid():  # in a forked child something else may lie there
            drop(self.address)
        self.pid = 0


def punch_hole(int fd, int64_t offset, int64_t length, /):
    """Give the blocks of a range of a file back, which then reads as zeros; its size stays.

    The GIL is released. Raises OSError (EOPNOTSUPP if the file system cannot).
    """
    cdef int failed
    with nogil:
        failed = punch(fd, offset, length)
    check(failed)


cdef int check(int failed) except -1:
    if failed:
        raise OSError(failed, os.strerror(failed))
    return 0
