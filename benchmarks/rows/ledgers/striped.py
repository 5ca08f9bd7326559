"""Reading a striped ledger beside bare loopback TCP."""

from __future__ import annotations

import socket
import time
from functools import partial

from benchmarks.entries import BATCH, SIZES, make_values
from benchmarks.ledgers import WINDOW_BYTES, Bookies, bookies, verify_ledger
from benchmarks.plan import Plan
from benchmarks.proc import job
from benchmarks.result import Comparison, Figure, Goal, Section
from benchmarks.sampling import interleave

_SIZE = 1024
_ENTRIES = 256 << 10
_CHUNK_BYTES = 1 << 20
_STRIPES = {"E=5 Qw=3": (5, 3, 2), "E=3 Qw=3": (3, 3, 2)}


def striped(plan: Plan) -> Section:
    """`LedgerReader.read()` from the first entry to the last."""
    section = Section("ledgers-read", "Sequential read of a striped ledger over TCP, CRC checked, warm")
    entries = plan.scaled(_ENTRIES)
    for title, quorums in _STRIPES.items():
        part = plan.shared(len(_STRIPES))
        with bookies(part, "appended", count=quorums[0]) as side, job("pour", entries * _SIZE) as poured:
            values = make_values(_SIZE)
            ledger = _fill(side, quorums, values * (BATCH // len(values)), entries)
            port = poured.answer()
            found = interleave(
                part,
                {"ours": partial(_read, side, ledger, entries), "bare": partial(_drink, port, entries * _SIZE)},
            )
            checked = verify_ledger(side.cluster, ledger, values, entries)
        section.comparisons.append(
            Comparison(
                f"read {SIZES[_SIZE]}, {title}",
                Figure("read()", found["ours"], "B/s", "reading"),
                Figure("bare TCP", found["bare"], "B/s", "reading"),
                Goal("at least", 0.5),
                f"{checked:,} entries",
            )
        )
    section.notes.append(
        "Ours: bytes of values, as verified batches. Bare TCP: one process sends from memory, this one receives into 1 "
        "MiB that it uses again; nothing is checked."
    )
    return section


def _fill(side: Bookies, quorums: tuple[int, int, int], batch: list[bytes], entries: int) -> int:
    ensemble, copies, acks = quorums
    with side.cluster.create_ledger(ensemble, copies, acks, durability="appended", window_bytes=WINDOW_BYTES) as ledger:
        for _ in range(entries // BATCH):
            ledger.submit_batch(batch)
    return ledger.id


def _read(side: Bookies, ledger: int, entries: int) -> float:
    """Bytes of values per second."""
    with side.cluster.open_ledger(ledger) as reader:
        begin = time.perf_counter()
        count = sum(len(batch) for batch in reader.read())
        took = time.perf_counter() - begin
    if count != entries:
        raise ValueError(f"ledger {ledger}: {count} of {entries} entries were read")
    return count * _SIZE / took


def _drink(port: int, size: int) -> float:
    """Bytes per second of one stream."""
    buffer = bytearray(_CHUNK_BYTES)
    with socket.create_connection(("127.0.0.1", port)) as stream:
        begin, left = time.perf_counter(), size
        while left:
            got = stream.recv_into(buffer)
            if not got:
                raise ValueError(f"the stream ended {left} bytes early")
            left -= got
        return size / (time.perf_counter() - begin)
