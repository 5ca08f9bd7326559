"""Opens a cluster in one directory: a folder for each bookie, all run by this process, and one metadata database."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

from pyreplog._native.log.segment import HEADER_BYTES
from pyreplog.bookie.collector import Collector
from pyreplog.bookie.config import BookieConfig
from pyreplog.bookie.ledger_list import LedgerList
from pyreplog.bookie.local_bookie import LocalBookie
from pyreplog.bookie.opening import open_bookie
from pyreplog.clock import Clock
from pyreplog.errors import InvalidArgumentError, LockedError
from pyreplog.ledger.ledger_store import StoredLedgers
from pyreplog.ledger.protocol.pending_adds import ENTRY_BYTES_MAX
from pyreplog.ledger.runtime import EmbeddedRuntime
from pyreplog.log.files import Files, RealFiles, translate_open_errors
from pyreplog.metadata.sqlite import SQLiteStore

METADATA = "metadata.sqlite"
_PREFIX = "bookie-"
_ONE_PROCESS = "one process at a time embeds a cluster; other processes connect to a server (`pyreplog serve`)"
_MARGIN_BYTES = 64  # more than the free bytes that a segment keeps behind its last record


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
    """Open all bookies of a folder, and make new ones up to `count`.

    Arguments and errors are those of `LedgerCluster.embedded`.
    """
    if isinstance(count, bool) or not isinstance(count, int) or not 1 <= count <= 1000:
        raise InvalidArgumentError(f"bookies: expected 1 to 1000, found {count!r}")
    files = files if files is not None else RealFiles()
    with translate_open_errors(folder), ExitStack() as opened:
        files.make_directory(folder)
        metadata = opened.enter_context(SQLiteStore(folder / METADATA))
        stored = StoredLedgers(metadata)
        bookies: dict[str, LocalBookie] = {}
        collectors: dict[str, Collector] = {}
        for name in _names(folder, count):
            try:
                identity, bookie = open_bookie(
                    folder / name, name, metadata, config, make_new=replace, older_metadata=older_metadata,
                    clock=clock, ledgers=stored, files=files,
                )  # fmt: skip
            except LockedError as error:
                raise LockedError(error.path, error.pid, _ONE_PROCESS) from error
            bookies[identity.id] = opened.enter_context(bookie)
            ledgers = LedgerList(metadata, stored, identity)
            collectors[identity.id] = Collector(
                bookie.log, bookie.config, ledgers, bookie.with_bookie, on_metadata_read=bookie.on_metadata_read,
                damaged=bookie.scrubber.damaged,
            )  # fmt: skip
        entry_room = min(bookie.log.log.segment_bytes for bookie in bookies.values()) - HEADER_BYTES - _MARGIN_BYTES
        runtime = EmbeddedRuntime(
            metadata, bookies, collectors, entry_bytes_max=min(ENTRY_BYTES_MAX, entry_room),
            collect_s=config.collect_interval_ms / 1000,
        )  # fmt: skip
        opened.pop_all()
    return runtime


def _names(folder: Path, count: int) -> list[str]:
    """Return the names of the bookies that exist or are to be made: bookie-0, bookie-1, ..."""
    existing = {int(path.name.removeprefix(_PREFIX)) for path in folder.glob(f"{_PREFIX}*") if _is_bookie(path)}
    return [f"{_PREFIX}{number}" for number in sorted(existing | set(range(count)))]


def _is_bookie(path: Path) -> bool:
    number = path.name.removeprefix(_PREFIX)
    return path.is_dir() and number.isdecimal() and number == str(int(number))
