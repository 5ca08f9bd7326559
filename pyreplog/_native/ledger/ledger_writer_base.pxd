# The part of a ledger's writer that runs for every append.
from libc.stdint cimport int64_t, uint64_t

from pyreplog._native.ledger.pending_adds_base cimport EntryBatch, PendingAddsBase
from pyreplog._native.ledger_log.entries cimport Entries


cdef class LedgerWriterBase:
    cdef readonly PendingAddsBase _push
    cdef readonly int64_t entry_bytes_max
    cdef readonly object _futures
    cdef readonly object last_append  # future of the last append; None: there was none
    cdef readonly uint64_t _confirmed_length, _confirmed_messages
    cdef public object error, _storing
    cdef public dict _change
    cdef public bint _closing
    cdef public int64_t _sent_lac
    cdef object totals              # (last entry, bytes, messages) of each unconfirmed batch
    cdef uint64_t length, messages  # bytes and messages of all entries that were pushed
    cdef readonly int64_t time_us   # highest append time so far

    cdef tuple begin(self, values, keys, event_times, int64_t time_us, messages, attributes)
    cdef list send(self, EntryBatch batch, Entries entries)
    cdef int64_t outstanding(self) noexcept
    cdef bint room(self, double nbytes, double entries) noexcept
    cdef bint lags(self) noexcept
