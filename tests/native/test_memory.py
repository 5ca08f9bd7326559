"""Native objects give their memory back: many are made and dropped, and the process does not grow."""

from __future__ import annotations

import gc
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import pyreplog
from pyreplog._native.ledger_log.entries import encode_entries, parse_entries
from pyreplog._native.ledger_log.index import LedgerIndex
from pyreplog._native.topic.message_encoder import encode_messages
from pyreplog._native.topic.messages import decode_messages
from pyreplog._native.topic.range_set import RangeSet

ROUNDS, LIMIT = 40, 12 << 20
"""A round has half a MiB or more; the process may grow by so many bytes in all of them."""


def resident() -> int:
    gc.collect()
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


def indexes(folder: Path) -> None:
    """Readers that find no index file make the index of a segment themselves: 16,000 blocks of 8 bytes."""
    if not (folder / "log").exists():
        with pyreplog.open(folder / "log") as log:
            log.append_batch([bytes(4000)] * 16_000)
    for path in (folder / "log").glob("*.idx"):
        path.unlink()
    for _ in range(6):
        with pyreplog.open(folder / "log", "r") as log:
            log.get(15_999)


def ledger_indexes(folder: Path) -> None:
    """Entries that did not come in order, and are sorted when they are looked up."""
    index, entries = LedgerIndex(), np.arange(120_000, 0, -2)
    index.add_batch(np.ones_like(entries), entries, np.arange(entries.size) * 64 + 4096, np.full(entries.size, 64))
    assert index.get(1, 120_000) is not None


def messages(folder: Path) -> None:
    entry = encode_messages([b"v"] * 20_000, [b"k"] * 20_000, properties=[{"a": "b"}] * 20_000)
    encoded = encode_entries([entry], ledger=1, first=0, lac=-1, time=1, messages=[20_000])
    decode_messages(parse_entries(encoded.view, ledger=1, first=0, last=0), offset=0, entries=0, size=0).properties(5)


def ranges(folder: Path) -> None:
    RangeSet().add_offsets(np.arange(0, 400_000, 2))


def scans(folder: Path) -> None:
    with pyreplog.open(folder / "log") as log:
        if not log.end:
            log.append_batch([b"value" * 20] * 20_000, keys=[b"key"] * 20_000)
        for batch in log.read():
            batch.values(), batch.keys(), batch.entry, batch.timestamp, batch.key_size


@pytest.mark.parametrize("make", [indexes, ledger_indexes, messages, ranges, scans], ids=lambda make: make.__name__)
def test_dropped_native_objects_free_their_memory(make: Callable[[Path], None], tmp_path: Path) -> None:
    for _ in range(3):
        make(tmp_path)
    before = resident()
    for _ in range(ROUNDS):
        make(tmp_path)
    assert resident() - before < LIMIT
