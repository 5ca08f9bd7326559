"""Entries of ledgers that can be told from each other, and what a LedgerLog says of them."""

from __future__ import annotations

from pathlib import Path

from pyreplog._native.ledger_log.entries import CONTROL, encode_control, encode_entries, parse_entries
from pyreplog._native.log.record import Record
from pyreplog.bookie.ledger_log import LedgerLog
from pyreplog.config import LogConfig
from pyreplog.log.files import Files

SEGMENT_BYTES = 64 << 10
CONTROL_KIND = 3


def value_of(ledger: int, entry: int) -> bytes:
    return b"%d/%d." % (ledger, entry) * ((ledger * 31 + entry * 7) % 40 + 1)


def record_of(ledger: int, entry: int, size: int | None = None) -> bytes:
    """The record of an entry: always the same bytes."""
    value = value_of(ledger, entry) if size is None else value_of(ledger, entry).ljust(size, b"+")
    key = [None, b"", b"key %d" % entry][entry % 3]
    event_time = [None, -entry, 1_700_000_000_000_000][entry % 3]
    entries = encode_entries(
        [value], [key], [event_time], ledger=ledger, first=entry, lac=entry - 1, time=1_000_000 + entry
    )
    return bytes(entries.view)


def records_of(ledger: int, *entries: int, size: int | None = None) -> bytes:
    return b"".join(record_of(ledger, entry, size) for entry in entries)


def control_of(ledger: int, code: int, value: bytes) -> bytes:
    return encode_control(ledger, code, value, lac=-1, time=5)


def open_log(path: Path, durability: str = "appended", files: Files | None = None) -> LedgerLog:
    return LedgerLog(path, LogConfig.of({"segment_bytes": SEGMENT_BYTES, "durability": durability}), files=files)


def read_all(
    log: LedgerLog, ledger: int, first: int = 0, last: int = 1 << 62, bytes_max: int = 1 << 20
) -> dict[int, bytes]:
    """Entries of a ledger as they were handed in, stamps left out; a window with nothing in it ends the reading when
    nothing of the ledger lies behind it."""
    contents: dict[int, bytes] = {}
    end = max((share.last for share in log.shares(ledger)), default=-1)
    at = first
    while at <= min(last, end):
        records, after = log.read(ledger, at, last + 1, bytes_max)
        assert after > at
        for entry, raw in split(records, ledger, at, after - 1).items():
            assert entry not in contents
            contents[entry] = raw
        at = after
    return contents


def split(records: bytes, ledger: int, first: int, last: int) -> dict[int, bytes]:
    """Records end to end, by entry id, without their stamps."""
    if ledger >= CONTROL:
        return _split_controls(records, ledger - CONTROL)
    batch = parse_entries(records, ledger=ledger, first=first, last=last)
    assert batch.next_position == len(records)
    return {record.entry: unstamped(record) for record in batch}


def _split_controls(records: bytes, ledger: int) -> dict[int, bytes]:
    actual, at = {}, 0
    while at < len(records):
        stride = int.from_bytes(records[at : at + 4], "little") + 7 & ~7
        assert (records[at + 12], int.from_bytes(records[at + 24 : at + 32], "little")) == (CONTROL_KIND, ledger)
        actual[int.from_bytes(records[at + 32 : at + 40], "little")] = without_stamp(records[at : at + stride])
        at += stride
    return actual


def unstamped(record: Record) -> bytes:
    return without_stamp(bytes(record.raw))


def without_stamp(raw: bytes) -> bytes:
    """The stamp is the one field that a log writes into what it is given."""
    return raw[:8] + bytes(4) + raw[12:]
