"""Runs a state machine: brings it events, one at a time, and carries out the effects that it returns.

The thread that brings an event runs the driver, unless another thread is running it; then that thread also handles the
new event. So no event waits for a thread to wake up. The machine's lock is held during its steps only; requests are
sent and callbacks are called without it. A thread that is in the middle of one driver queues events for other drivers
until it is back there, so that answers within requests do not nest, however many ledgers there are.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Protocol, TypeVar, cast

from pyreplog._native.ledger.driver_base import DriverBase
from pyreplog._native.machines.effects import Send
from pyreplog._native.net.add_replies import Answer
from pyreplog.bookie.protocol import Reply, ReplyStatus, Request
from pyreplog.defer_sigint import defer_sigint
from pyreplog.errors import (
    InvalidMetadataError,
    NoSuchKeyError,
    ReplogError,
    VersionConflictError,
)
from pyreplog.future import AppendFuture, set_exception, set_result
from pyreplog.ledger.ledger_metadata import LedgerMetadata, metadata_key
from pyreplog.ledger.ledger_store import find_ledger
from pyreplog.ledger.protocol.effects import BadCopy, Degraded, Effect, Finished, QuarantineBookie, Store, Wake
from pyreplog.metadata.store import MetadataStore

logger = logging.getLogger(__name__)

T = TypeVar("T")
Add = tuple[str, Request, Answer]
"""An ADD: the bookie, the request, and the receiver of the answer."""


class Machine(Protocol):
    """The events of every state machine. A machine that never sends or never waits does not get these events."""

    def replied(self, send: Send, reply: Reply) -> Iterable[Effect]: ...
    def failed(self, send: Send, error: Exception) -> Iterable[Effect]: ...
    def woken(self, about: Any) -> Iterable[Effect]: ...


class StartingMachine(Machine, Protocol):
    """A state machine that begins with effects of its own."""

    def start(self) -> Iterable[Effect]: ...


class StoringMachine(Machine, Protocol):
    """A state machine that also stores the metadata of its ledger."""

    def stored(self, version: int) -> Iterable[Effect]: ...
    def conflicted(self, current: LedgerMetadata, version: int) -> Iterable[Effect]: ...
    def store_unknown(self) -> Iterable[Effect]: ...
    def loaded(self, current: LedgerMetadata, version: int) -> Iterable[Effect]: ...
    def deleted(self) -> Iterable[Effect]: ...
    def garbled(self, error: InvalidMetadataError) -> Iterable[Effect]: ...


class TimerLike(Protocol):
    """A scheduled call that can be cancelled."""

    def cancel(self) -> object: ...


class Runtime(Protocol):
    """Services that the drivers of a cluster share: requests to bookies, the metadata store, timers, worker threads.

    Only `wait` and `note_lacking` block or raise.
    """

    metadata: MetadataStore

    def expect(self, future: AppendFuture[Any]) -> None:
        """Fail the future with ClosedError if the runtime is closed before the future has an outcome."""
        ...

    def wait(self, future: AppendFuture[T], timeout: float | None = None) -> T:
        """Return `future.result(timeout)`; the waiting thread may run the reactor. Raises as `check_may_wait`."""
        ...

    def send(self, bookie: str, request: Request, on_reply: Callable[[Reply | Exception], None]) -> None:
        """Send a request to a bookie; `on_reply` is called by any thread, perhaps before this method returns."""
        ...

    def add(self, adds: Sequence[Add]) -> None:
        """Send ADDs to several bookies, as `send` does. ADDs that follow each other in a step come in one call."""
        ...

    def wake_after(self, seconds: float, call: Callable[[], None]) -> TimerLike | None:
        """Have any thread call `call` after `seconds`.

        Return None if the runtime is closed: then the call is never made.
        """
        ...

    def work(self, job: Callable[[], object]) -> None:
        """Have a job that blocks run by a worker thread."""
        ...

    def report(self, ledger: int, bad: BadCopy) -> None:
        """Note a missing or damaged copy for repair, in the background."""
        ...

    def note_lacking(self, ledger: int, copies: Sequence[BadCopy]) -> None:
        """Note the copies that a ledger will lack once its metadata are stored, durably. Raises errors of the store."""
        ...

    def note_waiting(self, change: int) -> None:
        """Add `change` to the number of ledgers that wait for the metadata store."""
        ...

    def suspect(self, bookie: str) -> None:
        """Put a bookie that failed into quarantine: for a while, other bookies are chosen first."""
        ...

    def note_degraded(self, ledger: int, degraded: Degraded | None) -> None:
        """Record which bookies a ledger goes on without; None: its driver ended."""
        ...


class Driver(DriverBase):
    """Runs one state machine for any number of threads.

    Attributes:
        done: an AppendFuture that gives the result of the machine when it is `Finished`, or fails with its error.
        on_step: called after each round of steps and effects, with no lock held, by one thread at a time.
    """

    def __init__(
        self, ledger: int, machine: Machine, runtime: Runtime, *, on_step: Callable[[], None] | None = None
    ) -> None:
        super().__init__(ledger, machine, runtime, on_step)
        self.done: AppendFuture[Any] = AppendFuture()
        self._awaits_metadata = False  # whether the machine waits for the metadata store
        self._is_over = False
        self._is_degraded = False
        self._timers: dict[object, TimerLike] = {}
        runtime.expect(self.done)

    def _broken(self, error: Exception) -> Finished:
        logger.error("ledger %d: a step of %s failed", self._ledger, type(self._machine).__name__, exc_info=error)
        return Finished(error=error)

    def _finish(self, last: Finished) -> None:
        for token in list(self._timers):
            if (timer := self._timers.pop(token, None)) is not None:  # else it has fired just now, in another thread
                timer.cancel()  # a pending timer would keep the entries that were read in memory
        self.end()
        if last.error is not None:
            set_exception(self.done, last.error)
        else:
            set_result(self.done, last.result)

    # ---- effects --------------------------------------------------------------------------------------------

    def _carry_out(self, effect: Effect) -> None:
        if isinstance(effect, Send):
            self._send(effect)
        elif isinstance(effect, Finished):
            self._last = effect
        elif isinstance(effect, Wake):
            self._wakes.append(effect)
        elif isinstance(effect, BadCopy):
            self._runtime.report(self._ledger, effect)
        elif isinstance(effect, QuarantineBookie):
            self._runtime.suspect(effect.bookie)
        elif isinstance(effect, Degraded):
            self._is_degraded = bool(effect.bookies)
            self._runtime.note_degraded(self._ledger, effect)
        elif isinstance(effect, Store):
            self._runtime.work(lambda: self._store(effect))
        else:
            self._runtime.work(self._load)

    def _send(self, send: Send) -> None:
        waiting = [send]

        def take(answer: Reply | Exception) -> None:
            with defer_sigint:  # after Ctrl-C the caller calls again: the answer must not count twice
                if not waiting:
                    return
                waiting.clear()
                self.answered(send, answer)

        self._runtime.send(send.bookie, send.request, take)

    def answered(self, send: Send, answer: Reply | Exception) -> None:
        """Handle an answer other than the plain OK to an ADD. An ADD may report the same answer twice."""
        machine = self._machine
        self._note_refusal(send, answer)
        if isinstance(answer, Exception):
            self.post(lambda: machine.failed(send, answer))
        else:
            self.post(lambda: machine.replied(send, answer))

    def _note_refusal(self, send: Send, answer: Reply | Exception) -> None:
        """Log which bookie refuses the key. If the key is right, another client gave the bookie a wrong one."""
        if not isinstance(answer, Exception) and answer.status == ReplyStatus.UNAUTHORIZED:
            logger.warning(
                "ledger %d: bookie %s refuses its key: %s", self._ledger, send.bookie,
                bytes(answer.body).decode("utf-8", "replace"),
            )  # fmt: skip

    def _wake_all(self, wakes: list[Wake]) -> None:
        """Set timers.

        Answers that bookies of this process gave meanwhile are handled first: most timers are not needed then.
        """
        if self._inbox:
            self._effects.extend(wakes)
            return
        for wake in wakes:
            self._wake(wake)

    def _wake(self, wake: Wake) -> None:
        token = object()  # names the timer without a reference cycle, which would keep the entries until a collection
        woken: list[bool] = []  # the timer may be due before `wake_after` returns it

        def due() -> None:
            woken.append(True)
            self._timers.pop(token, None)
            self.post(lambda: self._machine.woken(wake.about))

        timer = self._runtime.wake_after(wake.seconds, due)
        if timer is not None:
            self._timers[token] = timer
            if woken:
                self._timers.pop(token, None)

    def _store(self, effect: Store) -> None:
        machine = cast(StoringMachine, self._machine)
        try:
            self._runtime.note_lacking(self._ledger, effect.lacking)
            version = self._runtime.metadata.put(metadata_key(self._ledger), effect.metadata.encode(), effect.version)
        except VersionConflictError:
            self._post_current(machine.conflicted)
        except NoSuchKeyError:
            self.post(machine.deleted)
        except Exception as error:
            self._post_unknown(error)
        else:
            self._wait_for_metadata(False)
            self.post(lambda: machine.stored(version))

    def _load(self) -> None:
        machine = cast(StoringMachine, self._machine)
        self._post_current(machine.loaded)

    def _post_current(self, event: Callable[[LedgerMetadata, int], Iterable[Effect]]) -> None:
        machine = cast(StoringMachine, self._machine)
        try:
            current = find_ledger(self._runtime.metadata, self._ledger)
        except InvalidMetadataError as error:
            garbled = error
            self.post(lambda: machine.garbled(garbled))
        except Exception as error:
            self._post_unknown(error)
        else:
            self._wait_for_metadata(False)
            self.post(machine.deleted if current is None else lambda: event(*current))

    def _post_unknown(self, error: Exception) -> None:
        machine = cast(StoringMachine, self._machine)
        if not isinstance(error, ReplogError):
            logger.error("ledger %d: the metadata store failed", self._ledger, exc_info=error)
        elif not self._awaits_metadata:
            logger.warning("ledger %d waits for the metadata store: %s", self._ledger, error)
        self._wait_for_metadata(True)
        self.post(machine.store_unknown)

    def end(self) -> None:
        """Stop counting this ledger as waiting or degraded; called when the machine has finished, or was abandoned."""
        self._is_over = True
        self._wait_for_metadata(False)
        if self._is_degraded:
            self._is_degraded = False
            self._runtime.note_degraded(self._ledger, None)

    def _wait_for_metadata(self, waits: bool) -> None:
        """Record whether the last call of the metadata store had no outcome.

        The machine repeats the call until it has one.
        """
        with self._lock:
            waits = waits and not self._is_over
            change, self._awaits_metadata = waits - self._awaits_metadata, waits
        if change:
            self._runtime.note_waiting(change)


def run_machine(ledger: int, machine: StartingMachine, runtime: Runtime) -> AppendFuture[Any]:
    """Start a state machine of a ledger.

    Args:
        ledger: number of the ledger.
        machine: the state machine.
        runtime: carries out its effects.

    Returns:
        The future of its result.
    """
    driver = Driver(ledger, machine, runtime)
    driver.post(machine.start)
    return driver.done
