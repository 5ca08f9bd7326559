"""Opening a bookie: its directory is the right one, its log is there, and what a crash may have lost is in limbo."""

from __future__ import annotations

import logging
import os
from pathlib import Path

from pyreplog.bookie.bootmark import BootMark
from pyreplog.bookie.config import BookieConfig
from pyreplog.bookie.identity import LOG, Identity, check_log, claim, note_end, register
from pyreplog.bookie.ledgerlist import LedgerFacts
from pyreplog.bookie.local import LocalBookie
from pyreplog.clock import Clock
from pyreplog.errors import NotALogError, WrongLogError
from pyreplog.log.files import Files, RealFiles
from pyreplog.log.names import ASIDE
from pyreplog.metadata.store import MetadataStore

_SEEN = "limbo"

logger = logging.getLogger(__name__)


def open_bookie(
    path: str | os.PathLike[str],
    name: str,
    store: MetadataStore,
    config: BookieConfig | None = None,
    *,
    ledgers: LedgerFacts,
    make_new: bool = False,
    clock: Clock | None = None,
    files: Files | None = None,
) -> tuple[Identity, LocalBookie]:
    """Open the bookie of this name in this directory, or make it when there is none.

    ledgers: what the metadata say of them; asked only when a crash may have taken entries. make_new: as of
    `identity.claim`.
    Errors: those of `identity.claim`, of opening a log, and of `ledgers`; WrongLogError, the log is gone, or, after its
    own recovery, not that of this bookie.
    """
    path, files = Path(path), files if files is not None else RealFiles()
    unseen = bool(_cuts(path))
    mark = BootMark(path, files)
    identity = claim(path, name, store, make_new=make_new, files=files)
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
            (cut / _SEEN).touch()
        if bookie.config.durability == "appended":
            mark.put()
        else:
            mark.remove()
        opened = register(path, identity, store, log.uuid, log.end_position, files=files)
    except BaseException:
        bookie.close()
        raise

    def settle(end: int) -> None:
        try:
            note_end(path, opened, end, files=files)
            mark.remove()
        except OSError as error:  # the entries are safe; the next start knows less, and is careful
            logger.warning("bookie %s: its clean close was not noted: %s", name, error)

    bookie.when_clean = settle
    return opened, bookie


def _enter_limbo(bookie: LocalBookie, identity: Identity, ledgers: LedgerFacts, *, cut: bool, powerless: bool) -> None:
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
