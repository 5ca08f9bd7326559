"""What a ledger does for every append, between its caller and its writer."""

from pyreplog._native.ack cimport Ack
from pyreplog._native.staging cimport Staging
from pyreplog._native.writing cimport Writing


cdef class Appending:
    """To be subclassed, by what sets `_writer`, `_staging` and `_clock`, answers `_give_room` and `_tell_later`, and sets
    `_telling` when that is under way.

    _waiting_for_room: Acks. on_progress: called, with no lock held, when something was confirmed, has all its copies, or
    failed. Must not block.
    """

    cdef public Writing _writer
    cdef public Staging _staging
    cdef public object _clock, on_progress
    cdef public list _waiting_for_room
    cdef public bint _telling

    def __cinit__(self, *args, **kwargs):
        self._waiting_for_room = []

    def _append_alone(self, value, key, event_time, /):
        """One entry, without a stay in the staging area if nothing is there, or on its way from there: (Ack, effects); else
        (None, no effects)."""
        cdef Ack ids
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
