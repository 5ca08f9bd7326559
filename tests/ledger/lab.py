"""State machines of ledgers, whose messages wait until the test delivers them. The bookies are the real ones, with logs
in memory."""

from __future__ import annotations

from collections.abc import Iterable, Sequence, Set
from typing import Any

from simulation.disk import MemoryLog

from pyreplog._native.machines.effects import Send, Settle
from pyreplog.bookie.bookie import Bookie
from pyreplog.bookie.config import BookieConfig
from pyreplog.bookie.protocol import Reply, ReplyStatus, Request, RequestKind
from pyreplog.errors import DisconnectedError, NotConnectedError
from pyreplog.future import AppendFuture, settle_all
from pyreplog.ledger.ledger_metadata import Fragment, LedgerMetadata, State, key_proof, ledger_key
from pyreplog.ledger.protocol.effects import BadCopy, Degraded, Effect, Finished, Load, QuarantineBookie, Store, Wake
from pyreplog.ledger.protocol.ledger_read_op import LedgerReadOp
from pyreplog.ledger.protocol.recovery import LedgerRecovery
from pyreplog.ledger.protocol.writer import LedgerWriter

LEDGER = 7
KEY = ledger_key(b"secret")


class Lab:
    """Bookies a, b, c, and so on: first those of the first ensemble, then the spare ones, which are chosen first."""

    def __init__(self, size: int = 3, write_quorum: int = 3, ack_quorum: int = 2, spares: int = 2) -> None:
        names = [chr(ord("a") + i) for i in range(size + spares)]
        self.logs = {name: MemoryLog() for name in names}
        self.bookies = {name: Bookie(log, BookieConfig()) for name, log in self.logs.items()}
        self.down: set[str] = set()
        self._first = names[:size]
        self.metadata = LedgerMetadata(
            ledger=LEDGER,
            ensemble_size=size,
            write_quorum=write_quorum,
            ack_quorum=ack_quorum,
            fragments=(Fragment(0, tuple(names[:size])),),
            proof=key_proof(KEY),
        )
        self.version = 1

    def choose(
        self, metadata: LedgerMetadata, places: Sequence[int], taken: Set[str], last_resort: bool
    ) -> dict[int, str]:
        names = [name for name in self.bookies if name not in taken and name not in self.down]
        return dict(zip(places, sorted(names, key=lambda name: (name in self._first, name)), strict=False))

    def writer(self, *, key: bytes = KEY, **options: bool) -> Bench:
        machine = LedgerWriter(self.metadata, self.version, key, self.choose, random=lambda: 0.5, **options)
        return Bench(self, machine)

    def recovery(self, *, key: bytes = KEY, batch: int = 256, force: bool = False) -> Bench:
        """Return a recovery that has begun."""
        machine = LedgerRecovery(self.metadata, self.version, key, self.choose, force=force, batch_entries=batch)
        bench = Bench(self, machine)
        bench.do(bench.machine.start())
        return bench

    def reading(self, start: int, end: int, **options: Any) -> Bench:
        """Return a read that has begun."""
        bench = Bench(self, LedgerReadOp(self.metadata, KEY, start, end, **options))
        bench.do(bench.machine.start())
        return bench

    def change(self, metadata: LedgerMetadata) -> None:
        """Change the metadata, as another client does."""
        self.metadata, self.version = metadata, self.version + 1

    def restart(self, name: str) -> None:
        """Restart a bookie, which keeps what it had synced."""
        self.logs[name].unsynced.clear()
        self.bookies[name] = Bookie(self.logs[name], BookieConfig())

    def empty(self, name: str) -> None:
        """Give a bookie an empty directory. It has another incarnation, so that requests for the old one are refused."""
        del self.bookies[name]
        self.bookies[f"{name}'"] = Bookie(MemoryLog(), BookieConfig())

    def ask(self, bookie: str, request: Request) -> Reply:
        """Deliver a request to a bookie; return its answer."""
        replies: list[Reply] = []
        self.bookies[bookie].handle(request, replies.append)
        self.bookies[bookie].commit()
        return replies[0]

    def holders(self, entry: int) -> str:
        """Return the bookies that hold an entry."""
        return "".join(name for name, log in self.logs.items() if log.holds(LEDGER, entry))

    @property
    def fragments(self) -> dict[int, str]:
        """Return the fragments of the metadata, such as {0: "abc"}."""
        return {first: "".join(ensemble) for first, ensemble in self.metadata.fragments}

    @property
    def end(self) -> int:
        """Return the last entry of the closed ledger."""
        assert self.metadata.state is State.CLOSED
        return self.metadata.last_entry


