"""Two I/O threads of one bookie: with one GIL, with none, and with the lock of the log alone."""

from __future__ import annotations

import secrets
import socket
import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.entries import SIZES, make_values
from benchmarks.limits import adds
from benchmarks.plan import Plan
from benchmarks.proc import Job, job
from benchmarks.result import Comparison, Figure, Section, Table
from benchmarks.sampling import collector_off, interleave, timed
from pyreplog._native.bookie.fast_add import FastAdd, as_fast_add
from pyreplog._native.ledger_log.entries import CONTROL, encode_entries, parse_entries
from pyreplog._native.net.frame import CONTROL_OFFSET, FrameParser, encode
from pyreplog.bookie.config import BookieConfig
from pyreplog.bookie.local_bookie import LocalBookie
from pyreplog.bookie.protocol import ADD, UNSYNCED, Request
from pyreplog.bookie.service import SERVICE, BookieService
from pyreplog.net.handshake import ClientHandshake, NodeIdentity
from pyreplog.net.hello import NONCE_BYTES
from pyreplog.net.limits import Limits
from pyreplog.net.reactor import Callback, Reactor
from pyreplog.net.server import Server

_SIZE = 1024
_REQUESTS = 4096
_WINDOWS = {1: "one outstanding", 16: "16 outstanding"}
_CLIENTS = 2
_LOG_SEGMENTS = 4
_PATIENT = Limits(silence_ms=600_000, stall_ms=600_000)
"""A connection is silent while the other sides have their turns."""


def io_threads(plan: Plan) -> Section:
    """One and two threads serve two clients in C: pyreplog's bookie, two processes, and the bare path of an ADD."""
    section = Section(
        "bound-io-threads", f"What bounds two I/O threads of a bookie: ADDs of {SIZES[_SIZE]}, two clients in C"
    )
    with plan.folder() as folder, ExitStack() as stack:
        sides, alone = _sides(plan, folder, stack), _alone(plan, folder, stack)
        for window, title in _WINDOWS.items():
            turns = _Turns(plan.shared(len(_WINDOWS)), sides, window)
            section.comparisons += _compare(turns, title)
            section.tables.append(Table(f"How long a lock is held, {title}", _LOCK_HEADERS, _locks(turns, alone)))
        for side in sides.values():
            side.verify()
    section.notes.append(
        "CPU is that of the I/O threads alone, for each request. *One GIL*: two reactors and two services of one "
        "bookie in one process. *Two processes*: a bookie in each. *Bare*: recv, frame, bounds, CRC, state of the "
        "ledger, copy and send in C; one log with one lock, no index, no group commit, no roll. *The GIL once*: the "
        "copy under the lock, and each receive takes the GIL for one call of a Python function that does nothing, "
        "before the replies leave. The share of a lock is that of the time of two threads which are always busy; *at "
        "most* is how many times as fast as one thread two can be that share it, if handing it over costs nothing."
    )
    return section


# ---- the sides ---------------------------------------------------------------------------------------------------


@dataclass
class Side:
    """Servers of two clients, and what their turns took.

    jobs: processes with I/O threads. clients: one for each connection. cpu, switches: of the I/O threads, for each
    request of a turn.
    """

    jobs: list[Job]
    threads: list[tuple[int, int]] = field(default_factory=list)  # (process, thread)
    streams: list[socket.socket] = field(default_factory=list)
    clients: list[adds.Client] = field(default_factory=list)
    cpu: list[float] = field(default_factory=list)
    switches: list[float] = field(default_factory=list)

    def turn(self, requests: int, window: int) -> float:
        """Requests per second of all clients, each with so many."""
        before, began = self._used(), time.monotonic()
        _at_once([partial(client.append, requests, window) for client in self.clients])
        took, after = time.monotonic() - began, self._used()
        total = requests * len(self.clients)
        self.cpu.append((after[0] - before[0]) / total)
        self.switches.append((after[1] - before[1]) / total)
        return total / took

    def _used(self) -> tuple[float, int]:
        """(seconds of CPU, context switches) of the I/O threads."""
        seconds, switches = 0.0, 0
        for pid, thread in self.threads:
            task = Path(f"/proc/{pid}/task/{thread}")
            seconds += int((task / "schedstat").read_text().split()[0]) / 1e9
            lines = (task / "status").read_text().splitlines()
            switches += sum(int(line.split()[1]) for line in lines if "ctxt_switches" in line)
        return seconds, switches

    def ask(self, word: str) -> list[Any]:
        """Say a word to each process, and return what they say."""
        for started in self.jobs:
            started.ask(word)
        return [started.answer() for started in self.jobs]

    def verify(self) -> None:
        """Close the connections; each process then reads back what it stored. Raises ValueError if that is not what
        the clients have added."""
        for stream in self.streams:
            stream.shutdown(socket.SHUT_RDWR)
        stored = sum(told["records"] for told in self.ask("verify"))
        if stored != self.added:
            raise ValueError(f"{self.added} entries were acknowledged, {stored} are stored")

    @property
    def added(self) -> int:
        """Number of entries that were acknowledged."""
        return sum(client.entries for client in self.clients)


