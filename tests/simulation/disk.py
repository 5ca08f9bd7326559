"""A bookie's log in memory: what is appended is staged, a sync makes it durable, a crash cuts what was not synced."""

from __future__ import annotations

import struct
from collections import defaultdict
from random import Random
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from pyreplog._native.ledger_log.entries import CONTROL
from pyreplog.errors import CorruptionError, DiskFullError, PoisonedError

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

_HEAD = struct.Struct("<I8xB11xqq")  # length, kind, ledger, entry
_KIND_CONTROL = 3
PLENTY = 1 << 40


class MemoryLog:
    """An EntryLog. staged: as of the bookie's log; False: what is appended can be read at once, and a crash still takes it."""

    def __init__(self, *, staged: bool = True) -> None:
        self.staged = staged
        self.free = PLENTY
        self.fails = False
        self.held: defaultdict[int, dict[int, bytes]] = defaultdict(dict)  # ledger, entry: what can be read
        self.unsynced: list[tuple[int, int, bytes]] = []
        self.damaged: set[tuple[int, int]] = set()

    def append(self, records: ReadableBuffer) -> int:
        data = bytes(records)
        if len(data) > self.free:
            raise DiskFullError(f"{self.free} bytes are free")
        at = 0
        while at < len(data):
            length, kind, ledger, entry = _HEAD.unpack_from(data, at)
            stride = -(-length // 8) * 8
            if kind == _KIND_CONTROL:
                ledger += CONTROL
            self.unsynced.append((ledger, entry, data[at : at + stride]))
            at += stride
        if not self.staged:
            self._show(self.unsynced)
        return at

    def sync(self) -> None:
        if self.fails:
            raise PoisonedError("the disk failed")
        self._show(self.unsynced)
        self.unsynced.clear()

    def _show(self, records: list[tuple[int, int, bytes]]) -> None:
        for ledger, entry, raw in records:
            self.held[ledger][entry] = raw
            self.damaged.discard((ledger, entry))

    def crash(self, random: Random) -> None:
        """The power goes: of what was not synced, a prefix was written."""
        kept = self.unsynced[: random.randrange(len(self.unsynced) + 1)]
        if not self.staged:
            for ledger, entry, _ in self.unsynced:
                self.held[ledger].pop(entry, None)
        self._show(kept)
        self.unsynced.clear()

    def read(self, ledger: int, start: int, end: int, bytes_max: int) -> tuple[bytes, int]:
        return self.lend(ledger, start, end, bytes_max, 1, 1)

    def lend(self, ledger: int, start: int, end: int, bytes_max: int, step: int, run: int) -> tuple[bytes, int]:
        held_value = self.held.get(ledger, {})
        out: list[bytes] = []
        size = 0
        for entry in sorted(held_value):
            if not start <= entry < end or (entry - start) % step >= run:
                continue
            if (ledger, entry) in self.damaged:
                raise CorruptionError("memory", entry, "an intact record", "a damaged one")
            size += len(held_value[entry])
            if out and size > bytes_max:
                return b"".join(out), entry
            out.append(held_value[entry])
        return b"".join(out), end

    def held_entries(self, ledger: int, start: int, end: int) -> npt.NDArray[np.int64]:
        return np.array(sorted(entry for entry in self.held.get(ledger, {}) if start <= entry < end), np.int64)

    def last_entry(self, ledger: int) -> int | None:
        return max(self.held.get(ledger, ()), default=None)

    def holds(self, ledger: int, entry: int) -> bool:
        """Whether it has an intact copy."""
        return entry in self.held.get(ledger, ()) and (ledger, entry) not in self.damaged

    def free_bytes(self) -> int:
        return self.free
