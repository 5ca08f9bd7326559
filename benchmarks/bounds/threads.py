"""Threads that wait for one commit together, with the log taken out of it: they sleep, and are woken at once."""

from __future__ import annotations

import os
import threading
import time
from statistics import median

from benchmarks.entries import make_values
from benchmarks.limits.turnstile import Turnstile
from benchmarks.plan import Plan
from benchmarks.result import Comparison, Figure, Section
from benchmarks.rows.synced import ZeroedFile, zeroed_file
from benchmarks.sampling import interleave

_SMALL, _LARGE = 100, 65536
_MANY = 64


def threads(plan: Plan) -> Section:
    """Groups of 16 and 64 threads, with a disk and without, beside one caller of that disk."""
    section = Section("bound-threads", "What bounds many threads of synced appends: waking them, one GIL, two cores")
    small, large = make_values(_SMALL)[0], make_values(_LARGE)[0]
    with zeroed_file(plan) as zeroed:
        turns = plan.scaled(512, 8)
        ways = {
            "one": lambda: 1 / _seconds(zeroed, small, 64),
            "16": lambda: _passes(Turnstile(zeroed.fd, _SMALL, 16), small, 16, turns),
            "64": lambda: _passes(Turnstile(zeroed.fd, _SMALL, _MANY), small, _MANY, turns // 4),
            "bare": lambda: _passes(Turnstile(-1, _SMALL, _MANY), small, _MANY, turns // 4),
            "large, one": lambda: _MANY * _LARGE / _seconds(zeroed, large * _MANY, 4),
            "large": lambda: _LARGE * _passes(Turnstile(zeroed.fd, _LARGE, _MANY), large, _MANY, turns // 16),
        }
        found = interleave(plan, ways)
        checked = _read_back(zeroed, small)
    one = Figure("one caller: pwrite + fdatasync", found["one"], "/s", "synced")
    section.comparisons += [
        Comparison(f"{work} of 100 B", Figure("all woken at once", found[way], "/s", "synced"), one, None, checked)
        for way, work in (("16", "16 threads"), ("64", "64 threads"), ("bare", "64 threads, no disk"))
    ]
    section.comparisons.append(
        Comparison(
            "64 threads of 64 KiB",
            Figure("all woken at once", found["large"], "B/s", "synced"),
            Figure("one caller: 4 MiB", found["large, one"], "B/s", "synced"),
            None,
            checked,
        )
    )
    section.notes.append(
        "The last thread to come writes what all have brought, syncs it, and wakes the others with one system call: a "
        "group commit without a log. Without a disk they only sleep and wake: each passes the GIL to the next, and "
        "where that one sleeps on the other core, it has to be woken first."
    )
    return section


def _read_back(zeroed: ZeroedFile, value: bytes) -> str:
    turnstile = Turnstile(zeroed.fd, len(value), 1)
    turnstile.append(value)
    if not os.pread(zeroed.fd, len(value), 0) == turnstile.staged == value:
        raise ValueError("a bare write is not what was written")
    return f"{len(value)} bytes"


def _seconds(zeroed: ZeroedFile, data: bytes, count: int) -> float:
    return median(zeroed.write(data, count)) * 1e-9


def _passes(turnstile: Turnstile, value: bytes, count: int, turns: int) -> float:
    """Calls per second of `count` threads, `turns` each."""
    barrier = threading.Barrier(count + 1)

    def caller() -> None:
        append = turnstile.append
        barrier.wait()
        for _ in range(turns):
            append(value)

    callers = [threading.Thread(target=caller) for _ in range(count)]
    for thread in callers:
        thread.start()
    barrier.wait()
    begin = time.monotonic()
    for thread in callers:
        thread.join()
    return count * turns / (time.monotonic() - begin)
