"""An EntryLog in memory that loses what was not synced, and can be told to fail."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from pyreplog._native.bookie.inspect_records import inspect_controls
from pyreplog._native.ledger_log.entries import CONTROL, parse_entries
from pyreplog.errors import CorruptionError, DiskFullError, PoisonedError

KIND_CONTROL = 3


@dataclass(frozen=True)
class Stored:
    ledger: int  # + CONTROL for control records
    entry: int
    raw: bytes


def split(records: bytes | memoryview) -> list[Stored]:
    """InvalidRecordsError: one of them is not intact."""
    data, at, stored_values = bytes(records), 0, []
    while at < len(data):
        stride = max(int.from_bytes(data[at : at + 4], "little") + 7 & ~7, 64)
        raw = data[at : at + stride]
        ledger, entry = (int.from_bytes(raw[i : i + 8], "little") for i in (24, 32))
        if raw[12] == KIND_CONTROL:
            inspect_controls(raw)
            ledger += CONTROL
        else:
            parse_entries(raw, ledger=ledger, first=entry, last=entry)
        stored_values.append(Stored(ledger, entry, raw))
        at += stride
    return stored_values


class MemoryLog:
    """staged: as of the real one. crash: what a power cut leaves. full, poisoned, damaged: what the next calls find."""

    def __init__(self, *, staged: bool = True) -> None:
        self.staged = staged
        self.stored: list[Stored] = []
        self.synced = 0
        self.syncs = 0
        self.free = 1 << 40
        self.full = self.poisoned = False
        self.damaged: set[tuple[int, int]] = set()

    def append(self, records: bytes | memoryview) -> int:
        if self.poisoned:
            raise PoisonedError("the log failed")
        new_records = split(records)
        if self.full:
            raise DiskFullError("full")
        self.stored += new_records
        return len(self.stored)

    def sync(self) -> None:
        if self.poisoned:
            raise PoisonedError("the log failed")
        self.syncs += 1
        self.synced = len(self.stored)

    def read(self, ledger: int, start: int, end: int, bytes_max: int) -> tuple[bytes, int]:
        return self.lend(ledger, start, end, bytes_max, 1, 1)

    def lend(self, ledger: int, start: int, end: int, bytes_max: int, step: int, run: int) -> tuple[bytes, int]:
        records_by_entry = {item.entry: item.raw for item in self._visible(ledger) if start <= item.entry < end}
        out = b""
        for entry in sorted(entry for entry in records_by_entry if (entry - start) % step < run):
            if (ledger, entry) in self.damaged:
                raise CorruptionError("memory", entry, "a record", "damage")
            if out and len(out) + len(records_by_entry[entry]) > bytes_max:
                return out, entry
            out += records_by_entry[entry]
        return out, end

    def held_entries(self, ledger: int, start: int, end: int) -> npt.NDArray[np.int64]:
        return np.array(sorted({item.entry for item in self._visible(ledger) if start <= item.entry < end}), np.int64)

    def last_entry(self, ledger: int) -> int | None:
        return max((item.entry for item in self._visible(ledger)), default=None)

    def free_bytes(self) -> int:
        return self.free

    def _visible(self, ledger: int) -> list[Stored]:
        end = self.synced if self.staged else len(self.stored)
        return [item for item in self.stored[:end] if item.ledger == ledger]

    def crash(self, kept: int = 0) -> MemoryLog:
        """The log as it is opened after a power cut that spared `kept` of the unsynced records."""
        after = MemoryLog(staged=self.staged)
        after.stored = self.stored[: self.synced + kept]
        after.synced = len(after.stored)
        return after