def _sides(plan: Plan, folder: Path, stack: ExitStack) -> dict[str, Side]:
    numbers = iter(range(1, 1 << 16))
    floors = {"read_only_below_bytes": 0, "writable_from_bytes": 0, "reserve_bytes": 0}
    settings = {"durability": "appended", "segment_bytes": plan.segment_bytes} | floors

    def bookie(threads: int, processes: int = 1, *, timed: bool = False) -> Side:
        names = [str(folder / f"bookie-{next(numbers)}") for _ in range(processes)]
        jobs = [stack.enter_context(job("io_threads_bookie", name, threads, settings, timed)) for name in names]
        return _connected(stack, Side(jobs), numbers, greeted=True)

    def bare(threads: int, locked: str = "copy", *, gil: bool = False) -> Side:
        size = _LOG_SEGMENTS * plan.segment_bytes
        started = job("io_threads_bare", size, _SIZE, _CLIENTS, threads, locked, gil)
        return _connected(stack, Side([stack.enter_context(started)]), numbers, greeted=False)

    return {
        "one": bookie(1),
        "one GIL": bookie(2),
        "two processes": bookie(1, 2),
        "bare, one": bare(1),
        "CRC": bare(2, "CRC"),
        "copy": bare(2),
        "place": bare(2, "place"),
        "the GIL once": bare(2, gil=True),
        "timed, one": bookie(1, timed=True),
        "timed, one GIL": bookie(2, timed=True),
    }


def _connected(stack: ExitStack, side: Side, numbers: Any, *, greeted: bool) -> Side:
    """Connect two clients to the ports of a side, in turn."""
    values, ports = adds.Values(make_values(_SIZE)), []
    for started in side.jobs:
        told = started.answer()
        side.threads += [(started.pid, thread) for thread in told["threads"]]
        ports += told["ports"]
    for number in range(_CLIENTS):
        stream = stack.enter_context(connect(ports[number % len(ports)], greeted=greeted))
        side.streams.append(stream)
        side.clients.append(adds.Client(stream.fileno(), values, ledger=next(numbers), key=secrets.token_bytes(16)))
    for client in side.clients:
        client.append(1, 1)  # the key is verified, the state of the ledger known
    return side


def connect(port: int, *, greeted: bool) -> socket.socket:
    """Return a blocking connection to a port; greeted: with the handshake of a bookie."""
    stream = socket.create_connection(("127.0.0.1", port))
    stream.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    if not greeted:
        return stream
    expected = NodeIdentity(service=SERVICE)
    handshake = ClientHandshake(NodeIdentity(), expected, _PATIENT, secrets.token_bytes(NONCE_BYTES))
    parser = FrameParser()
    while handshake.peer is None:
        count = stream.recv_into(parser.get_buffer())
        if not count:
            raise ConnectionError("the bookie has closed a connection during its handshake")
        for _, body in parser.received(count):
            for reply in handshake.receive(bytes(body)):
                stream.sendall(encode(CONTROL_OFFSET, reply))
    return stream


def _at_once(calls: list[Callable[[], None]]) -> None:
    """Make calls in threads of their own, and raise the first error."""
    errors: list[BaseException] = []

    def run(call: Callable[[], None]) -> None:
        try:
            call()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(call,)) for call in calls]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]


# ---- rates and CPU -------------------------------------------------------------------------------------------------

_BESIDE = {
    "one GIL": ("two threads, one GIL", "one", "one thread"),
    "two processes": ("two processes", "one", "one thread"),
    "CRC": ("bare: CRC and copy under the lock", "bare, one", "bare: one thread"),
    "copy": ("bare: copy under the lock", "bare, one", "bare: one thread"),
    "place": ("bare: place under the lock", "bare, one", "bare: one thread"),
    "the GIL once": ("bare: the GIL once", "bare, one", "bare: one thread"),
}


