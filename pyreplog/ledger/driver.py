"""Runs a state machine: brings it events, one at a time, and carries out the effects it answers with.

Whoever finds nobody at work works, and works through what others leave meanwhile: no event waits for a thread to be
woken. The machine's lock is held for its steps alone; requests are sent, and callbacks called, without it. A thread
that is at one driver already, further out, goes on with others when it is back there: an answer within a request does
not nest, however many ledgers there are.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Protocol, TypeVar, cast

from pyreplog._native.acktracker import Part
from pyreplog._native.answers import Answer
from pyreplog.ack import Ack, Outcome, settle_all
from pyreplog.bookie.protocol import Reply, Request
from pyreplog.errors import (
    InvalidArgumentError,
    InvalidMetadataError,
    NoSuchKeyError,
    ReplogError,
    VersionConflictError,
)
from pyreplog.ledger.effects import BadCopy, Effect, Finished, Send, Settle, Store, Wake
from pyreplog.ledger.ledgermetadata import LedgerMetadata, metadata_key
from pyreplog.ledger.stored import find_ledger
from pyreplog.metadata.store import MetadataStore
from pyreplog.uninterrupted import uninterrupted

logger = logging.getLogger(__name__)

T = TypeVar("T")
Event = Callable[[], Iterable[Effect]]
Add = tuple[str, Request, Answer]
"""Which bookie is to add what, and whom to tell."""


class Machine(Protocol):
    """What every state machine can be told. One that never sends, stores or waits needs no more than it uses."""

    def replied(self, send: Send, reply: Reply) -> Iterable[Effect]: ...
    def failed(self, send: Send, error: Exception) -> Iterable[Effect]: ...
    def woken(self, about: Any) -> Iterable[Effect]: ...


class StartingMachine(Machine, Protocol):
    """One that begins by itself."""

    def start(self) -> Iterable[Effect]: ...


class StoringMachine(Machine, Protocol):
    """One that changes the ledger's metadata, too."""

    def stored(self, version: int) -> Iterable[Effect]: ...
    def conflicted(self, found: LedgerMetadata, version: int) -> Iterable[Effect]: ...
    def store_unknown(self) -> Iterable[Effect]: ...
    def loaded(self, found: LedgerMetadata, version: int) -> Iterable[Effect]: ...
    def deleted(self) -> Iterable[Effect]: ...
    def garbled(self, error: InvalidMetadataError) -> Iterable[Effect]: ...


class Timer(Protocol):
    """A call to come."""

    def cancel(self) -> object: ...


class Surroundings(Protocol):
    """What drivers share: a way to bookies, the metadata store, timers, threads for what blocks. No call blocks but
    `wait`, and none raises but for that one."""

    metadata: MetadataStore

    def expect(self, done: Ack[Any]) -> None:
        """Have it fail when all of this is closed before it has another outcome."""
        ...

    def wait(self, ack: Ack[T], timeout: float | None = None) -> T:
        """`ack.result(timeout)`; the thread that waits may do the work it waits for. Errors: as `check_may_wait`."""
        ...

    def send(self, bookie: str, request: Request, on_reply: Callable[[Reply | Exception], None]) -> None:
        """Ask a bookie; `on_reply` is called, from any thread, maybe before this returns."""
        ...

    def add(self, adds: Sequence[Add]) -> None:
        """`send`, of ADDs to several bookies."""
        ...

    def wake_after(self, seconds: float, call: Callable[[], None]) -> Timer | None:
        """Call it then, from any thread. None: never, all of this is closed."""
        ...

    def work(self, job: Callable[[], object]) -> None:
        """Have something done that blocks."""
        ...

    def report(self, ledger: int, bad: BadCopy) -> None:
        """A copy has to be repaired."""
        ...

    def note_waiting(self, change: int) -> None:
        """One more, or one less, waits for the metadata store."""
        ...


class _Turns(threading.local):
    """Of each thread: the drivers it has to go on with; None: it is not at any."""

    drivers: deque[Turns] | None = None


_turns = _Turns()


def in_callback() -> bool:
    """Whether this is a callback of something that ledgers do: it must not wait, since what it waits for may be its own
    thread's to do."""
    return _turns.drivers is not None