class Bench:
    """One state machine, and its effects that were not carried out yet."""

    def __init__(self, lab: Lab, machine: Any) -> None:
        self.lab, self.machine = lab, machine
        self.sends: list[Send] = []
        self.stores: list[Store] = []
        self.loads = 0
        self.wakes: list[Wake] = []
        self.bad: list[BadCopy] = []
        self.noted: list[BadCopy] = []  # noted before a store of the metadata
        self.finished: list[Finished] = []
        self.suspects: list[str] = []
        self.degraded_reports: list[Degraded] = []

    def do(self, effects: Iterable[Effect]) -> None:
        settled: list[Settle] = []
        for effect in effects:
            if isinstance(effect, Send):
                self.sends.append(effect)
            elif isinstance(effect, Store):
                self.stores.append(effect)
            elif isinstance(effect, Load):
                self.loads += 1
            elif isinstance(effect, Wake):
                self.wakes.append(effect)
            elif isinstance(effect, BadCopy):
                self.bad.append(effect)
            elif isinstance(effect, Finished):
                self.finished.append(effect)
            elif isinstance(effect, QuarantineBookie):
                self.suspects.append(effect.bookie)
            elif isinstance(effect, Degraded):
                self.degraded_reports.append(effect)
            else:
                settled.append(effect)
        for settle in settled:
            settle_all(settle.outcomes)

    # ---- bookies --------------------------------------------------------------------------------------------

    def to(self, bookies: str, kind: RequestKind | None = None) -> list[Send]:
        """Return the messages in flight to some bookies, one letter each."""
        return [send for send in self.sends if send.bookie in bookies and kind in (None, send.request.kind)]

    def take(self, bookie: str, kind: RequestKind | None = None) -> Send:
        """Take the oldest message to a bookie out of those in flight."""
        send = self.to(bookie, kind)[0]
        self.sends.remove(send)
        return send

    def arrive(self, send: Send) -> Reply:
        """Deliver a message that was taken to its bookie; return the reply, which the machine does not get."""
        return self.lab.ask(send.bookie, send.request)

    def reply(self, send: Send, reply: Reply | None = None) -> None:
        """Give the machine a reply: this one, or that of the bookie."""
        self.do(self.machine.replied(send, self.arrive(send) if reply is None else reply))

    def fail(self, bookies: str, kind: RequestKind | None = None) -> None:
        """Fail all messages in flight to some bookies."""
        for send in self.to(bookies, kind):
            self.sends.remove(send)
            self.do(self.machine.failed(send, DisconnectedError("connection lost")))

    def deliver(self, bookies: str = "abcdefgh") -> None:
        """Answer all messages in flight to some bookies, in order. Those to bookies that are down fail."""
        for send in self.to(bookies):
            self.sends.remove(send)
            self.answer(send)

    def answer(self, send: Send) -> None:
        if send.bookie in self.lab.down or send.bookie not in self.lab.bookies:
            self.do(self.machine.failed(send, NotConnectedError("nobody answers there")))
        else:
            self.reply(send)

    # ---- metadata -------------------------------------------------------------------------------------------

    def store(self) -> None:
        """Carry out the oldest store, and tell the machine its outcome."""
        effect = self.stores.pop(0)
        if self.compare_and_set(effect):
            self.do(self.machine.stored(self.lab.version))
        else:
            self.do(self.machine.conflicted(self.lab.metadata, self.lab.version))

    def compare_and_set(self, effect: Store) -> bool:
        self.noted += effect.lacking
        if effect.version != self.lab.version:
            return False
        self.lab.change(LedgerMetadata.decode(effect.metadata.encode()))
        return True

    def lose_answer(self, *, stored: bool) -> None:
        """Lose the answer to the oldest store, so that the machine reads the metadata."""
        effect = self.stores.pop(0)
        if stored:
            assert self.compare_and_set(effect)
        self.do(self.machine.store_unknown())
        self.do(self.machine.woken(self.wakes.pop().about))
        self.loads -= 1
        self.do(self.machine.loaded(self.lab.metadata, self.lab.version))

    # ---- whole runs -----------------------------------------------------------------------------------------

    def run(self) -> Bench:
        """Carry out all effects, the oldest first."""
        while self.sends or self.stores:
            if self.stores:
                self.store()
            else:
                self.answer(self.sends.pop(0))
        return self

    def append(self, count: int = 1) -> AppendFuture[range]:
        """Append one batch of so many entries."""
        first = self.machine.last_add_pushed + 1
        values = [value_of(entry) for entry in range(first, first + count)]
        future, effects = self.machine.append(values, None, None, time_us=1)
        self.do(effects)
        return future

    def close(self) -> Bench:
        self.do(self.machine.close())
        return self

    @property
    def error(self) -> Exception | None:
        """Return the error with which the machine ended, or None."""
        return self.finished[-1].error

    @property
    def result(self) -> Any:
        assert self.error is None, self.error
        return self.finished[-1].result


def acked(future: AppendFuture[range]) -> bool:
    """Return whether an append was completed without an error."""
    return future.done() and future.exception() is None


def value_of(entry: int) -> bytes:
    return b"value %d" % entry


def written(lab: Lab, count: int) -> Bench:
    """Return a writer that has appended so many entries with all their copies."""
    bench = lab.writer()
    for _ in range(count):
        bench.append()
    bench.deliver()
    return bench


OK = ReplyStatus.OK
