"""What a ledger does for every append, between its caller and its writer."""

from libc.stdint cimport int64_t
from posix.unistd cimport getpid

from pyreplog._native.ledger.staging cimport Staging
from pyreplog._native.ledger.ledger_writer_base cimport LedgerWriterBase
from pyreplog._native.log.future cimport AppendFuture
from pyreplog._native.machines.serial_executor cimport check_may_wait


cdef class LedgerBase:
    """To be subclassed, by a Handle that sets `_writer`, `_driver`, `_runtime`, `_staging`, `_clock` and the window,
    answers all that is not here, and sets `_telling` when it has begun to tell later.

    _window_bytes, _window_entries: so many may lack copies. _waiting_for_room: Acks. on_progress: called, with no lock held, when something was confirmed, has all its copies, or
    failed. Must not block.
    """

    cdef public LedgerWriterBase _writer
    cdef public Staging _staging
    cdef public object _driver, _runtime, _clock, on_progress
    cdef public int64_t _window_bytes, _window_entries
    cdef public list _waiting_for_room
    cdef public bint _telling

    def __cinit__(self, *args, **kwargs):
        self._waiting_for_room = []

    def append(self, value, key=None, *, event_time=None):
        """Append one entry; returns its id once it is confirmed: it has Qa copies, each as durable as the ledger says.

        value, key, event_time: as `CommitLog.append`. Errors: LedgerFencedError, LedgerClosedError, LedgerRefusedError,
        EntryRefusedError and NotEnoughBookiesError, the outcome of this append is unknown and nothing can be appended
        any more; ClosedError, ForkedError; RecordTooLargeError, WrongTypeError and InvalidArgumentError, nothing was
        done. Ctrl-C ends the wait, not the append.
        """
        cdef AppendFuture ids
        if self._error is not None or <int64_t>self._pid != getpid():
            self._check_open()
        check_may_wait()
        if not self._writer.room(<double>self._window_bytes, <double>self._window_entries):
            self._make_room()
        try:
            ids = self._driver.call(self._append_alone, value, key, event_time)
        except Exception:
            if self._staging.entries:   # they waited for this one
                self._driver.call(self._append_staged)
            raise
        if ids is None:
            return self._runtime.wait(self.submit(value, key, event_time=event_time))
        return self._runtime.wait(ids).start

    def _append_alone(self, value, key, event_time, /):
        """One entry, without a stay in the staging area if nothing is there, or on its way from there: (AppendFuture,
        effects); else (None, no effects)."""
        cdef AppendFuture ids
        cdef list effects
        if not self._staging.leave():
            return None, []
        try:
            ids, effects = self._writer.begin(
                (value,), None if key is None else (key,), None if event_time is None else (event_time,),
                self._clock.now_us(), None,
            )
            ids.add_done_callback(self._staging)
        except BaseException:
            self._staging.landed()
            raise
        return ids, effects

    def _progressed(self):
        """Something has happened to the writer."""
        if self._waiting_for_room:
            self._give_room()
        if not self._telling and self._writer.lags():
            self._tell_later()
        if self.on_progress is not None:
            self.on_progress()

    def _give_room(self):
        raise NotImplementedError

    def _tell_later(self):
        """Readers that follow would else not see the last entries before the next ones are written."""
        raise NotImplementedError
