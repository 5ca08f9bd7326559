"""Copies that readers found missing or damaged: noted in the metadata, repaired by command (later by auto-recovery)."""

from __future__ import annotations

from typing import NamedTuple

from pyreplog.errors import KeyExistsError, ReplogError
from pyreplog.metadata.store import MetadataStore

REPAIRS = "/repairs"


class Repair(NamedTuple):
    """The copy of an entry on a bookie is to be written again."""

    ledger: int
    entry: int
    bookie: str


class Garbled(NamedTuple):
    """A key whose name or value makes no sense, and why."""

    key: str
    why: str


def note_repair(metadata: MetadataStore, ledger: int, bookie: str, entry: int) -> None:
    """Note a bad copy; one that is noted already stays as it is."""
    try:
        metadata.create(f"{REPAIRS}/{ledger:019d}/{entry:019d}-{bookie}", b"")
    except KeyExistsError:
        return


def repairs(metadata: MetadataStore) -> tuple[list[Repair], list[Garbled]]:
    """All that are noted, by ledger and entry; and keys there that say nothing. Errors: those of the store."""
    found: list[Repair] = []
    garbled: list[Garbled] = []
    for ledger in metadata.list(REPAIRS):
        for name in metadata.list(f"{REPAIRS}/{ledger}"):
            entry, _, bookie = name.partition("-")
            if ledger.isdecimal() and entry.isdecimal():
                found.append(Repair(int(ledger), int(entry), bookie))
            else:
                garbled.append(Garbled(f"{REPAIRS}/{ledger}/{name}", "expected LEDGER/ENTRY-BOOKIE"))
    return found, garbled


def forget_repair(metadata: MetadataStore, repair: Repair) -> None:
    """The copy is well again."""
    folder = f"{REPAIRS}/{repair.ledger:019d}"
    key = f"{folder}/{repair.entry:019d}-{repair.bookie}"
    there = metadata.get(key)
    if there is not None:
        metadata.delete(key, there.version)
    _tidy(metadata, folder)


def _tidy(metadata: MetadataStore, folder: str) -> None:
    """Remove the ledger's folder if it is empty; somebody may be adding to it."""
    there = metadata.get(folder)
    if there is None or metadata.list(folder):
        return
    try:
        metadata.delete(folder, there.version)
    except ReplogError:
        return
