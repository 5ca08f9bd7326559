"""What was acknowledged, and whether every bookie that metadata name has it."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from queue import SimpleQueue
from typing import Any

from pyreplog._native.ledger_log.entries import parse_entries
from pyreplog._native.machines.effects import Send
from pyreplog.bookie.protocol import READ_BYTES_MAX, Reply, ReplyStatus, Request, RequestKind
from pyreplog.errors import UnreadableError
from pyreplog.ledger.cluster import LedgerCluster
from pyreplog.ledger.driver import Driver
from pyreplog.ledger.ledger_metadata import LedgerMetadata, State, ledger_key
from pyreplog.ledger.protocol.effects import Effect, Finished
from pyreplog.ledger.protocol.terminal_errors import error_text
from pyreplog.ledger.repair_notes import RepairNote, repairs
from tests.chaos.autorecovery.writing import value_of


@dataclass
class Acknowledged:
    """Of one ledger. writer: its process. acked, copied: entries below are acknowledged, and have all their copies.
    closed: its last entry, as the writer had it. error: what ended its writer. is_deserted: its writer was killed."""

    writer: str = ""
    is_deserted: bool = False
    password: bytes = b""
    acked: int = 0
    copied: int = 0
    closed: int | None = None
    error: str = ""


class Checker:
    """Hears what the writers say."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._ledgers: dict[int, Acknowledged] = {}
        self.output: set[str] = set()

    def add_line(self, writer: str, line: dict[str, Any]) -> None:
        """Take a line of the writers."""
        with self._lock:
            if "ledger" not in line:
                self.output.update(line)
                return
            known = self._ledgers.setdefault(line.pop("ledger"), Acknowledged(writer))
            known.password = line.pop("password", known.password.decode()).encode()
            for name, value in line.items():
                setattr(known, name, value)

    @property
    def acked(self) -> int:
        """Number of entries that were acknowledged."""
        with self._lock:
            return sum(known.acked for known in self._ledgers.values())

    def acked_of(self, writer: str) -> int:
        """Number of entries that a process had acknowledged."""
        with self._lock:
            return sum(known.acked for known in self._ledgers.values() if known.writer == writer)

    def desert(self, writer: str) -> list[int]:
        """A process of writers is to be killed. Returns its ledgers."""
        with self._lock:
            for known in self._ledgers.values():
                known.is_deserted |= known.writer == writer
            return [ledger for ledger, known in self._ledgers.items() if known.writer == writer]

    def is_deserted(self, ledger: int) -> bool:
        """Whether the writer of a ledger was killed."""
        with self._lock:
            return ledger in self._ledgers and self._ledgers[ledger].is_deserted

    def ledgers(self) -> dict[int, Acknowledged]:
        """What is known now, by ledger."""
        with self._lock:
            return {ledger: Acknowledged(**vars(known)) for ledger, known in sorted(self._ledgers.items())}

    def forget(self, ledger: int) -> None:
        """The ledger is to be deleted."""
        with self._lock:
            del self._ledgers[ledger]

    def errors(self) -> list[str]:
        """What ended writers."""
        return [f"ledger {ledger}: {known.error}" for ledger, known in self.ledgers().items() if known.error]

    def uncopied(self, acked: dict[int, Acknowledged]) -> list[str]:
        """Ledgers of which an entry that was acknowledged then lacks a copy, as their writers have it."""
        now = self.ledgers()
        return [
            f"ledger {ledger}: entries from {now[ledger].copied} to {known.acked} lack copies"
            for ledger, known in acked.items()
            if ledger in now
            and now[ledger].closed is None
            and not known.is_deserted
            and now[ledger].copied < known.acked
        ]

    # ---- copies ---------------------------------------------------------------------------------------------

    def wrong(self, cluster: LedgerCluster) -> list[str]:
        """Read every acknowledged entry from every bookie that metadata name for it; return what is not there, and what
        has another value. What the writer of an open ledger went on without is noted, and missing until the close."""
        notes = repairs(cluster.metadata)[0]
        return [text for ledger, known in self.ledgers().items() for text in wrong_of(cluster, ledger, known, notes)]


