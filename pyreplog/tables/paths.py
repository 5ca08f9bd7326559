"""What paths point to: log directories, told from the others by the files in them."""

from __future__ import annotations

import logging
import re
import socket
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path

from pyreplog.bookie.identity import FILE_MAX, IDENTITY, LOG, BookieIdentity
from pyreplog.errors import CorruptionError, FormatVersionError, NotALogError
from pyreplog.log import names
from pyreplog.offload.manifest import MANIFESTS
from pyreplog.regular_files import read_regular

METADATA = "metadata.sqlite"
"""Name of an embedded cluster's metadata in its directory."""

_WILD = "*?["
_REMOTE = re.compile(r"(?!file:)[a-z][a-z0-9+.-]*://", re.IGNORECASE)

logger = logging.getLogger(__name__)


def log_directories(paths: Iterable[str]) -> list[Path]:
    """The log directories that paths and globs lead to, each once, in their order.

    A log (a CommitLog's, a replica's) is meant by its directory, a bookie's log by the bookie's directory or its own.
    A glob passes over what is no log. Offloaded logs are no directories: see `offloaded_urls`.
    NotALogError: a path is none, or a glob finds none.
    """
    found: dict[Path, None] = {}
    for path in paths:
        if _is_offloaded(path):
            continue
        for directory in _matches(_local(path)):
            found.setdefault(directory.resolve())
    return list(found)


def names_of(directories: Sequence[Path], urls: Sequence[str] = ()) -> dict[str, str]:
    """What the logs of directories and URLs that are read together are called: as the last part, after as many of those
    before it as tell them apart."""
    found: dict[str, str] = {}
    left, parts = [*map(str, directories), *urls], 1
    while left:
        called = {place: "/".join(place.split("/")[-parts:]) for place in left}
        often = Counter(called.values())
        found |= {place: name for place, name in called.items() if often[name] == 1}
        left, parts = [place for place in left if place not in found], parts + 1
    return found


def offloaded_urls(paths: Iterable[str]) -> list[str]:
    """URLs of the offloaded logs among paths, each once, in their order. A directory is one by the manifests in it."""
    found = [path for path in paths if _is_offloaded(path)]
    urls = [path.rstrip("/") if _REMOTE.match(path) else f"file://{Path(_local(path)).resolve()}" for path in found]
    return list(dict.fromkeys(urls))


def _is_offloaded(path: str) -> bool:
    return _REMOTE.match(path) is not None or (Path(_local(path)) / MANIFESTS).is_dir()


def cluster_of(paths: tuple[str, ...]) -> Path | None:
    """The embedded cluster that is meant; None: it is none."""
    if len(paths) != 1 or not (Path(_local(paths[0])) / METADATA).exists():
        return None
    return Path(_local(paths[0])).resolve()


def bookie_logs(cluster: Path) -> dict[str, Path]:
    """The logs of an embedded cluster's bookies, by their ids; what has lost its identity is left out."""
    found = {}
    for log in sorted(cluster.glob(f"*/{LOG}")):
        bookie = bookie_of(log)
        if bookie is not None:
            found[bookie] = log
    return found


def bookie_of(log: Path) -> str | None:
    """The bookie whose log a directory is; None: it is nobody's, as far as its files say."""
    file = log.parent / IDENTITY
    if log.name != LOG or not file.exists():
        return None
    try:
        return BookieIdentity.decode(file, read_regular(file, FILE_MAX)).id
    except (OSError, CorruptionError, FormatVersionError) as error:
        logger.warning("whose log %s is cannot be told: %s", log, error)
        return None


def _local(path: str) -> str:
    """Spark's own sources take URLs of local files."""
    return path.removeprefix("file://") if path.startswith("file:///") else path.removeprefix("file:")


def _matches(path: str) -> list[Path]:
    if Path(path).exists() or not any(letter in path for letter in _WILD):
        return [log_of(Path(path))]
    anchor = Path(path).anchor
    matches = sorted(Path(anchor).glob(path.removeprefix(anchor)))
    found = [log for match in matches if (log := _look(match)) is not None]
    if not found:
        raise NotALogError(f"{path}: no log among {len(matches)} matches on host {socket.gethostname()}")
    return found


def log_of(path: Path) -> Path:
    """The log directory that a path means. NotALogError says what is there instead."""
    if not path.exists():
        raise NotALogError(f"{path}: no such directory on host {socket.gethostname()}")
    if not path.is_dir():
        raise NotALogError(f"{path} is a file; a log is a directory")
    found = _look(path)
    if found is not None:
        return found
    if (path / METADATA).exists():
        raise NotALogError(f"{path} is an embedded cluster: expected it alone, found it among other paths")
    raise NotALogError(f"{path} holds no log: no segment and no checkpoint")


def _look(path: Path) -> Path | None:
    if not path.is_dir():
        return None
    if (path / IDENTITY).exists() and (path / LOG).is_dir():
        path = path / LOG
    return path if (path / names.CHECKPOINT).exists() or names.segment_bases(path) else None
