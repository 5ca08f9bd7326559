"""What every store in the table can do."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from enum import Enum
from pathlib import Path
from typing import Any, ClassVar

from benchmarks.entries import BATCH, in_turn

Key = Any
"""What a store's `append` gives and its `read` takes: a number, a position, an id."""


class Work(Enum):
    """A column of the table."""

    APPEND = "append"
    BATCH = "append x256"
    SYNCED_1 = "synced x1"
    SYNCED_16 = "synced x16"
    SYNCED_256 = "synced x256"
    SCAN = "scan"
    READ = "random read"


class Peer(ABC):
    """A store opened in a directory of its own. Opening one that was left behind by a crash recovers it.

    synced: each call returns when the disk has the entries; otherwise when they survive the process.
    """

    title: ClassVar[str]
    work: ClassVar[frozenset[Work]] = frozenset(Work)
    keeps_all: ClassVar[bool] = True
    """Whether an entry survives its processes as soon as the call has returned."""

    @abstractmethod
    def __init__(self, directory: Path, *, synced: bool) -> None: ...

    @staticmethod
    @abstractmethod
    def version() -> str:
        """Of the store and of its Python package."""

    append: Callable[[bytes], Key]
    append_batch: Callable[[list[bytes]], Sequence[Key]]
    """All entries as one transaction, pipeline or write of the store."""

    def warm(self, values: list[bytes]) -> int:
        """Bring the store into the state it lives in, before anything is timed; how many entries that took."""
        return 0

    @abstractmethod
    def scan(self) -> tuple[int, int]:
        """(entries, bytes of values) from the first to the last, each value made available to Python."""

    @abstractmethod
    def values(self) -> Iterable[bytes]:
        """All values in order, for verification; from now on none is removed."""

    def first(self) -> int:
        """How many entries have been removed in front of the first one."""
        return 0

    def reader(self) -> Callable[[Key], Any]:
        """What gives the value of one entry, by its key, as of now."""
        raise NotImplementedError(f"{self.title} reads in order only")

    def servers(self) -> list[int]:
        """Processes of its own."""
        return []

    def disk_bytes(self, directory: Path) -> tuple[int, int]:
        """(bytes that hold entries, bytes allocated) on disk."""
        files = [path.stat() for path in directory.rglob("*") if path.is_file()]
        return sum(file.st_size for file in files), sum(file.st_blocks * 512 for file in files)

    @abstractmethod
    def close(self) -> None: ...


def load(peer: Peer, values: list[bytes], count: int, seconds: float) -> list[Key]:
    """Append `count` entries, or as many as go in `seconds`, in whole turns of the values; their keys."""
    keys: list[Key] = []
    entries = in_turn(values, BATCH)
    deadline = time.monotonic() + seconds
    while len(keys) < count and (not keys or time.monotonic() < deadline):
        if Work.BATCH in peer.work:
            keys.extend(peer.append_batch(entries))
        else:
            keys.extend(map(peer.append, entries))
    return keys
