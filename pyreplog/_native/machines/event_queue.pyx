"""EventQueue: runs the events of an object one at a time, on the thread that finds the queue idle.

It is native because each message is several events: with their queue in Python code, an event cost more than its work.
No thread waits for another.
"""

import logging
from collections import deque

from pyreplog._native.machines.serial_executor cimport SerialExecutor
from pyreplog._native.system.interrupts cimport DeferSigint
from pyreplog._native.system.mutex cimport Mutex

from pyreplog._native.system import interrupts

cdef DeferSigint put_off = interrupts.defer_sigint
cdef object logger = logging.getLogger("pyreplog.event_queue")


cdef class EventQueue(SerialExecutor):
    """The serial executor of a topic's driver.

    Events have the rules of the steps of ledgers: callbacks of topics are also callbacks of ledgers, and must not wait
    (see `serial_executor.check_may_wait`). Errors that an event raises are logged.
    """

    cdef object events, append, take
    cdef Mutex turn     # held while events run; no thread blocks on it, since events run callbacks

    def __cinit__(self):
        self.events, self.turn = deque(), Mutex()
        self.append, self.take = self.events.append, self.events.popleft

    def post(self, event, /):
        """Run an event now; if another thread runs events, that thread runs it.

        Events run in the order of their posts.
        """
        put_off.enter()
        try:
            self.append(event)
            self.go_on()
        finally:
            put_off.leave()

    cdef int run(self) except -1:
        cdef Py_ssize_t i
        while self.events:
            if not self.turn.try_take():
                return 0
            try:
                for i in range(len(self.events)):
                    try:
                        self.take()()
                    except Exception:
                        logger.exception("a step of a topic failed")
            finally:
                self.turn.give()
        return 0