class _Turns:
    """Turns of all sides with so many requests outstanding.

    rates: requests per second. cpu: seconds of CPU of the I/O threads for each request. held: seconds for which the
    lock of a side was held, for each request; switches: context switches of the I/O threads, for each request.
    """

    def __init__(self, plan: Plan, sides: dict[str, Side], window: int) -> None:
        requests = plan.scaled(_REQUESTS * min(window, 4), 64)
        for side in sides.values():
            side.cpu.clear()
            side.switches.clear()
        before = {name: _held_s(side) for name, side in sides.items()}
        self.sides = sides
        self.rates = interleave(plan, {name: partial(side.turn, requests, window) for name, side in sides.items()})
        self.cpu = {name: median(side.cpu[plan.uncounted :]) for name, side in sides.items()}
        self.switches = {name: median(side.switches[plan.uncounted :]) for name, side in sides.items()}
        self.held = {
            name: (_held_s(side) - before[name]) / (requests * _CLIENTS * len(side.cpu)) for name, side in sides.items()
        }


def _held_s(side: Side) -> float:
    return float(sum(told["held_ns"] for told in side.ask("held"))) / 1e9


def _compare(turns: _Turns, title: str) -> list[Comparison]:
    comparisons = []
    for name, (ours, other, theirs) in _BESIDE.items():
        switches = f"context switches of a request: {turns.switches[name]:.2f}, {turns.switches[other]:.2f}"
        read_back = f"{turns.sides[name].added:,} entries; {switches}"
        comparisons += [
            Comparison(
                f"{title}: CPU of a request",
                Figure(ours, turns.cpu[name], "s", "appended"),
                Figure(theirs, turns.cpu[other], "s", "appended"),
                None,
                read_back,
            ),
            Comparison(
                f"{title}: requests",
                Figure(ours, turns.rates[name], "/s", "appended"),
                Figure(theirs, turns.rates[other], "/s", "appended"),
                None,
                read_back,
            ),
        ]
    return comparisons


# ---- locks ---------------------------------------------------------------------------------------------------------

_LOCK_HEADERS = ["lock", "held for a request", "CPU of the request", "share, two busy threads", "two threads, at most"]


def _locks(turns: _Turns, alone: dict[str, float]) -> list[list[str]]:
    """How long each lock is held for a request."""
    cpu, held = turns.cpu, turns.held
    rows = [
        _lock_row("GIL, in callbacks of the reactor, one thread", held["timed, one"], cpu["timed, one"]),
        _lock_row("GIL, in callbacks of the reactor, two threads", held["timed, one GIL"], cpu["timed, one GIL"]),
    ]
    rows += [_lock_row(title, seconds, cpu["one"]) for title, seconds in alone.items()]
    return rows + [_lock_row(_BESIDE[name][0], held[name], cpu[name]) for name in ("CRC", "copy", "place")]


def _lock_row(title: str, held_s: float, cpu_s: float) -> list[str]:
    share = held_s / cpu_s
    return [
        title, f"{held_s * 1e9:,.0f} ns", f"{cpu_s * 1e9:,.0f} ns", f"{min(2 * share, 1.0):.1%}",
        f"{min(2.0, 1 / share):.2f} times",
    ]  # fmt: skip


def _alone(plan: Plan, folder: Path, stack: ExitStack) -> dict[str, float]:
    """Seconds of an ADD that lies in memory: in a bookie, under its lock, and in its log, inside the append path."""
    count = plan.scaled(_REQUESTS, 64)
    config = BookieConfig(
        durability="appended", segment_bytes=plan.segment_bytes, read_only_below_bytes=0, writable_from_bytes=0,
        reserve_bytes=0,
    )  # fmt: skip
    bookie = stack.enter_context(LocalBookie(folder / "alone", config))
    values, key = make_values(_SIZE), bytes(16)

    def encoded(entry: int) -> bytes:
        value = [values[entry % len(values)]]
        return bytes(encode_entries(value, ledger=1, first=entry, lac=entry - 1, time=1).view)

    records = [encoded(entry) for entry in range(count + 1)]
    replies: list[Any] = []
    bookie.request(Request(ADD, 1, 0, 0, key, UNSYNCED, records=records[0]), replies.append)
    requests = [Request(ADD, 1, entry, entry, key, UNSYNCED, records=records[entry]) for entry in range(1, count + 1)]
    made = [add for request in requests if isinstance(add := as_fast_add(request), FastAdd)]
    with collector_off():
        whole = _in_chunks(bookie.add_fast, made)
        if bookie.log.last_entry(1) != count:
            raise ValueError(f"{count} entries were added, the bookie has {bookie.log.last_entry(1)}")
        inner = _in_chunks(bookie.log.append, records[1:])
    return {"bookie's lock, an ADD in memory": whole, "the log's append path in it": inner}


def _in_chunks(call: Callable[[Any], object], arguments: list[Any]) -> float:
    """Seconds of a call, the median of those of each 32 calls: a roll, or another process, falls into few of them."""
    chunks = [arguments[at : at + 32] for at in range(0, len(arguments), 32)]
    return median(timed(partial(deque, map(call, chunk), maxlen=0), len(chunk)) for chunk in chunks)


