"""The stores at the same work, with the same durability, taken in turns in one process."""

from __future__ import annotations

import dataclasses
import os
import random
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import NamedTuple

from benchmarks.entries import BATCH, in_turn, make_values
from benchmarks.peers import PEERS, Peer, Pyreplog, Work, load
from benchmarks.peers.ours import RecycledPyreplog
from benchmarks.plan import Plan
from benchmarks.proc import job
from benchmarks.sampling import Run, interleave

_COUNTS = {100: 200_000, 1024: 100_000, 16384: 12_000}
_PICKS = 2048
_TURN_BYTES = 256 << 20
APPENDS = {Work.APPEND: 1, Work.BATCH: BATCH}
SYNCED = {Work.SYNCED_1: 1, Work.SYNCED_16: 16, Work.SYNCED_256: 256}

RECYCLED = "RecycledPyreplog"

Rates = dict[Work, dict[str, float]]
"""Entries per second by column and store."""


class Writer:
    """Appends to one store for a while, and can tell whether it is all there."""

    def __init__(self, peer: Peer, values: list[bytes], seconds: float) -> None:
        self._peer, self._values, self._seconds = peer, values, seconds
        self.written = peer.warm(values)

    def append(self, group: int) -> float:
        """Entries per second, in groups of so many; always whole turns of the values."""
        entries = in_turn(self._values, max(group, len(self._values)))
        groups = [entries[at : at + group] for at in range(0, len(entries), group)]
        most = _TURN_BYTES // len(entries[0])
        done, begin = 0, time.perf_counter()
        while True:
            if group == 1:
                append = self._peer.append
                for entry in entries:
                    append(entry)
            else:
                for batch in groups:
                    self._peer.append_batch(batch)
            done += len(entries)
            took = time.perf_counter() - begin
            if took > self._seconds or done >= most:
                self.written += done
                return done / took

    def verify(self) -> int:
        """Read back all that is left, in order; how many entries that is."""
        found = compare(self._peer, self._values)
        if self._peer.first() + found != self.written:
            raise ValueError(f"{self._peer.title}: {found} of {self.written} entries are left")
        return found


def compare(peer: Peer, values: list[bytes], last: bytes | None = None) -> int:
    """Compare a store's entries with what was written; how many there are. last: another one, behind all of these."""
    found = iter(peer.values())  # from now on none is removed
    number = first = peer.first()
    for value in found:
        if value != values[number % len(values)]:
            if value == last and next(found, None) is None:
                return number - first
            raise ValueError(f"{peer.title}: entry {number} is not what was written")
        number += 1
    if last is not None:
        raise ValueError(f"{peer.title}: the entry appended last is not there")
    return number - first


@contextmanager
def opened(plan: Plan, kinds: Mapping[str, type[Peer]], *, synced: bool) -> Iterator[tuple[Path, dict[str, Peer]]]:
    """A store of each kind, each in the folder of its name; and where these folders are."""
    with plan.folder() as folder:
        peers: dict[str, Peer] = {}
        try:
            for name, kind in kinds.items():
                (folder / name).mkdir()
                peers[name] = kind(folder / name, synced=synced)
            yield folder, peers
        finally:
            for peer in peers.values():
                peer.close()
    os.sync()  # what one group of columns leaves to be written must not slow the next one


def append_rates(plan: Plan, size: int, columns: Mapping[Work, int], *, synced: bool) -> tuple[Rates, int]:
    """Rates of appends in groups, and how many entries were read back."""
    kinds = PEERS if synced else {RECYCLED: RecycledPyreplog} | PEERS
    seconds = min(max(plan.budget / 200, 0.0005), 0.1)
    with opened(plan, kinds, synced=synced) as (_, peers):
        writers = {name: Writer(peer, make_values(size), seconds) for name, peer in peers.items()}
        rates: Rates = {}
        for work, group in columns.items():
            takes_part = {name: writers[name] for name, peer in peers.items() if work in peer.work}
            runs: dict[str, Run] = {name: partial(writer.append, group) for name, writer in takes_part.items()}
            rates[work] = interleave(dataclasses.replace(plan, budget=0.0), runs)
        return rates, sum(writer.verify() for writer in writers.values())


