"""A scan that reads what changed, beside a scan of everything."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Iterator

import pytest

from pyreplog.autorecovery.ledger_scan import LedgerScan
from pyreplog.ledger.ledger_metadata import Fragment, LedgerMetadata, State, metadata_key
from pyreplog.metadata.memory import MemoryStore
from pyreplog.metadata.values import MetadataValue

BOOKIES = [f"b{number}" for number in range(6)]


@pytest.fixture
def store() -> Iterator[MemoryStore]:
    with MemoryStore() as store:
        yield store


def create(store: MemoryStore, ledger: int, bookies: list[str]) -> LedgerMetadata:
    metadata = LedgerMetadata(
        ledger=ledger, ensemble_size=2, write_quorum=2, ack_quorum=2, fragments=(Fragment(0, tuple(bookies)),),
        proof="0" * 64,
    )  # fmt: skip
    store.create(metadata_key(ledger), metadata.encode())
    return metadata


def put(store: MemoryStore, metadata: LedgerMetadata) -> None:
    stored = store.get(metadata_key(metadata.ledger))
    assert stored is not None
    store.put(metadata_key(metadata.ledger), metadata.encode(), stored.version)


def contents(scan: LedgerScan) -> tuple[dict[str, set[int]], dict[int, list[str]], dict[int, str]]:
    """Return what a scan found. It may keep what it knew of ledgers whose metadata became unreadable."""
    by_bookie = {bookie: {*scan.ledgers_of(bookie).tolist()} - scan.garbled.keys() for bookie in BOOKIES}
    return by_bookie, scan.open_ledgers(BOOKIES), scan.garbled


@pytest.mark.parametrize("seed", range(10))
def test_a_refresh_finds_what_a_scan_finds(store: MemoryStore, seed: int) -> None:
    """New ledgers, ensemble changes, closes, unreadable metadata that are mended, and deletions of open ledgers."""
    rng = random.Random(seed)
    scan, living, closed = LedgerScan(store), dict[int, LedgerMetadata](), 0
    for ledger in range(200):
        living[ledger] = create(store, ledger, rng.sample(BOOKIES, 2))
        for metadata in rng.sample([*living.values()], min(len(living), 3)):
            key, event = metadata_key(metadata.ledger), rng.randrange(5)
            stored = store.get(key)
            assert stored is not None
            fresh = sorted({*BOOKIES} - metadata.bookies())
            if event == 0 and fresh:
                metadata = metadata.replace_bookies({rng.randrange(2): (rng.choice(fresh), rng.randrange(9))})
                living[metadata.ledger] = metadata
                put(store, metadata)
            elif event == 1:
                put(store, dataclasses.replace(metadata, state=State.CLOSED, last_entry=9, length=9, messages=9))
                closed += 1
                del living[metadata.ledger]  # only auto-recovery, which notes it, changes it from here on
            elif event == 2:
                store.put(key, b"nonsense", stored.version)
            elif event == 3:
                put(store, metadata)
            else:
                store.delete(key, stored.version)
                del living[metadata.ledger]
        if rng.random() < 0.3:
            scan.refresh()
            complete = LedgerScan(store)
            complete.scan()
            assert contents(scan) == contents(complete)
    assert scan.scans == 1 and closed > 20


def test_a_refresh_decodes_only_what_changed(store: MemoryStore, monkeypatch: pytest.MonkeyPatch) -> None:
    opened = [create(store, ledger, BOOKIES[:2]) for ledger in range(50)]
    scan = LedgerScan(store)
    scan.refresh()
    decoded: list[bytes] = []
    decode = MetadataValue.decode.__func__  # type: ignore[attr-defined]
    monkeypatch.setattr(
        MetadataValue, "decode", classmethod(lambda cls, data: (decoded.append(data), decode(cls, data))[1])
    )
    scan.refresh()
    assert not decoded
    put(store, opened[7].replace_bookies({0: ("b5", 3)}))
    create(store, 50, BOOKIES[:2])
    scan.refresh()
    assert len(decoded) == 2
    assert scan.open_ledgers(["b5"]) == {7: ["b5"]}


def test_new_ledgers_are_found_without_those_that_are_open(store: MemoryStore) -> None:
    opened = create(store, 0, BOOKIES[:2])
    scan = LedgerScan(store)
    scan.find_new()  # a scan
    scan.find_new()  # reads the newest ledgers again: they may have come meanwhile
    put(store, opened.replace_bookies({0: ("b5", 3)}))
    create(store, 1, BOOKIES[2:4])
    scan.find_new()
    assert scan.open_ledgers(BOOKIES) == {0: ["b0", "b1"], 1: ["b2", "b3"]}
    scan.refresh()
    assert scan.open_ledgers(BOOKIES) == {0: ["b5", "b1"], 1: ["b2", "b3"]}
