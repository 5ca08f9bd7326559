"""The logs that paths lead to: directories, told apart by the files in them, and URLs."""

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
from pyreplog.partition.metadata.broker_registration import IDENTITY as BROKER
from pyreplog.partition.store.partition_reader import partition_directories
from pyreplog.regular_files import read_regular

METADATA = "metadata.sqlite"
"""Name of the metadata file in the directory of an embedded cluster."""

_WILD = "*?["
_REMOTE = re.compile(r"(?!file:)[a-z][a-z0-9+.-]*://", re.IGNORECASE)

logger = logging.getLogger(__name__)


def log_directories(paths: Iterable[str]) -> list[Path]:
    """Return the log directories that paths and globs lead to, each once, in their order.

    The log of a CommitLog or a replica is its directory. The log of a bookie is the bookie's directory, or the log in
    it. The directory of a broker stands for the logs of its partitions that have begun. A glob skips what is no log.
    Offloaded logs are skipped: see `offloaded_urls`. Raises NotALogError if a path is no log, or a glob finds none.
    """
    directories: dict[Path, None] = {}
    for path in paths:
        if _is_offloaded(path):
            continue
        for directory in _matches(_local(path)):
            logs = partition_logs(directory) if is_broker(directory) else [directory]
            directories.update(dict.fromkeys(log.resolve() for log in logs))
    return list(directories)


def is_broker(path: Path) -> bool:
    """Whether a directory is that of a broker of partitions."""
    return (path / BROKER).is_file() and not (path / names.CHECKPOINT).exists()


def partition_logs(broker: Path) -> list[Path]:
    """Return the logs of the partitions in a broker's directory that have a record."""
    return [path for path in partition_directories(broker) if names.segment_bases(path)]


def names_of(directories: Sequence[Path], urls: Sequence[str] = ()) -> dict[str, str]:
    """Return a name for each directory and URL that are read together.

    It is the last part of the path, with as many of the parts before it as the names need to differ.
    """
    names: dict[str, str] = {}
    left, parts = [*map(str, directories), *urls], 1
    while left:
        candidates = {place: "/".join(place.split("/")[-parts:]) for place in left}
        counts = Counter(candidates.values())
        names |= {place: name for place, name in candidates.items() if counts[name] == 1}
        left, parts = [place for place in left if place not in names], parts + 1
    return names


def offloaded_urls(paths: Iterable[str]) -> list[str]:
    """Return the URLs of the offloaded logs among paths, each once, in their order.

    A directory with manifests is one.
    """
    offloaded = [path for path in paths if _is_offloaded(path)]
    urls = [path.rstrip("/") if _REMOTE.match(path) else f"file://{Path(_local(path)).resolve()}" for path in offloaded]
    return list(dict.fromkeys(urls))


def _is_offloaded(path: str) -> bool:
    return _REMOTE.match(path) is not None or (Path(_local(path)) / MANIFESTS).is_dir()


def cluster_of(paths: tuple[str, ...]) -> Path | None:
    """Return the directory of the embedded cluster that the paths name; None: they name something else."""
    if len(paths) != 1 or not (Path(_local(paths[0])) / METADATA).exists():
        return None
    return Path(_local(paths[0])).resolve()


def bookie_logs(cluster: Path) -> dict[str, Path]:
    """Return the logs of an embedded cluster's bookies, by bookie id. Bookies without an identity file are left out."""
    logs = {}
    for log in sorted(cluster.glob(f"*/{LOG}")):
        bookie = bookie_of(log)
        if bookie is not None:
            logs[bookie] = log
    return logs


def bookie_of(log: Path) -> str | None:
    """Return the id of the bookie that a log directory belongs to; None: none, or its identity is unreadable."""
    file = log.parent / IDENTITY
    if log.name != LOG or not file.exists():
        return None
    try:
        return BookieIdentity.decode(file, read_regular(file, FILE_MAX)).id
    except (OSError, CorruptionError, FormatVersionError) as error:
        logger.warning("cannot tell which bookie the log %s belongs to: %s", log, error)
        return None


def _local(path: str) -> str:
    """Return the path of a URL "file:…", as Spark's own sources do; any other path stays as it is."""
    return path.removeprefix("file://") if path.startswith("file:///") else path.removeprefix("file:")


def _matches(path: str) -> list[Path]:
    if Path(path).exists() or not any(letter in path for letter in _WILD):
        return [log_of(Path(path))]
    anchor = Path(path).anchor
    matches = sorted(Path(anchor).glob(path.removeprefix(anchor)))
    logs = [log for match in matches if (log := _find_log(match)) is not None]
    if not logs:
        raise NotALogError(f"{path}: no log among {len(matches)} matches on host {socket.gethostname()}")
    return logs


def log_of(path: Path) -> Path:
    """Return the log directory that a path names. Raises NotALogError, which says what the path is instead."""
    if not path.exists():
        raise NotALogError(f"{path}: no such directory on host {socket.gethostname()}")
    if not path.is_dir():
        raise NotALogError(f"{path} is a file; a log is a directory")
    log = _find_log(path)
    if log is not None:
        return log
    if (path / METADATA).exists():
        raise NotALogError(f"{path} is an embedded cluster: expected it alone, found it among other paths")
    raise NotALogError(f"{path} holds no log: no segment and no checkpoint")


def _find_log(path: Path) -> Path | None:
    if not path.is_dir():
        return None
    if (path / IDENTITY).exists() and (path / LOG).is_dir():
        path = path / LOG
    if is_broker(path):
        return path
    return path if (path / names.CHECKPOINT).exists() or names.segment_bases(path) else None
