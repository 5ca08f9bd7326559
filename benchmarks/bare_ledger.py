"""The bare limit's side of the ledgers' rows: C bookies in processes of their own, and a C client in this one."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from statistics import median

from benchmarks.entries import make_values
from benchmarks.ledgers import WINDOW_BYTES
from benchmarks.limits import quorum
from benchmarks.plan import Plan
from benchmarks.proc import Job, job
from benchmarks.result import Durability

_LOG_SEGMENTS = 4


class BareLedger:
    """So many bare bookies, and a client that appends batches to them. acks: as many commit a batch."""

    def __init__(
        self, folder: Path, stack: ExitStack, log_bytes: int, durability: Durability, size: int,
        *, count: int, acks: int, batch: int, in_turn: bool, spin: bool, window: int,
    ) -> None:  # fmt: skip
        self.batch, self._written = batch, 0
        self._jobs: list[Job] = [
            stack.enter_context(
                job("bare_bookie", str(folder / f"bare-{n}"), size, log_bytes, durability == "synced", spin)
            )
            for n in range(count)
        ]
        self._sockets = [stack.enter_context(_connected(started.answer())) for started in self._jobs]
        descriptors = [one.fileno() for one in self._sockets]
        self._client = quorum.Client(
            descriptors, quorum.Values(make_values(size)), quorum=acks, batch=batch, window=window,
            in_turn=in_turn, spin=spin,
        )  # fmt: skip

    def append(self, entries: int) -> tuple[float, float]:
        """(entries per second, median seconds from encoding to commit) of so many entries, in batches."""
        batches = max(entries // self.batch, 1)
        took, ns = self._client.append(batches)
        self._written += batches * self.batch
        return batches * self.batch / took, median(ns) * 1e-9

    def rate(self, entries: int) -> float:
        """Entries per second."""
        return self.append(entries)[0]

    def latency(self, entries: int) -> float:
        """Median seconds of a batch."""
        return self.append(entries)[1]

    def verified(self) -> str:
        """Every bookie has all, and the last lap of its log is what was written; says how much that is."""
        for one in self._sockets:
            one.shutdown(socket.SHUT_WR)
        checked = 0
        for bookie in self._jobs:
            found = bookie.answer()
            if found["records"] != self._written:
                raise ValueError(f"a bare bookie has {found['records']} of {self._written} entries")
            checked += found["checked"]
        return f"bare: {checked:,} copies"


def _connected(port: int) -> socket.socket:
    made = socket.create_connection(("127.0.0.1", port))
    made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return made


@contextmanager
def bare_ledger(
    plan: Plan, durability: Durability, size: int, *, batch: int, count: int = 3, acks: int = 2,
    in_turn: bool = False, spin: bool = False, window: int = WINDOW_BYTES,
) -> Iterator[BareLedger]:  # fmt: skip
    """Bookies and a client, gone behind the block. The client's log is as large as the window."""
    with plan.folder() as folder, ExitStack() as stack:
        yield BareLedger(
            folder, stack, _LOG_SEGMENTS * plan.segment_bytes, durability, size,
            count=count, acks=acks, batch=batch, in_turn=in_turn, spin=spin, window=window,
        )  # fmt: skip
