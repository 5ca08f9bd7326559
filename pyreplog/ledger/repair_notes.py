"""Copies that are missing or damaged: noted in the metadata, repaired by command (later by auto-recovery).

Keys are /repairs/LEDGER/ENTRY-BOOKIE. Those with a + instead of the - were noted by whoever was about to close the
ledger, or goes on without the bookie: they stay until it is closed, and all that the bookie should have was looked at.
"""

from __future__ import annotations

import json
import re
from typing import NamedTuple

from pyreplog.errors import KeyExistsError, ReplogError
from pyreplog.metadata.store import MetadataStore
from pyreplog.metadata.values import decode_object, field

REPAIRS = "/repairs"
_NOTE = re.compile(r"([0-9]+)[-+](.*)")
_LACKING = re.compile(r"[0-9]+\+(.*)")


class RepairNote(NamedTuple):
    """The copy of an entry on a bookie is to be written again."""

    ledger: int
    entry: int
    bookie: str


class Garbled(NamedTuple):
    """A key whose name or value makes no sense, and why."""

    key: str
    why: str


def note_repair(
    metadata: MetadataStore, ledger: int, bookie: str, entry: int, *, lacking_since_us: int | None = None
) -> bool:
    """Note a bad copy; one that is noted already stays as it is. False: it was.

    lacking_since_us: this one, maybe more, were not written there, and the ledger is closed next, or goes on without
    (microseconds since 1970).
    """
    lacking = lacking_since_us is not None
    value = json.dumps({"since_us": lacking_since_us}).encode() if lacking else b""
    try:
        metadata.create(_key(RepairNote(ledger, entry, bookie), closing=lacking), value)
    except KeyExistsError:
        return False
    return True


def lacking_since_us(metadata: MetadataStore, ledger: int) -> dict[str, int]:
    """Of a ledger that is not closed: which bookies its writer goes, or went, on without, and since when (0: nobody
    knows). Errors: those of the store."""
    found: dict[str, int] = {}
    folder = _folder(ledger)
    for name in metadata.list(folder):
        note = _LACKING.fullmatch(name)
        there = metadata.get(f"{folder}/{name}") if note is not None else None
        if note is None or there is None:
            continue
        try:
            since_us = field(decode_object(there.value), "since_us", int)
        except ValueError:  # of a version before, or garbled
            since_us = 0
        found[note[1]] = min(since_us, found.get(note[1], since_us))
    return found


def repairs(metadata: MetadataStore) -> tuple[list[RepairNote], list[Garbled]]:
    """All that are noted, by ledger and entry; and keys there that say nothing. Errors: those of the store."""
    found: dict[RepairNote, None] = {}
    garbled: list[Garbled] = []
    for ledger in metadata.list(REPAIRS):
        for name in metadata.list(f"{REPAIRS}/{ledger}"):
            note = _NOTE.fullmatch(name)
            if ledger.isdecimal() and note is not None:
                found[RepairNote(int(ledger), int(note[1]), note[2])] = None
            else:
                garbled.append(Garbled(f"{REPAIRS}/{ledger}/{name}", "expected LEDGER/ENTRY-BOOKIE"))
    return list(found), garbled


def forget_repair(metadata: MetadataStore, repair: RepairNote, *, closed: bool) -> None:
    """The copy is well again. closed: so is the ledger."""
    for closing in (False, True) if closed else (False,):
        key = _key(repair, closing=closing)
        there = metadata.get(key)
        if there is not None:
            metadata.delete(key, there.version)
    _tidy(metadata, _folder(repair.ledger))


def _folder(ledger: int) -> str:
    return f"{REPAIRS}/{ledger:019d}"


def _key(repair: RepairNote, *, closing: bool) -> str:
    return f"{_folder(repair.ledger)}/{repair.entry:019d}{'+' if closing else '-'}{repair.bookie}"


def _tidy(metadata: MetadataStore, folder: str) -> None:
    """Remove the ledger's folder if it is empty; somebody may be adding to it."""
    there = metadata.get(folder)
    if there is None or metadata.list(folder):
        return
    try:
        metadata.delete(folder, there.version)
    except ReplogError:
        return