def wrong_of(cluster: LedgerCluster, ledger: int, known: Acknowledged, notes: Iterable[RepairNote]) -> Iterator[str]:
    metadata = cluster.ledger_metadata(ledger)
    lacking: dict[str, int] = {}  # bookie: the first entry that an open ledger lacks there
    if metadata.state is State.OPEN:
        for note in sorted(notes, reverse=True):
            if note.ledger == ledger:
                lacking[note.bookie] = note.entry
    end = known.acked
    if known.closed is not None:
        if (metadata.state, metadata.last_entry) != (State.CLOSED, known.closed):
            yield f"ledger {ledger}: closed with {known.closed}, and is {metadata.state} with {metadata.last_entry}"
        if known.acked != known.closed + 1:
            yield f"ledger {ledger}: {known.acked} entries were acknowledged, and {known.closed + 1} are there"
    elif known.is_deserted:
        if metadata.state is not State.CLOSED:
            return  # none of its members has left since, or its recovery is still to come
        if metadata.last_entry + 1 < known.acked:
            yield f"ledger {ledger}: {known.acked} entries were acknowledged, and {metadata.last_entry + 1} are there"
        end = metadata.last_entry + 1
    elif metadata.state is not State.OPEN:
        yield f"ledger {ledger}: its writer lives, and it is {metadata.state}"
        return
    reads = []
    for bookie in sorted(metadata.bookies()):
        for stripe in metadata.holdings(bookie, below=end):
            machine = StripeRead(metadata, ledger_key(known.password), bookie, stripe)
            driver = Driver(ledger, machine, cluster.runtime)
            driver.post(machine.start)
            reads.append((bookie, stripe, driver.done))
    for bookie, stripe, done in reads:
        try:
            values = cluster.runtime.wait(done)
        except UnreadableError as error:
            yield f"ledger {ledger}: {bookie}: {error}"
            continue
        absent = [entry for entry in stripe if entry not in values and entry < lacking.get(bookie, end)]
        other = [entry for entry, value in values.items() if value != value_of(ledger, entry)]
        if absent or other:
            yield f"ledger {ledger}: {bookie} lacks {absent} and has others as {other}, of {stripe}: {metadata}"


def holds(cluster: LedgerCluster, bookie: str, ledger: int, known: Acknowledged) -> bool:
    """Whether a bookie has entries of a ledger, as far as it tells."""
    replies: SimpleQueue[Reply | Exception] = SimpleQueue()
    cluster.runtime.send(bookie, Request(RequestKind.LAST, ledger, key=ledger_key(known.password)), replies.put)
    reply = replies.get()
    return isinstance(reply, Reply) and reply.status == ReplyStatus.OK and reply.last >= 0


class StripeRead:
    """Reads the entries of a stripe from one bookie. A state machine. Ends with `Finished(dict)`, values by entry, or
    with an UnreadableError: the bookie does not tell whether it has an entry."""

    def __init__(self, metadata: LedgerMetadata, key: bytes, bookie: str, stripe: range) -> None:
        self._ledger, self._key, self._bookie, self._stripe = metadata.ledger, key, bookie, stripe
        self._values: dict[int, bytes] = {}

    def start(self) -> list[Effect]:
        return self._from(self._stripe.start)

    def _from(self, first: int) -> list[Effect]:
        if first >= self._stripe.stop:
            return [Finished(self._values)]
        step, last = self._stripe.step, self._stripe[-1]
        request = Request(RequestKind.READ, self._ledger, first, last, self._key, limit=READ_BYTES_MAX, step=step)
        return [Send(self._bookie, request)]

    def replied(self, send: Send, reply: Reply) -> list[Effect]:
        first = send.request.first
        if reply.status != ReplyStatus.OK or reply.last < first:
            return self._failed(f"from entry {first} on: {error_text(reply)}")
        batch = parse_entries(reply.body, ledger=self._ledger, first=first, last=reply.last)
        if batch.next_position < len(reply.body):
            return self._failed(f"a damaged record among entries {first} to {reply.last}")
        self._values.update(zip(batch.entry.tolist(), batch.values(), strict=True))
        return self._from(range(first, reply.last + 1, self._stripe.step)[-1] + self._stripe.step)

    def failed(self, send: Send, error: Exception) -> list[Effect]:
        return self._failed(str(error))

    def woken(self, about: object) -> list[Effect]:
        return []

    def _failed(self, reason: str) -> list[Effect]:
        return [Finished(error=UnreadableError(self._ledger, reason))]
