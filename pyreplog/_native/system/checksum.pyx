# cython: autotestdict=False
"""CRC-32C (Castagnoli), with the fastest kernel of this CPU."""

from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_CheckExact, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.mem cimport PyMem_Free, PyMem_Malloc
from cpython.number cimport PyNumber_Index
from libc.stdint cimport uint8_t, uint32_t, uintptr_t
from libc.string cimport memset

from pyreplog.errors import InvalidArgumentError

cdef extern from "crc32c.h" nogil:
    ctypedef uint32_t (*replog_crc_fn)(uint32_t crc, const uint8_t *p, size_t n) noexcept nogil
    ctypedef uint32_t (*replog_crc_copy_fn)(
        uint32_t crc, uint8_t *dst, const uint8_t *src, size_t n, size_t pad
    ) noexcept nogil
    ctypedef struct replog_crc_kernel:
        const char *name
        int supported
        replog_crc_fn crc
        replog_crc_copy_fn copy
    replog_crc_kernel replog_crc_kernels[]
    const size_t replog_crc_kernel_count
    replog_crc_fn replog_crc

cdef enum:
    GIL_FREE = 16 * 1024  # bytes; below, giving up the GIL costs more than the CRC
    LINE = 64
    GUARD = 0xA5


cdef uint32_t initial(object value) except? 0xFFFFFFFF:
    try:
        return PyNumber_Index(value)
    except OverflowError:
        raise InvalidArgumentError(f"initial CRC: expected 0..{0xFFFFFFFF:#x}, found {value}") from None


cdef uint32_t run(replog_crc_fn kernel, object data, uint32_t crc) except? 0xFFFFFFFF:
    cdef Py_buffer view
    PyObject_GetBuffer(data, &view, PyBUF_SIMPLE)
    try:
        if view.len >= GIL_FREE:
            with nogil:
                crc = kernel(crc, <const uint8_t *>view.buf, view.len)
        else:
            crc = kernel(crc, <const uint8_t *>view.buf, view.len)
    finally:
        PyBuffer_Release(&view)
    return crc


def crc32c(data, value=0, /):
    """Return the CRC-32C of `data`, continued from `value`.

    `data` is any C-contiguous buffer; `value` is the CRC of the bytes before it (0: there are none). The
    result is that of `crc32c.crc32c` from PyPI: the CRC of iSCSI (RFC 3720) and of Kafka's record batches.

    Raises `InvalidArgumentError` when `value` is not within 0..2**32-1, `TypeError` when `data` is not a
    buffer, and `BufferError` when it is not contiguous. Any thread may call it. From 16 KiB up it releases
    the GIL; when another thread changes `data` meanwhile, the result is the CRC of no one state of it.
    """
    cdef uint32_t crc = initial(value)
    if PyBytes_CheckExact(data) and PyBytes_GET_SIZE(data) < GIL_FREE:
        return replog_crc(crc, <const uint8_t *>PyBytes_AS_STRING(data), PyBytes_GET_SIZE(data))
    return run(replog_crc, data, crc)


def kernels():
    """Return the names of the kernels that this CPU supports: the one in use, then the others, fastest first.

    The fastest is in use unless the environment variable PYREPLOG_CRC32C named another when the module was
    loaded; a name that is unknown, or not supported here, has no effect.
    """
    used = []
    others = []
    for kernel in replog_crc_kernels[:replog_crc_kernel_count]:
        if kernel.supported:
            (used if kernel.crc == replog_crc else others).append(kernel.name.decode())
    return (*used, *others)


cdef const replog_crc_kernel *find(str name) except NULL:
    cdef size_t i
    for i in range(replog_crc_kernel_count):
        if replog_crc_kernels[i].supported and replog_crc_kernels[i].name.decode() == name:
            return &replog_crc_kernels[i]
    raise InvalidArgumentError(f"CRC-32C kernel: expected one of {', '.join(kernels())}, found {name!r}")


def crc32c_with(str kernel not None, data, value=0, /):
    """Return `crc32c` by the kernel of this name. Raises InvalidArgumentError if this CPU has none of that name."""
    return run(find(kernel).crc, data, initial(value))


def copy_with(str kernel not None, data, Py_ssize_t pad=0, value=0, /, *, Py_ssize_t offset=0):
    """Copy `data` and then `pad` zero bytes (0..7) with the kernel of this name, to compare in tests.

    The destination is new memory, `offset` bytes (0..63) after a 64-byte boundary, with 64 bytes of 0xA5 on
    both sides. Returns the CRC-32C, continued from `value`, of what was stored; and the destination
    together with the 64 bytes on both sides. Raises `InvalidArgumentError` when this CPU has no such
    kernel, or `pad`, `value` or `offset` is out of its range. It keeps the GIL.
    """
    cdef const replog_crc_kernel *chosen = find(kernel)
    cdef uint32_t crc = initial(value)
    if not (0 <= pad <= 7 and 0 <= offset < LINE):
        raise InvalidArgumentError(f"expected pad 0..7 and offset 0..63, found {pad} and {offset}")
    cdef Py_buffer view
    cdef uint8_t *memory = NULL
    cdef uint8_t *start
    PyObject_GetBuffer(data, &view, PyBUF_SIMPLE)
    try:
        memory = <uint8_t *>PyMem_Malloc(view.len + pad + 4 * LINE)
        if memory == NULL:
            raise MemoryError
        memset(memory, GUARD, view.len + pad + 4 * LINE)
        start = memory + LINE + (-(<uintptr_t>memory) % LINE) + offset
        crc = chosen.copy(crc, start, <const uint8_t *>view.buf, view.len, pad)
        return crc, PyBytes_FromStringAndSize(<char *>start - LINE, view.len + pad + 2 * LINE)
    finally:
        PyMem_Free(memory)
        PyBuffer_Release(&view)
