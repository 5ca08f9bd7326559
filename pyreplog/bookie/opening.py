"""Opening a bookie: its directory is the right one, its log is there, and what a crash may have lost is in limbo."""

from __future__ import annotations

import logging
import os
import threading
from dataclasses import replace
from pathlib import Path

from pyreplog.bookie.config import BookieConfig
from pyreplog.bookie.identity import LOG, BookieIdentity, are_older, check_log, claim, note, register
from pyreplog.bookie.ledgerlist import LedgerMetadataView
from pyreplog.bookie.local import LocalBookie
from pyreplog.bookie.unclean_shutdown_marker import UncleanShutdownMarker
from pyreplog.clock import Clock
from pyreplog.errors import NotALogError, ReplogError, WrongLogError
from pyreplog.log.files import Files, RealFiles
from pyreplog.log.names import ASIDE
from pyreplog.metadata.store import MetadataStore

_SEEN = "limbo"
_SKIPPED = 1 << 20  # numbers of ledgers that may have been given since older metadata were copied

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
    """Open the bookie of this name in this directory, or make it when there is none.

    ledgers: what the metadata say of them. make_new, older_metadata: as of `identity.claim`; ledgers that are made from
    now on get numbers far behind those that were given since the older copy was made.
    Errors: those of `identity.claim`, of opening a log, and of `ledgers`; WrongLogError, the log is gone, or, after its
    own recovery, not that of this bookie.
    """
    path, files = Path(path), files if files is not None else RealFiles()
    unseen = bool(_cuts(path))
    mark = UncleanShutdownMarker(path, files)
    identity = claim(
        path, name, store, next_ledger=ledgers.next_id(), make_new=make_new, older_metadata=older_metadata, files=files
    )
    if older_metadata and are_older(store, identity, ledgers.next_id()):
        ledgers.skip_to(identity.next_ledger + _SKIPPED)
    try:
        bookie = LocalBookie(
            path, config, create=not identity.registered, incarnation=identity.incarnation, clock=clock, files=files
        )
    except NotALogError as error:
        raise WrongLogError(f"the log of bookie {identity.id} is gone: {error}") from error
    log = bookie.log.log
    try:
        check_log(path, identity, log.uuid, log.end_position)
        _enter_limbo(
            bookie, identity, ledgers, cut=unseen or bool(bookie.log.cut_records), powerless=mark.tells_of_loss()
        )
        for cut in _cuts(path):
            files.write_new(cut / _SEEN, b"")
        if bookie.config.durability == "appended":
            mark.put()
        else:
            mark.remove()
        notes = _Notes(path, files, ledgers, register(
            path, identity, store, log.uuid, log.end_position, next_ledger=ledgers.next_id(), files=files
        ))  # fmt: skip
    except BaseException:
        bookie.close()
        raise

    def settle(end: int) -> None:
        try:
            notes.take(end)
            mark.remove()
        except OSError as error:  # the entries are safe; the next start knows less, and is careful
            logger.warning("bookie %s: its clean close was not noted: %s", name, error)

    bookie.when_clean, bookie.when_collected = settle, notes.take
    return notes.identity, bookie


class _Notes:
    """The identity file of a bookie that runs. Any thread."""

    def __init__(self, path: Path, files: Files, ledgers: LedgerMetadataView, identity: BookieIdentity) -> None:
        self._path, self._files, self._ledgers, self.identity = path, files, ledgers, identity
        self._lock = threading.Lock()

    def take(self, end: int = 0) -> None:
        """Keep which ledgers there were by now, and where the log ended (0: as before). Errors: OSError."""
        with self._lock:
            next_ledger = self.identity.next_ledger
            try:
                next_ledger = max(self._ledgers.next_id(), next_ledger)
            except ReplogError as error:
                logger.info("bookie %s: the number of the next ledger is unknown: %s", self.identity.name, error)
            known = replace(self.identity, next_ledger=next_ledger, end=end or self.identity.end)
            if known != self.identity:
                note(self._path, known, files=self._files)
                self.identity = known


def _enter_limbo(
    bookie: LocalBookie, identity: BookieIdentity, ledgers: LedgerMetadataView, *, cut: bool, powerless: bool
) -> None:
    """cut: intact records were cut from the log; they may be of any ledger. powerless: the machine was started anew
    while entries lay in memory alone: those of ledgers that ask for no sync."""
    if not cut and not powerless:
        return
    lost = sorted(ledgers.open_with(identity.id, unsynced=not cut))
    what = "a crash cut records from its log" if cut else "its machine went down while entries lay in memory alone"
    logger.warning("bookie %s: %s; in limbo: %s", identity.name, what, lost)
    bookie.with_bookie(lambda machine: machine.limbo.enter(lost))


def _cuts(path: Path) -> list[Path]:
    """What was cut from the log after crashes, and set aside, and not followed by putting ledgers into limbo."""
    return [cut for cut in (path / LOG / ASIDE).glob("*") if not (cut / _SEEN).exists()]
