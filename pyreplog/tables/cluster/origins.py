"""The place of a cluster, as the planner sends it to executors; each executor opens the cluster itself."""

from __future__ import annotations

import logging
import socket
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from pyreplog.errors import CorruptionError, FormatVersionError, NotALogError
from pyreplog.ledger.driver import Runtime
from pyreplog.metadata.url import sqlite_file
from pyreplog.net.credentials import Credentials
from pyreplog.tables.cluster.stored_bookies import StoredBookies
from pyreplog.tables.cluster.stored_log import StoredLog
from pyreplog.tables.cluster.stored_metadata import StoredMetadata
from pyreplog.tables.paths import METADATA, bookie_logs

logger = logging.getLogger(__name__)

SegmentBases = tuple[tuple[str, tuple[int, ...]], ...]
"""Where a ledger is stored: (bookie, bases of the segments that have entries of it)."""


@dataclass(frozen=True)
class StoredCluster:
    """The directory of an embedded cluster, which may be running.

    bookies: (id, directory of the log, uuid of the log).
    """

    path: str
    bookies: tuple[tuple[str, str, bytes], ...]

    @contextmanager
    def open(self, segments: Mapping[int, SegmentBases]) -> Iterator[Runtime]:
        """Open the cluster on an executor. Raises NotALogError if this host does not see the directory.

        segments: of the ledgers that are read.
        """
        if not Path(self.path).is_dir():
            raise NotALogError(
                f"{self.path}: no such directory on host {socket.gethostname()}; executors open the files of an "
                "embedded cluster themselves, under the path that the driver was given"
            )
        bases: dict[str, dict[int, tuple[int, ...]]] = {bookie: {} for bookie, _, _ in self.bookies}
        for ledger, places in segments.items():
            for bookie, positions in places:
                bases[bookie][ledger] = positions
        logs = {bookie: StoredLog(Path(log), uuid, bases[bookie]) for bookie, log, uuid in self.bookies}
        with StoredMetadata(Path(self.path) / METADATA) as metadata:
            yield StoredBookies(metadata, logs)


@dataclass(frozen=True)
class RemoteCluster:
    """A cluster whose bookies are reached over TCP. url: of its metadata store."""

    url: str
    credentials: Credentials

    @contextmanager
    def open(self, segments: Mapping[int, SegmentBases]) -> Iterator[Runtime]:
        """Connect to the cluster, and close the connections at the end. segments: not used.

        Raises the errors of `Cluster.connect`, ConfigError for files that `credentials` names, and NotALogError if the
        metadata file does not exist, which a reader does not create.
        """
        from pyreplog.ledger.cluster import LedgerCluster

        file = sqlite_file(self.url)
        if file is not None and not file.is_file():
            host = socket.gethostname()
            raise NotALogError(f"{self.url}: no such file on host {host}; expected a cluster's metadata")
        secret, tls = self.credentials.read_secret(), self.credentials.context()
        with LedgerCluster.connect(self.url, secret=secret, tls=tls) as cluster:
            yield cluster.runtime


Origin = StoredCluster | RemoteCluster


@dataclass(frozen=True)
class ClusterSnapshot:
    """A cluster as the driver sees it while it plans a read."""

    origin: Origin
    runtime: Runtime
    logs: Mapping[str, StoredLog]

    def segments(self, ledger: int) -> SegmentBases:
        """Return where a ledger is stored. Empty over TCP, where the bookies know."""
        return tuple((bookie, tuple(log.bases[ledger])) for bookie, log in self.logs.items() if ledger in log.bases)


@contextmanager
def survey_stored(path: Path) -> Iterator[ClusterSnapshot]:
    """Open a cluster in a directory, with the indexes of its bookies' logs.

    Bookies with unreadable logs are left out.
    """
    logs = {}
    for bookie, log in bookie_logs(path).items():
        try:
            logs[bookie] = StoredLog.survey(log)
        except (NotALogError, CorruptionError, FormatVersionError, OSError) as error:
            logger.warning("bookie %s is left out: %s", bookie, error)
    origin = StoredCluster(str(path), tuple((bookie, str(log.directory), log.uuid) for bookie, log in logs.items()))
    with StoredMetadata(path / METADATA) as metadata:
        yield ClusterSnapshot(origin, StoredBookies(metadata, logs), logs)


@contextmanager
def survey_remote(url: str, credentials: Credentials) -> Iterator[ClusterSnapshot]:
    """Connect to a cluster. Raises the errors of `RemoteCluster.open`."""
    origin = RemoteCluster(url, credentials)
    with origin.open({}) as runtime:
        yield ClusterSnapshot(origin, runtime, {})


def chosen(bookies: Iterable[str], replica: str) -> list[str]:
    """Return the bookies that the option `replica` selects by an id or a name."""
    return [bookie for bookie in bookies if replica in (bookie, bookie.partition("@")[0])]
