"""Our side of the ledgers' rows: bookies, a cluster connected to them, a ledger per turn into recycled segments."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, Protocol

from benchmarks.entries import make_values
from benchmarks.plan import Plan
from benchmarks.proc import Job, job
from benchmarks.result import Durability
from pyreplog.bookie.config import BookieConfig
from pyreplog.ledger.cluster import LedgerCluster
from pyreplog.ledger.ledger_handle import Ledger

WINDOW_BYTES = 4 << 20
"""Of entries, as encoded, that lack copies; of the bare limit, too."""

SPARES = 4
_LONG_HEADER = 64
_TURN_SEGMENTS = SPARES - 1
_WARM_UPS_MAX = 12


def long_stride(size: int) -> int:
    """Bytes that a ledger's entry with a value of `size` bytes takes in a log."""
    return (_LONG_HEADER + size + 7) & ~7


def turn_entries(plan: Plan, size: int, batch: int) -> int:
    """Entries of one turn, in whole batches: what the segments kept ready can take."""
    return max(_TURN_SEGMENTS * plan.segment_bytes // long_stride(size) // batch, 1) * batch


def settings(plan: Plan, durability: Durability) -> dict[str, Any]:
    """Of a bookie that collects garbage whenever it is asked to, or once a second."""
    small = plan.segment_bytes < BookieConfig().segment_bytes
    floors = {"read_only_below_bytes": 0, "writable_from_bytes": 0, "reserve_bytes": 0} if small else {}
    return {
        "durability": durability, "segment_bytes": plan.segment_bytes, "spare_segments": SPARES,
        "collect_interval_ms": 1,
    } | floors  # fmt: skip


class Bookies:
    """Bookies in processes of their own, and a cluster connected to them."""

    def __init__(
        self, folder: Path, stack: ExitStack, count: int, of_each: dict[str, Any], *, busy_poll_us: int = 0
    ) -> None:
        self.count = count
        self.folders = [folder / f"bookie-{number}" for number in range(count)]
        self.url = f"sqlite:{folder / 'metadata'}"
        self.jobs: list[Job] = [
            stack.enter_context(job("bookie", str(path), self.url, path.name, of_each, busy_poll_us))
            for path in self.folders
        ]
        for started in self.jobs:
            started.answer()
        self.cluster = stack.enter_context(LedgerCluster.connect(self.url, busy_poll_us=busy_poll_us))

    def collect(self) -> None:
        """Wait until every bookie has given up what no ledger needs, and has its next segments ready."""
        self._have("collect")

    def sync(self) -> None:
        """Wait until every bookie has all on its disk."""
        self._have("sync")

    def _have(self, done: str) -> None:
        for bookie in self.jobs:
            bookie.ask(done)
        for bookie in self.jobs:
            bookie.answer()

    def files(self) -> set[tuple[str, int]]:
        return segment_files(self.folders)


def segment_files(folders: Iterable[Path]) -> set[tuple[str, int]]:
    """Files of the logs of bookies: one that is made anew has an inode that was not there before."""
    found = set()
    for log in (folder / "log" for folder in folders):
        for file in (*log.glob("*.log"), *log.glob("spare-*")):
            with suppress(FileNotFoundError):  # it gets another name this moment
                found.add((str(log), file.stat().st_ino))
    return found


class Side(Protocol):
    """What turns are taken with: a cluster whose garbage is collected when it is asked for."""

    @property
    def cluster(self) -> LedgerCluster: ...
    def collect(self) -> None: ...
    def files(self) -> set[tuple[str, int]]: ...


@contextmanager
def bookies(
    plan: Plan, durability: Durability, *, count: int = 3, busy_poll_us: int = 0, **more: Any
) -> Iterator[Bookies]:
    """So many, in a folder that goes with them. more: fields of BookieConfig."""
    with plan.folder() as folder, ExitStack() as stack:
        yield Bookies(folder, stack, count, settings(plan, durability) | more, busy_poll_us=busy_poll_us)


class Turns:
    """Values of one size, a ledger per turn; the one before is deleted, so that its segments are written over.

    quorums: ensemble, write quorum, ack quorum.
    """

    def __init__(self, side: Side, size: int, quorums: tuple[int, int, int], durability: Durability) -> None:
        self._side, self._quorums, self._durability = side, quorums, durability
        self.values = make_values(size)
        self._last: int | None = None
        self._entries = self._fresh = 0
        self._known = side.files()

    def warm_up(self, entries: int, batch: int) -> None:
        """Write and delete until no bookie makes a new segment file."""
        for _ in range(_WARM_UPS_MAX):
            self.pipelined(entries, batch)
            if not self._fresh:
                return

    def _begin(self) -> Ledger:
        """A new ledger, once the space of the last one has come back."""
        self._forget()
        now = self._side.files()
        self._fresh, self._known = len(now - self._known), self._known | now
        ensemble, copies, acks = self._quorums
        return self._side.cluster.create_ledger(
            ensemble, copies, acks, durability=self._durability, window_bytes=WINDOW_BYTES
        )

    def _forget(self) -> None:
        if self._last is not None:
            self._side.cluster.delete_ledger(self._last)
            self._last = None
            self._side.collect()

    def _end(self, ledger: Ledger, entries: int) -> None:
        ledger.close()
        self._last, self._entries = ledger.id, entries
        if ledger.metadata.last_entry != entries - 1:
            raise ValueError(f"{entries} entries were appended, the ledger ends at {ledger.metadata.last_entry}")

    def pipelined(self, entries: int, batch: int) -> float:
        """Entries per second of batches, as many on their way as the window takes, until the last one is confirmed."""
        ledger = self._begin()
        groups = self._groups(batch)
        begin = time.perf_counter()
        for number in range(entries // batch - 1):
            ledger.submit_batch(groups[number % len(groups)])
        ledger.append_batch(groups[(entries // batch - 1) % len(groups)])
        took = time.perf_counter() - begin
        self._end(ledger, entries)
        return entries / took

    def in_turn(self, count: int, batch: int = 1) -> list[float]:
        """Seconds of each of `count` appends, one behind the other, of so many entries."""
        ledger = self._begin()
        groups, taken, clock = self._groups(batch), [], time.perf_counter
        append = ledger.append_batch
        for number in range(count):
            group, begin = groups[number % len(groups)], clock()
            if batch == 1:
                ledger.append(group[0])
            else:
                append(group)
            taken.append(clock() - begin)
        self._end(ledger, count * batch)
        return taken

    def _groups(self, batch: int) -> list[list[bytes]]:
        """Batches whose values, one batch behind the other, are in turn."""
        if batch % len(self.values) == 0:
            return [self.values * (batch // len(self.values))]
        return [self.values[at : at + batch] for at in range(0, len(self.values), batch)]

    def verified(self) -> str:
        """Read the last ledger back, compare it with what was written, and delete it; says how much that was."""
        assert self._last is not None
        count = verify_ledger(self._side.cluster, self._last, self.values, self._entries)
        self._forget()
        return f"{count:,} entries" + (f"; {self._fresh} segments were made anew" if self._fresh else "")


def verify_ledger(cluster: LedgerCluster, ledger: int, values: list[bytes], entries: int) -> int:
    """Read a ledger back through the cluster, and compare; how many entries it has."""
    with cluster.open_ledger(ledger) as reader:
        found = 0
        for batch in reader.read():
            for value in batch.values():
                if value != values[found % len(values)]:
                    raise ValueError(f"ledger {ledger}: entry {found} is not what was written")
                found += 1
    if found != entries:
        raise ValueError(f"ledger {ledger}: {found} of {entries} entries were read back")
    return found
