"""Pipelined quorum appends with the ledger and its bookies taken out of them: sockets and logs, driven from Python."""

from __future__ import annotations

import socket
import sys
import time
from contextlib import ExitStack
from pathlib import Path

from benchmarks.bare_ledger import bare_ledger
from benchmarks.entries import BATCH, SIZES, make_values
from benchmarks.ledgers import SPARES, WINDOW_BYTES, long_stride, turn_entries
from benchmarks.logs import settle
from benchmarks.plan import Plan
from benchmarks.proc import job
from benchmarks.result import Comparison, Figure, Section
from benchmarks.sampling import interleave
from pyreplog._native.ledger_log.entries import encode_entries
from pyreplog.bookie.ledger_log import LedgerLog
from pyreplog.config import LogConfig

_SIZE = 1024
_COPIES, _ACKS = 3, 2
_REQUEST_BYTES = BATCH * long_stride(_SIZE)
_REPLY = bytes(52)


def pipeline(plan: Plan) -> Section:
    """Batches to three processes that stage them in a log and answer."""
    section = Section("bound-pipeline", f"What bounds pipelined appends of {SIZES[_SIZE]}: sockets and logs in Python")
    entries = turn_entries(plan, _SIZE, BATCH)
    with plan.folder() as folder, ExitStack() as stack:
        keepers = Keepers(plan, folder, stack)
        bare = stack.enter_context(bare_ledger(plan, "appended", _SIZE, batch=BATCH, acks=_ACKS))
        found = interleave(plan, {"python": lambda: keepers.turn(entries), "bare": lambda: bare.rate(entries)})
        section.comparisons.append(
            Comparison(
                f"batches of {BATCH} x {SIZES[_SIZE]}, {_COPIES} copies",
                Figure("Python sockets, LedgerLog.stage", found["python"], "/s", "appended", _SIZE),
                Figure("C client and bookies", found["bare"], "/s", "appended", _SIZE),
                None,
                f"{keepers.checked:,} entries; {bare.verified()}",
            )
        )
    section.notes.append(
        "No ledger and no bookie take part: a loop of encode_entries, sendall and recv here, one of recv_into, stage "
        "and send in each of the other processes; nothing is decided, tracked, or told to anybody."
    )
    return section


class Keepers:
    """Processes that keep what they are sent until the end of a turn, and connections to them."""

    def __init__(self, plan: Plan, folder: Path, stack: ExitStack) -> None:
        self.checked, self._ledger = 0, 0
        values = make_values(_SIZE)
        self._values = values * (BATCH // len(values))
        self._jobs = [
            stack.enter_context(job("keep", str(folder / f"log-{n}"), plan.segment_bytes)) for n in range(_COPIES)
        ]
        self._streams = [stack.enter_context(_connected(started.answer())) for started in self._jobs]

    def turn(self, entries: int) -> float:
        """Entries per second, until the last one has its copies."""
        for keeper in self._jobs:
            keeper.ask(str(entries // BATCH))
        window, begin = WINDOW_BYTES // _REQUEST_BYTES, time.perf_counter()
        for number in range(entries // BATCH):
            first = number * BATCH
            made = encode_entries(self._values, ledger=self._ledger, first=first, lac=first - 1, time=1)
            for stream in self._streams:
                stream.sendall(made.view)
            if number >= window:
                self._receive(1)
        self._receive(min(window, entries // BATCH))
        took = time.perf_counter() - begin
        for keeper in self._jobs:
            if keeper.answer() != entries - 1:
                raise ValueError(f"not all of {entries} entries were kept")
            self.checked += entries
        self._ledger += 1
        return entries / took

    def _receive(self, replies: int) -> None:
        for stream in self._streams:
            stream.recv(replies * len(_REPLY), socket.MSG_WAITALL)


def keep(path: str, segment_bytes: int) -> None:
    """Take as many requests as each line of standard input says, tell the last entry, and forget all."""
    config = LogConfig(durability="appended", segment_bytes=segment_bytes, spare_segments=SPARES)
    request, ledger = bytearray(_REQUEST_BYTES), 0
    with LedgerLog(path, config) as log, socket.create_server(("127.0.0.1", 0)) as server:
        print(server.getsockname()[1], flush=True)
        stream = server.accept()[0]
        stream.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        with stream:
            for line in sys.stdin:
                for _ in range(int(line)):
                    stream.recv_into(request, _REQUEST_BYTES, socket.MSG_WAITALL)
                    log.stage(request)
                    stream.sendall(_REPLY)
                last = log.last_entry(ledger)
                log.trim(log.end_position)
                settle(log._log)
                ledger += 1
                print(last, flush=True)


def _connected(port: int) -> socket.socket:
    stream = socket.create_connection(("127.0.0.1", port))
    stream.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return stream