class Loaded:
    """A store filled once and read many times."""

    def __init__(self, peer: Peer, values: list[bytes], count: int, seconds: float) -> None:
        self.peer = peer
        keys = load(peer, values, count, seconds)
        self.count, self._bytes = len(keys), len(keys) * len(values[0])
        if compare(peer, values) != self.count:
            raise ValueError(f"{peer.title}: {self.count} entries were written")
        picks = random.Random(count).choices(range(self.count), k=min(_PICKS, self.count))
        self._picks = [keys[n] for n in picks]
        if Work.READ in peer.work:
            self._read = peer.reader()
            if any(self._read(keys[n]) != values[n % len(values)] for n in picks):
                raise ValueError(f"{peer.title}: a read gave another value than was written")

    def scan(self) -> float:
        begin = time.perf_counter()
        found = self.peer.scan()
        took = time.perf_counter() - begin
        if found != (self.count, self._bytes):
            raise ValueError(f"{self.peer.title}: scanned {found}, written {self.count} of {self._bytes} bytes")
        return self.count / took

    def read(self) -> float:
        read, begin = self._read, time.perf_counter()
        for key in self._picks:
            read(key)
        return len(self._picks) / (time.perf_counter() - begin)


def read_rates(plan: Plan, size: int) -> tuple[Rates, dict[str, tuple[float, int]], int]:
    """Rates of scans and random reads; bytes per entry and bytes allocated on disk; entries read back."""
    count = plan.scaled(_COUNTS[size])
    with opened(plan, PEERS, synced=False) as (folder, peers):
        stores = {name: Loaded(peer, make_values(size), count, plan.budget / 10) for name, peer in peers.items()}
        few = dataclasses.replace(plan, budget=0.0)
        rates = {
            Work.SCAN: interleave(few, {name: store.scan for name, store in stores.items()}),
            Work.READ: interleave(few, {n: s.read for n, s in stores.items() if Work.READ in s.peer.work}),
        }
        disk = {}
        for name, store in stores.items():
            used, allocated = store.peer.disk_bytes(folder / name)
            disk[name] = used / store.count, allocated
        return rates, disk, sum(store.count for store in stores.values())


class Crashed(NamedTuple):
    """What became of a store whose process was killed (-9) after it had filled it."""

    seconds: float
    """To reopen it and append once."""
    private: int
    """Bytes of memory that it grew by."""
    written: int
    """Entries."""
    lost: int


def crashes(plan: Plan, size: int) -> dict[str, Crashed]:
    """By store."""
    found = {}
    for name, kind in PEERS.items():
        with plan.folder() as folder:
            arguments = name, str(folder), size, plan.scaled(_COUNTS[size]), plan.budget / 10, Pyreplog.segment_bytes
            with job("load_peer", *arguments) as loader:
                told = loader.answer()
                loader.wait(killed=True)
            seconds, survived = reopen(kind, folder, size)
            if survived != told["count"] and kind.keeps_all:
                raise ValueError(f"{kind.title}: {survived} of {told['count']} entries survived kill -9")
            found[name] = Crashed(seconds, told["private"], told["count"], told["count"] - survived)
    return found


def reopen(kind: type[Peer], folder: Path, size: int) -> tuple[float, int]:
    """Seconds until a store that was killed takes an entry again; how many of those before it are there, in order."""
    last = bytes(size)
    begin = time.perf_counter()
    peer = kind(folder, synced=False)
    try:
        peer.append(last)
        took = time.perf_counter() - begin
        return took, compare(peer, make_values(size), last)
    finally:
        peer.close()
