"""The part of `Ledger` that runs for every append, between the caller and the writer."""

from libc.stdint cimport int64_t
from posix.unistd cimport getpid

from pyreplog._native.ledger.staging cimport Staging
from pyreplog._native.ledger.ledger_writer_base cimport LedgerWriterBase
from pyreplog._native.log.future cimport AppendFuture
from pyreplog._native.machines.serial_executor cimport check_may_wait

from asyncio import _get_running_loop


cdef class LedgerBase:
    """Base of `pyreplog.ledger.ledger_handle.Ledger`, which is also a Handle.

    The subclass sets `_writer`, `_driver`, `_runtime`, `_staging`, `_clock` and the window, and `_is_lac_due` while a call
    of `_send_lac_later` is to come.

    _window_bytes, _window_entries: bytes and entries that may lack copies. _waiting_for_room: futures of `room`.
    on_progress: called, with no lock held, when entries were confirmed, got all their copies, or failed; must not block.
    """

    cdef public LedgerWriterBase _writer
    cdef public Staging _staging
    cdef public object _driver, _runtime, _clock, on_progress
    cdef public int64_t _window_bytes, _window_entries
    cdef public list _waiting_for_room
    cdef public bint _is_lac_due

    def __cinit__(self, *args, **kwargs):
        self._waiting_for_room = []

    def append(self, value, key=None, *, event_time=None):
        """Append one entry and wait until it is confirmed.

        A confirmed entry has Qa copies, each as durable as the ledger says. After an error that ends the writer
        (LedgerFencedError, LedgerClosedError, LedgerRefusedError, EntryRefusedError, NotEnoughBookiesError) the outcome
        of this append is unknown, and nothing can be appended any more. Ctrl-C ends the wait, not the append.

        Args:
            value: value of the entry.
            key: key of the entry; None: none.
            event_time: a datetime with a time zone, or microseconds since 1970-01-01 UTC; None: none.

        Returns:
            The number of the entry.

        Raises:
            LedgerFencedError: another process recovers the ledger, or has recovered it.
            LedgerClosedError: the ledger was closed by another process, or is being closed.
            LedgerRefusedError: a bookie refuses the ledger.
            EntryRefusedError: a bookie refuses the entry as invalid.
            UnauthorizedError: a bookie refuses the password.
            NotEnoughBookiesError: too few bookies are left for an ack quorum.
            RecordTooLargeError: the entry is too large; nothing was appended.
            WrongTypeError: an argument has the wrong type; nothing was appended.
            InvalidArgumentError: an argument is out of range, or the call is in a coroutine or a callback; nothing was
                appended.
            ClosedError: the ledger was closed.
            ForkedError: this process is a fork of the one that created the ledger.
        """
        cdef AppendFuture ids
        if self._error is not None or <int64_t>self._pid != getpid():
            self._check_open()
        if _get_running_loop() is not None:
            self._refuse_loop()
        check_may_wait()
        if not self._writer.room(<double>self._window_bytes, <double>self._window_entries):
            self._make_room()
        try:
            ids = self._driver.call(self._append_alone, value, key, event_time)
        except Exception:
            if self._staging.entries:   # entries were staged behind the one that failed
                self._driver.call(self._append_staged)
            raise
        if ids is None:
            return self._runtime.wait(self.submit(value, key, event_time=event_time))
        return self._runtime.wait(ids).start

    def _append_alone(self, value, key, event_time, /):
        """Append one entry past the staging area, if that is empty and has no batch on its way.

        Returns (future, effects), or (None, no effects) if the entry has to be staged.
        """
        cdef AppendFuture ids
        cdef list effects
        if not self._staging.leave():
            return None, []
        try:
            ids, effects = self._writer.begin(
                (value,), None if key is None else (key,), None if event_time is None else (event_time,),
                self._clock.now_us(), None, None,
            )
            ids.add_done_callback(self._staging)
        except BaseException:
            self._staging.landed()
            raise
        return ids, effects

    def _progressed(self):
        """Give room, schedule an explicit LAC and call `on_progress` after each step of the writer."""
        if self._waiting_for_room:
            self._give_room()
        if not self._is_lac_due and self._writer.lags():
            self._send_lac_later()
        if self.on_progress is not None:
            self.on_progress()

    def _refuse_loop(self):
        """Raise InvalidArgumentError, because `append` would block an event loop."""
        raise NotImplementedError

    def _give_room(self):
        raise NotImplementedError

    def _send_lac_later(self):
        """Schedule an explicit LAC: followers would else not see the last entries until the next append."""
        raise NotImplementedError
