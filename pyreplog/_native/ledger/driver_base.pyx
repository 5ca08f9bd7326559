"""What the driver of a state machine does for every message: brings it events, one at a time, and carries out the effects
it answers with. `pyreplog.ledger.driver` has the rest.

Threads: any. The machine's lock is held for its steps alone; requests are sent, and callbacks called, without it.
"""

from libc.stdint cimport int64_t

from pyreplog._native.log.future cimport settle_each
from pyreplog._native.machines.effects cimport Send, Settle
from pyreplog._native.machines.serial_executor cimport SerialExecutor
from pyreplog._native.net.answers cimport Answer
from pyreplog._native.quorum.acktracker cimport Part
from pyreplog._native.system.interrupts cimport DeferSigint
from pyreplog._native.system.mutex cimport Mutex

from pyreplog._native.system import interrupts

cdef DeferSigint put_off = interrupts.defer_sigint


cdef class DriverBase(SerialExecutor):
    """`DriverBase(ledger, machine, runtime, after)`. To be subclassed, by what carries out all effects but ADDs and
    Settle (`_carry_out`), of which those kept in `_last` and `_wakes` come at the end of a round (`_finish`,
    `_wake_all`).

    machine: its steps are events, `acked` among them. around: takes ADDs (`add`). after: called when something has
    happened, with no lock held, by one thread at a time; None: nothing is.
    """

    cdef readonly list _inbox       # events: calls that give effects
    cdef readonly list _effects
    cdef public list _wakes
    cdef public object _last
    cdef readonly Mutex _lock       # of the machine
    cdef readonly object _machine, _runtime, _after
    cdef readonly int64_t _ledger
    cdef bint is_busy               # a thread is at what follows from its steps, maybe in a callback: none waits for it

    def __init__(self, int64_t ledger, machine, runtime, after=None, /):
        self._ledger, self._machine, self._runtime, self._after = ledger, machine, runtime, after
        self._inbox, self._effects, self._wakes = [], [], []
        self._lock = Mutex()

    def call(self, do, /, *args):
        """Do something with the machine now; for callers that need its answer. May wait for another thread's step.

        do: gives (answer, effects), of `args`.
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
        """Have something done with the machine: now, or by the thread that is at it."""
        put_off.enter()
        try:
            self._inbox.append(event)
            self.go_on()
        finally:
            put_off.leave()

    def acked(self):
        """OKs to ADDs have been noted where the machine looks for them (see `answers`)."""
        self.post(self._machine.acked)

    def _carry_out(self, effect, /):
        raise NotImplementedError

    def _wake_all(self, wakes, /):
        raise NotImplementedError

    def _finish(self, last, /):
        raise NotImplementedError

    def _broken(self, error, /):
        """A step has failed: the effect of that."""
        raise NotImplementedError

    cdef int run(self) except -1:
        """Rounds, until nothing is left. What comes while another thread is at it, that thread sees afterwards."""
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
