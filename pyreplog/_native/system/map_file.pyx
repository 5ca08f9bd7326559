"""Files mapped for reading: index files, which are looked up in place and take no private memory."""

import os

from libc.errno cimport errno
from posix.mman cimport MAP_FAILED, MAP_SHARED, PROT_READ, mmap

from pyreplog.errors import CorruptionError


cdef const uint8_t *map_file(object path, uint64_t least, str kind, uint64_t *size) except NULL:
    cdef int descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)  # waits at no pipe
    cdef void *mapped
    try:
        size[0] = os.fstat(descriptor).st_size
        if size[0] < least:
            raise CorruptionError(path, 0, f"{kind} of at least {least} bytes", f"{size[0]} bytes")
        mapped = mmap(NULL, size[0], PROT_READ, MAP_SHARED, descriptor, 0)
        if mapped == MAP_FAILED:
            raise OSError(errno, os.strerror(errno), os.fspath(path))
    finally:
        os.close(descriptor)
    return <const uint8_t *>mapped
