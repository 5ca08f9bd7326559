"""One synced append beside a bare write and sync; and callers that wait together."""

from __future__ import annotations

import asyncio
import os
import random
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from statistics import median

import pyreplog
from benchmarks.entries import SIZES, in_turn, make_values, stride, verify
from benchmarks.limits import bare
from benchmarks.logs import recycled, settle
from benchmarks.plan import Plan
from benchmarks.result import Comparison, Figure, Goal, Section
from benchmarks.sampling import collector_off, interleave
from pyreplog import CommitLog

_SIZE = 100
_TURN = 64
_ZERO_BYTES = 1 << 20
_WRITER_SIZE, _WRITERS = 65536, 64


class ZeroedFile:
    """A file whose blocks were written and synced before: a sync of new content then needs no journal."""

    def __init__(self, fd: int, size: int) -> None:
        self.fd, self.size, self.at = fd, size, 0
        for offset in range(0, size, _ZERO_BYTES):
            os.pwrite(fd, bytes(min(_ZERO_BYTES, size - offset)), offset)
        os.fsync(fd)

    def write(self, data: bytes, count: int) -> list[int]:
        """Write and sync `data` so many times, one behind the other; nanoseconds of each."""
        if self.at + count * len(data) > self.size:
            self.at = 0
        start = self.at
        taken = bare.synced_writes(self.fd, data, start, count)
        self.at += count * len(data)
        if os.pread(self.fd, len(data), self.at - len(data)) != data:
            raise ValueError("a bare write is not what was written")
        return taken


@contextmanager
def zeroed_file(plan: Plan) -> Iterator[ZeroedFile]:
    """A pre-zeroed file of a segment's size."""
    with plan.folder() as folder, (folder / "zeroed").open("w+b", buffering=0) as file:
        yield ZeroedFile(file.fileno(), max(plan.segment_bytes, 8 << 20))


def one(plan: Plan) -> Section:
    """`append` of a synced log, one caller."""
    section = Section("synced", "One synced append, 100 B")
    values = make_values(_SIZE)
    record = random.Random(0).randbytes(stride(_SIZE))
    with (
        plan.folder() as folder,
        zeroed_file(plan) as zeroed,
        pyreplog.open(folder / "log", durability="synced", segment_bytes=plan.segment_bytes) as log,
    ):
        settle(log)
        written = 0

        def ours() -> float:
            nonlocal written
            written += _TURN
            return median(_each_ns(log.append, in_turn(values, _TURN))) * 1e-9

        found = interleave(plan, {"ours": ours, "bare": lambda: median(zeroed.write(record, _TURN)) * 1e-9})
        checked = verify(log, values, written)
    section.comparisons.append(
        Comparison(
            "synced append 100 B, one caller",
            Figure("append(value)", found["ours"], "s", "synced"),
            Figure("pwrite + fdatasync, pre-zeroed", found["bare"], "s", "synced"),
            Goal("at most", 1.2),
            f"{checked}; bare: the last write of each turn",
        )
    )
    return section


def _each_ns(call: Callable[[bytes], object], entries: list[bytes]) -> list[int]:
    taken, clock = [], time.perf_counter_ns
    for entry in entries:
        begin = clock()
        call(entry)
        taken.append(clock() - begin)
    return taken


class Callers:
    """Callers of one synced log, all appending the same value; each way returns entries per second."""

    def __init__(self, log: CommitLog, value: bytes, seconds: float) -> None:
        self._log, self._value, self._seconds = log, value, seconds
        self.written = 0

    def threads(self, count: int) -> float:
        """Threads that call `append`."""
        done: list[int] = []
        barrier = threading.Barrier(count + 1)

        def caller() -> None:
            append, value, calls = self._log.append, self._value, 0
            barrier.wait()
            deadline = time.monotonic() + self._seconds
            while time.monotonic() < deadline:
                append(value)
                calls += 1
            done.append(calls)

        callers = [threading.Thread(target=caller) for _ in range(count)]
        for thread in callers:
            thread.start()
        barrier.wait()
        begin = time.monotonic()
        for thread in callers:
            thread.join()
        return self._rate(sum(done), begin)

    def tasks(self, count: int) -> float:
        """Tasks of one event loop that await what `submit` returns."""

        async def caller(deadline: float) -> int:
            submit, value, calls = self._log.submit, self._value, 0
            while time.monotonic() < deadline:
                await submit(value)
                calls += 1
            return calls

        async def all_of_them() -> int:
            deadline = time.monotonic() + self._seconds
            return sum(await asyncio.gather(*(caller(deadline) for _ in range(count))))

        begin = time.monotonic()
        return self._rate(asyncio.run(all_of_them()), begin)

    def _rate(self, calls: int, begin: float) -> float:
        self.written += calls
        return calls / (time.monotonic() - begin)


def callers(plan: Plan) -> Section:
    """Many callers of single appends; one caller is the other side."""
    section = Section("callers", "Synced, many callers of single appends")
    turn = max(min(plan.budget / 40, 0.25), 0.002)
    value = make_values(_SIZE)[0]
    with (
        plan.folder() as folder,
        pyreplog.open(folder / "log", durability="synced", segment_bytes=plan.segment_bytes) as log,
        collector_off(),
    ):
        settle(log)
        group = Callers(log, value, turn)
        cases: dict[str, tuple[Callable[[], float], float]] = {
            "16 threads": (lambda: group.threads(16), 5),
            "64 threads": (lambda: group.threads(64), 8),
            "256 asyncio tasks": (lambda: group.tasks(256), 20),
        }
        runs = {"one": lambda: group.threads(1)} | {name: run for name, (run, _) in cases.items()}
        found = interleave(plan.shared(2), runs)
        checked = verify(log, [value], group.written)
    for name, (_, limit) in cases.items():
        section.comparisons.append(
            Comparison(
                f"synced append 100 B, {name}",
                Figure(name, found[name], "/s", "synced"),
                Figure("one caller", found["one"], "/s", "synced"),
                Goal("at least", limit),
                checked,
            )
        )
    section.comparisons.append(_writers(plan.shared(2), turn))
    return section


def _writers(plan: Plan, turn: float) -> Comparison:
    """64 writers of 64 KiB beside the disk's bandwidth."""
    blocks = {"1 MiB": random.Random(1).randbytes(1 << 20), "4 MiB": random.Random(4).randbytes(4 << 20)}
    with recycled(plan, _WRITER_SIZE, "synced", distinct=1) as ours, zeroed_file(plan) as zeroed:
        group = Callers(ours.log, ours.values[0], turn)

        def write() -> float:
            rate = group.threads(_WRITERS) * _WRITER_SIZE
            settle(ours.log)
            return rate

        runs = {"ours": write} | {name: lambda b=block: _bandwidth(zeroed, b) for name, block in blocks.items()}
        found = interleave(plan, runs)
        ours.written += group.written
        checked = ours.verified()
    best = max(blocks, key=lambda name: found[name])
    return Comparison(
        f"{_WRITERS} writers of {SIZES[_WRITER_SIZE]}",
        Figure(f"{_WRITERS} threads", found["ours"], "B/s", "synced"),
        Figure(f"bare pwrite + fdatasync of {best}", found[best], "B/s", "synced"),
        Goal("at least", 0.6),
        checked,
    )


def _bandwidth(zeroed: ZeroedFile, block: bytes) -> float:
    count = max((32 << 20) // len(block), 1) if zeroed.size > 32 << 20 else 1
    return count * len(block) / (sum(zeroed.write(block, count)) * 1e-9)
