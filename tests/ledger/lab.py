"""Ledger machines on a bench: their messages wait until the test lets one happen. Bookies are the shipped ones."""

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
    """Bookies a, b, c, ...: first those of the first ensemble, then spare ones, which are chosen first."""

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
        """A recoverer that has begun."""
        machine = LedgerRecovery(self.metadata, self.version, key, self.choose, force=force, batch_entries=batch)
        bench = Bench(self, machine)
        bench.do(bench.machine.start())
        return bench

    def reading(self, start: int, end: int, **options: Any) -> Bench:
        """A reader that has begun."""
        bench = Bench(self, LedgerReadOp(self.metadata, KEY, start, end, **options))
        bench.do(bench.machine.start())
        return bench

    def change(self, metadata: LedgerMetadata) -> None:
        """Somebody else changes the metadata."""
        self.metadata, self.version = metadata, self.version + 1

    def restart(self, name: str) -> None:
        """Its process dies; what was synced is there when it comes back."""
        self.logs[name].unsynced.clear()
        self.bookies[name] = Bookie(self.logs[name], BookieConfig())

    def empty(self, name: str) -> None:
        """An empty directory takes the bookie's place: another incarnation, so whoever asks for the old one is refused."""
        del self.bookies[name]
        self.bookies[f"{name}'"] = Bookie(MemoryLog(), BookieConfig())

    def ask(self, bookie: str, request: Request) -> Reply:
        """A request arrives, and is answered at once."""
        replies: list[Reply] = []
        self.bookies[bookie].handle(request, replies.append)
        self.bookies[bookie].commit()
        return replies[0]

    def holders(self, entry: int) -> str:
        """Bookies that hold an entry."""
        return "".join(name for name, log in self.logs.items() if log.holds(LEDGER, entry))

    @property
    def fragments(self) -> dict[int, str]:
        """As the metadata say: {0: "abc"}."""
        return {first: "".join(ensemble) for first, ensemble in self.metadata.fragments}

    @property
    def end(self) -> int:
        """Where the ledger is closed."""
        assert self.metadata.state is State.CLOSED
        return self.metadata.last_entry


class Bench:
    """One machine, and what it asked for that has not happened yet."""

    def __init__(self, lab: Lab, machine: Any) -> None:
        self.lab, self.machine = lab, machine
        self.sends: list[Send] = []
        self.stores: list[Store] = []
        self.loads = 0
        self.wakes: list[Wake] = []
        self.bad: list[BadCopy] = []
        self.noted: list[BadCopy] = []  # before something was stored
        self.finished: list[Finished] = []
        self.suspects: list[str] = []
        self.told: list[Degraded] = []

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
                self.told.append(effect)
            else:
                settled.append(effect)
        for settle in settled:
            settle_all(settle.outcomes)

    # ---- bookies --------------------------------------------------------------------------------------------

    def to(self, bookies: str, kind: RequestKind | None = None) -> list[Send]:
        """What is on its way to some bookies, one letter each."""
        return [send for send in self.sends if send.bookie in bookies and kind in (None, send.request.kind)]

    def take(self, bookie: str, kind: RequestKind | None = None) -> Send:
        """The oldest message to a bookie; it is the test's now."""
        send = self.to(bookie, kind)[0]
        self.sends.remove(send)
        return send

    def arrive(self, send: Send) -> Reply:
        """A message that was taken reaches its bookie; nobody hears the reply yet."""
        return self.lab.ask(send.bookie, send.request)

    def reply(self, send: Send, reply: Reply | None = None) -> None:
        """It is answered; without `reply`, as its bookie does."""
        self.do(self.machine.replied(send, self.arrive(send) if reply is None else reply))

    def fail(self, bookies: str, kind: RequestKind | None = None) -> None:
        """All that is on its way to some bookies is lost."""
        for send in self.to(bookies, kind):
            self.sends.remove(send)
            self.do(self.machine.failed(send, DisconnectedError("connection lost")))

    def deliver(self, bookies: str = "abcdefgh") -> None:
        """All that is on its way to some bookies is answered, in order; those that are down do not answer."""
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
        """The oldest Store is done, and answered."""
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
        """Nobody knows what became of the oldest Store; the machine looks."""
        effect = self.stores.pop(0)
        if stored:
            assert self.compare_and_set(effect)
        self.do(self.machine.store_unknown())
        self.do(self.machine.woken(self.wakes.pop().about))
        self.loads -= 1
        self.do(self.machine.loaded(self.lab.metadata, self.lab.version))

    # ---- whole runs -----------------------------------------------------------------------------------------

    def run(self) -> Bench:
        """Everything happens, the oldest first."""
        while self.sends or self.stores:
            if self.stores:
                self.store()
            else:
                self.answer(self.sends.pop(0))
        return self

    def append(self, count: int = 1) -> AppendFuture[range]:
        """One batch of so many entries, to a writer."""
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
        """What the machine ended with."""
        return self.finished[-1].error

    @property
    def result(self) -> Any:
        assert self.error is None, self.error
        return self.finished[-1].result


def acked(future: AppendFuture[range]) -> bool:
    """Whether it was completed, and not with an error."""
    return future.done() and future.exception() is None


def value_of(entry: int) -> bytes:
    return b"value %d" % entry


def written(lab: Lab, count: int) -> Bench:
    """A writer that has appended so many entries, all with all their copies, and is gone from here on."""
    bench = lab.writer()
    for _ in range(count):
        bench.append()
    bench.deliver()
    return bench


OK = ReplyStatus.OK