def check_may_wait() -> None:
    """InvalidArgumentError, in a callback."""
    if _turns.drivers is not None:
        raise InvalidArgumentError("a callback cannot wait for a ledger: use submit, and callbacks of what it gives")


class Turns:
    """Something with steps that one thread at a time takes, and that threads never wait for."""

    def _run(self) -> None:
        """Take all steps there are, unless another thread is at it; that one takes them all."""
        raise NotImplementedError

    def _go_on(self) -> None:
        mine = _turns.drivers
        if mine is not None:
            mine.append(self)
            return
        _turns.drivers = mine = deque((self,))
        try:
            while mine:
                mine[0]._run()
                mine.popleft()
        finally:
            _turns.drivers = None
            while mine:  # a callback raised what is no Exception
                mine.popleft()._go_on()


class Driver(Turns):
    """One machine, from any number of threads.

    done: an Ack that gives the machine's result when it is `Finished`, or fails with its error. after: called when
    something has happened, with no lock held, by one thread at a time.
    """

    def __init__(
        self, ledger: int, machine: Machine, around: Surroundings, *, after: Callable[[], None] | None = None
    ) -> None:
        self.done: Ack[Any] = Ack()
        self._ledger, self._machine, self._around, self._after = ledger, machine, around, after
        self._lock = threading.Lock()  # of the machine
        self._turn = threading.Lock()  # of what follows from its steps; held while callbacks run, so never waited for
        self._inbox: deque[Event] = deque()
        self._effects: deque[Effect] = deque()
        self._waits = self._is_over = False  # for the metadata store; and will not any more
        self._timers: dict[object, Timer] = {}
        around.expect(self.done)

    def call(self, do: Callable[[], tuple[T, Iterable[Effect]]]) -> T:
        """Do something with the machine now; for callers that need its answer. May wait for another thread's step."""
        with uninterrupted:
            try:
                with self._lock:
                    result, effects = do()
                    self._effects.extend(effects)
            finally:
                self._go_on()
        return result

    def post(self, event: Event) -> None:
        """Have something done with the machine: now, or by the thread that is at it."""
        with uninterrupted:
            self._inbox.append(event)
            self._go_on()

    def _run(self) -> None:
        """Rounds, until nothing is left. What comes while another thread is at it, that thread sees afterwards."""
        while self._inbox or self._effects:
            if not self._turn.acquire(False):
                return
            try:
                self._round()
            finally:
                self._turn.release()

    def _round(self) -> None:
        if self._inbox:
            self._take_steps()
        outcomes: list[Outcome] = []
        adds: list[Add] = []
        wakes: list[Wake] = []
        finished: Finished | None = None
        while self._effects:
            effect = self._effects.popleft()
            if isinstance(effect, Send) and type(effect.about) is Part:
                adds.append((effect.bookie, effect.request, Answer(self, effect, self._ledger, effect.about)))
                continue
            if adds:
                self._around.add(adds)
                adds = []
            if isinstance(effect, Send):
                self._send(effect)
            elif isinstance(effect, Settle):
                outcomes += effect.outcomes
            elif isinstance(effect, Finished):
                finished = effect
            elif isinstance(effect, Wake):
                wakes.append(effect)
            else:
                self._carry_out(effect)
        if adds:
            self._around.add(adds)
        if wakes and finished is None:
            self._wake_all(wakes)
        try:
            if outcomes:
                settle_all(outcomes)
        finally:
            if self._after is not None:
                self._after()
            if finished is not None:
                self._finish(finished)

    def _take_steps(self) -> None:
        with self._lock:
            for _ in range(len(self._inbox)):
                try:
                    self._effects.extend(self._inbox.popleft()())
                except Exception as error:
                    logger.exception("ledger %d: a step of %s failed", self._ledger, type(self._machine).__name__)
                    self._effects.append(Finished(error=error))

    def _finish(self, last: Finished) -> None:
        while self._timers:
            self._timers.popitem()[1].cancel()  # they hold what was read
        self.end()
        if last.error is not None:
            self.done.fail(last.error)
        else:
            self.done.complete(last.result)

    # ---- effects --------------------------------------------------------------------------------------------

    def _carry_out(self, effect: Effect) -> None:
        if isinstance(effect, BadCopy):
            self._around.report(self._ledger, effect)
        elif isinstance(effect, Store):
            self._around.work(lambda: self._store(effect))
        else:
            self._around.work(self._load)

    def _send(self, send: Send) -> None:
        machine = self._machine
        waiting = [send]

        def take(answer: Reply | Exception) -> None:
            with uninterrupted:  # who calls this does so again after Ctrl-C: that answer counts no second time
                if not waiting:
                    return
                waiting.clear()
                if isinstance(answer, Exception):
                    self.post(lambda: machine.failed(send, answer))
                else:
                    self.post(lambda: machine.replied(send, answer))

        self._around.send(send.bookie, send.request, take)

    def acked(self) -> None:
        """OKs to ADDs have been noted where the machine looks for them (see `answers`): it has an event `acked`."""
        machine: Any = self._machine
        with uninterrupted:
            self._inbox.append(machine.acked)
            self._go_on()

    def answered(self, send: Send, answer: Reply | Exception) -> None:
        """Any other answer to an ADD; should it come twice, nothing changes."""
        machine = self._machine
        if isinstance(answer, Exception):
            self.post(lambda: machine.failed(send, answer))
        else:
            self.post(lambda: machine.replied(send, answer))

    def _wake_all(self, wakes: list[Wake]) -> None:
        """What has been answered meanwhile, by bookies of this process, comes first: mostly nothing is waited for then,
        and no timer has to be set."""
        if self._inbox:
            self._effects.extend(wakes)
            return
        for wake in wakes:
            self._wake(wake)

    def _wake(self, wake: Wake) -> None:
        token = (
            object()
        )  # for the timer, which must not lead back to itself: what was read would stay until a collection
        woken: list[bool] = []  # it may be due before this thread has it

        def due() -> None:
            woken.append(True)
            self._timers.pop(token, None)
            self.post(lambda: self._machine.woken(wake.about))

        timer = self._around.wake_after(wake.seconds, due)
        if timer is not None:
            self._timers[token] = timer
            if woken:
                self._timers.pop(token, None)

    def _store(self, effect: Store) -> None:
        machine = cast(StoringMachine, self._machine)
        try:
            version = self._around.metadata.put(metadata_key(self._ledger), effect.metadata.encode(), effect.version)
        except VersionConflictError:
            self._tell_what_is_there(machine.conflicted)
        except NoSuchKeyError:
            self.post(machine.deleted)
        except Exception as error:
            self._tell_unknown(error)
        else:
            self._wait_for_metadata(False)
            self.post(lambda: machine.stored(version))

    def _load(self) -> None:
        machine = cast(StoringMachine, self._machine)
        self._tell_what_is_there(machine.loaded)

    def _tell_what_is_there(self, event: Callable[[LedgerMetadata, int], Iterable[Effect]]) -> None:
        machine = cast(StoringMachine, self._machine)
        try:
            found = find_ledger(self._around.metadata, self._ledger)
        except InvalidMetadataError as error:
            garbled = error
            self.post(lambda: machine.garbled(garbled))
        except Exception as error:
            self._tell_unknown(error)
        else:
            self._wait_for_metadata(False)
            self.post(machine.deleted if found is None else lambda: event(*found))

    def _tell_unknown(self, error: Exception) -> None:
        machine = cast(StoringMachine, self._machine)
        if not isinstance(error, ReplogError):
            logger.error("ledger %d: the metadata store failed", self._ledger, exc_info=error)
        elif not self._waits:
            logger.warning("ledger %d waits for the metadata store: %s", self._ledger, error)
        self._wait_for_metadata(True)
        self.post(machine.store_unknown)

    def end(self) -> None:
        """The machine wants nothing any more."""
        self._is_over = True
        self._wait_for_metadata(False)

    def _wait_for_metadata(self, waits: bool) -> None:
        """Whether its last call to the store had no outcome: it is tried again for as long as it takes."""
        with self._lock:
            waits = waits and not self._is_over
            change, self._waits = waits - self._waits, waits
        if change:
            self._around.note_waiting(change)
