"""A cluster in one directory: bookies of this process, in folders of it, and their metadata beside them."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

from pyreplog._native.log.segment import HEADER_BYTES
from pyreplog.bookie.collector import Collector
from pyreplog.bookie.config import BookieConfig
from pyreplog.bookie.ledgerlist import LedgerList
from pyreplog.bookie.local import LocalBookie
from pyreplog.bookie.opening import open_bookie
from pyreplog.clock import Clock
from pyreplog.errors import InvalidArgumentError, LockedError
from pyreplog.ledger.ledger_store import StoredLedgers
from pyreplog.ledger.protocol.pending_adds import ENTRY_BYTES_MAX
from pyreplog.ledger.runtime import EmbeddedRuntime
from pyreplog.log.files import Files, RealFiles, opening_told
from pyreplog.metadata.sqlite import SQLiteStore

METADATA = "metadata.sqlite"
_PREFIX = "bookie-"
_ONE_PROCESS = "one process at a time embeds a cluster; others use what it serves (`pyreplog serve`)"
_MARGIN_BYTES = 64  # what a segment keeps free behind its last record is less


def open_embedded(
    folder: Path,
    count: int,
    config: BookieConfig,
    clock: Clock,
    *,
    replace: bool = False,
    older_metadata: bool = False,
    files: Files | None = None,
) -> EmbeddedRuntime:
    """Open all bookies of `folder`, and make those that `count` lacks. Arguments and errors as Cluster.embedded."""
    if isinstance(count, bool) or not isinstance(count, int) or not 1 <= count <= 1000:
        raise InvalidArgumentError(f"bookies: expected 1 to 1000, found {count!r}")
    files = files if files is not None else RealFiles()
    with opening_told(folder), ExitStack() as opened:
        files.make_directory(folder)
        metadata = opened.enter_context(SQLiteStore(folder / METADATA))
        facts = StoredLedgers(metadata)
        bookies: dict[str, LocalBookie] = {}
        collectors: dict[str, Collector] = {}
        for name in _names(folder, count):
            try:
                identity, bookie = open_bookie(
                    folder / name, name, metadata, config, make_new=replace, older_metadata=older_metadata,
                    clock=clock, ledgers=facts, files=files,
                )  # fmt: skip
            except LockedError as error:
                raise LockedError(error.path, error.pid, _ONE_PROCESS) from error
            bookies[identity.id] = opened.enter_context(bookie)
            ledgers = LedgerList(metadata, facts, identity)
            collectors[identity.id] = Collector(
                bookie.log, bookie.config, ledgers, bookie.with_bookie, on_look=bookie.when_collected
            )
        room = min(bookie.log.log.segment_bytes for bookie in bookies.values()) - HEADER_BYTES - _MARGIN_BYTES
        runtime = EmbeddedRuntime(
            metadata, bookies, collectors, entry_bytes_max=min(ENTRY_BYTES_MAX, room),
            collect_s=config.collect_interval_ms / 1000,
        )  # fmt: skip
        opened.pop_all()
    return runtime


def _names(folder: Path, count: int) -> list[str]:
    """Of the bookies that are there, and of those that are to be: bookie-0, bookie-1, ..."""
    there = {int(path.name.removeprefix(_PREFIX)) for path in folder.glob(f"{_PREFIX}*") if _is_bookie(path)}
    return [f"{_PREFIX}{number}" for number in sorted(there | set(range(count)))]


def _is_bookie(path: Path) -> bool:
    number = path.name.removeprefix(_PREFIX)
    return path.is_dir() and number.isdecimal() and number == str(int(number))
