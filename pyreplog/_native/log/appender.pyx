"""The append path: records are encoded into the mapped segment, or into a stage that a group commit writes.

Threads: every call runs under the GIL; large batches release it while `inside` keeps other threads out. The Python
subclass implements `_make_room` (roll, or flush the stage), `_begin_next` (roll), `_begin_counted` (have a
segment whose records may take several entry numbers, or refuse), `_check_room` and `_check_inside` (raise
WindowFullError if the caller must not wait for that), `_reserve` (segments for a whole batch), `_reopen` (open the
files of a dormant log, or raise the reason why the log is not open), `_notify_readers`, `wait_synced` and
`_request_commit`.
"""

from cpython.buffer cimport Py_buffer, PyBuffer_Release
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_CheckExact, PyBytes_GET_SIZE
from cpython.object cimport PyObject
from cpython.pythread cimport (
    PyThread_acquire_lock, PyThread_allocate_lock, PyThread_free_lock, PyThread_get_thread_ident, PyThread_release_lock,
    WAIT_LOCK,
)
from libc.stdint cimport INT32_MAX, INT64_MIN, UINT32_MAX
from libc.string cimport memset

from pyreplog._native.layout cimport KIND_BATCH, KIND_DATA, LAG_NONE, SEGMENT_HEADER, SHORT_HEADER
from pyreplog._native.log cimport record as rec
from pyreplog._native.log.group_buffer cimport GroupBuffer
from pyreplog._native.log.append_arguments cimport (
    EVENT_ATTRIBUTE_BYTES, BatchParts, ColumnParts, SequenceParts, check_time, fill_part, fill_plain, get_buffer, measure,
    rolls, write_event_attribute,
)
from pyreplog._native.log.log_position cimport appended_at
from pyreplog._native.log.attributes import encode_attributes
from pyreplog._native.log.sparse cimport SparseIndex, is_plain
from pyreplog._native.log.tail_page cimport fence, load32, order, store, wake_sleepers
from pyreplog._native.system.scheduling cimport Seam

from pyreplog._native.system import scheduling
from pyreplog.errors import InvalidArgumentError, UnnumberedError

cdef extern from "Python.h":
    PyObject *PyList_GET_ITEM(object list, Py_ssize_t i)  # borrowed

cdef Seam seam = scheduling.seam
cdef int64_t RELEASE_GIL_FROM = 1 << 20   # for fewer bytes, taking the GIL again costs more than other threads gain


cdef extern from * nogil:
    """
    #include <stdint.h>
    #include <time.h>
    /* Kernel tick resolution (1 to 4 ms): reading the exact clock would cost as much as the append itself. */
    static inline int64_t replog_now_us(void) {
        struct timespec t;
        clock_gettime(CLOCK_REALTIME_COARSE, &t);
        return (int64_t)t.tv_sec * 1000000 + t.tv_nsec / 1000;
    }
    """
    int64_t coarse_now_us "replog_now_us"()


