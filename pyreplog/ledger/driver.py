"""Runs a state machine: brings it events, one at a time, and carries out the effects it answers with.

Whoever finds nobody at work works, and works through what others leave meanwhile: no event waits for a thread to be
woken. The machine's lock is held for its steps alone; requests are sent, and callbacks called, without it. A thread
that is at one driver already, further out, goes on with others when it is back there: an answer within a request does
not nest, however many ledgers there are.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Protocol, TypeVar, cast

from pyreplog._native.ledger.driver_base import DriverBase
from pyreplog._native.machines.effects import Send
from pyreplog._native.net.answers import Answer
from pyreplog.bookie.protocol import Reply, ReplyStatus, Request
from pyreplog.defer_sigint import defer_sigint
from pyreplog.errors import (
    InvalidMetadataError,
    NoSuchKeyError,
    ReplogError,
    VersionConflictError,
)
from pyreplog.future import AppendFuture
from pyreplog.ledger.ledger_store import find_ledger
from pyreplog.ledger.ledgermetadata import LedgerMetadata, metadata_key
from pyreplog.ledger.protocol.effects import BadCopy, Degraded, Effect, Finished, Store, Suspect, Wake
from pyreplog.metadata.store import MetadataStore

logger = logging.getLogger(__name__)

T = TypeVar("T")
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


class TimerLike(Protocol):
    """A call to come."""

    def cancel(self) -> object: ...


class Runtime(Protocol):
    """What drivers share: a way to bookies, the metadata store, timers, threads for what blocks. No call blocks but
    `wait` and `note_lacking`, and none raises but for those."""

    metadata: MetadataStore

    def expect(self, done: AppendFuture[Any]) -> None:
        """Have it fail when all of this is closed before it has another outcome."""
        ...

    def wait(self, future: AppendFuture[T], timeout: float | None = None) -> T:
        """`future.result(timeout)`; the thread that waits may do the work it waits for. Errors: as `check_may_wait`."""
        ...

    def send(self, bookie: str, request: Request, on_reply: Callable[[Reply | Exception], None]) -> None:
        """Ask a bookie; `on_reply` is called, from any thread, maybe before this returns."""
        ...

    def add(self, adds: Sequence[Add]) -> None:
        """`send`, of ADDs to several bookies."""
        ...

    def wake_after(self, seconds: float, call: Callable[[], None]) -> TimerLike | None:
        """Call it then, from any thread. None: never, all of this is closed."""
        ...

    def work(self, job: Callable[[], object]) -> None:
        """Have something done that blocks."""
        ...

    def report(self, ledger: int, bad: BadCopy) -> None:
        """A copy has to be repaired."""
        ...

    def note_lacking(self, ledger: int, copies: Sequence[BadCopy]) -> None:
        """Copies will have to be repaired when their ledger is closed, as it is next. Errors: those of the store."""
        ...

    def note_waiting(self, change: int) -> None:
        """One more, or one less, waits for the metadata store."""
        ...

    def suspect(self, bookie: str) -> None:
        """A bookie failed: it is not to be chosen for a while."""
        ...

    def note_degraded(self, ledger: int, degraded: Degraded | None) -> None:
        """A ledger goes on without some of its bookies; or with all of them again; or (None) has ended."""
        ...


class Driver(DriverBase):
    """One machine, from any number of threads.

    done: an AppendFuture that gives the machine's result when it is `Finished`, or fails with its error. after: called
    when something has happened, with no lock held, by one thread at a time.
    """

    def __init__(
        self, ledger: int, machine: Machine, runtime: Runtime, *, after: Callable[[], None] | None = None
    ) -> None:
        super().__init__(ledger, machine, runtime, after)
        self.done: AppendFuture[Any] = AppendFuture()
        self._waits = self._is_over = False  # for the metadata store; and will not any more
        self._is_degraded = False
        self._timers: dict[object, TimerLike] = {}
        runtime.expect(self.done)

    def _broken(self, error: Exception) -> Finished:
        logger.error("ledger %d: a step of %s failed", self._ledger, type(self._machine).__name__, exc_info=error)
        return Finished(error=error)

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
        if isinstance(effect, Send):
            self._send(effect)
        elif isinstance(effect, Finished):
            self._last = effect
        elif isinstance(effect, Wake):
            self._wakes.append(effect)
        elif isinstance(effect, BadCopy):
            self._runtime.report(self._ledger, effect)
        elif isinstance(effect, Suspect):
            self._runtime.suspect(effect.bookie)
        elif isinstance(effect, Degraded):
            self._is_degraded = bool(effect.bookies)
            self._runtime.note_degraded(self._ledger, effect)
        elif isinstance(effect, Store):
            self._runtime.work(lambda: self._store(effect))
        else:
            self._runtime.work(self._load)

    def _send(self, send: Send) -> None:
        machine = self._machine
        waiting = [send]

        def take(answer: Reply | Exception) -> None:
            with defer_sigint:  # who calls this does so again after Ctrl-C: that answer counts no second time
                if not waiting:
                    return
                waiting.clear()
                self._note_refusal(send, answer)
                if isinstance(answer, Exception):
                    self.post(lambda: machine.failed(send, answer))
                else:
                    self.post(lambda: machine.replied(send, answer))

        self._runtime.send(send.bookie, send.request, take)

    def answered(self, send: Send, answer: Reply | Exception) -> None:
        """Any other answer to an ADD; should it come twice, nothing changes."""
        machine = self._machine
        self._note_refusal(send, answer)
        if isinstance(answer, Exception):
            self.post(lambda: machine.failed(send, answer))
        else:
            self.post(lambda: machine.replied(send, answer))

    def _note_refusal(self, send: Send, answer: Reply | Exception) -> None:
        """A bookie that refuses a key is named: if the key is right, somebody has given it another one."""
        if not isinstance(answer, Exception) and answer.status == ReplyStatus.UNAUTHORIZED:
            logger.warning(
                "ledger %d: bookie %s refuses its key: %s", self._ledger, send.bookie,
                bytes(answer.body).decode("utf-8", "replace"),
            )  # fmt: skip

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
            found = find_ledger(self._runtime.metadata, self._ledger)
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
        if self._is_degraded:
            self._is_degraded = False
            self._runtime.note_degraded(self._ledger, None)

    def _wait_for_metadata(self, waits: bool) -> None:
        """Whether its last call to the store had no outcome: it is tried again for as long as it takes."""
        with self._lock:
            waits = waits and not self._is_over
            change, self._waits = waits - self._waits, waits
        if change:
            self._runtime.note_waiting(change)
