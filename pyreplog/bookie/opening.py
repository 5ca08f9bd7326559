"""Opens a bookie: checks its directory and its log, and puts ledgers that a crash may have damaged into limbo."""

from __future__ import annotations

import logging
import os
import threading
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np

from pyreplog.bookie.bookie import Bookie
from pyreplog.bookie.config import BookieConfig
from pyreplog.bookie.entry_log import EntryLog
from pyreplog.bookie.identity import LOG, BookieIdentity, are_older, check_log, claim, note, register
from pyreplog.bookie.ledger_list import LedgerMetadataView
from pyreplog.bookie.local_bookie import LocalBookie
from pyreplog.bookie.salvage import LostSegments, is_checkpoint_lost, salvage
from pyreplog.clock import Clock
from pyreplog.errors import CorruptionError, NotALogError, ReplogError, WrongLogError
from pyreplog.log.files import Files, RealFiles
from pyreplog.log.names import ASIDE
from pyreplog.log.unclean_shutdown_marker import UncleanShutdownMarker
from pyreplog.metadata.store import MetadataStore

_HANDLED = "limbo"
_ENTRIES_AT_ONCE = 1 << 20
_FENCES_AT_ONCE = 4096
_SKIPPED = 1 << 20  # more than the ledgers that are created between a backup of the metadata and its restore

logger = logging.getLogger(__name__)


def open_bookie(
    path: str | os.PathLike[str],
    name: str,
    store: MetadataStore,
    config: BookieConfig | None = None,
    *,
    ledgers: LedgerMetadataView,
    make_new: bool = False,
    older_metadata: bool = False,
    clock: Clock | None = None,
    files: Files | None = None,
) -> tuple[BookieIdentity, LocalBookie]:
    """Open the bookie of a name in a directory, or make it if there is none.

    Args:
        path: directory of the bookie.
        name: name of the bookie in the metadata.
        store: metadata store.
        config: settings; None: the defaults.
        ledgers: metadata of ledgers in the same store.
        make_new: as `identity.claim`.
        older_metadata: as `identity.claim`; new ledgers then get numbers far above those that were used since the
            backup.
        clock: source of time; None: the clock of the machine.
        files: access to the disk; None: the real one.

    Returns:
        The identity of the bookie, and the bookie.

    Raises:
        WrongLogError: the log is missing, or is not that of this bookie.
        ReplogError: as `identity.claim`, as the opening of a log, and as `ledgers`.
    """
    path, files = Path(path), files if files is not None else RealFiles()
    has_new_cuts = bool(_cuts(path))
    marker = UncleanShutdownMarker(path, files)
    identity = claim(
        path, name, store, next_ledger=ledgers.next_id(), make_new=make_new, older_metadata=older_metadata, files=files
    )
    if older_metadata and are_older(store, identity, ledgers.next_id()):
        ledgers.skip_to(identity.next_ledger + _SKIPPED)
    lost_segments = LostSegments(path, files)
    try:
        bookie = _open_log(path, identity, config, ledgers, lost_segments, clock, files)
    except NotALogError as error:
        raise WrongLogError(f"the log of bookie {identity.id} is gone: {error}") from error
    log = bookie.log.log
    try:
        check_log(path, identity, log.uuid, log.end_position)
        _settle_lost_segments(bookie, identity, ledgers, lost_segments)
        _enter_limbo(
            bookie,
            identity,
            ledgers,
            cut=has_new_cuts or bool(bookie.log.cut_records),
            power_lost=marker.last_shutdown_was_unclean(),
        )
        for cut in _cuts(path):
            files.write_new(cut / _HANDLED, b"")
        if bookie.config.durability == "appended":
            marker.put()
        else:
            marker.remove()
        identity_file = _IdentityFile(path, files, ledgers, register(
            path, identity, store, log.uuid, log.end_position, next_ledger=ledgers.next_id(), files=files
        ))  # fmt: skip
    except BaseException:
        bookie.close()
        raise

    def settle(end: int) -> None:
        try:
            identity_file.update(end)
            marker.remove()
        except OSError as error:  # no entry is lost, but the next start may put ledgers into limbo without need
            logger.warning("bookie %s: its clean close was not noted: %s", name, error)

    bookie.on_clean_close, bookie.on_metadata_read = settle, identity_file.update
    return identity_file.identity, bookie


class _IdentityFile:
    """Keeps the identity file of a running bookie up to date. Any thread."""

    def __init__(self, path: Path, files: Files, ledgers: LedgerMetadataView, identity: BookieIdentity) -> None:
        self._path, self._files, self._ledgers, self.identity = path, files, ledgers, identity
        self._lock = threading.Lock()

    def update(self, end: int = 0) -> None:
        """Note the number of the next ledger, and the end of the log (0: as before).

        Raises OSError when the disk fails.
        """
        with self._lock:
            next_ledger = self.identity.next_ledger
            try:
                next_ledger = max(self._ledgers.next_id(), next_ledger)
            except ReplogError as error:
                logger.info("bookie %s: the number of the next ledger is unknown: %s", self.identity.name, error)
            identity = replace(self.identity, next_ledger=next_ledger, end=end or self.identity.end)
            if identity != self.identity:
                note(self._path, identity, files=self._files)
                self.identity = identity


