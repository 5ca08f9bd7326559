"""What a log must hold after a crash: the oracle, fed by the process that was cut and kept by the one that looks after it.

Events are written to a file as they happen (a plain write survives the end of a process): an intention before the call,
its outcome after it.
"""

from __future__ import annotations

import marshal
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, BinaryIO

from pyreplog._native.log.batch import RecordBatch
from pyreplog.log.commit_log import CommitLog
from pyreplog.log.reader import LogReader

BATCH, CONTROL = 2, 3

Item = tuple[int, bytes | None, bytes]
"""(kind, key, value). The value of a record batch begins with its count, as `count_of` reads it."""


def count_of(item: Item) -> int:
    """How many entry numbers a record takes."""
    if item[0] == BATCH:
        return int(item[2].partition(b"#")[0])
    return int(item[0] != CONTROL)


@dataclass
class History:
    """items: all that was ever put into the log, in order, less what was cut; trimmed ones included.
    synced: so many of them were reported to be on disk. cutting_to: a truncation to so many is under way."""

    items: list[Item] = field(default_factory=list)
    synced: int = 0
    cutting_to: int | None = None
    start: int = 0  # entries below were removed for certain
    start_limit: int = 0  # entries from here on were never asked to be removed
    numbered: list[int] = field(default_factory=list)  # index in items of entry n
    made: int = 0  # items ever made, so that no two need be equal

    def copy(self) -> History:
        return replace(self, items=self.items.copy(), numbered=self.numbered.copy())

    def append(self, items: list[Item]) -> None:
        """About to be appended."""
        self.made += len(items)
        for item in items:
            self.numbered += [len(self.items)] * count_of(item)
            self.items.append(item)

    def refused_append(self, count: int) -> None:
        """The last `count` items were not appended after all."""
        self._keep(len(self.items) - count)

    def reported_synced(self, count: int) -> None:
        self.synced = max(self.synced, count)

    def reported_synced_entry(self, entry: int) -> None:
        """All entries below `entry` were reported as synced."""
        if entry:
            self.reported_synced(self.numbered[entry - 1] + 1)

    def truncate(self, count: int) -> None:
        """About to be cut."""
        self.cutting_to = count

    def truncated(self) -> None:
        assert self.cutting_to is not None
        self.now_holds(self.cutting_to)

    def refused(self) -> None:
        """The truncation was refused and changed nothing."""
        self.cutting_to = None

    def trim(self, entry: int) -> None:
        """About to be removed in front."""
        self.start_limit = max(self.start_limit, entry)

    def trimmed(self, start: int) -> None:
        self.start = max(self.start, start)

    def now_holds(self, count: int) -> None:
        """The log was opened, or cut, and holds so many items, all on disk."""
        self._keep(count)
        self.synced, self.cutting_to = count, None

    def _keep(self, count: int) -> None:
        self.items = self.items[:count]
        self.numbered = [index for index in self.numbered if index < count]

    # ---- the verdict ---------------------------------------------------------------------------------------------

    def check(self, log: CommitLog | LogReader) -> int:
        """How many items the log holds. AssertionError when it holds anything but a prefix with all that was synced."""
        rows = [(r.kind, r.key, r.value) for batch in _batches(log) for r in batch]
        count = self._count(log.start, log.end, rows)
        numbers = [n for batch in log.read() for r in batch for n in range(r.entry - r.entry_count + 1, r.entry + 1)]
        assert numbers == list(range(log.start, log.end)), f"entries {log.start}..{log.end}: numbers {numbers!r:.200}"
        assert count >= self.synced or count == self.cutting_to, (
            f"{count} items are left; {self.synced} of {len(self.items)} were reported synced"
            f" (a truncation to {self.cutting_to} was under way)"
        )
        assert self.start <= log.start <= self.start_limit, (
            f"starts at {log.start}; removed below {self.start}, never asked beyond {self.start_limit}"
        )
        self._check_reads(log)
        return count

    def _count(self, start: int, end: int, items: list[Item]) -> int:
        """How many items a log holds that ends before entry `end`: the control records after its last entry have no
        number, so that what was found must tell how many of them there are."""
        assert end <= len(self.numbered), f"ends before entry {end}; only {len(self.numbered)} were ever appended"
        least = most = self.numbered[end - 1] + 1 if end else 0
        while most < len(self.items) and self.items[most][0] == CONTROL:
            most += 1
        for count in range(most, least - 1, -1):
            if len(items) <= count and items == self.items[count - len(items) : count]:
                return count
        raise AssertionError(f"entries {start}..{end}: {self._difference(items, least)}")

    def _difference(self, items: list[Item], count: int) -> str:
        first = count - len(items)
        for i, item in enumerate(items):
            if first + i < 0 or item != self.items[first + i]:
                return f"item {first + i}: expected {self.items[max(first + i, 0)]!r:.80}, found {item!r:.80}"
        return f"{len(items)} records are not what was appended"

    def _check_reads(self, log: CommitLog | LogReader) -> None:
        for entry in {log.start, (log.start + log.end) // 2, log.end - 1}:
            if log.start <= entry < log.end:
                assert log[entry] == self.items[self.numbered[entry]][2], f"log[{entry}]"


def _batches(log: CommitLog | LogReader) -> Iterator[RecordBatch]:
    return log.read_positions(log.start_position, all_kinds=True)


class Recorder:
    """Feeds a History, of whatever kind of log, and writes down what it was fed."""

    def __init__(self, history: Any, path: Path) -> None:
        self.history = history
        self._file: BinaryIO = path.open("ab", buffering=0)

    def __call__(self, event: str, *arguments: Any) -> None:
        self._file.write(marshal.dumps((event, *arguments)))
        getattr(self.history, event)(*arguments)


def replay(history: object, path: Path, size: int | None = None) -> None:
    """Feed a History with what a Recorder wrote; size: with so many bytes of it. What its process was at when another of
    its threads ended it may be there in part: nothing had come of that yet."""
    with path.open("rb") as file:
        size = path.stat().st_size if size is None else size
        while file.tell() < size:
            try:
                event, *arguments = marshal.load(file)
            except EOFError:
                return
            getattr(history, event)(*arguments)