cdef class Appender(LogViewBase):
    """Base of CommitLog: the parts of an append that touch bytes. Not for use by itself."""

    def __cinit__(self, *args, **kwargs):
        self.gate = PyThread_allocate_lock()
        if self.gate == NULL:
            raise MemoryError
        self._submitted = PositionWaiters()
        self.stage = GroupBuffer()

    def __dealloc__(self):
        if self.gate != NULL:
            PyThread_free_lock(self.gate)

    # ---- one thread at a time ----------------------------------------------------------------------------------

    cdef int enter(self, bint waits=True) except -1:
        """Wait until no thread is inside, and enter. The GIL may be released while waiting.

        waits: the caller may wait for a thread inside that waits for the disk, even if it is an event loop.
        """
        while self.inside or not self.open:
            if not self.open:
                self._reopen(waits)
                continue
            if self.makes_room and not waits:
                self._check_inside()
            if seam.scheduler is not None and seam.scheduler.wait_while(self._is_inside):
                continue
            with nogil:
                PyThread_acquire_lock(self.gate, WAIT_LOCK)
                PyThread_release_lock(self.gate)
        PyThread_acquire_lock(self.gate, WAIT_LOCK)
        self.inside = True
        self.inside_by = PyThread_get_thread_ident()
        self.quick = False
        return 0

    cdef void leave(self) noexcept:
        self.inside = self.makes_room = False
        self.quick = self.wants_quick
        PyThread_release_lock(self.gate)

    def _is_inside(self):
        return self.inside

    @property
    def _is_making_room(self):
        """Whether the thread inside waits for the disk, or is about to."""
        return self.makes_room

    def _enter(self):
        """Keep appends out, for Python code that changes what they depend on (roll, truncate, close)."""
        self.enter()
        self.makes_room = True

    def _leave(self):
        self.leave()

    def _leave_if_inside(self):
        self.leave_if_inside()

    cdef void leave_if_inside(self) noexcept:
        """Leave after an interruption that may have come between entering and the block that leaves."""
        if self.inside and self.inside_by == PyThread_get_thread_ident():
            self.leave()

    def _reopen(self, waits):
        """Open the files of a dormant log; waits: as of `enter`. Raises the reason if the log is not open otherwise."""
        raise NotImplementedError

    def _notify_readers(self):
        """Have readers of other processes see a change of the tail page of a dormant log."""
        raise NotImplementedError

    def _make_room(self, stride):
        raise NotImplementedError

    def _check_room(self, size, segments):
        raise NotImplementedError

    def _check_inside(self):
        raise NotImplementedError

    def _begin_counted(self):
        raise NotImplementedError

    def _begin_next(self):
        raise NotImplementedError

    def _reserve(self, segments):
        raise NotImplementedError

    def wait_synced(self, position):
        raise NotImplementedError

    def _request_commit(self):
        raise NotImplementedError

    # ---- state set by the subclass -----------------------------------------------------------------------------

    def _configure(self, *, bint staged, clock, bint gated=False):
        """Set the mode of the log.

        staged: append into a stage for group commits, not into the mapping. clock: None: the system's. gated: only
        `apply_replicated.show_up_to` moves the end that readers see.
        """
        self.staged, self.clock, self.gated = staged, clock, gated

    def _set_open(self, bint is_open):
        self.open = is_open
        self.wants_quick = is_open and not self.staged and self.clock is None and self.first_entry >= 0
        self.quick = self.wants_quick and not self.inside

    @property
    def _is_open(self):
        """Whether the append path may be entered."""
        return self.open

    def _release_active(self):
        """Give up the active segment of a log that is open no more; the position and the entry number stay. The caller is
        inside, and nothing is staged."""
        self.active = self.index = None
        self.dest, self.limit = 0, 0
        self.stage.release()

    def _activate(self, Segment segment not None, int64_t offset, int64_t next_entry, int64_t last_time):
        """Append to `segment` from `offset` on; its index covers all records before. The subclass keeps the table."""
        cdef SparseIndex index = segment.index
        if index is None:
            raise InvalidArgumentError(f"{segment.path}: expected a segment with an index, found none")
        if not segment.sealed:  # behind a sealed one a copy stands until its stream brings the next header
            index.check_notes(segment.size)
        self.active = segment
        self.active_base = segment.base
        self.index = index
        self.stamp = segment.stamp
        self.first_entry = segment.first_entry
        self.next_entry = next_entry
        self.last_time = max(self.last_time, last_time)
        self.pos = offset
        if self.staged:
            self.begin_stage()
        else:
            self.dest = <uintptr_t>segment.map
            self.limit = segment.size - SHORT_HEADER
        segment.advance(offset, False)

    def _seal(self):
        """Write the blank that ends the active segment, with zeros after it, and set the end of its records."""
        cdef Segment segment = self.active
        if not self.staged:
            memset(segment.map + self.pos + SHORT_HEADER, 0, segment.size - self.pos - SHORT_HEADER)
        cdef int64_t delta = self.next_entry - segment.first_entry if segment.first_entry >= 0 else 0
        rec.encode_blank(<uint8_t *>(self.dest + <uintptr_t>self.pos), <uint32_t>(segment.size - self.pos), segment.stamp,
                         <uint32_t>delta, self.synced_lag(), self.now())
        segment.advance(self.pos, True)

    def _set_synced(self, int64_t position, int64_t entry):
        self.set_synced(position, entry)

    cdef void set_synced(self, int64_t position, int64_t entry):
        """Note that all bytes before `position` are on disk; `entry` is the first number that is not."""
        self.synced_entry = entry
        store(&self.tail.page.synced_entry, entry)
        store(&self.tail.page.synced_end, position)
        if self.staged and self.active is not None:
            store(&self.tail.page.end, position)
            store(&self.tail.page.end_entry, entry)
            self.active.end = max(self.active.end, position - self.active_base)
            self.show(position, entry)

    @property
    def _state(self):
        """(active segment, next position, next entry, time of the last record)"""
        return self.active, self.active_base + self.pos, self.next_entry, self.last_time

    def _forget_active(self):
        """Release the active segment after closing, unless a thread is writing into it (of a poisoned log)."""
        if not self.inside:
            self.active = self.index = None

    cdef int64_t now(self) except? -1:
        cdef int64_t time = coarse_now_us() if self.clock is None else self.clock.now_us()
        if time < self.last_time:
            return self.last_time
        self.last_time = time
        return time

    cdef uint32_t synced_lag(self) noexcept nogil:
        cdef int64_t lag = self.next_entry - self.synced_entry + 1
        return LAG_NONE if self.synced_entry <= 0 or lag >= <int64_t>LAG_NONE else <uint32_t>lag

    # ---- publication -------------------------------------------------------------------------------------------

    cdef inline void show(self, int64_t position, int64_t entry) noexcept nogil:
        """Let readers see all before `position`, unless a commit point limits them, and wake sleeping readers."""
        if not self.gated:
            store(&self.tail.page.visible_entry, entry)
            store(&self.tail.page.visible, position)
        if self.tail.fenced:
            fence()
        order()
        if load32(&self.tail.page.sleepers):
            wake_sleepers(self.tail)

    cdef inline void publish(self) noexcept nogil:
        cdef int64_t position = self.active.base + self.pos
        self.active.end = self.pos
        store(&self.tail.page.end, position)
        store(&self.tail.page.end_entry, self.next_entry)
        self.show(position, self.next_entry)

    cdef int tell_readers(self) except -1:
        """Have readers of other processes see what was changed in the tail page, though the log may be dormant."""
        if self.tail.page == &self.tail.kept:
            self._notify_readers()
        return 0

    # ---- room --------------------------------------------------------------------------------------------------

    cdef int make_room(self, int64_t stride) except -1:
        """Roll, or flush the stage, so that a record of `stride` bytes fits. The caller is inside."""
        self.makes_room = True
        self._make_room(stride)
        return 0

    cdef int reserve(self, int64_t segments) except -1:
        """Have so many further segments ready for a whole batch. The caller is inside."""
        self.makes_room = True
        self._reserve(segments)
        return 0

    def _set_segment_front(self, control):
        """Set the value of a control record with which segments begin from now on; None: no such record. The caller is
        inside."""
        cdef SequenceParts parts
        self.front, self.front_bytes = None, 0
        if control is not None:
            parts = SequenceParts((), None, None, control)
            self.front, self.front_bytes = control, measure(parts.block, 1, self.segment_bytes)

    def _put_segment_front(self):
        """Begin the active segment, which is empty, with that control record. It is published with the next record; the
        caller is inside."""
        cdef SequenceParts parts
        if self.front is not None:
            parts = SequenceParts((), None, None, self.front)
            self.encode_run(parts.block, 1, self.now())

    # ---- encoding ----------------------------------------------------------------------------------------------

    cdef inline void encode_one(self, const Part *part, int64_t length, int64_t stride, int64_t time) noexcept nogil:
        cdef bint numbered = part.kind == KIND_DATA
        cdef int64_t pos = self.pos, entry = self.next_entry
        rec.encode_short(<uint8_t *>(self.dest + <uintptr_t>pos), <uint32_t>length, self.stamp, part.kind, time,
                         <uint32_t>(entry - self.first_entry), self.synced_lag(), part)
        if numbered and is_plain(self.index, pos + stride, stride, part.event_time):
            self.index.end = pos + stride
            self.index.entries += 1
        else:
            self.index.note(pos, stride, numbered, part.event_time)
        self.pos = pos + stride
        self.next_entry = entry + numbered

    cdef void encode_counted(self, const Part *part, int64_t length, int64_t stride, int64_t time) noexcept nogil:
        """Encode a record batch. Its number is that of its last entry."""
        cdef int64_t pos = self.pos, entry = self.next_entry + part.count - 1
        cdef int64_t lag = entry - self.synced_entry + 1
        rec.encode_counted(<uint8_t *>(self.dest + <uintptr_t>pos), <uint32_t>length, self.stamp, time,
                           <uint32_t>(entry - self.first_entry),
                           LAG_NONE if self.synced_entry <= 0 or lag >= <int64_t>LAG_NONE else <uint32_t>lag, part)
        self.index.note(pos, stride, part.count, part.event_time)
        self.pos = pos + stride
        self.next_entry = entry + 1

    cdef Py_ssize_t encode_run(self, const Part *parts, Py_ssize_t count, int64_t time) noexcept nogil:
        """Encode parts while they fit. Return how many were encoded."""
        cdef Py_ssize_t i
        cdef int64_t length, stride
        if count and parts[count - 1].kind == KIND_BATCH:
            return self.encode_batches(parts, count, time)
        for i in range(count):
            length = rec.part_length(&parts[i], SHORT_HEADER)
            stride = rec.stride_of(length)
            if self.pos + stride > self.limit:
                return i
            self.encode_one(&parts[i], length, stride, time)
        return count

    cdef Py_ssize_t encode_batches(self, const Part *parts, Py_ssize_t count, int64_t time) noexcept nogil:
        """Encode record batches, and a control record in front of them, as `encode_run`."""
        cdef Py_ssize_t i
        cdef int64_t length, stride
        for i in range(count):
            length = rec.short_length(&parts[i])
            stride = rec.stride_of(length)
            if self.pos + stride > self.limit:
                return i
            if parts[i].kind == KIND_BATCH:
                self.encode_counted(&parts[i], length, stride, time)
            else:
                self.encode_one(&parts[i], length, stride, time)
        return count

    cdef int put(self, const Part *parts, Py_ssize_t count, int64_t total) except -1:
        """Encode all parts, and roll or flush when they do not fit. The caller is inside."""
        cdef Py_ssize_t done = 0, more
        cdef int64_t time = self.now()
        if self.pos + total > self.active.size - SHORT_HEADER:
            self.reserve(rolls(parts, count, self.pos, self.active.size, self.front_bytes))
        while True:
            if total >= RELEASE_GIL_FROM:
                with nogil:
                    more = self.encode_run(parts + done, count - done, time)
            else:
                more = self.encode_run(parts + done, count - done, time)
            done += more
            if done == count:
                return 0
            if not self.staged:
                self.publish()
            self.make_room(rec.stride_of(rec.short_length(&parts[done])))

    # ---- append ------------------------------------------------------------------------------------------------

    def append(self, value, key=None, *, event_time=None, properties=None):
        """Append one entry, and return when it has the durability of the log.

        With durability "appended" and "interval" it returns at once. With "synced" it waits for a sync, which
        concurrent appends share. The entry is appended as a whole or not at all. Any thread may call it; a coroutine
        uses `submit` on a synced log.

        Args:
            value: bytes-like, at most a segment long.
            key: bytes-like, at most 65,535 bytes; None: no key.
            event_time: time of the producer, a datetime with a time zone or microseconds since 1970-01-01 UTC.
            properties: str or bytes by name, at most 65,535 bytes encoded.

        Returns:
            The number of the entry.

        Raises:
            WrongTypeError: an argument has another type.
            InvalidArgumentError: `event_time` or `properties` is outside its bounds.
            RecordTooLargeError: the record does not fit into a segment, or the key is too long.
            DiskFullError: there is no room for another segment.
            PoisonedError: a sync has failed.
            ClosedError: the log was closed.
            ForkedError: a parent process opened the log.
        """
        cdef Part part
        cdef int64_t length, stride, time
        if self.quick and key is None and event_time is None and properties is None and PyBytes_CheckExact(value):
            fill_plain(&part, value)
            length = SHORT_HEADER + part.value_length
            stride = rec.stride_of(length)
            if self.pos + stride <= self.limit and stride < RELEASE_GIL_FROM:
                self.last_time = time = max(coarse_now_us(), self.last_time)
                self.encode_one(&part, length, stride, time)
                self.publish()
                return self.next_entry - 1
        return self.append_any(value, key, event_time, properties)

    cdef object append_any(self, value, key, event_time, properties):
        """Append in any form. A function of its own, because `append` would reserve stack space for it."""
        cdef int64_t entry, end = self.put_one(value, key, event_time, properties, None, True, &entry)
        if self.staged:
            self.wait_synced(end)
        return entry

    def submit(self, value, key=None, *, event_time=None, properties=None):
        """Append one entry without waiting for its durability.

        Any thread and any event loop may call it. A thread waits while 8 MiB wait to be synced, and while the next
        segment is begun. An event loop never waits: there `submit` raises WindowFullError. Await `room()` before.

        Args:
            value: bytes-like, at most a segment long.
            key: bytes-like, at most 65,535 bytes; None: no key.
            event_time: time of the producer, a datetime with a time zone or microseconds since 1970-01-01 UTC.
            properties: str or bytes by name, at most 65,535 bytes encoded.

        Returns:
            An `AppendFuture`. It gives the number of the entry when the entry has the durability of the log, and
                raises PoisonedError if the sync fails.

        Raises:
            WrongTypeError: an argument has another type.
            InvalidArgumentError: `event_time` or `properties` is outside its bounds.
            RecordTooLargeError: the record does not fit into a segment, or the key is too long.
            DiskFullError: there is no room for another segment.
            WindowFullError: the entry has to wait for the disk, in an event loop. Nothing was appended.
            PoisonedError: a sync has failed.
            ClosedError: the log was closed.
            ForkedError: a parent process opened the log.
        """
        cdef AppendFuture future = AppendFuture.__new__(AppendFuture)
        cdef int64_t entry
        self.put_one(value, key, event_time, properties, future, False, &entry)
        if self.staged and self._submitted.asleep:
            self._request_commit()
        return future

    def append_pending(self, value, key=None, event_time=None, properties=None):
        """Append without waiting for the sync. Return (entry number, position after the record).

        Raises WindowFullError as `submit`.
        """
        cdef int64_t entry, end = self.put_one(value, key, event_time, properties, None, False, &entry)
        return entry, end

    cdef int64_t put_one(self, value, key, event_time, properties, AppendFuture future, bint waits,
                         int64_t *entry) except -1:
        """Append, and return the position after the record. future: of this append, or None. waits: the caller waits
        for the sync, too."""
        cdef Part part
        cdef Py_buffer value_buffer, key_buffer
        cdef bytes attributes = b""
        if key is None and event_time is None and properties is None and PyBytes_CheckExact(value):
            fill_plain(&part, value)
            return self.put_part(&part, future, waits, entry)
        if event_time is not None or properties is not None:
            event_time = check_time(event_time)
            attributes = encode_attributes(event_time, properties)
        get_buffer(value, &value_buffer, "value")
        try:
            if key is not None:
                get_buffer(key, &key_buffer, "key")
            try:
                fill_part(&part, &value_buffer, &key_buffer if key is not None else NULL, attributes)
                if event_time is not None:
                    part.event_time = event_time
                return self.put_part(&part, future, waits, entry)
            finally:
                if key is not None:
                    PyBuffer_Release(&key_buffer)
        finally:
            PyBuffer_Release(&value_buffer)

    cdef int64_t put_part(self, const Part *part, AppendFuture future, bint waits, int64_t *entry) except -1:
        """Append, and queue the future. No Python code runs in between, because it could cut the log."""
        cdef int64_t end = self.put_locked(part, 1, waits, entry)
        if future is not None:
            future.value = entry[0]
            if self.staged:
                self._submitted.add(end, future)
            else:
                future.publish(future.value, None)
        return end

    cdef int64_t put_locked(self, const Part *parts, Py_ssize_t count, bint waits, int64_t *entry) except -1:
        """Enter, put, publish, leave. Return the position after the last record, and set the number of the first
        entry. waits: the caller may wait for the disk, even if it is an event loop."""
        cdef int64_t end, total
        self.enter(waits)
        try:
            entry[0] = self.next_entry
            if self.first_entry < 0:
                raise UnnumberedError(self.path)
            total = measure(parts, count, self.active.size - self.front_bytes)
            end = self.put_inside(parts, count, total, waits)
        finally:
            self.leave()
        return end

    cdef int64_t put_inside(self, const Part *parts, Py_ssize_t count, int64_t total, bint waits) except -1:
        """Put and publish parts of `total` bytes, as `put_locked`. The caller is inside."""
        if self.pos + total > self.limit:
            self.makes_room = True  # before the GIL is released: a loop that comes then must not wait
            if not waits:
                self._check_room(total, rolls(parts, count, self.pos, self.active.size, self.front_bytes))
        self.put(parts, count, total)
        if not self.staged:
            self.publish()
        return self.active.base + self.pos

    def append_batch(self, values, keys=None, event_times=None, *, control=None):
        """Append several entries in one call, and return when all have the durability of the log.

        All values are checked before the first one is written. A crash in the middle of the call may leave the first
        entries of the batch.

        Args:
            values: bytes-like values.
            keys: as many keys, each bytes-like or None; None: no keys.
            event_times: as many times, each as `event_time` of `submit` or None; None: no event times.
            control: bytes of a control record that is written in front of the entries; it has no entry number.
                `values` may then be empty. See `control_records`.

        Returns:
            The numbers of the entries.

        Raises:
            WrongTypeError: an argument has another type.
            InvalidArgumentError: `keys` or `event_times` has another length than `values`.
            RecordTooLargeError: a record does not fit into a segment, or a key is too long.
            DiskFullError: there is no room for the segments that the batch needs.
            PoisonedError: a sync has failed.
            ClosedError: the log was closed.
            ForkedError: a parent process opened the log.
        """
        if self.quick and type(values) is list and keys is None and event_times is None and control is None:
            entry = self.next_entry
            if self.put_list(values, self.now()):
                return range(entry, entry + len(values))
        numbers, end = self.put_batch(values, keys, event_times, control, True)
        if self.staged and end is not None:
            self.wait_synced(end)
        return numbers

    cdef bint put_list(self, list values, int64_t time):
        """Append plain bytes that fit into the active segment, without copying references. Return whether that was done.

        It is not done where the general path has to look.
        """
        cdef Py_ssize_t i, count = len(values)
        cdef int64_t total = 0
        cdef PyObject *item
        for i in range(count):
            item = PyList_GET_ITEM(values, i)
            if not PyBytes_CheckExact(<object>item):
                return False
            total += rec.stride_of(SHORT_HEADER + PyBytes_GET_SIZE(<object>item))
        if self.pos + total > self.limit or total >= RELEASE_GIL_FROM:
            return False
        self.encode_list(<PyObject *>values, count, time)
        self.publish()
        return True

    cdef void encode_list(self, PyObject *values, Py_ssize_t count, int64_t time) noexcept:
        """Encode a list of bytes that was found to fit. No Python code runs, so that the list cannot change.

        Values that every record needs are kept in locals, because for the compiler a store into the log might alias any
        field.
        """
        cdef SparseIndex index = self.index
        cdef uintptr_t dest = self.dest
        cdef int64_t pos = self.pos, stride, length, delta = self.next_entry - self.first_entry
        cdef int64_t boundary = index.boundary, run_stride = index.run_stride
        cdef uint32_t stamp = self.stamp, lag = self.synced_lag()
        cdef PyObject *item
        cdef Part part
        cdef Py_ssize_t i
        part.key, part.key_length = NULL, -1
        part.attributes, part.attributes_length = NULL, 0
        for i in range(count):
            item = PyList_GET_ITEM(<object>values, i)
            part.value = <const uint8_t *>PyBytes_AS_STRING(<object>item)
            part.value_length = PyBytes_GET_SIZE(<object>item)
            length = SHORT_HEADER + part.value_length
            stride = rec.stride_of(length)
            rec.encode_short(<uint8_t *>(dest + <uintptr_t>pos), <uint32_t>length, stamp, KIND_DATA, time, <uint32_t>delta,
                             lag, &part)
            if pos + stride > boundary or stride != run_stride:
                index.entries = delta
                index.note(pos, stride, True, INT64_MIN)
                boundary, run_stride = index.boundary, index.run_stride
            pos += stride
            delta += 1
            lag += lag != LAG_NONE
        index.entries, index.end = delta, pos
        self.pos = pos
        self.next_entry = self.first_entry + delta

    def append_batch_pending(self, values, keys, event_times, control):
        """Append a batch without waiting for the sync. Return (range, position after the last record or None).

        Raises WindowFullError as `submit_batch`.
        """
        return self.put_batch(values, keys, event_times, control, False)

    cdef tuple put_batch(self, values, keys, event_times, control, bint waits):
        cdef SequenceParts batch = SequenceParts(values, keys, event_times, control)
        cdef int64_t entry, end
        if not batch.count + batch.front:
            if not self.open:
                self._reopen(waits)
            return range(self.next_entry, self.next_entry), None
        end = self.put_locked(batch.block, batch.count + batch.front, waits, &entry)
        return range(entry, entry + batch.count), end

    def append_record_batches(self, values, counts, event_times=None, *, control=None):
        """Append record batches, which take several entry numbers each; return when all have the log's durability.

        For logs that were opened for them (`record_batches` of CommitLog). A record batch is one record, whose value
        the log does not interpret: `get` of any of its entries returns it, and truncation keeps or removes all of it.

        Args:
            values: bytes-like values.
            counts: as many ints, how many entry numbers each takes: 1 or more, at most 2,147,483,647 in all.
            event_times: as many times, each as `event_time` of `submit` or None; None: no event times.
            control: bytes of a control record that is written in front of them; it has no entry number.

        Returns:
            The numbers of the entries: first those of the first batch.

        Raises:
            RecordBatchesError: the log has one entry number for each record.
            WrongTypeError: an argument has another type.
            InvalidArgumentError: a count is outside its bounds, or there are not as many as values.
            RecordTooLargeError: a record does not fit into a segment.
            DiskFullError: there is no room for the segments that the batches need.
            PoisonedError: a sync has failed.
            ClosedError: the log was closed.
            ForkedError: a parent process opened the log.
        """
        numbers, end = self.put_record_batches(values, counts, event_times, control, True)
        if self.staged and end is not None:
            self.wait_synced(end)
        return numbers

    def append_record_batches_pending(self, values, counts, event_times=None, control=None):
        """Append record batches without waiting for the sync. Return (range, position after the last or None).

        Raises WindowFullError as `submit_batch`.
        """
        return self.put_record_batches(values, counts, event_times, control, False)

    cdef tuple put_record_batches(self, values, counts, event_times, control, bint waits):
        cdef BatchParts batch = BatchParts(values, counts, event_times, control)
        cdef int64_t entry, end
        if not batch.count + batch.front:
            if not self.open:
                self._reopen(waits)
            return range(self.next_entry, self.next_entry), None
        end = self.put_counted(batch.block, batch.count + batch.front, batch.numbers, waits, &entry)
        return range(entry, entry + batch.numbers), end

    def append_record_batch_pending(self, value, int64_t count, event_time=None, /):
        """Append one record batch as `append_record_batches_pending`, and return an AppendedOffsets.

        Args:
            value: the batch, anything with a buffer.
            count: entry numbers that it takes.
            event_time: microseconds since 1970; None: none.
        """
        return self.append_counted_pending(value, count, event_time)

    cdef object append_counted_pending(self, value, int64_t count, event_time):
        """`append_record_batch_pending`, which a copy of another log refuses until it leads."""
        cdef Part part
        cdef Py_buffer view
        cdef uint8_t attribute[EVENT_ATTRIBUTE_BYTES]
        cdef int64_t entry, end, time = INT64_MIN if event_time is None else event_time
        if not 1 <= count <= INT32_MAX:
            raise InvalidArgumentError(f"counts: expected 1 or more, at most {INT32_MAX} in all, found {count}")
        get_buffer(value, &view, "value")
        try:
            fill_part(&part, &view, NULL, b"")
            part.kind, part.count = KIND_BATCH, count
            if time != INT64_MIN:
                write_event_attribute(attribute, time)
                part.attributes, part.attributes_length, part.event_time = attribute, EVENT_ATTRIBUTE_BYTES, time
            end = self.put_counted(&part, 1, count, False, &entry)
        finally:
            PyBuffer_Release(&view)
        return appended_at(entry, count, end)

    cdef int64_t put_counted(self, const Part *parts, Py_ssize_t count, int64_t numbers, bint waits,
                             int64_t *entry) except -1:
        """As `put_locked`, of record batches that take `numbers` entry numbers in all."""
        cdef int64_t end, total
        self.enter(waits)
        try:
            if self.first_entry < 0:
                raise UnnumberedError(self.path)
            if not self.active.counted():
                self.makes_room = True
                if not waits and self.record_batches and self.pos > SEGMENT_HEADER:
                    self._check_room(self.active.size - SEGMENT_HEADER - SHORT_HEADER, 1)
                self._begin_counted()
            total = measure(parts, count, self.active.size - self.front_bytes)
            # Entry deltas have 32 bits: keep enough of them for the single entries that may follow in the segment.
            if self.next_entry - self.first_entry + numbers > UINT32_MAX - self.active.size // SHORT_HEADER:
                self.makes_room = True
                if not waits:  # room for the longest record: what is made is the next segment
                    self._check_room(self.active.size - SEGMENT_HEADER - SHORT_HEADER, 1)
                self._begin_next()
            entry[0] = self.next_entry
            end = self.put_inside(parts, count, total, waits)
        finally:
            self.leave()
        return end

    def append_columns(self, values, keys=None, event_times=None):
        """Append the rows of columns in one call, and return when all have the durability of the log.

        Args:
            values: (offsets, data), with int64 offsets of length n + 1 into bytes-like data; or a numpy array of dtype
                S, or of dtype uint8 and shape (n, width); or a binary or string array of pyarrow.
            keys: as `values`; None: no keys.
            event_times: n int64 microseconds since 1970-01-01 UTC, a buffer or numpy array; None: no event times.

        Returns:
            The numbers of the entries.

        Raises:
            WrongTypeError: a column has another type.
            InvalidArgumentError: the columns have different lengths, or offsets do not ascend.
            RecordTooLargeError: a record does not fit into a segment, or a key is too long.
            DiskFullError: there is no room for the segments that the rows need.
            PoisonedError: a sync has failed.
            ClosedError: the log was closed.
            ForkedError: a parent process opened the log.
        """
        cdef ColumnParts columns = ColumnParts(values, keys, event_times)
        cdef int64_t entry, end
        if not columns.count:
            if not self.open:
                self._reopen(True)
            return range(self.next_entry, self.next_entry)
        end = self.put_locked(columns.parts, columns.count, True, &entry)
        if self.staged:
            self.wait_synced(end)
        return range(entry, entry + columns.count)

    # ---- stage -------------------------------------------------------------------------------------------------

    cdef int begin_stage(self) except -1:
        self.dest = <uintptr_t>self.stage.begin(self.pos) - <uintptr_t>self.pos
        self.limit = min(self.active.size, self.pos + self.stage.room()) - SHORT_HEADER
        return 0

    def _widen_stage(self, int64_t stride):
        """Enlarge the empty stage for a record of `stride` bytes."""
        self.stage.widen(stride + SHORT_HEADER)
        self.begin_stage()

    cdef tuple take_stage(self):
        """Return what waits to be written, and fill the other buffer from now on. The caller is inside.

        The result is (segment, offset, memoryview of the bytes, position after them, next entry after them), or None.
        It is the same until `stage.taken` is 0, that is, all of it was written, because the thread that took it may
        have been interrupted.
        """
        cdef GroupBuffer stage = self.stage
        if stage.taken == 0:
            if not stage.take(self.pos, self.next_entry):
                return None
            self.begin_stage()
        end = self.active_base + stage.taken_start + stage.taken
        return self.active, stage.taken_start, stage.view(), end, stage.taken_entry

    def _take_blank(self):
        """Return the header of the blank after _seal of a staged segment, and zeros over older content after it."""
        header = bytes((<const uint8_t *>(self.dest + <uintptr_t>self.pos))[:SHORT_HEADER])
        return header.ljust(self.active.used_end(self.pos) - self.pos, b"\0")

    @property
    def is_staged(self):
        """Whether records wait in memory for a group commit.

        They do if durability is "synced", and the log is no copy of another.
        """
        return self.staged

    @property
    def _free_bytes(self):
        """Bytes of records that fit into the active segment, and into the stage."""
        return self.limit - self.pos

    @property
    def staged_end(self):
        """Position after the last record, synced or not."""
        return self.active_base + self.pos

    @property
    def staged_bytes(self):
        """Bytes of records that wait for their group commit."""
        return self.pos - self.stage.start + self.stage.taken if self.staged else 0
