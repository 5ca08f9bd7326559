"""Opening a bookie: its directory is the right one, its log is there, and what a crash may have lost is in limbo."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterable
from pathlib import Path

from pyreplog.bookie.config import BookieConfig
from pyreplog.bookie.identity import LOG, Identity, claim, register
from pyreplog.bookie.local import LocalBookie
from pyreplog.clock import Clock
from pyreplog.log.files import Files
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
    open_ledgers: Callable[[str], Iterable[int]],
    make_new: bool = False,
    clock: Clock | None = None,
    files: Files | None = None,
) -> tuple[Identity, LocalBookie]:
    """Open the bookie of this name in this directory, or make it when there is none.

    open_ledgers: ids of the ledgers that metadata shows open with this bookie, given its id, in their last ensemble;
    asked only when a crash has cut intact records from the log. make_new: as of `identity.claim`.
    Errors: those of `identity.claim`, of opening a log (NotALogError: the log is gone), and of `open_ledgers`.
    """
    path = Path(path)
    unseen = _cuts(path)
    identity = claim(path, name, store, make_new=make_new, files=files)
    bookie = LocalBookie(
        path, config, create=not identity.registered, incarnation=identity.incarnation, clock=clock, files=files
    )
    try:
        if bookie.log.cut_records or unseen:
            lost = sorted(open_ledgers(identity.id))
            logger.warning("bookie %s: a crash cut records from its log; in limbo: %s", name, lost)
            bookie.with_bookie(lambda machine: machine.enter_limbo(lost))
        for cut in _cuts(path):
            (cut / _SEEN).touch()
        return register(path, identity, store, files=files), bookie
    except BaseException:
        bookie.close()
        raise


def _cuts(path: Path) -> list[Path]:
    """What was cut from the log after crashes, and set aside, and not followed by putting ledgers into limbo."""
    return [cut for cut in (path / LOG / ASIDE).glob("*") if not (cut / _SEEN).exists()]
