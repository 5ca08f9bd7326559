"""One entry outstanding with the ledger taken out of it: bare sockets of Python on both sides, nothing else."""

from __future__ import annotations

import select
import socket
import time
from contextlib import ExitStack
from statistics import median

from benchmarks.bare_ledger import bare_ledger
from benchmarks.entries import SIZES
from benchmarks.ledgers import long_stride
from benchmarks.plan import Plan
from benchmarks.proc import Job, job
from benchmarks.result import Comparison, Figure, Section
from benchmarks.sampling import interleave

_SIZE = 1024
_APPENDS = 1024
_HEAD_BYTES, _REPLY_BYTES = 60, 52
_BUSY_POLL_S = 0.01
_BUFFER_BYTES = 256 << 10


def roundtrip(plan: Plan) -> Section:
    """Requests and replies of the sizes that appends have, to three processes and, busy-polled, to one."""
    section = Section("bound-roundtrip", f"What bounds one outstanding entry of {SIZES[_SIZE]}: sockets in Python")
    half = plan.shared(2)
    section.comparisons += [_compare(half, 3, 2, spin=False), _compare(half, 1, 1, spin=True)]
    section.notes.append(
        "No ledger and no bookie take part: loops of sendmsg, epoll and recv_into in Python on both sides, which look "
        "at no byte. A ledger driven from Python cannot be quicker; what it takes beyond that is its protocol."
    )
    return section


def _compare(plan: Plan, count: int, acks: int, *, spin: bool) -> Comparison:
    calls = plan.scaled(_APPENDS, 32)
    with (
        bare_ledger(plan, "appended", _SIZE, batch=1, count=count, acks=acks, in_turn=True, spin=spin) as bare,
        ExitStack() as stack,
    ):
        echoes = Echoes(stack, count, acks, spin=spin)
        found = interleave(
            plan, {"python": lambda: median(echoes.in_turn(calls)), "bare": lambda: bare.latency(calls)}
        )  # fmt: skip
        return Comparison(
            f"one round trip, E={count} Qa={acks}{', busy-polled' if spin else ''}",
            Figure("Python sockets", found["python"], "s", "appended"),
            Figure("C client and bookies", found["bare"], "s", "appended"),
            None,
            f"{echoes.verified()}; {bare.verified()}",
        )


class Echoes:
    """Processes that answer, and connections to them. acks: a request is over with so many replies."""

    def __init__(self, stack: ExitStack, count: int, acks: int, *, spin: bool) -> None:
        self._count, self._acks = count, acks
        self._wait_s = 0.0 if spin else -1.0
        self._jobs: list[Job] = [stack.enter_context(job("echo", spin)) for _ in range(count)]
        self._streams = [stack.enter_context(_connect(started.answer())) for started in self._jobs]
        self._epoll = stack.enter_context(select.epoll())
        for stream in self._streams:
            self._epoll.register(stream.fileno(), select.EPOLLIN)
        self._by_fd = {stream.fileno(): stream for stream in self._streams}
        self._request = [bytes(_HEAD_BYTES), bytes(long_stride(_SIZE))]
        self._replies = bytearray(_BUFFER_BYTES)
        self._sent = self._received = 0  # bytes of replies that are owed, and those that came

    def in_turn(self, count: int) -> list[float]:
        """Seconds of each of so many requests, one behind the other; late replies are taken on the way."""
        clock, taken = time.perf_counter, []
        for _ in range(count):
            begin = clock()
            for stream in self._streams:
                stream.sendmsg(self._request)
            self._sent += self._count * _REPLY_BYTES
            self._receive((self._count - self._acks) * _REPLY_BYTES)
            taken.append(clock() - begin)
        return taken

    def _receive(self, late: int) -> None:
        """Until no more than `late` bytes are outstanding."""
        while self._sent - self._received > late:
            for fd, _ in self._epoll.poll(self._wait_s):
                self._received += self._by_fd[fd].recv_into(self._replies)

    def verified(self) -> str:
        """Every byte that was sent has arrived."""
        self._receive(0)
        for stream in self._streams:
            stream.shutdown(socket.SHUT_WR)
        arrived = sum(started.answer() for started in self._jobs)
        requests = self._sent // _REPLY_BYTES
        if arrived != requests * sum(map(len, self._request)):
            raise ValueError(f"{arrived} bytes of {requests} requests arrived")
        return f"{requests:,} requests"


def serve(*, spin: bool) -> int:
    """Answer each request of one client, whose port is said first; how many bytes they were."""
    size = _HEAD_BYTES + long_stride(_SIZE)
    requests, reply, received = bytearray(_BUFFER_BYTES), bytes(_REPLY_BYTES), 0
    with socket.create_server(("127.0.0.1", 0)) as server, select.epoll() as epoll:
        print(server.getsockname()[1], flush=True)
        stream = _prepared(server.accept()[0])
        with stream:
            epoll.register(stream.fileno(), select.EPOLLIN)
            while True:
                spun = time.monotonic() + _BUSY_POLL_S if spin else 0.0
                while not epoll.poll(0.0 if time.monotonic() < spun else None):
                    continue
                before, received = received, received + (count := stream.recv_into(requests))
                if not count:
                    return received
                for _ in range(received // size - before // size):
                    stream.sendmsg((reply,))


def _connect(port: int) -> socket.socket:
    return _prepared(socket.create_connection(("127.0.0.1", port)))


def _prepared(stream: socket.socket) -> socket.socket:
    stream.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    stream.setblocking(False)
    return stream
