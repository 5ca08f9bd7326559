"""The part of a driver that runs for every message: brings events to a state machine, one at a time, and carries out its
effects. `pyreplog.ledger.driver` has the rest.

Threads: any. The machine's lock is held during its steps only; requests are sent and callbacks are called without it.
"""

from libc.stdint cimport int64_t

from pyreplog._native.log.future cimport settle_each
from pyreplog._native.machines.effects cimport Send, Settle
from pyreplog._native.machines.serial_executor cimport SerialExecutor
from pyreplog._native.net.add_replies cimport Answer
from pyreplog._native.quorum.ack_tracker cimport Part
from pyreplog._native.system.interrupts cimport DeferSigint
from pyreplog._native.system.mutex cimport Mutex

from pyreplog._native.system import interrupts

cdef DeferSigint put_off = interrupts.defer_sigint


cdef class DriverBase(SerialExecutor):
    """`DriverBase(ledger, machine, runtime, after)`: base of Driver.

    The subclass carries out all effects but ADDs and Settle (`_carry_out`). It keeps Finished and Wake effects in `_last`
    and `_wakes` for the end of a round (`_finish`, `_wake_all`).

    machine: a state machine with the event `acked`. runtime: takes ADDs (`add`). after: called after each round, with no
    lock held, by one thread at a time; None: nothing is called.
    """

    cdef readonly list _inbox       # events: calls that give effects
    cdef readonly list _effects
    cdef public list _wakes
    cdef public object _last
    cdef readonly Mutex _lock       # of the machine
    cdef readonly object _machine, _runtime, _after
    cdef readonly int64_t _ledger
    cdef bint is_busy               # a thread carries out effects, maybe in a callback: no other waits for it

    def __init__(self, int64_t ledger, machine, runtime, after=None, /):
        self._ledger, self._machine, self._runtime, self._after = ledger, machine, runtime, after
        self._inbox, self._effects, self._wakes = [], [], []
        self._lock = Mutex()

    def call(self, do, /, *args):
        """Bring an event to the machine and return its answer. May wait for a step on another thread.

        do: called with `args`; returns (answer, effects).
        """
        put_off.enter()
        try:
            try:
                self._lock.take()
                try:
                    answer, effects = do(*args)
                    self._effects.extend(effects)
                finally:
                    self._lock.give()
            finally:
                self.go_on()
        finally:
            put_off.leave()
        return answer

    def post(self, event, /):
        """Bring an event to the machine: now, or by the thread that runs the driver."""
        put_off.enter()
        try:
            self._inbox.append(event)
            self.go_on()
        finally:
            put_off.leave()

    def acked(self):
        """Tell the machine that the tracker has noted OKs to ADDs (see `answers`)."""
        self.post(self._machine.acked)

    def _carry_out(self, effect, /):
        raise NotImplementedError

    def _wake_all(self, wakes, /):
        raise NotImplementedError

    def _finish(self, last, /):
        raise NotImplementedError

    def _broken(self, error, /):
        """Return the effect of a step that raised an error."""
        raise NotImplementedError

    cdef int run(self) except -1:
        """Run rounds until no event and effect is left. A thread that is busy here sees later events afterwards."""
        while self._inbox or self._effects:
            if self.is_busy:
                return 0
            self.is_busy = True
            try:
                self.round()
            finally:
                self.is_busy = False
        return 0

    cdef int round(self) except -1:
        cdef list outcomes = [], adds = []
        cdef object effect, last
        cdef Send send
        if self._inbox:
            self.take_steps()
        while self._effects:
            effect = self._effects.pop(0)
            if type(effect) is Send and type((<Send>effect).about) is Part:
                send = effect
                adds.append((send.bookie, send.request, Answer.__new__(Answer, self, send, self._ledger, send.about)))
                continue
            if adds:
                self._runtime.add(adds)
                adds = []
            if type(effect) is Settle:
                outcomes.extend((<Settle>effect).outcomes)
            else:
                self._carry_out(effect)
        if adds:
            self._runtime.add(adds)
        last, self._last = self._last, None
        if self._wakes:
            wakes, self._wakes = self._wakes, []
            if last is None:
                self._wake_all(wakes)
        try:
            if outcomes:
                settle_each(outcomes)
        finally:
            if self._after is not None:
                self._after()
            if last is not None:
                self._finish(last)
        return 0

    cdef int take_steps(self) except -1:
        cdef Py_ssize_t i
        self._lock.take()
        try:
            for i in range(len(self._inbox)):
                try:
                    self._effects.extend(self._inbox.pop(0)())
                except Exception as error:
                    self._effects.append(self._broken(error))
        finally:
            self._lock.give()
        return 0