def _open_log(
    path: Path,
    identity: BookieIdentity,
    config: BookieConfig | None,
    ledgers: LedgerMetadataView,
    lost_segments: LostSegments,
    clock: Clock | None,
    files: Files,
) -> LocalBookie:
    """Open the log.

    If it is damaged, it is salvaged first, and `lost_segments` lists the segments with lost records.
    """

    def open_log() -> LocalBookie:
        return LocalBookie(
            path, config, create=not identity.registered, incarnation=identity.incarnation, clock=clock, files=files,
            note=partial(ledgers.note_bad_copies, identity.id),
        )  # fmt: skip

    log = path / LOG
    unsettled = any(not segment.settled for segment in lost_segments.load())
    if identity.registered and (unsettled or is_checkpoint_lost(log)):
        salvage(log, identity.log, lost_segments, files)
    try:
        return open_log()
    except CorruptionError as error:
        if not identity.registered:
            raise
        logger.error("bookie %s: its log is damaged, and is salvaged: %s", identity.name, error)
        salvage(log, identity.log, lost_segments, files)
    return open_log()


def _settle_lost_segments(
    bookie: LocalBookie, identity: BookieIdentity, ledgers: LedgerMetadataView, lost_segments: LostSegments
) -> None:
    """Put ledgers into limbo, or note their copies for repair, after segments were lost at this opening or an
    interrupted one.

    Ledgers that are not closed enter limbo. Missing copies of closed ledgers are noted for repair; these ledgers are
    fenced, because a fence may be lost, too.
    """
    lost = [segment for segment in lost_segments.load() if not segment.settled]
    if not lost:
        return
    bookie.lost_segments = len(lost)
    still_open, closed, lacking = [], [], 0
    for ledger, stripes in ledgers.named(identity.id):
        if stripes is None:
            still_open.append(ledger)
            continue
        closed.append(ledger)
        if (entry := _first_missing(bookie.log, ledger, stripes)) is not None:
            ledgers.note_bad_copies(identity.id, ledger, [entry])
            lacking += 1
    bookie.with_bookie(lambda machine: machine.limbo.enter(still_open))
    for start in range(0, len(closed), _FENCES_AT_ONCE):
        bookie.with_bookie(_fence, closed[start : start + _FENCES_AT_ONCE])
    lost_segments.settle()
    logger.error(
        "bookie %s: %d segments were lost or damaged: copies of %d closed ledgers were lost, and are noted for repair; "
        "in limbo: %s", identity.name, len(lost), lacking, still_open,
    )  # fmt: skip


def _fence(machine: Bookie, ledgers: list[int]) -> None:
    machine.limbo.fence(ledgers)


def _first_missing(log: EntryLog, ledger: int, stripes: list[range]) -> int | None:
    """Return the lowest entry of some stripes of which the log has no record; None: it has all."""
    missing = []
    for stripe in stripes:
        for at in range(0, len(stripe), _ENTRIES_AT_ONCE):
            part = stripe[at : at + _ENTRIES_AT_ONCE]
            held = log.held_entries(ledger, part[0], part[-1] + 1)
            absent = np.setdiff1d(np.arange(part.start, part.stop, part.step), held)
            if len(absent):
                missing.append(int(absent[0]))
                break
    return min(missing, default=None)


def _enter_limbo(
    bookie: LocalBookie, identity: BookieIdentity, ledgers: LedgerMetadataView, *, cut: bool, power_lost: bool
) -> None:
    """Put the ledgers into limbo that may have lost entries.

    Args:
        bookie: the bookie.
        identity: its identity.
        ledgers: metadata of the ledgers.
        cut: intact records, which may be of any ledger, were cut from the log.
        power_lost: the machine was restarted while entries of ledgers that need no sync were only in memory.
    """
    if not cut and not power_lost:
        return
    damaged = sorted(ledgers.open_with(identity.id, unsynced=not cut))
    reason = "a crash cut records from its log" if cut else "its machine went down while entries were only in memory"
    logger.warning("bookie %s: %s; in limbo: %s", identity.name, reason, damaged)
    bookie.with_bookie(lambda machine: machine.limbo.enter(damaged))


def _cuts(path: Path) -> list[Path]:
    """Return the folders of records that were cut from the log, for which no ledgers were put into limbo yet."""
    return [cut for cut in (path / LOG / ASIDE).glob("*") if not (cut / _HANDLED).exists()]