# ---- in processes of their own --------------------------------------------------------------------------------------


class AnyKey:
    """Metadata in which every ledger exists, with any key."""

    def admits(self, ledger: int, key: bytes) -> bool:
        return True

    admits_copy = admits


class TimedReactor(Reactor):
    """Counts the nanoseconds of CPU that its callbacks take: they run under the GIL."""

    held_ns = 0

    def register(self, fd: int, callback: Callback, events: int) -> None:
        super().register(fd, self._timed(callback), events)

    def replace(self, fd: int, callback: Callback) -> None:
        super().replace(fd, self._timed(callback))

    def _timed(self, callback: Callback) -> Callback:
        clock = time.thread_time_ns

        def counted(events: int) -> None:
            begin = clock()
            callback(events)
            self.held_ns += clock() - begin

        return counted


class _Threads:
    """Calls in threads of their own, whose numbers are known."""

    def __init__(self, calls: list[Callable[[], object]]) -> None:
        self.numbers: list[int] = []
        self._errors: list[BaseException] = []
        self._threads = [threading.Thread(target=self._run, args=(call,), daemon=True) for call in calls]
        for thread in self._threads:
            thread.start()
        self.numbers += [thread.native_id for thread in self._threads if thread.native_id is not None]

    def _run(self, call: Callable[[], object]) -> None:
        try:
            call()
        except BaseException as error:
            self._errors.append(error)

    def join(self) -> None:
        """Wait for the ends of the calls, and raise the first error."""
        for thread in self._threads:
            thread.join()
        if self._errors:
            raise self._errors[0]


def serve_bookie(
    path: str, threads: int, settings: dict[str, Any], report: Callable[[Any], None], *, timed: bool
) -> None:
    """Serve one bookie with so many reactors, each with a port and a thread, until standard input ends."""
    with ExitStack() as stack:
        bookie = stack.enter_context(LocalBookie(path, BookieConfig.of(settings)))
        kinds = TimedReactor if timed else Reactor
        reactors = [kinds() for _ in range(threads)]
        servers = []
        for reactor in reactors:
            service = BookieService(reactor, bookie, AnyKey())
            servers.append(Server(reactor, service, identity=NodeIdentity(service=SERVICE), limits=_PATIENT))
            for close in (reactor.close, service.close, servers[-1].close):
                stack.callback(close)
        running = _Threads([reactor.run for reactor in reactors])
        report({"ports": [server.address[1] for server in servers], "threads": running.numbers})
        for word in sys.stdin:
            if word.strip() == "held":
                report({"held_ns": sum(getattr(reactor, "held_ns", 0) for reactor in reactors)})
            else:
                report({"records": _stored(bookie)})


def _stored(bookie: LocalBookie) -> int:
    """Read back every ledger, and return the number of entries. Raises ValueError if one is not what was written."""
    values, total = make_values(_SIZE), 0
    for ledger in bookie.log.log.ledgers():
        if ledger >= CONTROL:  # the records of a ledger's key
            continue
        last, entry = bookie.log.last_entry(ledger), 0
        while last is not None and entry <= last:
            records, after = bookie.log.read(ledger, entry, last + 1, 4 << 20)
            batch = parse_entries(records, ledger=ledger, first=entry, last=last)
            expected = [values[number % len(values)] for number in range(entry, after)]
            if after == entry or list(batch.values()) != expected:
                raise ValueError(f"ledger {ledger}: entries from {entry} on are not what was written")
            entry = after
        total += entry
    return total


def serve_bare(
    log_bytes: int, size: int, clients: int, threads: int, report: Callable[[Any], None], *, locked: str, gil: bool
) -> None:
    """Serve clients with the bare path of an ADD until they have gone, each thread as many as the others."""
    log = adds.Log(log_bytes, locked=locked)
    with ExitStack() as stack:
        servers = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(threads)]

        def serve(server: socket.socket) -> None:
            streams = [stack.enter_context(server.accept()[0]) for _ in range(clients // threads)]
            for stream in streams:
                stream.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            log.serve([stream.fileno() for stream in streams], _nothing if gil else None)

        running = _Threads([partial(serve, server) for server in servers])
        report({"ports": [server.getsockname()[1] for server in servers], "threads": running.numbers})
        for word in sys.stdin:
            if word.strip() == "held":
                report({"held_ns": log.held_ns, "takings": log.takings})
            else:
                running.join()
                log.check(adds.Values(make_values(size)))
                report({"records": log.records})


def _nothing() -> None:
    """Do nothing: the call stands for what needs the interpreter."""
