"""Notes in the metadata store of copies that are missing or damaged; `LedgerCluster.repair` writes these copies.

The key of a note is /repairs/LEDGER/ENTRY-BOOKIE. A + in place of the - marks a note of a writer, or a recovery, that
was about to close the ledger or goes on without the bookie. Such a note stays until the ledger is closed and all copies
that the bookie should have were checked.
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
    """A copy that has to be written again.

    Attributes:
        ledger: number of the ledger.
        entry: number of the entry.
        bookie: id of the bookie.
    """

    ledger: int
    entry: int
    bookie: str


class Garbled(NamedTuple):
    """A key of the metadata store whose name or value cannot be read.

    Attributes:
        key: the key.
        why: the reason, as text.
    """

    key: str
    why: str


def note_repair(
    metadata: MetadataStore, ledger: int, bookie: str, entry: int, *, lacking_since_us: int | None = None
) -> bool:
    """Note a bad copy, unless it is noted already; return whether the note is new.

    Args:
        metadata: metadata store.
        ledger: number of the ledger.
        bookie: id of the bookie.
        entry: number of the entry; of several that the bookie lacks, the first one.
        lacking_since_us: set by a writer that is about to close the ledger or goes on without the bookie: since when,
            microseconds since 1970-01-01 UTC.

    Raises:
        ReplogError: as the metadata store.
    """
    is_lacking = lacking_since_us is not None
    value = json.dumps({"since_us": lacking_since_us}).encode() if is_lacking else b""
    try:
        metadata.create(_key(RepairNote(ledger, entry, bookie), closing=is_lacking), value)
    except KeyExistsError:
        return False
    return True


def lacking_since_us(metadata: MetadataStore, ledger: int) -> dict[str, int]:
    """Return the bookies that the writer of an open ledger goes on without, or went on without for a while.

    The values are times in microseconds since 1970-01-01 UTC; 0: unknown. Raises errors of the store.
    """
    since_by_bookie: dict[str, int] = {}
    folder = _folder(ledger)
    for name in metadata.list(folder):
        note = _LACKING.fullmatch(name)
        stored = metadata.get(f"{folder}/{name}") if note is not None else None
        if note is None or stored is None:
            continue
        try:
            since_us = field(decode_object(stored.value), "since_us", int)
        except ValueError:  # written by an older version, or malformed
            since_us = 0
        since_by_bookie[note[1]] = min(since_us, since_by_bookie.get(note[1], since_us))
    return since_by_bookie


def repairs(metadata: MetadataStore) -> tuple[list[RepairNote], list[Garbled]]:
    """Return all notes, ordered by ledger and entry, and the garbled keys among them. Raises errors of the store."""
    notes: dict[RepairNote, None] = {}
    garbled: list[Garbled] = []
    for ledger in metadata.list(REPAIRS):
        for name in metadata.list(f"{REPAIRS}/{ledger}"):
            note = _NOTE.fullmatch(name)
            if ledger.isdecimal() and note is not None:
                notes[RepairNote(int(ledger), int(note[1]), note[2])] = None
            else:
                garbled.append(Garbled(f"{REPAIRS}/{ledger}/{name}", "expected LEDGER/ENTRY-BOOKIE"))
    return list(notes), garbled


def has_note_of_reader(metadata: MetadataStore, repair: RepairNote) -> bool:
    """Return whether a reader, or the bookie itself, has noted a copy. Its repair need not wait until the ledger is
    closed.

    Raises errors of the store.
    """
    return metadata.get(_key(repair, closing=False)) is not None


def forget_repair(metadata: MetadataStore, repair: RepairNote, *, closed: bool) -> None:
    """Delete the note of a copy that was repaired.

    Args:
        metadata: metadata store.
        repair: the note.
        closed: whether the ledger is closed; then notes with a + are deleted as well.
    """
    for closing in (False, True) if closed else (False,):
        key = _key(repair, closing=closing)
        stored = metadata.get(key)
        if stored is not None:
            metadata.delete(key, stored.version)
    _tidy(metadata, _folder(repair.ledger))


def _folder(ledger: int) -> str:
    return f"{REPAIRS}/{ledger:019d}"


def _key(repair: RepairNote, *, closing: bool) -> str:
    return f"{_folder(repair.ledger)}/{repair.entry:019d}{'+' if closing else '-'}{repair.bookie}"


def _tidy(metadata: MetadataStore, folder: str) -> None:
    """Remove the folder of a ledger if it is empty, unless another client adds a note meanwhile."""
    stored = metadata.get(folder)
    if stored is None or metadata.list(folder):
        return
    try:
        metadata.delete(folder, stored.version)
    except ReplogError:
        return
