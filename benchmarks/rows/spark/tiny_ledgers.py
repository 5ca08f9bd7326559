"""Many ledgers of one entry, made at once: through a writer each would take milliseconds."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

from pyreplog._native.ledger_log.entries import encode_entries
from pyreplog.bookie.ledger_log import LedgerLog
from pyreplog.config import LogConfig
from pyreplog.ledger.cluster import LedgerCluster
from pyreplog.ledger.ledger_metadata import (
    SHARD_BITS,
    Fragment,
    LedgerMetadata,
    State,
    key_proof,
    ledger_key,
    metadata_key,
)
from pyreplog.metadata.keys import name_of, parent_of
from pyreplog.metadata.sqlite import SQLiteStore
from pyreplog.tables.paths import METADATA, bookie_logs

_VALUE = b"one entry" * 10
_COPIES = 2
_AT_ONCE = 1000


def make_ledgers(path: Path, count: int) -> None:
    """A cluster in a directory, of two bookies that have an entry of each ledger."""
    LedgerCluster.embedded(path, bookies=_COPIES, durability="appended").close()
    logs = bookie_logs(path)
    bookies = tuple(logs)
    with SQLiteStore(path / METADATA) as store:
        firsts = range(0, count, 1 << SHARD_BITS)
        for number in firsts:  # which makes its shard
            revision = store.create(metadata_key(number), _metadata(number, bookies).encode())
    numbers = (number for number in range(count) if number not in firsts)
    rows = [(metadata_key(number), _metadata(number, bookies).encode()) for number in numbers]
    with closing(sqlite3.connect(path / METADATA)) as database, database:  # one transaction
        database.executemany(
            "INSERT INTO keys VALUES (?, ?, ?, ?, ?, ?, NULL)",
            ((key, parent_of(key), name_of(key), value, revision, revision) for key, value in rows),
        )
    for folder in logs.values():
        with LedgerLog(folder, LogConfig.of({"durability": "appended"})) as log:
            for start in range(0, count, _AT_ONCE):
                log.append(b"".join(_record(n) for n in range(start, min(start + _AT_ONCE, count))))


def _metadata(ledger: int, bookies: tuple[str, ...]) -> LedgerMetadata:
    return LedgerMetadata(
        ledger=ledger, ensemble_size=_COPIES, write_quorum=_COPIES, ack_quorum=_COPIES, durability="appended",
        fragments=(Fragment(0, bookies),), proof=key_proof(ledger_key(b"")), state=State.CLOSED, last_entry=0,
        length=len(_VALUE), messages=1,
    )  # fmt: skip


def _record(ledger: int) -> bytes:
    return bytes(encode_entries([_VALUE], ledger=ledger, first=0, lac=-1, time=1).view)
